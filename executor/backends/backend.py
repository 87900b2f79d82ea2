"""What a place to run is: the protocol that commands, jobs and the API know, and the data that it answers with."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from bai_agent.job.record import JobRecord
from executor.records.job_status import JobStatus

if TYPE_CHECKING:
    from bai_agent.job.store import JobStore
    from executor.config import Settings
    from executor.descriptor import Descriptor, Finding
    from executor.planning.request import JobRequest, Submitted


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """What every backend is made with."""

    settings: Callable[[], Settings]
    """The configuration, read where it is needed. Raises UsageError, DescriptorError."""
    store: str | None = None
    """The job store that was named: a folder, or s3://…"""


def named_store(option: str | None) -> str | None:
    """Return the job store that somebody names, by `--store` or else by BAI_STORE; None where nobody does."""
    return option or os.environ.get("BAI_STORE") or None


class Plan(Protocol):
    """What would run."""

    def table(self) -> dict[str, Any]:
        """Return it as JSON values."""
        ...

    def text(self, *, show_user_data: bool = False) -> str:
        """Return the plan for a person, as whole lines.

        show_user_data: include what a machine is started with. Raises UsageError if there is no such thing.
        """
        ...

    def notes(self) -> list[str]:
        """Return further remarks, a sentence each."""
        ...

    def refusal(self) -> str | None:
        """Return why it would not be started as it is, for all that is in order; None if it would be."""
        ...

    def user_data(self) -> bytes:
        """Return what a machine is started with. Raises UsageError where there is no such thing."""
        ...


class LaunchNotice(Protocol):
    """What is about to be launched."""

    def sentence(self, *, cost: bool) -> str:
        """Return it in a sentence. cost: add what it may cost, which takes a request to AWS."""
        ...

    def cost(self) -> float | None:
        """Return what it may cost at most, in USD, which takes a request to AWS; None where that is not known."""
        ...

    def warnings(self) -> list[str]:
        """Return what may cost more than a person expects, a sentence each."""
        ...


@dataclass(frozen=True, kw_only=True)
class CapacityWait:
    """A job that could not be launched for want of room, and waits for it."""

    job_id: str
    sentence: str
    """What was tried, and what was answered."""
    again: datetime
    """When all is tried again."""
    until: datetime
    """When it ends for want of room."""
    key: str
    """The same for what was refused in the same way."""
    is_cancelled: Callable[[], bool] = field(compare=False)
    """Whether somebody has asked for the job's end meanwhile."""

    @property
    def bound(self) -> str:
        return f"until {self.until:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, kw_only=True)
class SubmitListener:
    """Callbacks for the steps of a submission."""

    on_submit: Callable[[str], None] = lambda job_id: None
    """The job's id, before any service is asked."""
    on_plan: Callable[[LaunchNotice], None] = lambda notice: None
    on_progress: Callable[[str], None] = lambda sentence: None
    """What is being done, and what goes wrong without ending it."""
    on_launch: Callable[[str], None] = lambda job_id: None
    """The job's id, just before something of it may run."""
    on_wait: Callable[[CapacityWait], None] = lambda wait: None
    """Nothing of the job runs, and it is tried again later: here, unless this raises."""


@dataclass(frozen=True)
class Location:
    """Where to find the files of a job."""

    files: str
    artifacts: str = ""
    """"" where they are not files of this machine."""


@dataclass(frozen=True)
class ConsoleOutput:
    """What a machine of a job has written to its console."""

    instance_id: str
    state: str
    node: int
    text: str


class Watcher(Protocol):
    """Watches a job while somebody follows it."""

    pause_s: float
    """Between two looks at the job's record."""

    def observe(self, *, news: bool, cancelling: bool) -> str | None:
        """Do what is due, not too often; return a sentence for the person, if any.

        news: the job has written something since the last call. Raises NoResultError or RecordError where no result will come.
        """
        ...


class Backend(Protocol):
    """A place where jobs run. Where something makes no sense there, it raises UsageError."""

    name: str
    """As `--on` and `JobStatus.where` have it."""
    remote: bool
    """Whether jobs run on other machines: these cost money and can be ended at once, and their store is asked over a network."""
    option_names: Sequence[str]
    """The options beside --store ("region") that say where jobs are and in whose name they are looked at; hints repeat them."""

    def __init__(self, options: BackendOptions) -> None: ...

    def owns(self, record: JobRecord) -> bool:
        """Return whether the job of `record` runs here, or would."""
        ...

    def open_store(self, named: str | None) -> JobStore | None:
        """Return the store that holds jobs of this backend. Raises UsageError, StoreError.

        named: the store that somebody names; None where it is another backend's. Unset: what BAI_STORE names, else the usual one;
        None where there is none.
        """
        ...

    def store_option(self) -> str | None:
        """Return what `--store` must say for a command to find what is submitted here now; None where it finds it without."""
        ...

    def preflight(self, job_request: JobRequest, descriptor: Descriptor) -> list[Finding]:
        """Return what would stop `job_request`, as far as this machine alone knows."""
        ...

    def plan(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        on_progress: Callable[[str], None],
    ) -> AbstractContextManager[Plan]:
        """Return what would run, without changing anything. on_progress: called with what is left open, and why."""
        ...

    def submit(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        listener: SubmitListener,
    ) -> Submitted:
        """Record the job and start it. Repeated with the same id, after any failure, it is started once."""
        ...

    def status(self, record: JobRecord) -> JobStatus:
        """Do what is due for a job and return its status. A job whose agent is gone is never reported as running."""
        ...

    def statuses(self, records: Sequence[JobRecord]) -> list[JobStatus]:
        """Return the statuses of jobs, in their order, without changing anything. A broken record is a status too."""
        ...

    def follow(self, record: JobRecord, *, on_status: Callable[[str], None]) -> Watcher:
        """Return a watcher for the job. on_status: called with what cannot wait until `observe` returns."""
        ...

    def cancel(self, record: JobRecord, *, now: bool) -> str:
        """Ask a job to end; return what was done. now: without waiting for its agent."""
        ...

    def resume(self, record: JobRecord) -> str:
        """Restart the dead agent of a job; return what was done."""
        ...

    def release(self, record: JobRecord) -> str:
        """Release machines that are kept after a failure; return what was done."""
        ...

    def consoles(self, record: JobRecord, *, on_status: Callable[[str], None]) -> list[ConsoleOutput]:
        """Return what the machines of a job have written to their consoles. on_status: called with the reason where there are none."""
        ...

    def location(self, record: JobRecord) -> Location: ...

    def tidy(self) -> None:
        """Do what is due for other jobs; failures are ignored."""
        ...
