"""How long `bai list`, `bai status last` and `bai top` take in a folder with many jobs.

    python benchmarks/listing.py [--jobs 50 1000 10000] [--rounds 7]

All jobs have ended, except one job, whose record shows a running job. The peers in the same rounds are `ls -t` of the folder, and
the same commands without an index of ended jobs. Without an index, a command reads the result of each job. `bai` writes an index
if a folder has 64 or more jobs, so the smallest folder has no index.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from goals import print_figure

_START = 1_795_000_000_000
_BAI = (sys.executable, "-c", "from executor.__main__ import main; main()")
_COMMANDS = {"list": ("list",), "status last": ("status", "last"), "top": ("top",)}
_GOALS = {"list": "list-many", "status last": "status-last-many", "top": "top-many"}
_SETTLED_S = 3
"""Minimum age of a record that `bai` adds to an index (seconds)."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, nargs="+", default=[50, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(
        "| jobs | command | s | s of CPU | first time, s of CPU | without index, s of CPU | `ls -t`, s of CPU |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|")
    figures: dict[str, tuple[str, list[float]]] = {}
    for count in options.jobs:
        with tempfile.TemporaryDirectory(prefix="listing-") as name, running_job(Path(name) / "jobs", count):
            for command, walls in compare(Path(name), count, rounds=options.rounds).items():
                if count >= 10_000:
                    figures[command] = (f"{count:,} jobs", walls)
    for command, (case, walls) in figures.items():
        print_figure(_GOALS[command], walls, case=case)


def compare(folder: Path, count: int, *, rounds: int) -> dict[str, list[float]]:
    """Print a row for each command; return their wall times by command."""
    time.sleep(_SETTLED_S)
    # What is a file can hold no index.
    blocked = folder / "blocked"
    blocked.touch()
    with_index = {"BAI_STORE": str(folder / "jobs"), "XDG_CACHE_HOME": str(folder / "cache")}
    ways = {"index": with_index, "none": {**with_index, "XDG_CACHE_HOME": str(blocked)}}
    run((*_BAI, "list"), ways["none"])  # pays for cold caches
    first = {
        command: run((*_BAI, *words), {**with_index, "XDG_CACHE_HOME": str(folder / f"new-{words[0]}")})[1]
        for command, words in _COMMANDS.items()
    }
    run((*_BAI, "list"), with_index)
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for command, words in _COMMANDS.items():
            for way, environment in ways.items():
                taken.setdefault((command, way), []).append(run((*_BAI, *words), environment))
            ls = run(("sh", "-c", 'ls -t "$BAI_STORE" | head -30'), with_index)
            taken.setdefault((command, "ls"), []).append(ls)
    walls = {}
    for command in _COMMANDS:
        walls[command] = [wall for wall, _ in taken[command, "index"]]
        index, none, ls_t = (
            statistics.median(cpu for _, cpu in taken[command, way]) for way in ("index", "none", "ls")
        )
        print(
            f"| {count:,} | `bai {command}` | {statistics.median(walls[command]):.2f} | {index:.2f} "
            f"| {first[command]:.2f} | {none:.2f} | {ls_t:.2f} |",
            flush=True,
        )
    return walls


def run(command: tuple[str, ...], environment: Mapping[str, str]) -> tuple[float, float]:
    """Run a command; return the seconds that it took, of the clock and of CPU."""
    before, begun = _children(), time.perf_counter()
    subprocess.run(
        command, check=True, timeout=300, env={**os.environ, **environment}, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - begun, _children() - before


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def running_job(store: Path, count: int) -> Iterator[None]:
    """Write `count` jobs. One of the jobs looks like a running job as long as the `with` block runs."""
    for number in range(count):
        job_id = f"job-{number:06}"
        started = _START + number * 60_000
        node = store / job_id / "attempts/0/nodes/0"
        node.mkdir(parents=True)
        (store / job_id / "job.toml").write_text(
            f'version = 1\n[job]\nid = "{job_id}"\nname = "benchmark"\n[job.labels]\nteam = "vision"\n'
            '[benchmark]\nargv = ["python3", "train.py"]\n[[metrics]]\nname = "loss"\npattern = "loss=(.*)"\n'
        )
        event = {"time": started, "type": "agent_started", "pid": 1}
        (node / "events.jsonl").write_text(json.dumps(event) + "\n")
        if number != count // 2:
            (store / job_id / "result.json").write_text(json.dumps(_result(job_id, started)))
        else:
            lock = (node / "agent.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    with lock:
        yield


def _result(job_id: str, started: int) -> dict[str, object]:
    return {
        "version": 1,
        "job_id": job_id,
        "outcome": "succeeded",
        "status": "SUCCEEDED",
        "exit_code": 0,
        "sentence": "The benchmark succeeded.",
        "started": started,
        "ended": started + 50_000,
        "metrics": {"headlines": {"loss": {"value": 0.25, "units": "nats", "name": "loss"}}},
    }


if __name__ == "__main__":
    main()
