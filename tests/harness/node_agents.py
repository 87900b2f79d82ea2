"""The agents of one job of several nodes, one for each node, on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agent_runs import AGENT, RUN_SECONDS, environment, is_alive, popen_agent, write_job
from stand_in_torchrun import put_torchrun

UNTIL_TOLD = """
import time
from pathlib import Path
print("begun", flush=True)
while not Path({flag!r}).exists():
    time.sleep(0.05)
print("loss=0.5")
"""
"""A benchmark that runs until there is a file `flag`."""
WAIT_FOR_BEGUN = """
import os, sys, time
def begin():
    open(_begun(os.environ["BAI_NODE_RANK"]), "w").close()
def wait_for_begun():
    for each in range(int(os.environ["BAI_NUM_NODES"])):
        while not os.path.exists(_begun(each)):
            time.sleep(0.02)
def _begun(rank):
    return os.path.join(os.path.dirname(sys.argv[0]), f"begun-{os.environ['BAI_GENERATION']}-{rank}")
"""
"""How a benchmark of one process on each node fails only if all the others have begun, which it could end before."""


class Nodes:
    """Starts, stops and loses nodes. Their store is a folder, unless the job's tables name another."""

    def __init__(
        self, folder: Path, program: str, *, nodes: int, argv: Sequence[str | Path] = (), **tables: Any
    ) -> None:
        """program: what each process of Python runs. argv: the command in place of that."""
        self.folder = folder
        self.store = folder / "store"
        script = folder / "benchmark.py"
        script.write_text(program)
        launchers = put_torchrun(folder)
        strategy = {"name": "torchrun", "nodes": nodes, **tables.pop("strategy", {})}
        self._apart = "store" in tables
        """Each node's run directory is a folder of its own, which it copies to the store."""
        # The least: a test of a lost node waits for it.
        limits = {"peer_silence": "20s", **tables.pop("limits", {})}
        tables = {"store": {"url": self.store.as_uri()}, "limits": limits, **tables}
        self.job = write_job(folder, argv or [sys.executable, script], strategy=strategy, **tables)
        self.env = environment(PATH=f"{launchers}:{os.environ['PATH']}")
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.options: Mapping[int, Sequence[str]] = {}
        """More of them for the agents of nodes."""
        self.command: Sequence[str] = AGENT
        """What starts an agent."""

    def start(
        self, rank: int, env: Mapping[str, str] = MappingProxyType({}), *, inside: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """env: what this node has beside the environment of all. inside: the file of a cgroup's members, which the agent enters first."""
        enter = ["sh", "-c", f'echo $$ > {inside}; exec "$@"', "sh"] if inside is not None else []
        place = ["--dir", str(self.rundir(rank))] if self._apart else []
        with (self.folder / f"agent-{rank}.out").open("ab") as output:
            self.agents[rank] = popen_agent(
                [self.job, "--rank", str(rank), *place, "--quiet", *self.options.get(rank, ())],
                output,
                env={**self.env, **env},
                prefix=enter,
                command=self.command,
            )
        return self.agents[rank]

    def start_all(self, *ranks: int) -> None:
        for rank in ranks:
            self.start(rank)

    def wait(self, rank: int) -> int:
        return self.agents[rank].wait(timeout=RUN_SECONDS)

    def kill(self, rank: int) -> None:
        """End an agent as a `kill -9` does."""
        self.agents[rank].kill()
        self.agents[rank].wait()

    def lose(self, *ranks: int) -> None:
        """End all of these nodes at once, as machines that are powered off."""
        running = [self.processes(rank) for rank in ranks]
        # Agents first: none of them may hear of another's end.
        agents = [self.agents[rank].pid for rank in ranks]
        for pid in [*agents, *(pid for each in running for pid in each if pid not in agents)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for rank in ranks:
            self.agents[rank].wait()

    def hang(self, rank: int, hung: bool = True) -> None:
        """Stop all that runs on a node, as a machine that hangs; or let it go on."""
        for pid in self.processes(rank):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if hung else signal.SIGCONT)

    def processes(self, rank: int) -> list[int]:
        """Return the agent of a node, its benchmark, and all that these have started."""
        of_generations = (self.rundir(rank) / "generations").glob("*/started.json")
        newest = max(of_generations, key=lambda each: int(each.parent.name), default=None)
        started = json.loads((newest or self.rundir(rank) / "started.json").read_bytes())
        found = [self.agents[rank].pid, started["shim_pid"], started["pid"]]
        for pid in found:
            found += [each for each in _children(pid) if each not in found]
        return [pid for pid in found if is_alive(pid)]

    def rundir(self, rank: int) -> Path:
        if self._apart:
            return self.folder / f"run-{rank}"
        return self.store / "job" / "attempts" / "0" / "nodes" / str(rank)

    def printed(self, rank: int, text: str) -> Callable[[], bool]:
        log = self.rundir(rank) / "output.log"
        return lambda: log.exists() and text.encode() in log.read_bytes()

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.store / "job" / "result.json").read_bytes())
        return found

    def close(self) -> None:
        """End all that is left."""
        for rank, agent in self.agents.items():
            with suppress(FileNotFoundError):
                for pid in self.processes(rank):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            agent.kill()
            agent.wait()


def _children(pid: int) -> Iterator[int]:
    # Of each thread: it is a thread that forks.
    for file in Path("/proc", str(pid), "task").glob("*/children"):
        with suppress(OSError):
            yield from map(int, file.read_text().split())
