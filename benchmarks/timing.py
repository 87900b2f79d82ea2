"""`bai time` and hyperfine on the same commands, in turns: the reported wall times, and the pause between two runs of `bai time`.

    python benchmarks/timing.py [--rounds 12] [--runs 15]

hyperfine (Debian's package) runs without a shell, as `bai time` does. The table compares medians over the rounds. The order of
`bai time` and hyperfine changes from round to round. A pause lasts from the end of a run to the beginning of the next run, by the
job's record.
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
from pathlib import Path
from typing import Any

from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore

COMMANDS = ("true", "sleep 0.01", "sleep 0.02", "seq 300000")
_LIMIT_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    if shutil.which("hyperfine") is None:
        sys.exit("hyperfine is not installed: scripts/debian-packages hyperfine")
    medians: dict[str, dict[str, list[float]]] = {name: {"bai": [], "hyperfine": []} for name in COMMANDS}
    pauses: list[float] = []
    with tempfile.TemporaryDirectory(prefix="time-") as name:
        for turn in range(options.rounds):
            tools = ["bai", "hyperfine"] if turn % 2 else ["hyperfine", "bai"]
            for tool in tools:
                measured = (
                    timed_by_bai(Path(name), options.runs, pauses)
                    if tool == "bai"
                    else timed_by_hyperfine(Path(name), options.runs)
                )
                for command, times in measured.items():
                    medians[command][tool].append(1000 * statistics.median(times))
    print(f"{options.rounds} rounds of {options.runs} runs; medians in ms")
    print("| command | `bai time` | hyperfine | difference |")
    print("|---|---:|---:|---:|")
    for command, found in medians.items():
        bai, peer = (statistics.median(found[tool]) for tool in ("bai", "hyperfine"))
        print(f"| `{command}` | {bai:.2f} | {peer:.2f} | {bai - peer:+.2f} |")
    pauses.sort()
    print(
        f"\nbetween two runs of `bai time`: {statistics.median(pauses):.0f} ms in the middle, {pauses[int(0.95 * len(pauses))]:.0f} ms in 95 of 100"
    )


def timed_by_bai(folder: Path, runs: int, pauses: list[float]) -> dict[str, list[float]]:
    """Return the wall times in seconds by command; add the pauses between two runs to `pauses` (ms)."""
    store = folder / "jobs"
    job_id = f"round-{len(list(store.glob('*')))}"
    output = folder / f"{job_id}.json"
    program = [sys.executable, "-c", "from executor.cli import main; main()", "time", *COMMANDS]
    counts = ["--runs", str(runs), "--warmup", "2"]
    places = ["--job-id", job_id, "--store", str(store), "--export-json", str(output)]
    measured = _run([*program, *counts, *places], output)
    result = JobRecord(DirectoryStore(store), job_id).result()
    assert result is not None
    ended = None
    for each in result["repeats"]:
        if ended is not None:
            pauses.append(each["started"] - ended)
        ended = each["ended"]
    return measured


def timed_by_hyperfine(folder: Path, runs: int) -> dict[str, list[float]]:
    """Return the wall times that hyperfine measures, in seconds, by command."""
    output = folder / "hyperfine.json"
    words = ["hyperfine", "-N", "--warmup", "2", "--runs", str(runs), "--export-json", str(output)]
    return _run([*words, *COMMANDS], output)


def _run(words: list[str], output: Path) -> dict[str, list[float]]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run(
        words,
        check=True,
        timeout=_LIMIT_S,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    results: list[dict[str, Any]] = json.loads(output.read_text())["results"]
    return {each["command"]: each["times"] for each in results}


if __name__ == "__main__":
    main()
