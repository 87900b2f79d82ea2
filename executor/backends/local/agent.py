"""Jobs on this machine: where their run directory is, and their agent, which outlives every `bai`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bai_agent.benchmark.orphans import find_remains
from bai_agent.errors import BaiError, BusyError
from bai_agent.job.agent_start import AgentStartError, start_agent
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir, is_locked, locked, make_folder
from executor.backends.local.job_store import check_own

_LAST_BYTES = 65536
_LAST_WORDS = 300
"""Characters."""
_LOGGED = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z]+ \S+ ")
"""What stands before each message of an agent's log: time, level, who says it."""


class AgentError(BaiError):
    """The agent of a local job cannot be started."""


@dataclass(frozen=True)
class NodeAgent:
    """The agent of one node of a job whose record is a folder of this machine."""

    record: JobRecord
    rank: int
    rundir: RunDir
    descriptor: Path
    folder: Path
    """The job store's."""

    def alive(self) -> bool:
        return is_locked(self.rundir.agent_lock)

    def done(self) -> bool:
        """Return whether this node has nothing more to do. The first one also writes the job's result, and is not done before."""
        return self.rank > 0 and self.rundir.result.exists()

    def benchmark_alive(self) -> bool:
        return self.benchmark_watched() or bool(find_remains(self.rundir))

    def benchmark_watched(self) -> bool:
        return is_locked(self.rundir.shim_lock)

    def last_words(self) -> str:
        try:
            with self.rundir.agent_log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _LAST_BYTES))
                content = file.read()
        except OSError:
            return ""
        lines = (line.strip() for line in reversed(content.decode(errors="replace").splitlines()))
        last = next((line for line in lines if line), "")
        return _LOGGED.sub("", last).removeprefix("bai-agent: ")[:_LAST_WORDS]

    def start(self) -> None:
        """Start the agent in a session of its own and return when it runs. Raises AgentError, UsageError."""
        check_own(self.folder, self.record.job_id)
        make_folder(self.rundir.path, private=self.folder)
        try:
            start_agent(self.descriptor, self.rundir, [f"--rank={self.rank}"])
        except AgentStartError as error:
            if not self.alive():
                which = f" on node {self.rank}" if self.rank else ""
                raise AgentError(
                    f"the agent of {self.record.job_id}{which} did not start: {error}"
                ) from error


@dataclass(frozen=True)
class LocalAgent:
    """The agents of a job whose record is a folder of this machine: one for each of its nodes, as if they were one."""

    nodes: tuple[NodeAgent, ...]

    @property
    def rundir(self) -> RunDir:
        """The first node's."""
        return self.nodes[0].rundir

    @property
    def descriptor(self) -> Path:
        return self.nodes[0].descriptor

    def alive(self) -> bool:
        """Return whether each node's agent lives, unless it has done its work."""
        return all(node.alive() or node.done() for node in self.nodes)

    def benchmark_alive(self) -> bool:
        """Return whether the benchmark, or what ends it, still runs; it may without an agent, and even without its shim."""
        return any(node.benchmark_alive() for node in self.nodes)

    def benchmark_watched(self) -> bool:
        """Return whether each benchmark's shim runs, which ends it when it is asked to, and knows how it ends."""
        return all(node.benchmark_watched() for node in self.nodes if node.benchmark_alive()) and any(
            node.benchmark_watched() for node in self.nodes
        )

    def last_words(self) -> str:
        """Return the last line of a dead agent's log that says something, without its time; "" where there is none.

        Whoever shows it takes out what a terminal would obey.
        """
        dead = [node for node in self.nodes if not node.alive() and not node.done()] or self.nodes[:1]
        return next((words for node in dead if (words := node.last_words())), "")

    def start(self) -> None:
        """Start the agents that do not live. Raises AgentError.

        Started again they go on where the last ones died; where one lives already, nothing happens.
        """
        for node in self.nodes:
            if not node.alive() and not node.done():
                node.start()

    @contextmanager
    def kept_away(self) -> Iterator[bool]:
        """Hold the job's locks, so that no agent can start meanwhile; yield False where anything of the job lives."""
        there = [node.rundir for node in self.nodes if node.rundir.path.is_dir()]
        with ExitStack() as stack:
            try:
                for rundir in there:
                    for lock in (rundir.agent_lock, rundir.shim_lock):
                        stack.enter_context(locked(lock))
            except BusyError:
                yield False
                return
            yield not any(find_remains(rundir) for rundir in there)


def local_agent(record: JobRecord) -> LocalAgent | None:
    """Return the agents of a job on this machine; None where the record is not a folder here."""
    if (folder := record.store.folder) is None:
        return None
    descriptor = folder / record.key("job.toml")
    return LocalAgent(
        tuple(
            NodeAgent(record, rank, RunDir(folder / record.node(rank).place), descriptor, folder)
            for rank in range(_nodes(record))
        )
    )


def _nodes(record: JobRecord) -> int:
    """Return how many nodes a job has; of one whose descriptor is broken, one is looked at."""
    try:
        return record.job().strategy.nodes
    except BaiError:
        return 1
