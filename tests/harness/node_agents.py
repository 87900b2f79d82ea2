"""Runs the agents of a multi-node job on this machine, one for each node."""

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
"""A benchmark that runs until the file `flag` exists."""
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
"""Code with which a benchmark waits, before it fails, until the processes of all other nodes have begun."""


class Nodes:
    """Starts, stops and loses nodes. Their store is a folder, unless the job's tables name another."""

    def __init__(
        self, folder: Path, program: str, *, nodes: int, argv: Sequence[str | Path] = (), **tables: Any
    ) -> None:
        """program: Python code that each process runs. argv: command that replaces it."""
        self.folder = folder
        self.store = folder / "store"
        script = folder / "benchmark.py"
        script.write_text(program)
        launchers = put_torchrun(folder)
        strategy = {"name": "torchrun", "nodes": nodes, **tables.pop("strategy", {})}
        self._apart = "store" in tables
        """Whether each node has its own run directory, which it copies to the store."""
        # This is the smallest value, because a test of a lost node waits so long.
        limits = {"peer_silence": "20s", **tables.pop("limits", {})}
        tables = {"store": {"url": self.store.as_uri()}, "limits": limits, **tables}
        self.job = write_job(folder, argv or [sys.executable, script], strategy=strategy, **tables)
        self.env = environment(PATH=f"{launchers}:{os.environ['PATH']}")
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.options: Mapping[int, Sequence[str]] = {}
        """Further options of the agents, by rank."""
        self.command: Sequence[str] = AGENT
        """Command that starts an agent."""

    def start(
        self, rank: int, env: Mapping[str, str] = MappingProxyType({}), *, inside: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the agent of a node.

        env: variables in addition to those of all nodes. inside: `cgroup.procs` of a cgroup that the agent
        enters.
        """
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
        """Kill an agent by SIGKILL."""
        self.agents[rank].kill()
        self.agents[rank].wait()

    def lose(self, *ranks: int) -> None:
        """Kill all processes of these nodes at once, as if their machines were powered off."""
        running = [self.processes(rank) for rank in ranks]
        # Agents are killed first, because no agent may detect the end of another.
        agents = [self.agents[rank].pid for rank in ranks]
        for pid in [*agents, *(pid for each in running for pid in each if pid not in agents)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for rank in ranks:
            self.agents[rank].wait()

    def hang(self, rank: int, hung: bool = True) -> None:
        """Stop all processes of a node, as if its machine hung. hung: False to let them continue."""
        for pid in self.processes(rank):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if hung else signal.SIGCONT)

    def processes(self, rank: int) -> list[int]:
        """Return the pids of a node's agent, its benchmark, and all processes that these have started."""
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
        """End all processes that are left."""
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
