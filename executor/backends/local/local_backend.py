"""The backend for this machine. The local backend runs the same agent as an EC2 instance, but does not use
AWS."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bai_agent.errors import RecordError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor_file import job_table
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import dataclass, replace
from executor.backends.backend import (
    BackendOptions,
    ConsoleOutput,
    Location,
    SubmitListener,
    named_store,
)
from executor.backends.local.agent import AgentWatcher, LocalAgent, local_agent, started_nodes
from executor.backends.local.folder_store import check_own, is_local, store_at
from executor.errors import UsageError
from executor.quantities import counted
from executor.records.generation_status import (
    check_scale,
    desired_nodes,
    generation_status,
    request_scale,
)
from executor.records.job_status import DIED, PARKED, JobStatus, created, ended_status, unreadable_status
from executor.records.reading import events_of, result_of
from executor.records.run_state import RunState

# Each method imports the modules that only this method needs, so that a command that shows a job does not
# load the reader of descriptors.
if TYPE_CHECKING:
    from executor.descriptor import Descriptor, Finding
    from executor.planning.job_defaults import DefaultValue
    from executor.planning.request import JobRequest, Submitted
    from executor.planning.scripts_folder import ScriptsSurvey


class LocalBackend:
    """The backend of jobs whose record is a folder of this machine."""

    name = "local"
    remote = False
    option_names = ()

    def __init__(self, options: BackendOptions) -> None:
        self._options = options
        self._jobs: dict[JobRecord, Job] = {}
        """Jobs that this process submitted, which need not be read again."""

    def owns(self, record: JobRecord) -> bool:
        return record.store.folder is not None

    def open_store(self, named: str | None) -> DirectoryStore | None:
        return store_at(named, exists=True) if is_local(named_store(named) or "") else None

    def store_option(self) -> str | None:
        return self._options.store

    def submission_store(self) -> DirectoryStore:
        store = store_at(self._options.store)
        check_own(store.folder)
        return store

    def preflight(self, job_request: JobRequest, descriptor: Descriptor) -> list[Finding]:
        from executor.backends.local.local_submission import preflight

        return preflight(job_request, descriptor)

    @contextmanager
    def plan(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        on_progress: Callable[[str], None],
    ) -> Iterator[LocalPlan]:
        from executor.planning.job_defaults import used_defaults
        from executor.planning.job_strategy import one_node_note
        from executor.planning.request import check_id
        from executor.planning.requested_job import new_job_id, planned, survey

        if job_id is not None:
            check_id(job_id)
        store = store_at(self._options.store)
        # Each plan gets a new job id, as each `bai run` would.
        drawn = job_id or new_job_id(job_request, descriptor)
        job = planned(job_request, descriptor, job_id=drawn, store=store, scripts=None)
        yield LocalPlan(
            job,
            survey=lambda: survey(job_request, descriptor, leave_out=[store.folder]),
            one_node=one_node_note(descriptor),
            defaults=used_defaults(descriptor, self._options.settings(), on_ec2=False),
        )

    def submit(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        listener: SubmitListener,
    ) -> Submitted:
        from executor.backends.local.local_submission import submit
        from executor.planning.job_strategy import one_node_note

        if note := one_node_note(descriptor):
            listener.on_progress(note)
        store = store_at(self._options.store)
        check_own(store.folder, job_id or "")
        submitted = submit(job_request, descriptor, store, job_id=job_id, on_submit=listener.on_submit)
        self._jobs[submitted.record] = submitted.job
        agent = _agent(submitted.record, submitted.job)
        listener.on_launch(submitted.record.job_id)
        if submitted.record.result() is None and not agent.alive():
            agent.start()
        return submitted

    def status(self, record: JobRecord) -> JobStatus:
        agent = _agent(record)
        # The agent is checked before the result is read, because an agent first writes the result and then
        # exits.
        alive = agent.alive()
        result = result_of(record)
        if result is not None:
            return replace(ended_status(record, result, where=self.name), agent_alive=alive)
        generation = generation_status(record, agent.job) if agent.job is not None else None
        state = RunState()
        state.apply_all(events_of(record.node(generation.leader if generation is not None else 0)))
        now = PARKED if generation is not None and generation.is_parked else state.status.value
        return JobStatus(
            job_id=record.job_id,
            status=now if alive else DIED,
            phase=state.phase,
            since=state.since if alive else state.last_event,
            started=state.started if state.started is not None else created(record),
            agent_alive=alive,
            where=self.name,
            last_words=None if alive else agent.last_words() or None,
            benchmark_alive=None if alive else agent.benchmark_alive(),
            benchmark_watched=None if alive else agent.benchmark_watched(),
            cancelling=record.cancelled(),
            warnings=state.cautions,
            restarts=state.restarts,
            generation=generation,
        )

    def statuses(self, records: Sequence[JobRecord]) -> list[JobStatus]:
        return [self._status_or_why(record) for record in records]

    def follow(self, record: JobRecord, *, on_status: Callable[[str], None]) -> AgentWatcher:
        return AgentWatcher(_agent(record, self._jobs.get(record)), record, on_status)

    def cancel(self, record: JobRecord, *, now: bool) -> str:
        if now:
            raise UsageError(f"--now is for jobs on EC2, and {record.job_id} runs on this machine")
        if (result := result_of(record)) is not None:
            return f"the job has already ended: {result.sentence}"
        agent = _own_agent(record)
        message = "cancelling" if record.cancel(by="bai cancel") else "the job is already being cancelled"
        if not agent.alive():
            # The agent is started again if it is dead. Without an agent, no process would end a benchmark
            # that still runs, or write the job's result.
            agent.start()
            message = f"{message}; its agent had died and was started again to end the job"
        return message

    def resume(self, record: JobRecord) -> str:
        agent = _own_agent(record)
        if (result := result_of(record)) is not None:
            message = f"the job has ended: {result.sentence}"
            first = agent.node(0)
            if first.alive() or not first.rundir.mounts.exists():
                return message
            first.start()
            return f"{message} The agent was killed before it unmounted the job's file systems, and is started again to unmount them."
        if not agent.complete():
            agent.start()
            return "the job's agent is running again"
        job = agent.job
        # A `bai scale` that was killed may not have started all nodes.
        wanted = desired_nodes(AttemptRecord(record), job) if job is not None and job.is_elastic else 0
        return f"the job's agent is running{_started(agent.scale(wanted))}"

    def scale(self, record: JobRecord, nodes: int) -> str:
        agent = _own_agent(record)
        check_scale(record, nodes)
        # The number of nodes is requested before the agents start, because a new node waits until the number
        # is requested.
        request_scale(record, nodes)
        return f"scaling to {counted(nodes, 'node')}{_started(agent.scale(nodes))}"

    def release(self, record: JobRecord) -> str:
        raise UsageError(f"{record.job_id} runs on this machine, which is never terminated")

    def shell(self, record: JobRecord, *, node: int, on_status: Callable[[str], None]) -> int:
        from bai_agent.job.agent_start import agent_command
        from executor.backends.terminal import run_in_terminal

        place = _own_agent(record).node(node).rundir
        if not place.job.exists():
            raise UsageError(
                f"{record.job_id} has no run directory of a node {node} on this machine: the node has not started, or does not exist"
            )
        return run_in_terminal(agent_command("shell", str(place.path), f"--rank={node}"))[0]

    def consoles(self, record: JobRecord, *, on_status: Callable[[str], None]) -> list[ConsoleOutput]:
        raise UsageError(f"--boot: {record.job_id} runs on this machine, whose boot log bai does not have")

    def attention(self, record: JobRecord) -> None:
        return None

    def location(self, record: JobRecord) -> Location:
        agent = _agent(record)
        return Location(
            files=str(agent.node(0).rundir.path), artifacts=str(agent.descriptor.parent / "artifacts")
        )

    def tidy(self) -> None:
        return

    def _status_or_why(self, record: JobRecord) -> JobStatus:
        try:
            return self.status(record)
        except RecordError as error:
            return unreadable_status(record, error, where=self.name)


@dataclass(frozen=True)
class LocalPlan:
    """The plan of a job on this machine: a job descriptor that `bai-agent run` accepts."""

    job: Job
    survey: Callable[[], ScriptsSurvey | None]
    one_node: str | None
    """Note for the user that this machine stands for the several nodes of the descriptor; None if no such
    note is needed."""
    defaults: Sequence[DefaultValue] = ()
    """Values that the job takes from the configuration, because the descriptor does not set them."""

    def table(self) -> dict[str, Any]:

        return job_table(self.job)

    def text(self, *, show_user_data: bool = False) -> str:
        from executor.planning.job_toml import job_toml

        if show_user_data:
            raise UsageError("--show-user-data is for instances; add `--on ec2`")
        return job_toml(self.job)

    def notes(self) -> list[str]:
        from executor.planning.job_defaults import notes_of

        scripts = self.survey()
        notes = [f"scripts: {scripts.sentence()}"] if scripts is not None else []
        notes += [self.one_node] if self.one_node is not None else []
        return notes + notes_of(self.defaults)

    def refusal(self) -> str | None:
        return None

    def user_data(self) -> bytes:
        raise UsageError("--user-data is for instances; add `--on ec2`")


def _started(nodes: Sequence[int]) -> str:
    """Return the end of a sentence that names the nodes whose agents were started."""
    return f"; {started_nodes(nodes)}" if nodes else ""


def _agent(record: JobRecord, job: Job | None = None) -> LocalAgent:
    agent = local_agent(record, job)
    if agent is None:
        raise UsageError(f"the job {record.job_id} in {record.store.url} does not run on this machine")
    return agent


def _own_agent(record: JobRecord) -> LocalAgent:
    """Return the job's agent, to control it. Raises UsageError unless this user owns the job."""
    agent = _agent(record)
    check_own(agent.folder, record.job_id)
    return agent
