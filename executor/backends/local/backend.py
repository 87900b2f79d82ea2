"""This machine as a place to run: the same agent as on an instance, without anything of AWS."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bai_agent.job.descriptor import Job
from bai_agent.job.record import JobRecord
from bai_agent.job.store import RecordError
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.backend import BackendOptions, Console, Location, SubmitListener
from executor.backends.local.agent import LocalAgent, local_agent
from executor.backends.local.job_store import store_at
from executor.backends.local.watcher import AgentWatcher
from executor.errors import UsageError
from executor.records.follower import events_of
from executor.records.job_status import DIED, JobStatus, created, ended_status, unreadable_status
from executor.records.reading import result_of
from executor.records.run_state import RunState

if TYPE_CHECKING:
    from executor.descriptor import Descriptor, Finding
    from executor.planning.request import JobRequest, Submitted


class LocalBackend:
    """Jobs whose record is a folder of this machine."""

    name = "local"
    remote = False

    def __init__(self, options: BackendOptions) -> None:
        self._options = options

    def owns(self, record: JobRecord) -> bool:
        return isinstance(record.store, DirectoryStore)

    def preflight(self, job_request: JobRequest, descriptor: Descriptor) -> list[Finding]:
        """Return warnings about secrets: who runs it later may have what is not set here."""
        from executor.descriptor import Finding, Severity
        from executor.planning.request import unset_secrets

        password = descriptor.kafka.sasl_password if descriptor.kafka is not None else None
        return [
            Finding(
                file=str(job_request.file),
                path=path,
                problem=f"the environment variable {name} is not set here",
                fix=f"export {name} before `bai run`, which would refuse to start",
                severity=Severity.WARNING,
            )
            for path, name in unset_secrets(descriptor.env.secrets, password, os.environ)
        ]

    @contextmanager
    def plan(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        said: Callable[[str], None],
    ) -> Iterator[LocalPlan]:
        from executor.planning.request import check_id, new_job_id, planned, survey

        if job_id is not None:
            check_id(job_id)
        store = store_at(self._options.store)
        # Each plan is a job of its own, as each `bai run` is.
        drawn = job_id or new_job_id(job_request, descriptor)
        job = planned(job_request, descriptor, job_id=drawn, store=store, scripts=None)
        if (scripts := survey(job_request, descriptor, leave_out=[store.folder])) is not None:
            said(f"scripts: {scripts.sentence()}")
        yield LocalPlan(job)

    def submit(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        listener: SubmitListener,
    ) -> Submitted:
        from executor.backends.local.submission import submit

        store = store_at(self._options.store)
        submitted = submit(job_request, descriptor, store, job_id=job_id, on_submit=listener.on_submit)
        agent = _agent(submitted.record)
        listener.on_launch(submitted.record.job_id)
        if submitted.record.result() is None and not agent.alive():
            agent.start()
        return submitted

    def status(self, record: JobRecord) -> JobStatus:
        agent = _agent(record)
        # Asked before the result is looked for: an agent writes the result, then goes.
        alive = agent.alive()
        result = result_of(record)
        if result is not None:
            return replace(ended_status(record, result), agent_alive=alive)
        state = RunState()
        for event in events_of(record.node()):
            state.apply(event)
        return JobStatus(
            job_id=record.job_id,
            status=state.status.value if alive else DIED,
            phase=state.phase,
            since=state.since if alive else state.last_event,
            started=state.started if state.started is not None else created(record),
            ended=None,
            outcome=None,
            exit_code=None,
            sentence=None,
            agent_alive=alive,
            last_words=None if alive else agent.last_words() or None,
            benchmark_alive=None if alive else agent.benchmark_alive(),
            benchmark_watched=None if alive else agent.benchmark_watched(),
            cancelling=record.cancelled(),
            warnings=state.cautions,
        )

    def statuses(self, records: Sequence[JobRecord]) -> list[JobStatus]:
        return [self._status_or_why(record) for record in records]

    def follow(self, record: JobRecord, *, said: Callable[[str], None]) -> AgentWatcher:
        return AgentWatcher(_agent(record), record, said)

    def cancel(self, record: JobRecord, *, now: bool) -> str:
        if now:
            raise UsageError(f"--now is for jobs on EC2, and {record.job_id} runs on this machine")
        if (result := result_of(record)) is not None:
            return f"it has ended before: {result.get('sentence')}"
        told = "cancelling" if record.cancel(by="bai cancel") else "cancelling, as was asked before"
        agent = _agent(record)
        if not agent.alive():
            # Nobody else would end a benchmark that still runs, or write the job's result.
            agent.start()
            told = f"{told}; its agent had died and was started again to end the job"
        return told

    def resume(self, record: JobRecord) -> str:
        agent = _agent(record)
        if (result := result_of(record)) is not None:
            return f"it has ended: {result.get('sentence')}"
        if agent.alive():
            return "its agent is running"
        agent.start()
        return "its agent is running again"

    def release(self, record: JobRecord) -> str:
        raise UsageError(f"{record.job_id} runs on this machine, which nothing keeps")

    def consoles(self, record: JobRecord) -> list[Console]:
        raise UsageError(f"--boot: {record.job_id} runs on this machine, which has booted without us")

    def location(self, record: JobRecord) -> Location:
        agent = _agent(record)
        return Location(files=str(agent.rundir.path), artifacts=str(agent.descriptor.parent / "artifacts"))

    def tidy(self) -> None:
        return

    def _status_or_why(self, record: JobRecord) -> JobStatus:
        try:
            return self.status(record)
        except RecordError as error:
            return unreadable_status(record, error, where=self.name)


@dataclass(frozen=True)
class LocalPlan:
    """A job descriptor, which `bai-agent run` takes."""

    job: Job

    def table(self) -> dict[str, Any]:
        from bai_agent.job.descriptor_file import job_table

        return job_table(self.job)

    def text(self) -> str:
        from executor.planning.job_toml import job_toml

        return job_toml(self.job)

    def user_data(self) -> bytes:
        raise UsageError("--user-data is for instances; add `--on ec2`")


def _agent(record: JobRecord) -> LocalAgent:
    agent = local_agent(record)
    if agent is None:
        raise UsageError(f"the job {record.job_id} in {record.store.url} does not run on this machine")
    return agent
