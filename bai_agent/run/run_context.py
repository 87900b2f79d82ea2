"""The state that the phases of a run share."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bai_agent.benchmark.environment import scripts_folder
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.limit_tables import Power
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import (
    AgentEvent,
    PhaseEvent,
    RestartEvent,
    RunEvent,
    StopEvent,
    WarningEvent,
)
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir, boot_id
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import dataclass, field
from bai_agent.machine.job_sockets import Announcement
from bai_agent.machine.readiness import Node, wait_for_machine
from bai_agent.run.stop_sources import DiskFull, Signals
from bai_agent.runtime.clock import CLOCK, Clock
from bai_agent.runtime.event_log import EventLog
from bai_agent.runtime.stop import StopMonitor, StopReason
from bai_agent.strategy.launch import Role

if TYPE_CHECKING:
    from bai_agent.benchmark.prepared_shim import PreparedShim
    from bai_agent.generations.checkpoint_marker import CheckpointMarker
    from bai_agent.machine.probe import EnvironmentProbe
    from bai_agent.peers.adaptdl_supervisor import AdaptdlSupervisor
    from bai_agent.peers.elastic_monitor import ElasticMonitor
    from bai_agent.peers.node_monitor import NodeMonitor
    from bai_agent.peers.peer_monitor import PeerMonitor
    from bai_agent.run.extractor import ExtractorProcess
    from bai_agent.sinks.job_store.node_store import NodeStore
    from bai_agent.sinks.job_store.uploader import StoreUploader
    from bai_agent.sinks.sink import Sink

_HURRY = 5.0
"""Longest time for the delivery of pending records after a signal to stop (seconds)."""

_POWER_OFF_GRACE = timedelta(seconds=1)
_POWER_OFF_HURRY = 0.9
"""Grace period, and time to deliver pending records (seconds), when the machine shuts down. The times are
short, because a process that runs for more than 5 s delays the shutdown."""


def new_uploader(node_store: NodeStore, rundir: RunDir) -> StoreUploader:
    """Return an uploader for this node's part of the job store. The returned uploader is not started yet."""
    # Imported here because this module loads the modules for S3.
    from bai_agent.sinks.job_store.uploader import StoreUploader

    return StoreUploader(node_store, rundir)


class KeepsCheckpoints(Protocol):
    """A thread that saves the checkpoints of a generation, such as `CheckpointThread`."""

    @property
    def generation(self) -> int: ...

    def events(self) -> Iterator[RunEvent]:
        """Yield the thread's events since the last call."""
        ...

    def end(self) -> None:
        """Tell the thread to save the generation's last checkpoint now, because no process of the benchmark
        is running any more."""
        ...

    def keeps_within(self, limit_s: float) -> bool:
        """Return whether the thread is saving the last checkpoint, and has been for less than `limit_s`
        seconds."""
        ...

    def give_up(self) -> None:
        """Tell the thread to save no more checkpoints. A checkpoint whose upload is unfinished is reported as
        not saved."""
        ...

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...


@dataclass
class RunContext:
    """The state of a run, which the phases and the agent's threads share."""

    job: Job
    rundir: RunDir
    events: EventLog
    watch: StopMonitor
    signals: Signals
    disk: DiskFull
    redactor: Redactor
    record: JobRecord | None
    extractor: ExtractorProcess
    node: Node = field(default_factory=Node)
    node_store: NodeStore | None = None
    """This node's part of a remote job store. None if there is no remote job store: the run directory is then
    already in the store."""
    monitor: PeerMonitor | None = None
    """Monitor of the other nodes of a fixed job. None if the job is elastic or has only one node."""
    elastic: ElasticMonitor | None = None
    """Monitor of the other nodes of an elastic job. None if the job is not elastic."""
    uploader: StoreUploader | None = None
    """Uploader to a remote job store. None until this node has claimed its part of the store."""
    sinks: list[Sink] = field(default_factory=list)
    """Running sinks, including `uploader`."""
    sinks_started: bool = False
    """Whether the sinks that the job descriptor lists have been started."""
    role: Role = Role.COMPUTE
    """This node's role in the job, which is known after the `join` phase."""
    is_served: bool = False
    """Whether the other nodes only run programs for this node's benchmark. The other nodes then end after
    this node's benchmark."""
    probe: EnvironmentProbe | None = None
    """Probe that collects the properties of the machine. The probe is not started if the benchmark was
    started before."""
    prepared_shim: PreparedShim | None = None
    """Shim that is started in advance and waits for the benchmark's command. None if the benchmark was started
    before."""
    when_started: Callable[[RunContext], None] = lambda _: None
    """Function that is called after the benchmark has started."""
    port: socket.socket | None = None
    """Socket that reserves the port that was published to the other nodes."""
    agent_port: socket.socket | None = None
    """Socket that reserves the port on which this agent answers other agents. The socket listens after the
    agent has read the nodes' key."""
    answers: bool = False
    """Whether `agent_port` listens."""
    checkpoints: KeepsCheckpoints | None = None
    """Thread that saves the checkpoints of a generation. Only the node with group rank 0 has this thread."""
    begins_with: str | None = None
    """Name of the checkpoint that the leader of an elastic job chose for this generation. None if the leader
    chose no checkpoint."""
    resumed: str = ""
    """Name of the checkpoint from which this generation continues; empty if the generation begins without a
    checkpoint."""
    shared_checkpoints: Sequence[str] = ()
    """Names of earlier generations' folders that contain checkpoints, newest first, if all nodes share these
    folders."""
    restored: CheckpointMarker | None = None
    """The checkpoint that this agent restored; None if this agent has restored no checkpoint."""
    supervisor: AdaptdlSupervisor | None = None
    """Supervisor of AdaptDL's replicas. None if the strategy has no supervisor."""
    alone: Sequence[Announcement] = ()
    """Locks that keep other exclusive jobs from starting on this machine."""
    clock: Clock = CLOCK
    new_uploader: Callable[[NodeStore, RunDir], StoreUploader] = new_uploader
    wait_for_machine: Callable[[Callable[[], bool], Clock], list[str]] = wait_for_machine
    """Function that waits until the machine is ready, or until the function's first argument returns True. It
    returns warnings."""
    phase: str = "prepare"
    reason: StopReason | None = None
    """Reason for which the agent ended the run or its current generation. None if the agent ended neither."""
    between_generations: bool = False
    """Whether the run ended while no generation was running, after a failure and before the restart."""
    cut_short: dict[str, float] = field(default_factory=dict)
    """Duration of the phase that was interrupted (seconds), by the phase's name."""
    outcome: Outcome = Outcome.AGENT_ERROR
    umask: int = 0o022
    """The umask of the agent's caller. The benchmark gets the caller's umask if it runs as the agent's
    user."""
    runs_python: bool = False
    """Whether one of the benchmark's processes was a Python."""
    static_program: str | None = None
    """Name of a statically linked program that was seen among the benchmark's processes."""
    writes_blocks: bool = True
    """Whether the output file's size was a multiple of the block size at every check, apart from short
    moments."""
    knows_secrets: bool = False
    """Whether the redactor knows the benchmark's secrets."""

    @property
    def others(self) -> NodeMonitor | None:
        """The monitor of the other nodes. None if the job can have only one node."""
        return self.monitor or self.elastic

    @property
    def is_first_here(self) -> bool:
        """Whether this node is the first of the job's nodes on this machine."""
        return self.node.rank == 0 or self.node.instance_id is not None

    @property
    def has_part(self) -> bool:
        """Whether this machine has claimed its part of the job store, and therefore is a node of the job."""
        return self.node_store is None or self.uploader is not None

    @property
    def may_quote(self) -> bool:
        """Whether the benchmark's output can be quoted, because the redactor knows all secrets in it."""
        return self.knows_secrets or not self.job.benchmark.secrets

    @property
    def scripts(self) -> Path | None:
        """Folder of the scripts. None if the job has no scripts."""
        return scripts_folder(self.job, self.rundir)

    def sink_errors(self) -> dict[str, str | None]:
        """Return the current error of each sink by the sink's display name. The error is None if the sink is
        delivering records."""
        return {sink.name: sink.error for sink in self.sinks}

    def begin_generation(self, rundir: RunDir) -> None:
        """Continue with the next generation, whose files are in `rundir`."""
        self.rundir = rundir
        if self.prepared_shim is not None:
            self.prepared_shim.close()
            self.prepared_shim = None
        self.watch.begin_generation(rundir)

    def stops_of_generation(self) -> list[StopEvent]:
        """Return the events about orders to stop since the decision that started this generation. For the
        first generation, return all such events of the run."""
        found: list[StopEvent] = []
        for each in self.events.seen:
            if isinstance(each, StopEvent):
                found.append(each)
            elif isinstance(each, RestartEvent) and 0 < each.generation <= self.rundir.generation:
                found = []
        return found

    def tell_checkpoints(self) -> None:
        """Add the events of the checkpoint thread to the run's events."""
        if self.checkpoints is not None:
            for event in self.checkpoints.events():
                self.events.add(event)

    def tell_supervisor(self) -> None:
        """Add the warnings of the supervisor of AdaptDL's replicas to the run's events."""
        if self.supervisor is not None:
            for warning in self.supervisor.take_warnings():
                self.warn(warning)

    def warn_once(self, message: str) -> bool:
        """Add a warning, unless this or an earlier agent of the run has already added it. Return whether this
        call added the warning."""
        is_new = all(each.message != message for each in self.events.of(WarningEvent))
        if is_new:
            self.warn(message)
        return is_new

    def warn(self, message: str) -> None:
        self.events.add(WarningEvent(message=message))

    def began(self, phase: str) -> float | None:
        """Return the time at which this or an earlier agent of the run began a phase (monotonic clock). None
        if the phase has not begun.

        Only after a reboot, the result is computed from the time of day, because the time of day can be
        changed.
        """
        boot = None
        for event in self.events.seen:
            if isinstance(event, AgentEvent):
                boot = event.boot_id
            elif isinstance(event, PhaseEvent) and event.phase == phase:
                if event.uptime is not None and boot is not None and boot == boot_id():
                    return min(event.uptime, self.clock.monotonic())
                return self.clock.monotonic() - max(0.0, self.clock.time() - event.time / 1000)
        return None

    def seconds_since(self, phase: str) -> float | None:
        """Return how long ago a phase began (seconds); None if the phase has not begun."""
        began = self.began(phase)
        return None if began is None else round(self.clock.monotonic() - began, 3)

    @property
    def top_folder(self) -> Path:
        """Folder of the job store, or the run directory if the store is not a local folder. The folders above
        the returned folder do not belong to bai."""
        store = self.record.store if self.record is not None else None
        return store.folder if isinstance(store, DirectoryStore) else self.rundir.path

    @property
    def goes_down(self) -> bool:
        """Whether the agent stops because the instance shuts down."""
        return self.signals.received and self.job.end.power is Power.OFF

    def drain_deadline(self) -> float:
        """Return the deadline for the delivery of pending records (`time.monotonic()`), if the delivery
        starts now."""
        seconds = self.job.limits.drain.total_seconds()
        if self.signals.received:
            seconds = min(_POWER_OFF_HURRY if self.goes_down else _HURRY, seconds)
        now, taken_away = self.clock.monotonic(), self.watch.deadline()
        if taken_away is not None:
            # The delivery of records gets only half of the time that is left, because artifacts and the
            # result are sent afterwards.
            seconds = min(seconds, max(0.0, (taken_away - now) / 2))
        return now + seconds

    def grace(self) -> timedelta:
        """Return the time from SIGTERM to SIGKILL for the benchmark.

        The grace period is shorter if the machine will be terminated at a known time. The grace period is
        then the remaining time minus the time for delivering records.
        """
        wanted = self.job.limits.grace
        if self.goes_down:
            return min(wanted, _POWER_OFF_GRACE)
        taken_away = self.watch.deadline()
        if taken_away is None:
            return wanted
        left = max(0.0, taken_away - self.clock.monotonic())
        return timedelta(seconds=left - min(left / 2, self.job.limits.drain.total_seconds()))
