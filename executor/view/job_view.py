"""What every view draws from, and what a view is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bai_agent.job.descriptor import Job, SourceKind
from bai_agent.job.run_directory import now_ms
from executor.program import command
from executor.records.follower import News
from executor.records.run_state import RunState
from executor.records.statistics import Measurements
from executor.view.text import place


@dataclass
class JobView:
    """All that is known of a job that somebody looks at."""

    job_id: str
    job: Job
    place: str
    """Where its files are."""
    artifacts: str = ""
    """Where its artifacts are."""
    state: RunState = field(default_factory=RunState)
    measurements: Measurements = field(default_factory=Measurements)
    cancelling: bool = False
    result: Mapping[str, Any] | None = None
    command: Callable[..., str] = command
    """Makes the command line of a hint from its words."""
    partial: bool = False
    """The statistics do not cover all records: there were too many to read."""

    def __post_init__(self) -> None:
        self.measurements = Measurements(self.job)

    def apply(self, news: News) -> None:
        for event in (*news.before, *news.after):
            self.state.apply(event)
        if news.records and not self.partial:
            self.measurements.add_lines(news.records)

    def own_copy(self, src: str) -> bool:
        """Return whether `src` is our own copy of the job's scripts: that it is taken from there tells nobody anything."""
        return any(
            place(source.src) == place(src) and source.kind is SourceKind.SCRIPTS and source.directory
            for source in self.job.sources
        )

    def is_last_word(self, event: Mapping[str, Any]) -> bool:
        """Return whether the summary, which comes next, says what `event` says: why a run ended before its benchmark began."""
        return event.get("type") == "stop" and "run" not in (self.state.phase, *self.state.finished)

    @property
    def phase_seconds(self) -> float:
        """How long the present phase has lasted."""
        return max(0.0, (now_ms() - self.state.since) / 1000) if self.state.since is not None else 0.0


class View(Protocol):
    """Shows one job to somebody."""

    def begin(self, job_view: JobView) -> None: ...

    def notice(self, sentence: str) -> None:
        """Say something about what `bai` itself does."""
        ...

    def show(self, job_view: JobView, news: News) -> None:
        """Show what is new; `job_view` knows of it already."""
        ...

    def refresh(self, job_view: JobView) -> None:
        """Called after one or more `show`, several times a second; the time has moved on."""
        ...

    def end(self, job_view: JobView) -> None:
        """The job is over and `picture.result` is there."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was; may be called at any time, also twice."""
        ...
