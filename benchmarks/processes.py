"""CPU time that `bai` adds to processes under mpirun and torchrun, and the start time of the processes of several nodes.

    python benchmarks/processes.py [--processes 1 2 4] [--nodes 2 4] [--rounds 5] [--steps 2000] [--torch PYTHON]

Each process computes `--steps` steps, and prints a line for each step. The figure is the CPU time per step of the launcher and
all processes that the launcher starts, including `bai`'s. The peer is the same launcher, started by hand with its output in a
file. `bai` and peer run in turns. The second table has nodes under torchrun; each node is an agent on this machine. The figure is
the time from the join of the last node until the program has printed its first line on all nodes. The peer is torchrun, started
by hand for one node: the time from torchrun's start to the program's first line. Needs Open MPI, and for torchrun a Python with
PyTorch (`--torch`).
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from agent_job import AGENT, ROOT, RUN_SECONDS, finish, plain_environment, start_agent, write_job
from elastic import beside_torchrun

T = TypeVar("T")

PROGRAM = """
import sys, time
print(f"first={time.time():.6f}", flush=True)
data = [each / 1000 for each in range(1000)]
for step in range(int(sys.argv[1])):
    for _ in range(20):
        total = sum(each * each for each in data)
    print(f"step={step} sum={total:.6f}")
"""
METRICS = [{"name": "sum", "pattern": r"step=(?P<step>\d+) sum=(?P<value>\S+)", "required": True}]
AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--torch",
        type=Path,
        default=beside_torchrun(),
        help="a Python with PyTorch, and torchrun beside it (%(default)s)",
    )
    arguments = parser.parse_args()
    engines = ["mpi"] if shutil.which("mpirun") else []
    engines += ["torchrun"] if arguments.torch else []
    if "mpi" not in engines:
        print("there is no mpirun on PATH, so none is measured: scripts/debian-packages openmpi-bin")
    if "torchrun" not in engines:
        print("there is no torchrun on PATH, so none is measured: name a Python with PyTorch (--torch)")
    print("| engine | processes | CPU µs a step | × the launcher alone | × one process |")
    print("|---|---:|---:|---:|---:|")
    for engine in engines:
        first: float | None = None
        for count in arguments.processes:
            ours, theirs = compare(engine, count, arguments)
            first = first or median(ours)
            ratio = median(one / other for one, other in zip(ours, theirs, strict=True))
            each = median(ours)
            print(
                f"| {engine} | {count} | {each * 1e6:,.0f} | {ratio:.3f} | {each / first:.2f} |", flush=True
            )
    if arguments.torch:
        print("\n| nodes | all joined → first line on all, s | × torchrun alone |\n|---:|---:|---:|")
        for nodes in arguments.nodes:
            found = [
                (in_folder(partial(beginning, nodes, arguments)), in_folder(partial(start_alone, arguments)))
                for _ in range(arguments.rounds)
            ]
            ratio = median(ours / theirs for ours, theirs in found)
            print(f"| {nodes} | {median(ours for ours, _ in found):.1f} | {ratio:.2f} |", flush=True)


def compare(engine: str, count: int, arguments: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Return the CPU seconds per step in each round: of the launcher with `bai`, and of the launcher alone."""
    ours, theirs = [], []
    for _ in range(arguments.rounds):
        ours.append(in_folder(partial(with_us, engine, count, arguments)))
        theirs.append(in_folder(partial(alone, engine, count, arguments)))
    return ours, theirs


def with_us(engine: str, count: int, arguments: argparse.Namespace, folder: Path) -> float:
    rundir = folder / "run"
    job = described(folder, arguments, strategy={"name": engine, "processes_per_node": str(count)})
    ended = finish(start_agent(job, rundir), rundir)
    return float((ended["user_seconds"] + ended["system_seconds"]) / (count * arguments.steps))


def alone(engine: str, count: int, arguments: argparse.Namespace, folder: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_alone(engine, count, arguments, folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return float(seconds / (count * arguments.steps))


def start_alone(arguments: argparse.Namespace, folder: Path) -> float:
    """Return the seconds from torchrun's start to the first line of its process."""
    started = time.time()
    return first_line(run_alone("torchrun", 1, arguments, folder)) - started


def run_alone(engine: str, count: int, arguments: argparse.Namespace, folder: Path) -> Path:
    """Run a launcher without `bai`. Return the file with the launcher's output."""
    python = arguments.torch or sys.executable
    env = {**plain_environment(), **dict.fromkeys(AS_ROOT, "1"), "PYTHONUNBUFFERED": "1"}
    launcher = ["mpirun", "--host", f"127.0.0.1:{count}", "--bind-to", "none", "-np", str(count)]
    if engine == "torchrun":
        env["PATH"] = f"{arguments.torch.parent}:{env['PATH']}"
        launcher = ["torchrun", "--standalone", f"--nproc-per-node={count}", "--no-python"]
    output = folder / "output"
    with output.open("wb") as file:
        subprocess.run(
            [*launcher, python, program(folder), str(arguments.steps)],
            stdout=file,
            stderr=file,
            env=env,
            check=True,
            timeout=RUN_SECONDS,
        )
    return output


def first_line(output: Path) -> float:
    """Return the time in the program's first line."""
    return float(re.findall(r"first=(\S+)", output.read_text(errors="replace"))[0])


def beginning(nodes: int, arguments: argparse.Namespace, folder: Path) -> float:
    """Return the seconds from the last node's joining to the first line on the last node."""
    store = folder / "store"
    job = described(
        folder, arguments, strategy={"name": "torchrun", "nodes": nodes}, store={"url": store.as_uri()}
    )
    agents = [
        subprocess.Popen(
            [*AGENT, job, "--rank", str(rank), "--quiet"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            env=plain_environment(),
        )
        for rank in range(nodes)
    ]
    try:
        codes = [agent.wait(timeout=RUN_SECONDS) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    if any(codes):
        raise SystemExit(f"the nodes ended with exit codes {codes}; see {store}")
    attempt = next(store.glob("*/attempts/0"))
    joined = max(each.stat().st_mtime for each in (attempt / "joined").glob("*.json"))
    return max(first_line(attempt / "nodes" / str(rank) / "output.log") for rank in range(nodes)) - joined


def described(folder: Path, arguments: argparse.Namespace, **tables: Any) -> Path:
    python = str(arguments.torch) if arguments.torch else sys.executable
    benchmark = {
        "argv": [python, str(program(folder)), str(arguments.steps)],
        "inherit_env": True,
        **({"python": python} if arguments.torch else {}),
    }
    return write_job(folder, [], benchmark=benchmark, metrics=METRICS, **tables)


def program(folder: Path) -> Path:
    path = folder / "program.py"
    path.write_text(PROGRAM)
    return path


def in_folder(work: Callable[[Path], T]) -> T:
    with tempfile.TemporaryDirectory() as folder:
        return work(Path(folder))


if __name__ == "__main__":
    main()
