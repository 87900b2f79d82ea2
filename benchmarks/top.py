"""CPU time that `bai top` adds to a benchmark that prints 100,000 lines a second.

    python benchmarks/top.py [--pairs 20] [--seconds 6]

The same program runs under the same agent, with a metric in each line. Runs with a `bai top` at a terminal and runs without one
alternate. Each pair of runs gives a ratio, so that a drift of the machine cancels out. The order changes from pair to pair. The
table also has the CPU usage of `bai top`.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import statistics
import struct
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

from agent_job import finish, plain_environment, start_agent, write_job
from goals import interval
from overhead import PRINTER

METRICS = [
    {"name": "loss", "pattern": r"loss=(\d+\.\d+)"},
    {"name": "accuracy", "pattern": r"accuracy=(\d+\.\d+)"},
]
_START_SECONDS = 2.0
"""Time from the start of `bai top` until the first picture on a quiet machine. This time is excluded from the CPU usage
(seconds)."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    alone: list[float] = []
    watched: list[float] = []
    shares: list[float] = []
    with tempfile.TemporaryDirectory(prefix="top-") as name:
        folder = Path(name)
        program = folder / "printer.py"
        program.write_text(PRINTER)
        command = [sys.executable, str(program), str(options.seconds)]
        run(command, folder, watched=False)  # the first run of anything pays for cold caches
        for pair in range(options.pairs):
            for looks in (False, True) if pair % 2 else (True, False):
                seconds, share = run(command, folder, watched=looks)
                (watched if looks else alone).append(seconds)
                if looks:
                    shares.append(share)
    ratios = [one / other for one, other in zip(watched, alone, strict=True)]
    low, high = interval(ratios)
    print("| | CPU s of the printing process | ratio | 95 % interval | CPU usage of `bai top` |")
    print("|---|---:|---:|---:|---:|")
    print(f"| alone | {statistics.median(alone):.3f} | 1 | | |")
    print(
        f"| with `bai top` | {statistics.median(watched):.3f} | {statistics.median(ratios):.4f} | {low:.4f} to {high:.4f} "
        f"| {statistics.median(shares):.1%} |"
    )


def run(command: list[str], folder: Path, *, watched: bool) -> tuple[float, float]:
    """Return the CPU seconds of the printing process, and the CPU usage of `bai top` (share of one core; 0 without `bai top`)."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as name:
        store = Path(name) / "store"
        job = write_job(Path(name), command, buffering="own", metrics=METRICS, store={"url": store.as_uri()})
        rundir = store / "benchmark/attempts/0/nodes/0"
        agent = start_agent(job, rundir)
        share = watch(store, rundir) if watched else 0.0
        ended = finish(agent, rundir)
        return float(ended["user_seconds"] + ended["system_seconds"]), share


def watch(store: Path, rundir: Path) -> float:
    """Show the job with `bai top` until the benchmark has ended. Return the CPU usage of `bai top` (share of one core)."""
    while not (rundir / "started.json").exists():
        time.sleep(0.01)
    pid, master = pty.fork()
    if pid == 0:
        program = [sys.executable, "-c", "from executor.__main__ import main; main()"]
        env = {**plain_environment(), "TERM": "xterm-256color", "BAI_STORE": str(store)}
        os.execve(program[0], [*program, "top", "benchmark"], env)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    threading.Thread(target=_drain, args=(master,), daemon=True).start()
    began = time.monotonic()
    used = first = 0.0
    while not (rundir / "exit.json").exists():
        time.sleep(0.05)
        used = _cpu_seconds(pid)
        if time.monotonic() - began < _START_SECONDS:
            first = used
    elapsed = time.monotonic() - began - _START_SECONDS
    os.write(master, b"q")
    os.waitpid(pid, 0)
    return (used - first) / max(elapsed, 0.1)


def _drain(master: int) -> None:
    try:
        while os.read(master, 65536):
            pass
    except OSError:
        pass  # the terminal's other end is closed


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
