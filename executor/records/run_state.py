"""Computes the state of a run from its events: the phase, the phase's start, and warnings."""

from __future__ import annotations

from collections.abc import Iterable

from bai_agent.job.outcome import Status
from bai_agent.job.record_types import (
    AgentEvent,
    NeighbourEvent,
    OutcomeEvent,
    PhaseEvent,
    PullEvent,
    RepeatEvent,
    RequirementsEvent,
    RestartEvent,
    RunEvent,
    SinkEvent,
    StopEvent,
    TransportEvent,
    WaitEvent,
    WarningEvent,
)
from bai_agent.light_dataclass import dataclass, field

PHASES = ("prepare", "pull", "join", "run", "drain", "end")


def neighbour_sentence(job_id: str | None, *, there: bool) -> str:
    """Return the sentence about another job that runs, or ran, on the same machine."""
    name = f"The job {job_id}" if job_id is not None else "Another user's job"
    return f"{name} {'runs' if there else 'ran'} on this machine at the same time, so the two jobs slow each other down."


@dataclass
class RunState:
    """The state of a run after all events that were applied to it. Times are ms UTC."""

    started: int | None = None
    phase: str | None = None
    """The current phase or, between two phases, the next phase."""
    since: int | None = None
    finished: dict[str, float] = field(default_factory=dict)
    pulls: dict[str, PullEvent] = field(default_factory=dict)
    installing: str | None = None
    """Path of the requirements file that is being installed."""
    warnings: list[str] = field(default_factory=list)
    troubles: dict[str, str] = field(default_factory=dict)
    """Sentences about unreachable sinks, by the name of the sink."""
    waits: str | None = None
    """Sentence about the jobs for which the run waits before it begins."""
    neighbours: dict[str | None, bool] = field(default_factory=dict)
    """Other jobs that ran on the same machine → whether they still run."""
    transports: dict[str, list[str]] = field(default_factory=dict)
    """Network transport that each library reports, by library."""
    stop: str | None = None
    """Reason why the run is being ended; None if the run is not being ended."""
    repeat: str | None = None
    """The run that began last in a job of several runs, as text: "run 3 of 10"."""
    restarts: str | None = None
    """Text about the used restarts, if the job was restarted: "1 of 3 used, the last one because …"."""
    outcome: str | None = None
    agents: int = 0
    """Number of times that an agent was started."""
    last_event: int | None = None

    def apply_all(self, events: Iterable[RunEvent]) -> None:
        """Apply events in their order."""
        for event in events:
            self.apply(event)

    def apply(self, event: RunEvent) -> None:
        self.last_event = event.time
        self.started = self.started if self.started is not None else event.time
        match event:
            case AgentEvent():
                self.agents += 1
                # The restarted agent reports unreachable sinks again. The agent does not report sinks that
                # became reachable while no agent ran, so all earlier troubles are dropped.
                self.troubles.clear()
            case WaitEvent():
                self.waits = event.message
            case NeighbourEvent():
                self.neighbours[event.job_id] = event.until is None
            case PhaseEvent(state="started", phase=phase):
                self.waits = self.waits if phase == "prepare" else None
                self.phase, self.since = event.phase, event.time
            case PhaseEvent(state="finished"):
                self.finished[event.phase] = event.seconds or 0.0
            case PullEvent():
                self.pulls[event.src] = event
            case RequirementsEvent():
                self.installing = None if event.done else event.path
            case RepeatEvent():
                self.repeat = event.name
            case StopEvent():
                self.stop = event.message
            case RestartEvent():
                # The reason why a generation was stopped does not apply to the next generation.
                self.stop = None
                why = f"{event.message[:1].lower()}{event.message[1:]}".rstrip(".")
                self.restarts = f"{event.generation} of {event.max_restarts} used, the last one because {why}"
            case WarningEvent():
                self.warnings.append(event.message)
            case TransportEvent():
                self.transports[event.library] = event.uses
            case SinkEvent(error=None):
                self.troubles.pop(event.sink, None)
            case SinkEvent():
                self.troubles[event.sink] = event.message
            case OutcomeEvent():
                self.outcome = event.outcome

    @property
    def cautions(self) -> tuple[str, ...]:
        """Messages for the user during the run: the warnings, and a sentence about each unreachable sink."""
        beside = (neighbour_sentence(job_id, there=there) for job_id, there in self.neighbours.items())
        waits = (self.waits,) if self.waits is not None else ()
        return (*waits, *self.warnings, *beside, *self.troubles.values())

    @property
    def status(self) -> Status:
        """The status of a job without a result."""
        if self.phase is None:
            return Status.PENDING
        return Status.RUNNING if self.phase in ("run", "drain", "end") else Status.INITIALIZING
