"""What a place to run is: the protocol that commands, jobs and the API know, and the data that it answers with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bai_agent.job.record import JobRecord
from executor.records.job_status import JobStatus

if TYPE_CHECKING:
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


class Plan(Protocol):
    """What would run."""

    def table(self) -> dict[str, Any]:
        """Return it as JSON values."""
        ...

    def text(self) -> str:
        """Return it for a person, as whole lines."""
        ...

    def user_data(self) -> bytes:
        """Return what a machine is started with. Raises UsageError where there is no such thing."""
        ...


class LaunchNotice(Protocol):
    """What is about to be launched."""

    def sentence(self, *, cost: bool) -> str:
        """Return it in a sentence; cost: with what it may cost, which has to be asked for."""
        ...


@dataclass(frozen=True, kw_only=True)
class SubmitListener:
    """Who hears what becomes of a submission while it is made."""

    on_submit: Callable[[str], None] = lambda job_id: None
    """The job's id, before anybody is asked for anything."""
    on_plan: Callable[[LaunchNotice], None] = lambda notice: None
    on_progress: Callable[[str], None] = lambda sentence: None
    """What is being done, and what goes wrong without ending it."""
    on_launch: Callable[[str], None] = lambda job_id: None
    """The job's id, just before something of it may run."""


@dataclass(frozen=True)
class Location:
    """Where what a job leaves can be found."""

    files: str
    artifacts: str = ""
    """"" where they are not files of this machine."""


@dataclass(frozen=True)
class Console:
    """What a machine of a job has written to its console."""

    instance_id: str
    state: str
    node: int
    text: str


class Watcher(Protocol):
    """Keeps an eye on a job while somebody follows it."""

    pause_s: float
    """Between two looks at the job's record."""

    def observe(self, *, news: bool, cancelling: bool) -> str | None:
        """Do what is due, not too often; return what is to be said.

        news: something has come from the job since the last call. Raises NoResultError, RecordError where waiting is no use.
        """
        ...


class Backend(Protocol):
    """A place where jobs run. Where something makes no sense there, it raises UsageError."""

    name: str
    """As `--on` and `JobStatus.where` have it."""
    remote: bool
    """Whether jobs run on other machines: these cost money, and their store is asked over a network."""

    def __init__(self, options: BackendOptions) -> None: ...

    def owns(self, record: JobRecord) -> bool:
        """Return whether the job of `record` runs here, or would."""
        ...

    def preflight(self, job_request: JobRequest, descriptor: Descriptor) -> list[Finding]:
        """Return what would stop `job_request`, as far as it can be known without asking anybody."""
        ...

    def plan(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        said: Callable[[str], None],
    ) -> AbstractContextManager[Plan]:
        """Return what would run; touches nothing. said: hears what is left open, and why."""
        ...

    def submit(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        listener: SubmitListener,
    ) -> Submitted:
        """Write the job down and start it. Repeated with its id after whatever happened, it is started once."""
        ...

    def status(self, record: JobRecord) -> JobStatus:
        """Return how a job stands, after doing what is due for it. Never says that one runs whose agent is gone."""
        ...

    def statuses(self, records: Sequence[JobRecord]) -> list[JobStatus]:
        """Return how jobs stand, in their order, at the cost of a look; changes nothing. A broken record is a status."""
        ...

    def follow(self, record: JobRecord, *, said: Callable[[str], None]) -> Watcher:
        """Return who keeps an eye on a job. said: hears what cannot wait until `observe` returns."""
        ...

    def cancel(self, record: JobRecord, *, now: bool) -> str:
        """Ask a job to end; return what was done. now: without waiting for its agent."""
        ...

    def resume(self, record: JobRecord) -> str:
        """Start the agent of a job again that died; return what was done."""
        ...

    def release(self, record: JobRecord) -> str:
        """Let machines go that are kept to be looked into; return what was done."""
        ...

    def consoles(self, record: JobRecord) -> list[Console]:
        """Return what the machines of a job have written to their consoles."""
        ...

    def location(self, record: JobRecord) -> Location: ...

    def tidy(self) -> None:
        """Do in passing what is due for other jobs; what is in the way is no error."""
        ...
