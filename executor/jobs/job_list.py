"""The jobs of some stores in a list, and the numbers of one at a glance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bai_agent.errors import BaiError, DescriptorError, RecordError, StoreError
from bai_agent.job.descriptor import Job
from bai_agent.job.figures import LIMIT
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.job.record_types import HeadlineValue, as_table
from bai_agent.job.store import JobStore
from bai_agent.light_dataclass import dataclass, field
from executor.backends import Backends
from executor.jobs.ended_jobs import StartedJob
from executor.jobs.job_lookup import job_ids, job_names, newest_first, place_of
from executor.jobs.machine_time import machine_seconds
from executor.jobs.stream import record_lines
from executor.records.follower import benchmark_starts, tail_position
from executor.records.job_status import UNREADABLE, JobStatus
from executor.records.memory_floor import headline_floors, memory_floor_in
from executor.records.nodes import arms_of_runs, has_ranks, node_records
from executor.records.reading import records_in, result_of
from executor.records.repeated_runs import failed_runs
from executor.records.series_lines import labelled
from executor.records.statistics import Measurements, labelled_name, with_arm

_AT_ONCE = 16
"""Jobs, or nodes of one, that are read side by side; in a bucket each takes several requests."""
_PORTION = 64
"""Jobs that are looked at together where not all are wanted."""
_LAST_RECORDS = 2**18
"""Bytes of a node's records in which the last values are looked for."""
_GLANCE_BYTES = 32 * 2**20
"""Records of a job of which all values are read for a glance."""


@dataclass(frozen=True, kw_only=True)
class ListedJob:
    """A job in a list: how it stands, what it was given, and what came of it."""

    status: JobStatus
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    """Of the benchmark's command; none if the job compares arms, each of which has its own."""
    arms: tuple[str, ...] = ()
    """Names of the arms that the job compares."""
    set: Mapping[str, str] = field(default_factory=dict)
    """What `--set` put in the place of what the descriptor says."""
    headlines: Mapping[str, HeadlineValue] = field(default_factory=dict)
    """The number that stands for the run, by metric: of a job that has ended."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """What some of those are only bounds up to, by the same names: peak memory."""
    dollars: float | None = None
    """About what its machines have cost, where the configuration names the type's price."""

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            **self.status.as_table(),
            "name": self.name,
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
    """Which jobs are listed; all that is given must hold."""

    labels: Mapping[str, str] = field(default_factory=dict)
    statuses: Collection[str] = ()
    """Any of them: a status ("RUNNING") or an outcome ("failed"), in any case."""
    since: int | None = None
    """ms UTC: only jobs that were started then or later."""

    def may_take(self, job: StartedJob) -> bool:
        """Return whether a job can be one of those that are asked for, as far as its start and its end tell."""
        if self.since is not None and job.started < self.since:
            return False
        # A record may have been broken since.
        return job.status is None or self._has_status(job.status, job.outcome, UNREADABLE)

    def takes(self, job: ListedJob) -> bool:
        """Return whether labels and status are as asked for."""
        return all(job.labels.get(key) == value for key, value in self.labels.items()) and self._has_status(
            job.status.status, job.status.outcome
        )

    def _has_status(self, *words: str | None) -> bool:
        return not self.statuses or bool({*map(str.lower, self.statuses)} & {w.lower() for w in words if w})


EVERY_JOB = JobFilter()


@dataclass(frozen=True)
class Listing:
    """Jobs, the newest last."""

    jobs: list[ListedJob]
    places: list[str]
    """The stores that were looked into."""
    troubles: list[str]
    """Why one was not."""


def listed(
    stores: Iterable[JobStore],
    count: int | None,
    backends: Backends,
    *,
    only: JobFilter = EVERY_JOB,
    prices: Callable[[], Mapping[str, float]] = dict,
) -> Listing:
    """Return the newest `count` jobs of all stores; an unreachable store is reported in `troubles`.

    prices: instance type → USD an hour; asked where there are jobs on other machines.
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
    # As many at once as may do.
    portion = len(records) if count is None else max(count, 1 if only == EVERY_JOB else _PORTION)
    found: list[ListedJob] = []
    # A backend is asked even where it has no jobs: it does in passing what is due for machines without a record.
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

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(describe, records))


def _listed_job(record: JobRecord, status: JobStatus, prices: Mapping[str, float]) -> ListedJob:
    try:
        job = record.job()
    except (DescriptorError, RecordError):
        # Another version's, or broken: no reason to hide the other jobs.
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
    """Return the headlines in a job's result, and what some of them are only bounds up to."""
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
    request = launch.get("request")
    hourly = prices.get(str(request.get("InstanceType"))) if isinstance(request, dict) else None
    return None if hourly is None else hourly * on / 3600


def last_values(record: JobRecord) -> dict[str, dict[str, Any]]:
    """Return the newest record of each metric, by name and labels, among the last 256 KiB of each node's records.

    Values beyond `LIMIT` are passed over.
    """
    nodes = node_records(record)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        tails = list(pool.map(_last_records, nodes))
    arms, ranked = arms_of_runs(record), has_ranks(record)
    newest = {}
    for node, tail in zip(nodes, tails, strict=True):
        for each in records_in(tail):
            if abs(each["value"]) <= LIMIT:
                value = with_arm(labelled(each, node.rank if ranked else None), arms)
                newest[labelled_name(value)] = dict(value)
    return newest


def measurements_of(record: JobRecord) -> Measurements | None:
    """Return the statistics of all of a job's records; None where there are more than are read for a glance. Raises StoreError."""
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
