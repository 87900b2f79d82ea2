"""A benchmark that ends long before its numbers are extracted. Agent and extractor are killed during the extraction.

    python benchmarks/long_drain.py [--lines 6000000] [--kills 6]

The benchmark is `cat` of a file with three metrics in each line. During the extraction, the extractor and then
the agent are killed, and the agent is started again, `--kills` times. At the end, every record is compared with its line. With
--limit "1m" the limit cuts the extraction short; the table then says what is left for `bai extract`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_job import start_agent, write_job

NAMES = ("loss", "accuracy", "rate")
METRICS = [{"name": name, "pattern": rf"{name}=(\d+\.\d+)"} for name in NAMES]
END_SECONDS = 3 * 3600
START_SECONDS = 120


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=6_000_000)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--limit", default="2h", help="limits.extract_timeout")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="long-drain-") as name:
        folder, rundir = Path(name), Path(name) / "run"
        text = folder / "text"
        write_text(text, options.lines)
        limits = {"extract_timeout": options.limit, "drain": "10s"}
        job = write_job(
            folder, ["cat", str(text)], metrics=METRICS, limits=limits, host_metrics={"enabled": False}
        )
        code, kills = run(job, rundir, kills=options.kills)
        result = json.loads((rundir / "result.json").read_bytes())
        metrics: dict[str, Any] = result["metrics"] or {}
        right = check(rundir / "metrics.jsonl", text)
    print("| | |\n|---|---:|")
    for label, value in (
        ("lines", options.lines),
        ("records wanted", 3 * options.lines),
        ("records that are there, each as its line says, in order", right),
        ("kills of the extractor, and as many of the agent", kills),
        ("seconds of the benchmark", result["benchmark"]["wall_seconds"]),
        ("seconds of the drain", result["phases"]["drain"]),
        ("bytes that were not searched", metrics.get("remaining_bytes")),
        ("outcome", f"{result['outcome']}, exit code {code}"),
    ):
        print(f"| {label} | {value:,} |" if isinstance(value, (int, float)) else f"| {label} | {value} |")
    for warning in result["warnings"]:
        print(f"\n{warning}")


def write_text(path: Path, lines: int) -> None:
    with path.open("w") as file:
        for start in range(0, lines, 10_000):
            file.write("".join(map(line_of, range(start, min(lines, start + 10_000)))))


def line_of(step: int) -> str:
    return f"step {step} loss={step}.25 accuracy={step}.5 rate={step}.75\n"


def run(job: Path, rundir: Path, *, kills: int) -> tuple[int, int]:
    """Run the job to its end. Return the agent's exit code, and the number of kills of extractor and agent during the
    extraction."""
    chance = random.Random(18)
    killed = 0
    agent = start_agent(job, rundir)
    try:
        wait_for(rundir / "exit.json")
        while killed < kills:
            time.sleep(chance.uniform(2, 6))
            if agent.poll() is not None:
                break
            for extractor in children_of(agent.pid):
                with suppress(ProcessLookupError):
                    os.kill(extractor, signal.SIGKILL)
            time.sleep(chance.uniform(0, 1))
            agent.kill()
            agent.wait(timeout=START_SECONDS)
            killed += 1
            agent = start_agent(job, rundir)
        return agent.wait(timeout=END_SECONDS), killed
    finally:
        agent.kill()
        agent.wait(timeout=START_SECONDS)


def check(records: Path, text: Path) -> int:
    """Return the number of records, after a check that each record has the next number of the text."""
    seq = offset = 0
    with records.open("rb") as found, text.open("rb") as lines:
        for step, line in enumerate(lines):
            for i, (name, part) in enumerate(zip(NAMES, (0.25, 0.5, 0.75), strict=True)):
                record = json.loads(found.readline() or b"null")
                if record is None or record["src"] != "log":
                    return seq
                key = tuple(record[each] for each in ("seq", "off", "i", "k", "name", "value"))
                if key != (seq, offset, i, 0, name, step + part):
                    raise SystemExit(f"record {seq} should be {name} of line {step}, and is {record}")
                seq += 1
            offset += len(line)
    return seq


def children_of(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"{path} did not appear within {START_SECONDS} s")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
