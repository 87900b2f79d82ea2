"""The protocol of a backend, for commands, jobs and the API, and the types of its answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import dataclass, field
from executor.records.job_status import JobStatus

if TYPE_CHECKING:
    from bai_agent.job.store import JobStore
    from executor.configuration.config import Settings
    from executor.descriptor import Descriptor, Finding
    from executor.errors import NextStep
    from executor.planning.request import JobRequest, Submitted


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """The arguments with which every backend is created."""

    settings: Callable[[], Settings]
    """Reads the configuration. Raises UsageError, DescriptorError."""
    store: str | None = None
    """The job store that was named: a folder, or s3://…"""


def named_store(option: str | None) -> str | None:
    """Return the job store that `--store` or else BAI_STORE names; None if neither does."""
    return option or os.environ.get("BAI_STORE") or None


class Plan(Protocol):
    """What would run."""

    def table(self) -> dict[str, Any]:
        """Return it as JSON values."""
        ...

    def text(self, *, show_user_data: bool = False) -> str:
        """Return the plan for people, in whole lines.

        show_user_data: whether to include the machine's user data. Raises UsageError if there is none.
        """
        ...

    def notes(self) -> list[str]:
        """Return further remarks, a sentence each."""
        ...

    def refusal(self) -> str | None:
        """Return the reason why a valid plan would not be started; None if it would."""
        ...

    def user_data(self) -> bytes:
        """Return the machine's user data. Raises UsageError if there is none."""
        ...


class LaunchNotice(Protocol):
    """A launch before its request."""

    def sentence(self, *, cost: bool) -> str:
        """Return the launch as a sentence. cost: whether to add its cost, which takes a request to AWS."""
        ...

    def cost(self) -> float | None:
        """Return the maximum cost (USD), which takes a request to AWS; None if unknown."""
        ...

    def hourly(self) -> float | None:
        """Return the cost of an hour of all its machines together (USD), which takes a request to AWS; None if unknown."""
        ...

    def warnings(self) -> list[str]:
        """Return warnings about unexpected costs, a sentence each."""
        ...


@dataclass(frozen=True, kw_only=True)
class CapacityWait:
    """A job that could not be launched for lack of capacity, and waits for it."""

    job_id: str
    sentence: str
    """The attempts, and EC2's answers."""
    again: datetime
    """When all is tried again."""
    until: datetime
    """Time at which it ends for lack of capacity."""
    key: str
    """Key that is the same for the same kinds of refusals."""
    is_cancelled: Callable[[], bool] = field(compare=False)
    """Returns whether the job has been cancelled since."""

    @property
    def bound(self) -> str:
        return f"until {self.until:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, kw_only=True)
class SubmitListener:
    """Callbacks for the steps of a submission."""

    on_submit: Callable[[str], None] = lambda job_id: None
    """Called with the job's id, before any service is asked."""
    on_plan: Callable[[LaunchNotice], None] = lambda notice: None
    on_progress: Callable[[str], None] = lambda sentence: None
    """Called with the current step, and with failures that do not end the submission."""
    on_launch: Callable[[str], None] = lambda job_id: None
    """Called with the job's id, just before any part of it may run."""
    on_wait: Callable[[CapacityWait], None] = lambda wait: None
    """Called with the wait, when no part of the job runs. The submission is tried again here, unless this
    raises."""


@dataclass(frozen=True)
class Location:
    """The place of a job's files."""

    files: str
    artifacts: str = ""
    """Path; "" if they are not files of this machine."""


@dataclass(frozen=True)
class ConsoleOutput:
    """The console output of a machine of a job."""

    instance_id: str
    state: str
    node: int
    text: str


class Watcher(Protocol):
    """Watches a job while a command follows it."""

    pause_s: float
    """Time between two looks at the job's record (seconds)."""

    def observe(self, *, news: bool, cancelling: bool) -> str | None:
        """Do everything that is due, not too often; return a sentence for the user, if any.

        news: whether the job has written something since the last call. Raises NoResultError or RecordError if there will be no result.
        """
        ...


class Backend(Protocol):
    """A place where jobs run. A backend raises UsageError for requests that it cannot support."""

    name: str
    """Name of the backend, as in `--on` and `JobStatus.where`."""
    remote: bool
    """Whether jobs run on other machines, which cost money and can be ended at once, and whose store is
    remote."""
    option_names: Sequence[str]
    """Options in addition to --store ("region") that select jobs and credentials; hints repeat them."""

    def __init__(self, options: BackendOptions) -> None: ...

    def owns(self, record: JobRecord) -> bool:
        """Return whether the job of `record` belongs to this backend."""
        ...

    def open_store(self, named: str | None) -> JobStore | None:
        """Return the store of this backend's jobs. Raises UsageError, StoreError.

        named: the store that the user names; None if it is another backend's. Unset: the store in BAI_STORE,
        else the usual one; None if there is none.
        """
        ...

    def store_option(self) -> str | None:
        """Return the `--store` with which a command finds jobs that are submitted now; None if it needs none."""
        ...

    def submission_store(self) -> JobStore:
        """Return the store of the jobs that are submitted now. Raises UsageError, StoreError."""
        ...

    def preflight(self, job_request: JobRequest, descriptor: Descriptor) -> list[Finding]:
        """Return problems of `job_request` that this machine can find alone."""
        ...

    def plan(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        on_progress: Callable[[str], None],
    ) -> AbstractContextManager[Plan]:
        """Return the plan, without changing anything. on_progress: gets unresolved values, and the reasons."""
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
        """Do everything that is due for a job and return its status. A job with a dead agent is never reported as running."""
        ...

    def statuses(self, records: Sequence[JobRecord]) -> list[JobStatus]:
        """Return the statuses of jobs, in their order, without changing anything. A broken record is a status, too."""
        ...

    def follow(self, record: JobRecord, *, on_status: Callable[[str], None]) -> Watcher:
        """Return a watcher for the job. on_status: gets sentences that cannot wait until `observe` returns."""
        ...

    def cancel(self, record: JobRecord, *, now: bool) -> str:
        """Ask a job to end; return a sentence about it. now: whether to end it without its agent."""
        ...

    def resume(self, record: JobRecord) -> str:
        """Restart the dead agent of a job; return a sentence about it."""
        ...

    def scale(self, record: JobRecord, nodes: int) -> str:
        """Ask an elastic job to have this number of nodes; return a sentence about it."""
        ...

    def release(self, record: JobRecord) -> str:
        """Release machines that are kept; return a sentence about it."""
        ...

    def shell(self, record: JobRecord, *, node: int, on_status: Callable[[str], None]) -> int:
        """Open a shell on a node's machine, in this terminal; return its exit code when it has ended. on_status: gets what it is."""
        ...

    def consoles(self, record: JobRecord, *, on_status: Callable[[str], None]) -> list[ConsoleOutput]:
        """Return the consoles of a job's machines. on_status: gets the reason if there are none."""
        ...

    def attention(self, record: JobRecord) -> tuple[str, NextStep | None] | None:
        """Return which process checks an unattended job, and what to do if there is none; None if no check
        is needed, or this is unknown."""
        ...

    def location(self, record: JobRecord) -> Location: ...

    def tidy(self) -> None:
        """Do everything that is due for other jobs; failures are ignored."""
        ...
