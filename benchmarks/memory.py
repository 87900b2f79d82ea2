"""Memory of agent, extractor and shim while a benchmark prints 2 GB, and while medians keep the maximum number of values.

    python benchmarks/memory.py [--bytes 2000000000] [--median-bytes 250000000]

In the first log, one line in a hundred has numbers. In the second log, each line has numbers, and the headlines are medians of
5.8 million values. These are more values than memory keeps (`MOST_KEPT` of bai_agent/metrics/headlines.py), so a file keeps the
other values. The figure is the sum of the three processes' PSS, which is read repeatedly from /proc/<pid>/smaps_rollup. PSS
divides the size of a shared page among the processes that share the page. The table shows the largest sum in each tenth of the
log. The peer is the PSS of one bare Python in the same run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from agent_job import finish, start_agent, write_job

PRINTER = """
import sys
size = int(sys.argv[1])
line = "step {} loss=0.123456 accuracy=0.9876 and some more text up to eighty-six bytes\\n"
block = "".join(line.format(f"{number:05}") for number in range(12000))
written = 0
while written < size:
    sys.stdout.write(block)
    written += len(block)
"""

METRICS = [
    {"name": "loss", "pattern": r"step 00\d00 loss=(\d+\.\d+)"},
    {"name": "accuracy", "pattern": r"step 00\d00 .* accuracy=(\d+\.\d+)"},
]
MEDIANS = [
    {"name": "loss", "pattern": r"loss=(\d+\.\d+)", "headline": "median"},
    {"name": "accuracy", "pattern": r"accuracy=(\d+\.\d+)", "headline": "median"},
]
LOOK_SECONDS = 0.1
GOAL = 80
"""Maximum PSS of agent, extractor and shim together (MiB)."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=int, default=2_000_000_000)
    parser.add_argument("--median-bytes", type=int, default=250_000_000)
    options = parser.parse_args()
    bare = bare_python()
    print("PSS of agent, extractor and shim together")
    print("| log | extracted | MiB | goal | | times a bare Python |")
    print("|---|---:|---:|---:|---|---:|")
    for log, size, metrics in (
        ("one line in a hundred", options.bytes, METRICS),
        ("medians of each line", options.median_bytes, MEDIANS),
    ):
        for tenth, largest in sorted(measure(size, metrics).items()):
            verdict = "met" if largest <= GOAL * 2**20 else "**not met**"
            print(
                f"| {log} | {tenth * 10} % | {largest / 2**20:.1f} | {GOAL} | {verdict} | {largest / bare:.1f} |",
                flush=True,
            )


def measure(size: int, metrics: Sequence[Mapping[str, str]]) -> dict[int, int]:
    """Return the largest PSS sum, in bytes, for each tenth of a log of `size` bytes."""
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        rundir = Path(name) / "run"
        job = write_job(Path(name), [sys.executable, "-c", PRINTER, str(size)], metrics=metrics)
        agent = start_agent(job, rundir)
        largest = watch(agent, rundir, size=size)
        finish(agent, rundir)
        extracted = json.loads((rundir / "extracted.json").read_bytes())
    if extracted["log_bytes"] < size or len(extracted["headlines"]) != len(metrics):
        raise SystemExit(f"not all of the log was extracted: {extracted}")
    return largest


def watch(agent: subprocess.Popen[bytes], rundir: Path, *, size: int) -> dict[int, int]:
    """Return the largest PSS sum, in bytes, for each tenth of the log that the extractor has read."""
    largest: dict[int, int] = {}
    while agent.poll() is None:
        tenth = min(10, 10 * extracted(rundir) // size)
        now = sum(map(pss, ours(agent.pid, rundir)))
        largest[tenth] = max(largest.get(tenth, 0), now)
        time.sleep(LOOK_SECONDS)
    return largest


def ours(agent: int, rundir: Path) -> list[int]:
    """Return the process ids of agent, extractor and shim, without the benchmark's processes."""
    try:
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    except FileNotFoundError:
        return []
    found = [agent, *map(int, children)]
    with suppress(FileNotFoundError):
        found.append(json.loads((rundir / "started.json").read_bytes())["shim_pid"])
    return list(dict.fromkeys(found))


def extracted(rundir: Path) -> int:
    try:
        places = json.loads((rundir / "extractor.offset").read_bytes())["logs"]
    except FileNotFoundError:
        return 0
    return sum(int(place["offset"]) for place in places.values())


def pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def bare_python() -> int:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        time.sleep(0.5)
        size = pss(child.pid)
        child.communicate(b"\n", timeout=10)
    return size


if __name__ == "__main__":
    main()
