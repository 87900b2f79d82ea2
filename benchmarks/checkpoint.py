"""Cost of `[checkpoint]` for a benchmark that saves its state: runs with and without this table, in turns.

    python benchmarks/checkpoint.py [--rounds 10] [--seconds 6] [--mebibytes 64] [--every 1s]

The program multiplies numbers for a fixed count of steps, and in each second writes a new file and renames it, as
docs/checkpoints.md says. Each round gives a ratio, so that a drift of the machine cancels out. The ratio of the benchmark's CPU
time shows the effect of shared caches and memory. The ratio of the wall time also shows the effect of shared CPUs and disks. The
last line is the CPU time of the agent. `--every 1s` is far more often than the default of 10m. For other intervals, the cost is
proportional to the frequency.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_job import finish, start_agent, write_job
from goals import interval

PROGRAM = """
import os, sys, time
seconds, size = float(sys.argv[1]), int(sys.argv[2]) << 20
folder = os.environ.get("BAI_CHECKPOINT_DIR", "checkpoints")
os.makedirs(folder, exist_ok=True)

def work(steps):
    value = 1
    for step in range(steps):
        value = value * 6364136223846793005 % 18446744073709551557

begin = time.process_time()
work(200_000)
in_a_second = int(200_000 / (time.process_time() - begin)) if len(sys.argv) < 4 else int(sys.argv[3])
print("steps", in_a_second, flush=True)
state = bytearray(os.urandom(1 << 20) * (size >> 20))
for second in range(int(seconds)):
    work(in_a_second)
    state[:8] = second.to_bytes(8, "little")
    with open(os.path.join(folder, "state.new"), "wb") as file:
        file.write(state)
    os.rename(os.path.join(folder, "state.new"), os.path.join(folder, "state"))
"""


@dataclass(frozen=True)
class Run:
    """What one run took."""

    cpu_s: float
    wall_s: float
    agent_s: float
    """CPU time of the agent."""
    kept: int
    kept_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--every", default="1s")
    options = parser.parse_args()
    print_cost(
        measure(options.rounds, seconds=options.seconds, mebibytes=options.mebibytes, every=options.every)
    )


def measure(rounds: int, *, seconds: int, mebibytes: int, every: str) -> list[tuple[Run, Run]]:
    """Return for each round the run without `[checkpoint]` and the run with `[checkpoint]`."""
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as name:
        folder = Path(name)
        program = folder / "saves.py"
        program.write_text(PROGRAM)
        command = [sys.executable, str(program), str(seconds), str(mebibytes)]
        # Without it the count of steps would depend on the load at each start.
        run(folder, [*command[:2], "0", "1"], {})
        steps = int((folder / "run" / "output.log").read_text().split()[1])
        command.append(str(steps))
        table = {"checkpoint": {"path": "checkpoints", "every": every}}
        return [(run(folder, command, {}), run(folder, command, table)) for _ in range(rounds)]


def run(folder: Path, command: list[str], tables: dict[str, Any]) -> Run:
    """Run the program under an agent."""
    rundir = folder / "run"
    shutil.rmtree(rundir, ignore_errors=True)
    ended = finish(start_agent(write_job(folder, command, **tables), rundir), rundir)
    result = json.loads((rundir / "result.json").read_bytes())
    kept = result.get("checkpoints") or {"kept": 0, "bytes": 0}
    return Run(
        cpu_s=ended["user_seconds"] + ended["system_seconds"],
        wall_s=ended["wall_seconds"],
        agent_s=result["own_usage"][0]["agent"]["cpu_seconds"],
        kept=kept["kept"],
        kept_bytes=kept["bytes"],
    )


def print_cost(rounds: list[tuple[Run, Run]]) -> None:
    """Print the ratios, and the agent's CPU time for checkpoints."""
    print("| | without | with | ratio | 95 % interval |")
    print("|---|---:|---:|---:|---|")
    for title, name in (("CPU time of the benchmark, s", "cpu_s"), ("its wall time, s", "wall_s")):
        values = [(getattr(without, name), getattr(with_it, name)) for without, with_it in rounds]
        ratios = [with_it / without for without, with_it in values]
        low, high = interval(ratios)
        plain, other = (statistics.median(each) for each in zip(*values, strict=True))
        print(
            f"| {title} | {plain:.2f} | {other:.2f} | {statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} |"
        )
    more = statistics.median(with_it.agent_s - without.agent_s for without, with_it in rounds)
    kept = statistics.median(with_it.kept for _, with_it in rounds)
    size = statistics.median(with_it.kept_bytes for _, with_it in rounds)
    print(
        f"\n{kept:g} checkpoints of {size / (kept or 1) / 2**20:.0f} MiB per run; the agent took {more:.2f} s of CPU time for these checkpoints, "
        f"{more / (size / 2**30 or 1):.2f} s per GiB"
    )


if __name__ == "__main__":
    main()
