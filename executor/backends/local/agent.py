"""Starts and monitors the agents of jobs on this machine. An agent continues to run after `bai` has exited.
While `bai` follows a job, it restarts the job's agent if the agent dies."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, count, islice
from pathlib import Path

from bai_agent.benchmark.orphans import find_remains
from bai_agent.errors import BaiError, BusyError
from bai_agent.job.agent_start import AgentStartError, start_agent
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir, is_locked, locked, make_folder
from bai_agent.light_dataclass import dataclass
from executor.backends.local.folder_store import check_own
from executor.errors import AgentError, NextStep, NoResultError
from executor.records.generation_status import proposed_nodes
from executor.records.nodes import node_numbers
from executor.records.reading import result_of

_LAST_BYTES = 65536
_LAST_WORDS = 300
"""Maximum length of the last log line (characters)."""
_LOGGED = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z]+ \S+ ")
"""Pattern for the beginning of each message in an agent's log: time, level, logger."""
_PAUSE_S = 0.1
_LOOK_S = 1.0
"""Time between two checks of whether the agent is alive (seconds)."""
_RESTARTS = 3
_NUMBERS = re.compile(r"\d+")
"""Pattern for process ids and times in an agent's last words. Process ids and times differ each time, even if
the agent died for the same reason."""


@dataclass(frozen=True)
class NodeAgent:
    """The agent of one node of a job whose record is a folder of this machine."""

    record: JobRecord
    rank: int
    rundir: RunDir
    descriptor: Path
    folder: Path
    """Folder of the job store."""
    is_elastic: bool = False

    def alive(self) -> bool:
        return is_locked(self.rundir.agent_lock)

    def done(self) -> bool:
        """Return whether this node has nothing more to do. In a job with a fixed number of nodes, the first
        node also has to write the job's result."""
        return (self.rank > 0 or self.is_elastic) and self.rundir.result.exists()

    def benchmark_alive(self) -> bool:
        return self.benchmark_watched() or bool(find_remains(self.rundir.newest_generation()))

    def benchmark_watched(self) -> bool:
        return is_locked(self.rundir.newest_generation().shim_lock)

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
        """Start the agent in a session of its own, and return when it is running. Raises AgentError,
        UsageError."""
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
    """The agents, one per node, of a job whose record is a folder of this machine."""

    record: JobRecord
    folder: Path
    """Folder of the job store."""
    job: Job | None
    """The job; None if its descriptor is broken."""

    @property
    def is_elastic(self) -> bool:
        return self.job is not None and self.job.is_elastic

    @property
    def nodes(self) -> list[NodeAgent]:
        """The agents of all nodes that the job has or had."""
        return (
            [self.node(number) for number in node_numbers(self.record, self.job)]
            if self.job
            else [self.node(0)]
        )

    def node(self, number: int) -> NodeAgent:
        rundir = RunDir(self.folder / self.record.node(number).place)
        return NodeAgent(self.record, number, rundir, self.descriptor, self.folder, self.is_elastic)

    @property
    def descriptor(self) -> Path:
        return self.folder / self.record.key("job.toml")

    def alive(self) -> bool:
        """Return whether each node's agent is alive or has done its work. For an elastic job, return whether at
        least one agent is alive."""
        return any(node.alive() for node in self.nodes) if self.is_elastic else self.complete()

    def complete(self) -> bool:
        """Return whether each node's agent is alive or has done its work."""
        nodes = self.nodes
        return all(node.alive() or node.done() for node in nodes) and any(node.alive() for node in nodes)

    def benchmark_alive(self) -> bool:
        """Return whether a process of the benchmark, or a process that is ending the benchmark, still runs,
        even if agent and shim are gone."""
        return any(node.benchmark_alive() for node in self.nodes)

    def benchmark_watched(self) -> bool:
        """Return whether the shim of each benchmark runs. A shim ends its benchmark on request, and records
        the benchmark's exit code."""
        return all(node.benchmark_watched() for node in self.nodes if node.benchmark_alive()) and any(
            node.benchmark_watched() for node in self.nodes
        )

    def last_words(self) -> str:
        """Return the last informative line of a dead agent's log, without its time; "" if there is no such
        line. The line may contain terminal escape sequences.
        """
        dead = self._dead() or self.nodes[:1]
        return next((words for node in dead if (words := node.last_words())), "")

    def start(self) -> None:
        """Start the agents that are not running. Raises AgentError.

        A restarted agent continues the work of its predecessor. An agent that is already running is left
        unchanged.
        """
        # If all agents of an elastic job have done their work but the job has no result, one agent is started
        # to write the result.
        for node in self._dead() or ([] if self.alive() else self.nodes):
            node.start()

    def scale(self, desired: int) -> list[int]:
        """Start agents of an elastic job until `desired` agents are alive; return the numbers of the started
        nodes. Raises AgentError. Dead agents are restarted first; after that, nodes with the lowest unused
        numbers are added.
        """
        nodes = self.nodes
        living = sum(node.alive() for node in nodes)
        new = count(nodes[-1].rank + 1)
        started = []
        for node in islice(chain(self._dead(), map(self.node, new)), max(0, desired - living)):
            node.start()
            started.append(node.rank)
        return started

    def proposed(self) -> int | None:
        """Return the number of nodes that the benchmark's hints propose; None if the benchmark has written no
        hints. Raises StoreError."""
        return proposed_nodes(AttemptRecord(self.record), self.job) if self.job is not None else None

    def _dead(self) -> list[NodeAgent]:
        return [node for node in self.nodes if not node.alive() and not node.done()]

    @contextmanager
    def kept_away(self) -> Iterator[bool]:
        """Hold the locks of the job's agents during the `with` block, so that no agent can start. Yield False
        if any part of the job still runs."""
        there = [node.rundir for node in self.nodes if node.rundir.path.is_dir()]
        with ExitStack() as stack:
            try:
                for rundir in there:
                    stack.enter_context(locked(rundir.agent_lock))
                    stack.enter_context(locked(rundir.newest_generation().shim_lock))
            except BusyError:
                yield False
                return
            yield not any(find_remains(rundir.newest_generation()) for rundir in there)


def local_agent(record: JobRecord, job: Job | None = None) -> LocalAgent | None:
    """Return the agents of a job on this machine; None if the record is not a folder here. job: the job's
    descriptor; if None, it is read from the record."""
    if (folder := record.store.folder) is None:
        return None
    if job is None:
        with suppress(BaiError):
            job = record.job()
    return LocalAgent(record, folder, job)


class AgentWatcher:
    """Checks whether the agent of one job is alive, as long as the job has no result."""

    pause_s = _PAUSE_S

    def __init__(
        self,
        agent: LocalAgent,
        record: JobRecord,
        on_status: Callable[[str], None],
        *,
        look_s: float = _LOOK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """on_status: called before the agent is restarted, which may take a while."""
        self._agent, self._restarter = agent, AgentRestarter(agent, record.job_id)
        self._record, self._on_status = record, on_status
        self._has_given_up = False
        self._proposed: int | None = None
        self._may_start = 0
        """Number of nodes that may still be started for the proposal `_proposed`. The number of starts is limited,
        so that nodes that end at once are not restarted forever."""
        self._look_s, self._clock = look_s, clock
        self._next = clock() + look_s

    def observe(self, *, news: bool, cancelling: bool) -> str | None:
        """Restart a dead agent, or start the agents of missing nodes. Raises NoResultError after too many
        restarts, BaiError if a restart fails."""
        if self._clock() < self._next:
            return None
        self._next = self._clock() + self._look_s
        if self._restarter.complete():
            return None if cancelling else self._grow()
        if result_of(self._record) is None:
            try:
                self._restarter.restart(self._on_status)
            except NoResultError as error:
                if not self._agent.alive():
                    raise
                is_news, self._has_given_up = not self._has_given_up, True
                return f"{error}; the job continues without this node" if is_news else None
        return None

    def _grow(self) -> str | None:
        """Start the agents of missing nodes that the benchmark's hints propose. Return a sentence about the started
        nodes, or None. Raises BaiError."""
        proposed = self._agent.proposed()
        if proposed != self._proposed:
            self._proposed, self._may_start = proposed, proposed or 0
        if proposed is None or self._may_start <= 0:
            return None
        started = self._agent.scale(proposed)
        self._may_start -= len(started)
        return f"{started_nodes(started)}: the benchmark's hints ask for more nodes" if started else None


def started_nodes(nodes: Sequence[int]) -> str:
    """Return part of a sentence that names the nodes whose agents were started."""
    return f"started node {', '.join(map(str, nodes))}"


class AgentRestarter:
    """Restarts a dead agent a few times. No further restart is made if the restarted agent dies at once for
    the same reason as before."""

    def __init__(self, agent: LocalAgent, job_id: str) -> None:
        self._agent = agent
        self._resume = NextStep(("resume", job_id), "starts it again")
        self._restarts = 0
        self._lived = True
        """Whether the agent was found alive after its last start."""
        self._reason = ""
        """End of the agent's log when the agent was last found dead, with all numbers removed."""

    def complete(self) -> bool:
        complete = self._agent.complete()
        self._lived = self._lived or complete
        return complete

    def restart(self, on_status: Callable[[str], None]) -> None:
        """Tell the user about the restart, and start the agent again. Raises NoResultError after too many
        restarts, BaiError if a restart fails."""
        reason = self._agent.last_words()
        cause = f". The agent's log ends with: {reason}" if reason else ""
        before, self._reason = self._reason, _NUMBERS.sub("", reason)
        if not self._lived and self._reason and self._reason == before:
            # The agent is not restarted, because it would fail again at its start.
            raise NoResultError(
                f"the agent died again right after its start, so the cause has to be removed first{cause}",
                self._resume,
            )
        if self._restarts == _RESTARTS:
            raise NoResultError(f"the agent died {_RESTARTS + 1} times{cause}", self._resume)
        self._restarts += 1
        self._lived = False
        on_status(f"the agent died; starting it again ({self._restarts} of {_RESTARTS}){cause}")
        self._agent.start()
