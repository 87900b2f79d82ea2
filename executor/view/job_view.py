"""The state that views draw, and the protocol of a view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bai_agent.job.descriptor import Job, SourceKind
from bai_agent.job.record_types import BenchmarkStartEvent, JobResult, RunEvent, StopEvent
from bai_agent.job.run_directory import now_ms
from executor.program import command
from executor.records.environments import MachineWarning
from executor.records.follower import News
from executor.records.run_state import RunState
from executor.records.statistics import Measurements
from executor.view.text import place

if TYPE_CHECKING:
    from executor.analysis.repeats import OverRuns


@dataclass
class JobView:
    """All that is known of a followed job."""

    job_id: str
    job: Job
    place: str
    """Where its files are."""
    artifacts: str = ""
    """Where its artifacts are."""
    state: RunState = field(default_factory=RunState)
    measurements: Measurements = field(default_factory=Measurements)
    cancelling: bool = False
    result: JobResult | None = None
    command: Callable[..., str] = command
    """Makes the command line of a hint from its words."""
    ending: str | None = None
    """Why the coordinator of several nodes has told all to end, as a person was told."""
    machine_warnings: Sequence[MachineWarning] = ()
    """Of a job that has ended: what its machines were warned of when it began."""
    over_runs: list[OverRuns] = field(default_factory=list)
    """What its runs say together, of a job that did several."""
    partial: bool = False
    """The statistics do not cover all records: there were too many to read."""

    def __post_init__(self) -> None:
        self.measurements = Measurements(self.job)

    def apply(self, news: News) -> None:
        for event in (*news.before, *news.after):
            self.state.apply(event)
            if isinstance(event, BenchmarkStartEvent):
                self.measurements.starts.setdefault(None, event.time)
        if news.records and not self.partial:
            self.measurements.add_lines(news.records)

    def own_copy(self, src: str) -> bool:
        """Return whether `src` is our own copy of the job's scripts: that it is taken from there tells nobody anything."""
        return any(
            place(source.src) == place(src) and source.kind is SourceKind.SCRIPTS and source.directory
            for source in self.job.sources
        )

    def is_last_word(self, event: RunEvent) -> bool:
        """Return whether what `event` says, why a run ends, is known: of several nodes; or soon, by the summary, before the benchmark began."""
        if not isinstance(event, StopEvent):
            return False
        return event.message == self.ending or "run" not in (self.state.phase, *self.state.finished)

    @property
    def phase_seconds(self) -> float:
        """Seconds that the current phase has lasted."""
        return max(0.0, (now_ms() - self.state.since) / 1000) if self.state.since is not None else 0.0


class View(Protocol):
    """Shows one job to somebody."""

    def begin(self, job_view: JobView) -> None: ...

    def notice(self, sentence: str) -> None:
        """Show a message about what `bai` itself does."""
        ...

    def show(self, job_view: JobView, news: News) -> None:
        """Show what is new; `job_view` knows of it already."""
        ...

    def refresh(self, job_view: JobView) -> None:
        """Called after one or more `show`, several times a second; the time has moved on."""
        ...

    def end(self, job_view: JobView) -> None:
        """Show the end; `job_view.result` is set."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was; may be called at any time, also twice."""
        ...
