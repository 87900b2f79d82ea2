"""How long `bai report` takes for a job of a million points, and how large its page is.

    .venv/bin/python benchmarks/report.py [POINTS]

The job has two nodes and four metrics, with steps and noise. Reading the record alone is timed beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_NODES, _METRICS = 2, 4
_START = 1_795_000_000_000
_BAI = "from executor.cli import main; main()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", type=int, nargs="?", default=1_000_000)
    points = parser.parse_args().points
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        _write_job(store, points)
        page = store / "report.html"
        environment = {**os.environ, "BAI_STORE": folder}
        for form, output in (("html", page), ("md", store / "report.md"), ("csv", store / "report.csv")):
            before, started = _children(), time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", _BAI, "report", "million", "--format", form, "-o", output],
                check=True,
                env=environment,
                stdout=subprocess.DEVNULL,
            )
            wall, cpu = time.perf_counter() - started, _children() - before
            print(
                f"{form:<5} {points:,} points: {wall:.1f} s ({cpu:.1f} s of CPU), {output.stat().st_size / 1e6:.2f} MB"
            )


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _write_job(store: Path, points: int) -> None:
    job = store / "million"
    job.mkdir()
    metrics = "".join(
        f'[[metrics]]\nname = "metric{each}"\npattern = "x"\nunits = "ms"\n' for each in range(_METRICS)
    )
    (job / "job.toml").write_text(
        'version = 1\n[job]\nid = "million"\nname = "a million points"\n[benchmark]\nargv = ["true"]\n'
        f'[strategy]\nname = "torchrun"\nnodes = {_NODES}\n{metrics}'
    )
    noise = random.Random(1)
    each_node = points // _NODES
    for rank in range(_NODES):
        node = job / "attempts/0/nodes" / str(rank)
        (node / "metrics").mkdir(parents=True)
        events = [
            {"time": _START, "type": "phase", "phase": "run", "state": "started", "seconds": None},
            {
                "time": _START + each_node * 2,
                "type": "phase",
                "phase": "run",
                "state": "finished",
                "seconds": each_node / 500,
            },
        ]
        (node / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        with (node / "metrics" / f"{0:020}.jsonl").open("w") as file:
            for seq in range(each_node):
                step, metric = divmod(seq, _METRICS)
                value = 50 + 20 * math.sin(step / 9000) + noise.gauss(0, 3)
                file.write(
                    f'{{"seq":{seq},"src":"log","off":{seq * 40},"i":{metric},"k":0,"name":"metric{metric}","value":{value:.5f},'
                    f'"units":"ms","timestamp":{_START + seq * 2},"step":{step}}}\n'
                )


if __name__ == "__main__":
    main()
