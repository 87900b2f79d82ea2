"""What a command knows about the job that it follows, during the job and after its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.source_tables import SourceKind
from bai_agent.job.record_types import (
    BenchmarkStartEvent,
    JobResult,
    NeighbourEvent,
    RestartEvent,
    RestoreEvent,
    RunEvent,
    SinkEvent,
    StopEvent,
    WaitEvent,
    WarningEvent,
)
from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import dataclass, field
from executor.documents.document import Phrase
from executor.documents.text import place
from executor.program import command
from executor.quantities import seconds
from executor.records.follower import News
from executor.records.machine_facts import MachineWarning
from executor.records.run_state import PHASES, RunState, neighbour_sentence
from executor.records.statistics import Measurements

if TYPE_CHECKING:
    from executor.analysis.measured_runs import OverRuns


def phase_words(finished: Mapping[str, float]) -> str:
    """Return the durations of the finished phases as text. finished: duration of each phase (seconds)."""
    return " · ".join(f"{name} {seconds(finished[name])}" for name in PHASES if name in finished)


@dataclass
class JobView:
    """Everything that is known about a followed job."""

    job_id: str
    job: Job
    place: str
    """Path or address of the folder with the job's files."""
    artifacts: str = ""
    """Path or address of the job's artifacts; empty if the job has no artifacts."""
    state: RunState = field(default_factory=RunState)
    measurements: Measurements = field(default_factory=Measurements)
    cancelling: bool = False
    result: JobResult | None = None
    command: Callable[..., str] = command
    """Function that returns the command line for a hint, given the words of the command."""
    ending: str | None = None
    """Reason why the coordinator ends all nodes. None until the reason has been printed."""
    machine_warnings: Sequence[MachineWarning] = ()
    """Warnings about the job's machines as they were when the job began. Empty until the job has ended."""
    over_runs: list[OverRuns] = field(default_factory=list)
    """Statistics of each metric over the job's runs, if the job had several runs."""
    partial: bool = False
    """Whether the statistics cover only part of the records, because there were too many records to read."""

    def __post_init__(self) -> None:
        self.measurements = Measurements(self.job)

    def apply(self, news: News) -> None:
        for event in (*news.before, *news.after):
            self.state.apply(event)
            if isinstance(event, BenchmarkStartEvent):
                self.measurements.starts.setdefault(event.generation or None, event.time)
        if news.records and not self.partial:
            self.measurements.add_lines(news.records)

    def own_copy(self, src: str) -> bool:
        """Return whether the source `src` is the job's own copy of its scripts, which messages need not
        mention."""
        return any(
            place(source.src) == place(src) and source.kind is SourceKind.SCRIPTS and source.directory
            for source in self.job.sources
        )

    def remark(self, event: RunEvent) -> Phrase | None:
        """Return the message that every view prints for an event. None for an event that each view shows in
        its own way, such as a phase or a pull."""
        match event:
            case StopEvent() if not self._is_known_end(event):
                return Phrase(event.message, "caution")
            case WarningEvent() | SinkEvent():
                return Phrase(event.message, "caution")
            case WaitEvent():
                return Phrase(event.message, "live")
            case RestartEvent():
                return Phrase(event.sentence, "caution")
            case RestoreEvent():
                return Phrase(event.sentence, "live" if event.name is not None else "caution")
            case NeighbourEvent(until=None):
                return Phrase(neighbour_sentence(event.job_id, there=True), "caution")
        return None

    def _is_known_end(self, event: StopEvent) -> bool:
        """Return whether another text gives the reason in a stop event: the coordinator's reason, or the
        summary if the benchmark never began."""
        return event.message == self.ending or "run" not in (self.state.phase, *self.state.finished)

    @property
    def phase_seconds(self) -> float:
        """Duration of the current phase so far (seconds)."""
        return max(0.0, (now_ms() - self.state.since) / 1000) if self.state.since is not None else 0.0
