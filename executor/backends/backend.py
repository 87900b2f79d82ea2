"""Defines the protocol that every backend implements, and the types of its results. Commands, `executor/jobs`
and the API use backends through this protocol."""

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
    """The job store that the user named: a folder, or s3://…"""


def named_store(option: str | None) -> str | None:
    """Return the job store that `--store` names, otherwise the store in BAI_STORE; None if neither is set."""
    return option or os.environ.get("BAI_STORE") or None


class Plan(Protocol):
    """A job's plan: what would run if the job were submitted now."""

    def table(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        ...

    def text(self, *, show_user_data: bool = False) -> str:
        """Return the plan as text for the user, in whole lines.

        show_user_data: whether to include the machine's user data. Raises UsageError if there is no user
        data.
        """
        ...

    def notes(self) -> list[str]:
        """Return further notes on the plan, one sentence each."""
        ...

    def refusal(self) -> str | None:
        """Return the reason why a job with this valid plan would not be started; None if the job would be
        started."""
        ...

    def user_data(self) -> bytes:
        """Return the machine's user data. Raises UsageError if there is no user data."""
        ...


class LaunchNotice(Protocol):
    """Information for the user about a launch that is about to be requested."""

    def sentence(self, *, cost: bool) -> str:
        """Return the launch as a sentence. cost: whether to add the launch's cost, which needs a request to
        AWS."""
        ...

    def cost(self) -> float | None:
        """Return the launch's maximum cost (USD), for which AWS is queried; None if the cost is unknown."""
        ...

    def hourly(self) -> float | None:
        """Return the cost per hour of all machines together (USD), for which AWS is queried; None if the cost
        is unknown."""
        ...

    def warnings(self) -> list[str]:
        """Return warnings about unexpected costs, one sentence each."""
        ...


@dataclass(frozen=True, kw_only=True)
class CapacityWait:
    """The wait for capacity of a job that could not be launched."""

    job_id: str
    sentence: str
    """Description of the attempts to launch the job, with EC2's answers."""
    again: datetime
    """Time at which all candidates are requested again."""
    until: datetime
    """Time at which the job ends without a launch if there is still no capacity."""
    key: str
    """Key of the reasons. Two waits have the same key if EC2 refused their requests for the same kinds of
    reasons."""
    is_cancelled: Callable[[], bool] = field(compare=False)
    """Returns whether the job has been cancelled in the meantime."""

    @property
    def bound(self) -> str:
        return f"until {self.until:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, kw_only=True)
class SubmitListener:
    """Callbacks for the steps of a submission."""

    on_submit: Callable[[str], None] = lambda job_id: None
    """Called with the job's id, before the first request to any service."""
    on_plan: Callable[[LaunchNotice], None] = lambda notice: None
    on_progress: Callable[[str], None] = lambda sentence: None
    """Called with a sentence about the current step of the submission, or about a failure that does not end
    the submission."""
    on_launch: Callable[[str], None] = lambda job_id: None
    """Called with the job's id, just before the first step that may start a part of the job."""
    on_wait: Callable[[CapacityWait], None] = lambda wait: None
    """Called with the state of the job's wait for capacity, while no part of the job runs. After the callback
    returns, this process retries the submission. The callback may raise to prevent the retry."""


@dataclass(frozen=True)
class Location:
    """The place of a job's files."""

    files: str
    artifacts: str = ""
    """Path of the artifacts; "" if the artifacts are not on this machine."""


@dataclass(frozen=True)
class ConsoleOutput:
    """The console output of a machine of a job."""

    instance_id: str
    state: str
    node: int
    text: str


class Watcher(Protocol):
    """Monitors a job while a command follows the job."""

    pause_s: float
    """Time between two reads of the job's record (seconds)."""

    def observe(self, *, news: bool, cancelling: bool) -> str | None:
        """Check the job and do everything that is due. Return a sentence for the user, or None. Callers may
        call `observe` as often as they like, because the watcher itself limits the rate of its checks.

        news: whether the job has written something since the last call. Raises NoResultError or RecordError
        if the job will not have a result.
        """
        ...


class Backend(Protocol):
    """A place where jobs run. An operation that a backend does not support raises UsageError."""

    name: str
    """Name of the backend in `--on` and `JobStatus.where`."""
    remote: bool
    """Whether jobs run on other machines, which cost money, can be terminated at once, and use a remote
    store."""
    option_names: Sequence[str]
    """Names of command-line options besides --store, such as "region", that select jobs and credentials.
    If the user has set such an option, the commands that bai suggests also contain the option."""

    def __init__(self, options: BackendOptions) -> None: ...

    def owns(self, record: JobRecord) -> bool:
        """Return whether the job of `record` belongs to this backend."""
        ...

    def open_store(self, named: str | None) -> JobStore | None:
        """Return the store of this backend's jobs. Raises UsageError, StoreError.

        named: the store that the user names. Returns None if the named store belongs to another backend. If `named`
        is None, the store in BAI_STORE is opened. If BAI_STORE is not set either, the default store is opened.
        Returns None if there is no default store.
        """
        ...

    def store_option(self) -> str | None:
        """Return the value of `--store` that a later command needs to find a job that is submitted now; None
        if the command needs no `--store`."""
        ...

    def submission_store(self) -> JobStore:
        """Return the store into which jobs are submitted. Raises UsageError, StoreError."""
        ...

    def preflight(self, job_request: JobRequest, descriptor: Descriptor) -> list[Finding]:
        """Return the problems of `job_request` that can be found without network access."""
        ...

    def plan(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        on_progress: Callable[[str], None],
    ) -> AbstractContextManager[Plan]:
        """Return the plan, without changing anything. on_progress: called with the reasons why values are
        unresolved."""
        ...

    def submit(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        listener: SubmitListener,
    ) -> Submitted:
        """Record the job and start it. The job is started only once, even if the call is repeated with the
        same job id after any failure."""
        ...

    def status(self, record: JobRecord) -> JobStatus:
        """Do everything that is due for a job, and return its status. If the job's agent is dead, the status
        is never "running"."""
        ...

    def statuses(self, records: Sequence[JobRecord]) -> list[JobStatus]:
        """Return the statuses of jobs, in their order, without changing anything. A broken record is also
        reported as a status."""
        ...

    def follow(self, record: JobRecord, *, on_status: Callable[[str], None]) -> Watcher:
        """Return a watcher for the job. on_status: called with sentences that the user must see before
        `observe` returns."""
        ...

    def cancel(self, record: JobRecord, *, now: bool) -> str:
        """Cancel a job; return a sentence about the cancellation. now: whether to terminate the job's
        machines at once, without waiting for the agent."""
        ...

    def resume(self, record: JobRecord) -> str:
        """Restart the dead agent of a job; return a sentence about the restart."""
        ...

    def scale(self, record: JobRecord, nodes: int) -> str:
        """Set the desired number of nodes of an elastic job; return a sentence about the change."""
        ...

    def release(self, record: JobRecord) -> str:
        """Release machines that stay on for inspection; return a sentence about the release."""
        ...

    def shell(self, record: JobRecord, *, node: int, on_status: Callable[[str], None]) -> int:
        """Open a shell on a node's machine in this terminal. Return the shell's exit code after the shell has
        ended. on_status: called with a sentence about the shell before it opens."""
        ...

    def consoles(self, record: JobRecord, *, on_status: Callable[[str], None]) -> list[ConsoleOutput]:
        """Return the console output of a job's machines. on_status: called with the reason if there is no
        console output."""
        ...

    def attention(self, record: JobRecord) -> tuple[str, NextStep | None] | None:
        """Return a sentence that says which process monitors the job after `bai` has exited, and the advice
        to the user if no process does. None if the job needs no monitoring, or if it is unknown whether a
        process monitors it."""
        ...

    def location(self, record: JobRecord) -> Location: ...

    def tidy(self) -> None:
        """Do everything that is due for other jobs of the user. Failures are ignored."""
        ...
