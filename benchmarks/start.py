"""Start times: from the start of a run to the benchmark's first instruction, and the time of commands that show jobs.

    python benchmarks/start.py [--rounds 20]

Nothing is pulled, the disk is warm, and the agent already knows the benchmark's Python. The peer is the start of a bare Python
that imports nothing. Each round also measures the peer, so that both times of a ratio are from about the same moment.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agent_job import ROOT, finish, plain_environment, start_agent, write_job
from goals import interval, print_figure

BAI = Path(sys.executable).with_name("bai")
PRINT_TIME = ["date", "+%s.%N"]
DESCRIPTOR = """
spec_version = "0.1.0"
[info]
description = "prints the time"
[hardware]
instance_type = "t3.small"
[ml]
benchmark_code = "date +%s.%N"
"""
TITLES = {
    "bare": "`python3 -c pass`",
    "agent-start": "`bai-agent run` to the benchmark's first instruction",
    "agent-end": "the benchmark's exit to the agent's",
    "run-start": "`bai run` to the benchmark's first instruction",
    "list-two": "`bai list` with 2 jobs",
    "status-two": "`bai status` with 2 jobs",
    "help": "`bai --help`",
}
GOALS = ("agent-start", "run-start", "list-two", "status-two", "help")


class Commands:
    """`bai` with a store, a cache and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "date.toml"
        self._file.write_text(DESCRIPTOR)
        self._env = {**plain_environment(), "XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)}
        for _ in range(2):
            self._bai("run", self._file, store="two")

    def seconds(self, *words: str) -> float:
        """Return the seconds that the command `words` takes with a store of two jobs."""
        return timed(lambda: self._bai(*words, store="two"))

    def run_seconds(self) -> float:
        """Return the time until the first instruction of a run."""
        shutil.rmtree(self._folder / "one", ignore_errors=True)
        begun = time.time()
        self._bai("run", self._file, store="one")
        (output,) = (self._folder / "one").glob("*/attempts/0/nodes/0/output.log")
        return float(output.read_text().split()[0]) - begun

    def agent_seconds(self) -> tuple[float, float]:
        """Return the seconds from an agent's start to the benchmark's first instruction, and from the benchmark's exit to the
        agent's."""
        rundir = self._folder / "run"
        shutil.rmtree(rundir, ignore_errors=True)
        job = write_job(self._folder, PRINT_TIME, host_metrics={"enabled": False})
        begun = time.time()
        finish(start_agent(job, rundir), rundir)
        ended = time.time()
        gone = json.loads((rundir / "exit.json").read_bytes())["time"] / 1000
        return float((rundir / "output.log").read_text()) - begun, ended - gone

    def _bai(self, *words: str | Path, store: str) -> None:
        env = {**self._env, "BAI_STORE": str(self._folder / store)}
        subprocess.run(
            [BAI, *words],
            check=True,
            timeout=120,
            env=env,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds `work` takes."""
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def one_round(commands: Commands) -> dict[str, float]:
    """Measure each row of the table once; return the seconds by the row's name."""
    bare = timed(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True, timeout=60))
    start, end = commands.agent_seconds()
    return {
        "bare": bare,
        "agent-start": start,
        "agent-end": end,
        "run-start": commands.run_seconds(),
        "list-two": commands.seconds("list"),
        "status-two": commands.seconds("status", "last"),
        "help": commands.seconds("--help"),
    }


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        commands = Commands(Path(folder))
        # The first pays for cold caches.
        rounds = [one_round(commands) for _ in range(options.rounds + 1)][1:]
    print(f"{options.rounds} rounds, medians with their 95 % intervals; load {os.getloadavg()[0]:.1f}")
    print("| | milliseconds | times a bare Python's start in the same round |")
    print("|---|---:|---:|")
    for name, title in TITLES.items():
        values = [1000 * each[name] for each in rounds]
        ratios = [each[name] / each["bare"] for each in rounds]
        print(f"| {title} | {with_interval(values, '.0f')} | {with_interval(ratios, '.1f')} |")
    print()
    for name in GOALS:
        print_figure(name, [1000 * each[name] for each in rounds])


def with_interval(values: list[float], form: str) -> str:
    """Return the median with its interval."""
    low, high = interval(values)
    return f"{statistics.median(values):{form}} ({low:{form}} to {high:{form}})"


if __name__ == "__main__":
    main()
