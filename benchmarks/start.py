"""How long it takes from `bai-agent run` to the benchmark's first instruction, and from its exit to the agent's.

    python benchmarks/start.py [--rounds 20]

Nothing is pulled, the disk is warm. The peer is the start of a bare Python that imports nothing, in the same rounds: what
the language itself costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agent_job import finish, start_agent, write_job


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    figures: dict[str, list[float]] = {"bare": [], "start": [], "end": []}
    for turn in range(options.rounds + 1):
        figure = one_round()
        if turn:  # the first pays for cold caches
            for name, value in figure.items():
                figures[name].append(value)
    bare = statistics.median(figures["bare"])
    print(f"{options.rounds} rounds, medians")
    print("| | milliseconds | times a bare Python's start |")
    print("|---|---|---|")
    for title, name in (
        ("`python3 -c pass`", "bare"),
        ("`bai-agent run` to the benchmark's first instruction", "start"),
        ("the benchmark's exit to the agent's", "end"),
    ):
        value = statistics.median(figures[name])
        print(f"| {title} | {1000 * value:.0f} | {value / bare:.1f} |")


def one_round() -> dict[str, float]:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True, timeout=60)
    bare = time.monotonic() - begun
    with tempfile.TemporaryDirectory(prefix="start-") as name:
        rundir = Path(name) / "run"
        job = write_job(Path(name), ["date", "+%s.%N"], host_metrics={"enabled": False})
        begun = time.time()
        agent = start_agent(job, rundir)
        finish(agent, rundir)
        ended = time.time()
        first = float((rundir / "output.log").read_text())
        gone = json.loads((rundir / "exit.json").read_bytes())["time"] / 1000
    return {"bare": bare, "start": first - begun, "end": ended - gone}


if __name__ == "__main__":
    main()
