"""CPU time that `bai` adds to a benchmark that prints 100,000 lines a second.

    python benchmarks/overhead.py [--pairs 20] [--seconds 3]

The same program, with the same buffering, runs in turns: under a whole `bai-agent run` with ten patterns, with `> file`, and
through `tee`. A ratio compares two runs of the same round, so that a drift of the machine cancels out. The base of the ratios is
the run with `> file`. The table shows the median and its 95 % interval (by bootstrap). In the second table, the agent runs the
program with the default buffering, a write for each line. The base of this table is `python -u > file`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from agent_job import finish, plain_environment, start_agent, write_job
from goals import interval

PRINTER = """
import sys, time
rate, seconds = 100_000, float(sys.argv[1])
start = time.monotonic()
for block in range(int(rate * seconds) // 1000):
    for number in range(1000):
        print("step", block * 1000 + number, "loss=0.123456 accuracy=0.9876 and some more text up to 86 bytes")
    time.sleep(max(0.0, start + (block + 1) * 1000 / rate - time.monotonic()))
"""

METRICS = [{"name": f"metric_{number}", "pattern": rf"metric_{number}=(\d+\.\d+)"} for number in range(9)] + [
    {"name": "sparse", "pattern": r"step \d+000 loss=(\d+\.\d+)"}
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        folder = Path(name)
        program = folder / "printer.py"
        program.write_text(PRINTER)
        command = [sys.executable, str(program), str(options.seconds)]
        unbuffered = [sys.executable, "-u", str(program), str(options.seconds)]
        compare(
            "buffering of its own (whole blocks)",
            options.pairs,
            base=lambda: into_file(command, folder),
            others={
                "bai-agent": lambda: under_agent(command, folder, buffering="own"),
                "through `tee`": lambda: through_tee(command, folder),
            },
        )
        compare(
            "a write for each line",
            options.pairs,
            base=lambda: into_file(unbuffered, folder),
            others={"bai-agent (its default)": lambda: under_agent(command, folder, buffering="line")},
        )


def compare(
    title: str, pairs: int, *, base: Callable[[], float], others: dict[str, Callable[[], float]]
) -> None:
    """Run `base` and all of `others` in turns, and print a table of CPU seconds and ratios."""
    bases: list[float] = []
    figures: dict[str, list[float]] = {name: [] for name in others}
    for measure in (base, *others.values()):
        measure()  # the first run of anything pays for cold caches
    for _ in range(pairs):
        bases.append(base())
        for name, measure in others.items():
            figures[name].append(measure())
    print(f"\n{title}; {pairs} rounds, CPU seconds of the printing process")
    print("| | median | ratio to `> file` | 95 % interval |")
    print("|---|---|---|---|")
    print(f"| `> file` | {statistics.median(bases):.3f} | 1 | |")
    for name, values in figures.items():
        ratios = [value / base for value, base in zip(values, bases, strict=True)]
        low, high = interval(ratios)
        print(
            f"| {name} | {statistics.median(values):.3f} | {statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} |"
        )


def into_file(command: list[str], folder: Path) -> float:
    with (folder / "plain.log").open("wb") as output:
        return cpu_seconds(subprocess.Popen(command, stdout=output, stderr=output, env=plain_environment()))


def through_tee(command: list[str], folder: Path) -> float:
    with subprocess.Popen(
        ["tee", folder / "tee.log"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as tee:
        child = subprocess.Popen(command, stdout=tee.stdin, stderr=tee.stdin, env=plain_environment())
        assert tee.stdin is not None
        tee.stdin.close()
        return cpu_seconds(child)


def under_agent(command: list[str], folder: Path, *, buffering: str) -> float:
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as name:
        rundir = Path(name) / "run"
        job = write_job(Path(name), command, buffering=buffering, metrics=METRICS)
        ended = finish(start_agent(job, rundir), rundir)
        return float(ended["user_seconds"] + ended["system_seconds"])


def cpu_seconds(child: subprocess.Popen[bytes]) -> float:
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"the printer failed with {child.returncode}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
