"""Lists the jobs of several stores, and reads the main figures of one job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from bai_agent.errors import BaiError, DescriptorError, RecordError, StoreError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.figures import LIMIT
from bai_agent.job.launches import LaunchedMachines, launched_machines, launches_seen
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.job.record_types import HeadlineValue, as_table
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store import JobStore
from bai_agent.light_dataclass import dataclass, field
from executor.backends import Backends
from executor.jobs.ended_jobs import StartedJob
from executor.jobs.job_lookup import job_ids, job_names, newest_first, place_of
from executor.jobs.stream import record_lines
from executor.planning.request import MATRIX, group_of
from executor.records.counted_values import failed_runs, headline_floors, memory_floor_in
from executor.records.follower import benchmark_starts, tail_position
from executor.records.job_status import UNREADABLE, JobStatus
from executor.records.nodes import arms_of_runs, has_ranks, node_records
from executor.records.reading import read_each, records_in, result_of
from executor.records.series import labelled_name, with_arm
from executor.records.series_lines import labelled
from executor.records.statistics import Measurements

_PORTION = 64
"""Number of jobs that are read in one step if the user wants only some of the jobs."""
_LAST_RECORDS = 2**18
"""Number of bytes at the end of a node's records that are searched for the last values."""
_GLANCE_BYTES = 32 * 2**20
"""Maximum size of a job's records (bytes) at which an overview reads all records of the job."""


@dataclass(frozen=True, kw_only=True)
class ListedJob:
    """A job in a list: its status, its parameters and its headlines."""

    status: JobStatus
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    """Arguments of the benchmark's command; empty if the job compares arms, each of which has its own
    arguments."""
    arms: tuple[str, ...] = ()
    """Names of the arms that the job compares; empty without arms."""
    set: Mapping[str, str] = field(default_factory=dict)
    """Values that `--set` has set, by key."""
    headlines: Mapping[str, HeadlineValue] = field(default_factory=dict)
    """The headline of each metric, for a job that has ended."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """Upper bounds for the headlines of peak memory that are not exact, by the same names as `headlines`."""
    dollars: float | None = None
    """Approximate cost of the job's machines (USD). None if the configuration has no price for the machines'
    instance type."""

    @property
    def group(self) -> str | None:
        """The group that the job belongs to; None if the job belongs to no group."""
        return group_of(self.status.job_id) if MATRIX in self.set else None

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            **self.status.as_table(),
            "name": self.name,
            "group": self.group,
            "labels": dict(self.labels),
            "arguments": list(self.arguments),
            "arms": list(self.arms),
            "set": dict(self.set),
            "headlines": {
                name: as_table(each)
                | ({"below": self.bounds[name]} if each.value <= self.bounds.get(name, -1) else {})
                for name, each in self.headlines.items()
            },
            "dollars": self.dollars,
        }


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """Selects the jobs to list. A job must satisfy all given conditions."""

    labels: Mapping[str, str] = field(default_factory=dict)
    statuses: Collection[str] = ()
    """Accepted statuses ("RUNNING") or outcomes ("failed"), in upper or lower case; if empty, all are
    accepted."""
    since: int | None = None
    """Only jobs that were started at this time (ms UTC) or later are listed; None if there is no limit."""
    group: str | None = None
    """Only jobs of this group are listed; None if there is no limit."""

    def may_take(self, job: StartedJob) -> bool:
        """Return whether the job's id, start and end match the filter. The job's labels are not checked."""
        if self.group is not None and group_of(job.job_id) != self.group:
            return False
        if self.since is not None and job.started < self.since:
            return False
        # The job's record may have been damaged since it was listed.
        return job.status is None or self._has_status(job.status, job.outcome, UNREADABLE)

    def takes(self, job: ListedJob) -> bool:
        """Return whether labels and status match the filter."""
        return (
            all(job.labels.get(key) == value for key, value in self.labels.items())
            and self._has_status(job.status.status, job.status.outcome)
            and self.group in (None, job.group)
        )

    def _has_status(self, *words: str | None) -> bool:
        return not self.statuses or bool({*map(str.lower, self.statuses)} & {w.lower() for w in words if w})


EVERY_JOB = JobFilter()


@dataclass(frozen=True)
class Listing:
    """The listed jobs, the newest last."""

    jobs: list[ListedJob]
    places: list[str]
    """The stores that were read."""
    troubles: list[str]
    """Reasons why some stores could not be read."""


def listed(
    stores: Iterable[JobStore],
    count: int | None,
    backends: Backends,
    *,
    only: JobFilter = EVERY_JOB,
    prices: Callable[[], Mapping[str, float]] = dict,
) -> Listing:
    """Return the newest `count` jobs of all stores. The `troubles` of the result contain the errors of
    unreachable stores.

    prices: function that returns instance type → USD per hour; called only if there are jobs on other
    machines.
    """
    found: list[ListedJob] = []
    places, troubles = [], []
    try:
        for store in stores:
            found += _listed(store, count, backends, only, prices)
            places.append(place_of(store))
    except BaiError as error:
        troubles.append(str(error))
    found.sort(key=lambda each: (each.status.started or 0, each.status.job_id))
    return Listing(found if count is None else found[-count:], places, troubles)


def _listed(
    store: JobStore,
    count: int | None,
    backends: Backends,
    only: JobFilter,
    prices: Callable[[], Mapping[str, float]],
) -> list[ListedJob]:
    if only.since is not None or (count is not None and len(job_names(store)) > count):
        ids = [each.job_id for each in newest_first(store) if only.may_take(each)]
    else:
        ids = job_ids(store)
    records = [JobRecord(store, each) for each in ids]
    # The jobs are read in parallel, up to the limit.
    portion = len(records) if count is None else max(count, 1 if only == EVERY_JOB else _PORTION)
    found: list[ListedJob] = []
    # A backend is called even if none of the jobs is on it, because the call also does what is due for
    # machines that have no job record.
    for begin in range(0, max(1, len(records)), max(1, portion)):
        found += filter(only.takes, _described(store, records[begin : begin + portion], backends, prices))
        if count is not None and len(found) >= count:
            break
    return found


def _described(
    store: JobStore,
    records: Sequence[JobRecord],
    backends: Backends,
    prices: Callable[[], Mapping[str, float]],
) -> list[ListedJob]:
    of_backend: dict[str, list[JobRecord]] = {backends.of(JobRecord(store, "none")).name: []}
    for record in records:
        of_backend.setdefault(backends.of(record).name, []).append(record)
    statuses = {
        status.job_id: status
        for name, its in of_backend.items()
        for status in backends.named(name).statuses(its)
    }
    remote = {name for name in of_backend if backends.named(name).remote}
    known = prices() if remote and records else {}

    def describe(record: JobRecord) -> ListedJob:
        status = statuses[record.job_id]
        return _listed_job(record, status, known if status.where in remote else {})

    return read_each(describe, records, folder=store.folder)


def _listed_job(record: JobRecord, status: JobStatus, prices: Mapping[str, float]) -> ListedJob:
    try:
        job = record.job()
    except (DescriptorError, RecordError):
        # A broken record, or a record of another version, must not hide the other jobs.
        return ListedJob(status=status)
    argv = job.benchmark.argv
    arms = tuple(arm.name for arm in job.repeat.arms) if job.repeat is not None else ()
    arguments = argv if job.benchmark.script is not None else argv[1:]
    headlines, bounds = _headlines(record, job) if status.outcome is not None else ({}, {})
    return ListedJob(
        status=status,
        name=job.job.name,
        labels=job.job.labels,
        arguments=() if arms else arguments,
        arms=arms,
        set=job.set,
        headlines=headlines,
        bounds=bounds,
        dollars=_dollars(record, status, job, prices),
    )


def _headlines(record: JobRecord, job: Job) -> tuple[Mapping[str, HeadlineValue], dict[str, float]]:
    """Return the headlines in a job's result, and the upper bounds of headlines that are not exact."""
    try:
        result = result_of(record)
    except RecordError:
        result = None
    if result is None or result.metrics is None or not result.metrics.headlines:
        return {}, {}
    headlines = result.metrics.headlines
    return headlines, headline_floors(job, headlines, result.own_usage)


def _dollars(record: JobRecord, status: JobStatus, job: Job, prices: Mapping[str, float]) -> float | None:
    if not prices or status.seconds is None:
        return None
    try:
        launch = record.read_object(record.key("attempts/0/launch.json")) or {}
        on = machine_seconds(record, job, seconds=status.seconds, ended=status.ended)
    except (StoreError, RecordError):
        return None
    hourly = _mean_price([launch.get("request"), launch.get("server")], prices)
    return None if hourly is None else hourly * on / 3600


def _mean_price(requests: Sequence[object], prices: Mapping[str, float]) -> float | None:
    """Return the mean price of the machines of these requests (USD per hour). A client and its server run for
    the same time, so both machines count equally."""
    kinds = [str(each.get("InstanceType")) for each in requests if isinstance(each, dict)]
    known = [prices[each] for each in kinds if each in prices]
    return sum(known) / len(known) if known and len(known) == len(kinds) else None


def last_values(record: JobRecord) -> dict[str, dict[str, Any]]:
    """Return the newest record of each metric, by name and labels, among the last 256 KiB of each node's records.

    Records whose values are beyond `LIMIT` are skipped.
    """
    nodes = node_records(record)
    tails = read_each(_last_records, nodes, folder=record.store.folder)
    arms, ranked = arms_of_runs(record), has_ranks(record)
    newest = {}
    for node, tail in zip(nodes, tails, strict=True):
        for each in records_in(tail):
            if abs(each["value"]) <= LIMIT:
                value = with_arm(labelled(each, node.rank if ranked else None), arms)
                newest[labelled_name(value)] = dict(value)
    return newest


def measurements_of(record: JobRecord) -> Measurements | None:
    """Return the statistics of all records of a job; None if the job has too many records for an overview.
    Raises StoreError."""
    nodes = node_records(record)
    if sum(node.size("metrics") for node in nodes) > _GLANCE_BYTES:
        return None
    found = Measurements(
        record.job(),
        starts=benchmark_starts(nodes[0]),
        failed=failed_runs(record),
        memory_floor=memory_floor_in(record),
    )
    for content, rank in record_lines(nodes):
        found.add_lines(content, rank=rank)
    return found


def _last_records(node: NodeRecord) -> bytes:
    content = node.read("metrics", tail_position(node, "metrics", _LAST_RECORDS), limit=_LAST_RECORDS)
    return content[: content.rfind(b"\n") + 1]


def machine_seconds(record: JobRecord, job: Job, *, seconds: float, ended: int | None) -> float:
    """Return the total time for which the machines of a job were on (seconds). Raises StoreError,
    RecordError.

    seconds: duration of the job. ended: end of the job (ms UTC); None if the job still runs. For an elastic
    job, a machine's time begins with its launch, and ends with its last heartbeat or when another machine
    replaces this machine.
    """
    if not job.is_elastic:
        return job.strategy.nodes * seconds
    until = ended if ended is not None else now_ms()
    began = until - round(1000 * seconds)
    machines = _machines(record, job.job.attempt)
    if not machines:
        return job.desired_nodes * seconds
    ends = {node: sign[0] for node, sign in AttemptRecord(record, job.job.attempt).signs_seen().nodes.items()}
    for launched, each in machines:
        ends.update((node, min(launched, ends.get(node, launched))) for node in each.replaces)
    return sum(
        max(0, min(until, ends.get(node, until)) - max(began, launched)) / 1000
        for launched, each in machines
        for node in each.by_node
    )


def _machines(record: JobRecord, attempt: int) -> list[tuple[int, LaunchedMachines]]:
    """Return the machines of each launch that EC2 accepted, with the time of the launch (ms UTC). The time of
    the first launch is given as 0, which stands for the job's start."""
    found = []
    for seen in launches_seen(record, attempt):
        launched = launched_machines(record, attempt, seen.number) if seen.decided is not None else None
        if launched is not None and launched.instances:
            found.append(((seen.decided or 0) if seen.number else 0, launched))
    return found
