"""Time for which a job stands still when a node is lost, leaves or joins: `bai` and torchrun's own elasticity (c10d).

    python benchmarks/elastic.py --torch PYTHON [--rounds 3] [--only kill notice] [--never 60]

The figures are the seconds from an event until the newly started processes have made their first step on all remaining
nodes. The job has 2 to 4 nodes and starts with three, all on this machine. Each node has its own agent or its own torchrun.
`bai` and torchrun run the same program, in turns. The program makes a step every 50 ms, saves its state every tenth step, and
resumes from the saved state. Most of each figure is the program's import of PyTorch.
torchrun runs with `--nnodes=2:4 --rdzv-backend=c10d`, the shortest times that its rendezvous accepts, and the rendezvous
store in the first node's torchrun. torchrun has neither spot notices nor a command to scale. The benchmark therefore sends
SIGTERM to a node's torchrun, or starts a further torchrun. An event without effect within `--never` seconds counts as not
noticed. Needs a Python with PyTorch, and torchrun in the same folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from agent_job import AGENT, ROOT, plain_environment, write_job
from goals import print_figure

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import ScaleRequest
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore

T = TypeVar("T")

FIRST, MOST, LEAST = 3, 4, 2
"""Number of nodes at the start, maximum number, and minimum number."""
START_SECONDS = 120.0
"""Longest wait until all nodes make steps (seconds)."""
SETTLE_SECONDS = 2.0
"""Time for which all nodes make steps before the event (seconds)."""
TIMEOUT_SECONDS = 10
"""Timeout of the program's collectives."""

PROGRAM = """
import json, os, signal, sys, time
from datetime import timedelta
from pathlib import Path

started, asked = time.time(), False

def ask(*_):
    global asked
    asked = True

signal.signal(signal.SIGTERM, ask)
import torch
from torch import distributed

state = Path(os.environ.get("BAI_CHECKPOINT_DIR", sys.argv[1]), "step")
together = sys.argv[2] == "together"
distributed.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
rank, world = distributed.get_rank(), distributed.get_world_size()
step = int(state.read_text()) if os.environ.get("BAI_RESUMED", state.exists()) else 0
while True:
    time.sleep(0.05)
    flag = torch.tensor([float(asked)])
    if together:
        distributed.all_reduce(flag)
    step += 1
    stop = flag.item() > 0
    if rank == 0 and (stop or step % 10 == 0):
        state.parent.mkdir(parents=True, exist_ok=True)
        part = state.with_suffix(".part")
        part.write_text(str(step))
        part.replace(state)
    print(json.dumps(dict(started=started, rank=rank, world=world, step=step, time=time.time())), flush=True)
    if stop:
        os._exit(143)
""".replace("TIMEOUT", str(TIMEOUT_SECONDS))


class Nodes(ABC):
    """The nodes of one job, run by `bai` or by torchrun."""

    def __init__(self, folder: Path, torch: Path, *, together: bool) -> None:
        self.folder = folder
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)
        self.command = [
            str(torch),
            str(self.program),
            str(folder / "state"),
            "together" if together else "apart",
        ]
        self.env = {
            **plain_environment(),
            "PATH": f"{torch.parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        self.started: dict[int, subprocess.Popen[bytes]] = {}

    @abstractmethod
    def start(self, node: int) -> None:
        """Start a node."""

    @abstractmethod
    def output(self, node: int) -> Path:
        """Return the file with what a node's process prints."""

    @abstractmethod
    def notify(self, node: int) -> None:
        """Tell a node that its machine is taken back in two minutes."""

    @abstractmethod
    def scale(self, nodes: int) -> None:
        """Ask for another number of nodes."""

    def kill(self, node: int) -> None:
        """Kill all processes of a node at once, as in a power loss."""
        self._signal(node, signal.SIGKILL)

    def hang(self, node: int) -> None:
        """Stop all processes of a node."""
        self._signal(node, signal.SIGSTOP)

    def _signal(self, node: int, number: int) -> None:
        for pid in self.processes(node):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def processes(self, node: int) -> list[int]:
        """Return the process ids of a node, each parent before its children."""
        found = [self.started[node].pid]
        for pid in found:
            found += [each for each in children(pid) if each not in found]
        return found

    def steps(self) -> Iterator[dict[str, Any]]:
        """Yield what the processes of all nodes have printed at each step."""
        for node in list(self.started):
            with suppress(FileNotFoundError):
                for line in self.output(node).read_bytes().splitlines():
                    with suppress(ValueError):
                        yield json.loads(line)

    def first_step(self, *, world: int, after: float) -> float | None:
        """Return the time at which all `world` processes that started after `after` had made a step. None if not all of them
        have."""
        first: dict[int, float] = {}
        for each in self.steps():
            if each["started"] > after and each["world"] == world:
                first.setdefault(each["rank"], each["time"])
        return max(first.values()) if len(first) == world else None

    @property
    def has_ended(self) -> bool:
        """Whether all nodes have ended."""
        return all(each.poll() is not None for each in self.started.values())

    def close(self) -> None:
        for node in self.started:
            self.kill(node)
        for each in self.started.values():
            each.wait()


class C10d(Nodes):
    """Nodes run by torchrun's own elasticity."""

    def __init__(self, folder: Path, torch: Path, *, together: bool) -> None:
        super().__init__(folder, torch, together=together)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        # Else a node that joins later breaks all after a minute.
        self.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"

    def start(self, node: int) -> None:
        conf = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
        with self.output(node).open("ab") as output:
            self.started[node] = subprocess.Popen(
                [
                    "torchrun",
                    f"--nnodes={LEAST}:{MOST}",
                    "--nproc-per-node=1",
                    "--max-restarts=9",
                    "--monitor-interval=0.1",
                    "--rdzv-backend=c10d",
                    f"--rdzv-endpoint=127.0.0.1:{self.port}",
                    "--rdzv-id=benchmark",
                    "--local-addr=127.0.0.1",
                    f"--rdzv-conf={conf},is_host={str(node == 0).lower()}",
                    "--no-python",
                    "--",
                    *self.command,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.env,
            )

    def output(self, node: int) -> Path:
        return self.folder / f"node-{node}.out"

    def notify(self, node: int) -> None:
        self.started[node].terminate()

    def scale(self, nodes: int) -> None:
        for node in range(nodes, len(self.started)):
            self.started[node].terminate()
        for node in range(len(self.started), nodes):
            self.start(node)


class Generations(Nodes):
    """Nodes run by `bai`, each with its own agent."""

    def __init__(self, folder: Path, torch: Path, *, together: bool) -> None:
        super().__init__(folder, torch, together=together)
        self.store = folder / "store"
        self.job = write_job(
            folder,
            self.command,
            benchmark={"argv": self.command, "inherit_env": True, "python": str(torch)},
            strategy={"name": "torchrun", "nodes": MOST, "min_nodes": LEAST},
            elastic={"nodes": FIRST, "pause": "1s"},
            checkpoint={"path": "checkpoints", "every": "10s"},
            store={"url": self.store.as_uri()},
        )
        self.services: dict[int, MetadataService] = {}

    def start(self, node: int) -> None:
        self.services[node] = MetadataService()
        env = {**self.env, "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.services[node].url}
        command = [*AGENT, str(self.job), "--rank", str(node), "--instance-id", f"i-{node:017x}", "--quiet"]
        self.started[node] = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, env=env)

    def rundir(self, node: int) -> Path:
        return self.store / "benchmark" / "attempts" / "0" / "nodes" / str(node)

    def output(self, node: int) -> Path:
        return self.rundir(node) / "output.log"

    def processes(self, node: int) -> list[int]:
        found = super().processes(node)
        # The benchmark is not the agent's child: it outlives it.
        for file in self.rundir(node).glob("**/started.json"):
            started = json.loads(file.read_bytes())
            found += [started["shim_pid"], started["pid"]]
        for pid in found:
            found += [each for each in children(pid) if each not in found]
        return found

    def notify(self, node: int) -> None:
        at = datetime.now(timezone.utc) + timedelta(minutes=2)
        self.services[node].notice = json.dumps({"action": "terminate", "time": f"{at:%Y-%m-%dT%H:%M:%SZ}"})

    def scale(self, nodes: int) -> None:
        record = AttemptRecord(JobRecord(DirectoryStore(self.store), "benchmark"))
        record.request_scale(ScaleRequest(desired=nodes))
        for node in range(len(self.started), nodes):
            self.start(node)

    def close(self) -> None:
        super().close()
        for each in self.services.values():
            each.shutdown()
            each.server_close()


class MetadataService(ThreadingHTTPServer):
    """Metadata service of a spot instance."""

    notice = ""
    """Spot notice that announces the end of the instance; "" if there is none."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        self._answer("token")

    def do_GET(self) -> None:
        assert isinstance(self.server, MetadataService)
        known = {
            "instance-life-cycle": "spot",
            "local-ipv4": "127.0.0.1",
            "spot/instance-action": self.server.notice,
        }
        self._answer(known.get(self.path.partition("/meta-data/")[2], ""))

    def _answer(self, text: str) -> None:
        self.send_response(200 if text else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        return


@dataclass(frozen=True)
class Case:
    """An event, and the number of processes that run after the event."""

    what: str
    happens: Callable[[Nodes], None]
    world: int
    together: bool = True
    """Whether processes wait for each other at each step."""


CASES = {
    "kill": Case("`kill -9` of a node's tree", lambda nodes: nodes.kill(2), 2),
    "kill-first": Case("`kill -9` of the first node's tree", lambda nodes: nodes.kill(0), 2),
    "kill-apart": Case(
        "`kill -9` of a node's tree that no node waits for", lambda nodes: nodes.kill(2), 2, together=False
    ),
    "hang": Case("a node's tree hangs (SIGSTOP)", lambda nodes: nodes.hang(2), 2),
    "notice": Case("spot notice on one node", lambda nodes: nodes.notify(2), 2),
    "down": Case("scale from 3 nodes to 2", lambda nodes: nodes.scale(2), 2),
    "up": Case("scale from 3 nodes to 4", lambda nodes: nodes.scale(4), 4),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--torch",
        type=Path,
        default=beside_torchrun(),
        help="a Python with PyTorch, and torchrun beside it (%(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--never", type=float, default=60.0, help="seconds after which an event was not noticed"
    )
    options = parser.parse_args()
    if options.torch is None:
        sys.exit(
            "there is no torchrun on PATH: name a Python with PyTorch (--torch), or pip install .[torch]"
        )
    print("| event | `bai`, s | torchrun c10d, s | ratio |\n|---|---:|---:|---:|")
    ratios: list[float] = []
    for name in options.only:
        found: dict[type[Nodes], list[float | str]] = {Generations: [], C10d: []}
        for number in range(options.rounds):
            for side in sorted(found, key=lambda each: each.__name__, reverse=number % 2 == 1):
                found[side].append(measure(side, CASES[name], options.torch, options.never))
        ours, theirs = (figure(found[side]) for side in (Generations, C10d))
        pairs = [
            one / other
            for one, other in zip(found[Generations], found[C10d], strict=True)
            if isinstance(one, float) and isinstance(other, float)
        ]
        ratio = f"{statistics.median(pairs):.2f}" if pairs else ""
        print(f"| {CASES[name].what} | {ours} | {theirs} | {ratio} |", flush=True)
        ratios = pairs if name == "kill" else ratios
    if ratios:
        print_figure("elastic-kill", ratios)


def beside_torchrun() -> Path | None:
    """Return the Python in the folder of torchrun. The torchrun of this Python takes precedence over the torchrun on PATH."""
    own = str(Path(sys.executable).parent)
    found = shutil.which("torchrun", path=f"{own}:{os.environ['PATH']}")
    return Path(found).parent / "python3" if found else None


def measure(side: type[Nodes], case: Case, torch: Path, never: float) -> float | str:
    """Return the seconds from the event to the first step after the event, or a text if no such step was made."""
    with tempfile.TemporaryDirectory(prefix="elastic-") as name:
        nodes = side(Path(name), torch, together=case.together)
        try:
            for node in range(FIRST):
                nodes.start(node)
            if wait(lambda: nodes.first_step(world=FIRST, after=0.0), START_SECONDS) is None:
                raise SystemExit(f"{side.__name__}: not all nodes made a step within {START_SECONDS:.0f} s")
            time.sleep(SETTLE_SECONDS)
            event = time.time()
            case.happens(nodes)
            ended = wait(lambda: nodes.first_step(world=case.world, after=event) or nodes.has_ended, never)
            if ended is None:
                return f"not in {never:.0f} s"
            if ended is True:
                return "the job ended"
            return float(ended) - event
        finally:
            nodes.close()


def figure(found: Sequence[float | str]) -> str:
    """Return a table cell: the median of the seconds, and the texts among the results."""
    seconds = [each for each in found if isinstance(each, float)]
    others = sorted({each for each in found if isinstance(each, str)})
    return ", ".join([*([f"{statistics.median(seconds):.1f}"] if seconds else []), *others])


def wait(look: Callable[[], T], seconds: float) -> T | None:
    """Return the first answer of `look` that is not empty. None if there is no such answer within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := look():
            return answer
        time.sleep(0.1)
    return None


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, by any of its threads."""
    found: list[int] = []
    for file in Path("/proc", str(pid), "task").glob("*/children"):
        with suppress(OSError):
            found += map(int, file.read_text().split())
    return found


if __name__ == "__main__":
    main()
