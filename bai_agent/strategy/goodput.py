"""Computes the best number of nodes for an AdaptDL job from the job's hints, and prints the number: `python
goodput.py QUESTION`.

QUESTION is a JSON object with four keys: `hints` (as AdaptDL sends them), `current` and `most` (current and
largest number of nodes), and `slots` (replicas per node). The rule is the one that AdaptDL uses on AWS, in
adaptdl_ray/aws/optimizer.py. The rule chooses the largest number of nodes whose speed-up over one node is at
least half of that number. The program keeps the current number if the chosen number is only slightly faster,
or differs only slightly from the current number.

The program runs as the benchmark's user in the benchmark's Python, which has AdaptDL, numpy and scipy. The
benchmark's Python can be older than the agent's, so the syntax is that of Python 3.6.
"""

import json
import resource
import signal
import sys
from importlib import import_module
from typing import Any

MARK = "bai: nodes wanted "
"""Start of the output line that contains the result. Python's start-up files can print other lines before the
line."""
FLOOR = 0.5
"""Smallest speed-up per node with which a number of nodes can be chosen (the speed-up divided by the number
of nodes)."""
LEAST_GAIN = 1.05
"""Smallest speed-up over the current number of nodes that justifies a change."""
LEAST_CHANGE = 0.15
"""Smallest change of the number of nodes, as a share of the current number."""
CPU_SECONDS = 5
"""CPU time limit of one run of this program, imports included (seconds)."""
SECONDS = 50
"""Time limit of one run of this program (seconds). The time limit is long, because the benchmark can use most
of the CPU time."""


def nodes_wanted(hints: Any, current: int, most: int, slots: int) -> Any:
    """Return the best number of nodes, and the speed-ups over one node with the best and with the current
    number of nodes. Raises ValueError."""
    np = import_module("numpy")
    if not hasattr(np, "int"):
        vars(np)["int"] = int  # AdaptDL's last version is older than numpy 1.24
    adaptdl = import_module("adaptdl.goodput")
    gradient = hints["gradParams"] or {"norm": 1.0, "var": 1.0}
    goodput = adaptdl.GoodputFunction(
        adaptdl.PerfParams(**hints["perfParams"]),
        adaptdl.GradParams(gradient["norm"], gradient["var"]),
        hints["initBatchSize"],
    )
    bounds = hints["localBszBounds"]
    options = {
        "max_batch_size": hints["maxBatchSize"],
        "atomic_bsz_range": tuple(bounds) if bounds else None,
        "accumulation": hints["gradientAccumulation"],
    }
    nodes = np.arange(1, most + 1)
    with np.errstate(all="ignore"):
        speed = goodput.optimize(nodes, nodes * slots, **options)[0]
        speedup = speed / speed[0]
    if not np.all(np.isfinite(speedup)):
        raise ValueError("the goodput of one node is 0 or unknown")
    now = min(current, most)
    best = int(nodes[speedup / nodes >= FLOOR].max())
    # AdaptDL's rule, too, compares one node more than the best number with the current number.
    is_slower = speedup[best - 1] < LEAST_GAIN * speedup[now - 1]
    if is_slower or abs(best + 1 - current) < LEAST_CHANGE * current:
        best = now
    return {"nodes": best, "speedup": float(speedup[best - 1]), "current": float(speedup[now - 1])}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    signal.alarm(SECONDS)  # works even if the agent is gone
    if not getattr(sys.flags, "safe_path", False):  # since Python 3.11
        del sys.path[0]  # this file's folder, whose modules other packages must not import
    answer = nodes_wanted(**json.loads(sys.argv[1]))
    sys.stdout.write("\n" + MARK + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
