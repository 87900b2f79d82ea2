"""What the phases of a run share."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent.benchmark.environment import scripts_folder
from bai_agent.job.descriptor import Job, Power
from bai_agent.job.events import EventLog
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import WarningEvent
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.run.clock import CLOCK, Clock
from bai_agent.run.extractor import RunningExtractor
from bai_agent.run.job_sockets import Announcement
from bai_agent.run.machine import Node, wait_for_machine
from bai_agent.run.peer_monitor import PeerMonitor
from bai_agent.run.stop import StopReason, StopWatch
from bai_agent.run.stop_sources import DiskFull, Signals
from bai_agent.sinks.job_store.node_store import NodeStore
from bai_agent.sinks.job_store.uploader import StoreUploader
from bai_agent.sinks.sink import Sink
from bai_agent.strategy.launch import Role

if TYPE_CHECKING:
    from bai_agent.run.environment import EnvironmentProbe

_HURRY = 5.0
"""Seconds for draining when the agent is told to stop."""

_POWER_OFF_GRACE = timedelta(seconds=1)
_POWER_OFF_HURRY = 0.9
"""The same, and for draining, when that means that the machine goes: whoever stays longer than 5 s holds up its end."""


@dataclass
class RunContext:
    """One run of this agent."""

    job: Job
    rundir: RunDir
    events: EventLog
    watch: StopWatch
    signals: Signals
    disk: DiskFull
    redactor: Redactor
    record: JobRecord | None
    extractor: RunningExtractor
    node: Node = field(default_factory=Node)
    node_store: NodeStore | None = None
    """This node's part of the job store, where that is not the run directory itself."""
    monitor: PeerMonitor | None = None
    """Looks after the other nodes, where the job has several."""
    uploader: StoreUploader | None = None
    """Runs from when this node has claimed its part of the store."""
    sinks: list[Sink] = field(default_factory=list)
    """Those that run, `uploader` among them."""
    sinks_started: bool = False
    """Whether those of the job descriptor run."""
    role: Role = Role.COMPUTE
    """This node's part in the job, once the nodes have met."""
    is_served: bool = False
    """Whether other nodes only serve this one: they end when its benchmark has."""
    probe: EnvironmentProbe | None = None
    """Finds out what the benchmark will run on; it begins only where the benchmark has not been started before."""
    port: socket.socket | None = None
    """Keeps the port that this node has told the others."""
    agent_port: socket.socket | None = None
    """Is held for the questions of other nodes' agents, and listens once the key is known with which they ask."""
    alone: Sequence[Announcement] = ()
    """Keep other jobs away that are to have this machine for themselves, as this one is."""
    clock: Clock = CLOCK
    new_uploader: Callable[[NodeStore, RunDir], StoreUploader] = StoreUploader
    wait_for_machine: Callable[[Callable[[], bool], Clock], list[str]] = wait_for_machine
    """Returns warnings when the machine is as the benchmark needs it, or when the first argument says that the run stops."""
    phase: str = "prepare"
    reason: StopReason | None = None
    """Why the run ended before its benchmark did."""
    cut_short: dict[str, float] = field(default_factory=dict)
    """The phase in which it did, and how many seconds that had lasted."""
    outcome: Outcome = Outcome.AGENT_ERROR
    umask: int = 0o022
    """What the caller had: the benchmark's, where that runs as the same user."""
    runs_python: bool = False
    """Whether a Python was seen among the benchmark's processes."""
    static_program: str | None = None
    """A static program that was seen among the benchmark's processes, by name."""
    writes_blocks: bool = True
    """Whether the log has only been seen empty or with whole blocks in it while the benchmark ran."""
    knows_secrets: bool = False
    """Whether the redactor has been told the benchmark's secrets."""

    @property
    def may_quote(self) -> bool:
        """Whether what the benchmark printed can be quoted without its secrets."""
        return self.knows_secrets or not self.job.benchmark.secrets

    @property
    def scripts(self) -> Path | None:
        """The scripts' folder, where the job has scripts."""
        return scripts_folder(self.job, self.rundir)

    def sink_errors(self) -> dict[str, str | None]:
        """Return what keeps each place that metrics and logs go to from taking them now, by its name for people."""
        return {sink.name: sink.error for sink in self.sinks}

    def warn(self, message: str) -> None:
        self.events.add(WarningEvent(message=message))

    @property
    def top_folder(self) -> Path:
        """The outermost folder that is this job's store's or its run directory: what is above it is not ours."""
        store = self.record.store if self.record is not None else None
        return store.folder if isinstance(store, DirectoryStore) else self.rundir.path

    @property
    def goes_down(self) -> bool:
        """True when the agent stops because the instance shuts down."""
        return self.signals.received and self.job.end.power is Power.OFF

    def drain_deadline(self) -> float:
        """Return until when (`time.monotonic()`) something may still be sent, counted from now."""
        seconds = self.job.limits.drain.total_seconds()
        if self.signals.received:
            seconds = min(_POWER_OFF_HURRY if self.goes_down else _HURRY, seconds)
        now, taken_away = self.clock.monotonic(), self.watch.deadline()
        if taken_away is not None:
            # Half of it: artifacts and the result come after the records.
            seconds = min(seconds, max(0.0, (taken_away - now) / 2))
        return now + seconds

    def grace(self) -> timedelta:
        """Return how long the benchmark may take from SIGTERM to SIGKILL: where the machine is taken away at a known time, what is
        left until then, less what draining may take."""
        wanted = self.job.limits.grace
        if self.goes_down:
            return min(wanted, _POWER_OFF_GRACE)
        taken_away = self.watch.deadline()
        if taken_away is None:
            return wanted
        left = max(0.0, taken_away - self.clock.monotonic())
        return timedelta(seconds=left - min(left / 2, self.job.limits.drain.total_seconds()))
