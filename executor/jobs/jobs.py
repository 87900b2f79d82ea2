"""The jobs in a store: finding one, and listing them with their statuses."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from bai_agent.errors import BaiError, DescriptorError, StoreError
from bai_agent.job.descriptor import is_job_id
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.job.record_types import HeadlineValue, as_table
from bai_agent.job.store import JobStore, RecordError
from bai_agent.metrics.headlines import MOST_BYTES
from executor.backends import Backends
from executor.errors import UsageError
from executor.jobs.stream import record_lines
from executor.planning.request import LAST
from executor.records.follower import benchmark_starts, tail_position
from executor.records.job_status import JobStatus, created
from executor.records.memory_floor import floor_of, memory_floor, memory_floor_in
from executor.records.nodes import arms_of_runs, node_records, with_rank
from executor.records.reading import events_in, records_in, result_of
from executor.records.repeated_runs import failed_runs
from executor.records.statistics import Measurements, labelled_name, with_arms

_AT_ONCE = 16
"""Jobs, or nodes of one, that are read side by side; in a bucket each takes several requests."""
_PORTION = 64
"""Jobs that are looked at together where not all are wanted."""
_LAST_OF = f"{LAST}:"
_LAST_RECORDS = 2**18
"""Bytes of a node's records in which the last values are looked for."""


def job_ids(store: JobStore) -> list[str]:
    """Return the ids of all jobs in `store`."""
    # Whatever else lies there: an id is printed, completed in shells and part of paths.
    names = [name for name in store.folders("") if is_job_id(name)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        exist = pool.map(lambda name: JobRecord(store, name).exists(), names)
        return [name for name, exists in zip(names, exist, strict=True) if exists]


def find_job(stores: Iterable[JobStore], name: str) -> JobRecord:
    """Return the job that `name` means: its id, the only id that starts so, "last", or "last:NAME". Raises UsageError, StoreError.

    Earlier stores come first; one that cannot be reached matters only where the others do not have the job.
    """
    opened: list[JobStore] = []
    failed: BaiError | None = None
    try:
        for store in stores:
            if is_job_id(name) and JobRecord(store, name).exists():
                return JobRecord(store, name)
            opened.append(store)
    except BaiError as error:
        if not opened:
            raise
        failed = error
    every: list[JobRecord] = []
    for store in opened:
        try:
            every += [JobRecord(store, each) for each in job_ids(store)]
        except StoreError as error:
            failed = failed or error
    meant = [each for each in every if name and each.job_id.startswith(name)]
    if name == LAST and every and failed is None:
        return max(every, key=lambda each: (started_of(each), each.job_id))
    if len(meant) == 1:
        return meant[0]
    if failed is not None:
        raise failed
    if name.startswith(_LAST_OF) and every:
        return _newest_of(name.removeprefix(_LAST_OF), every)
    where = " and ".join(map(_place, opened))
    if not every:
        raise UsageError(f"there are no jobs in {where}; another place is named with --store or BAI_STORE")
    if meant:
        names = ", ".join(each.job_id for each in meant[:5])
        shown = names + (f" and {len(meant) - 5} more" if len(meant) > 5 else "")
        raise UsageError(f'"{name}" may mean any of {shown}; write more of the id')
    close = difflib.get_close_matches(name, [each.job_id for each in every], n=1, cutoff=0.5)
    hint = f'; did you mean "{close[0]}"?' if close else "; `bai list` shows them all"
    raise UsageError(f'there is no job "{name}" in {where}{hint}')


def _newest_of(name: str, jobs: Iterable[JobRecord]) -> JobRecord:
    """Return the newest of `jobs` whose benchmark is called `name`. Raises UsageError, StoreError."""
    names = set()
    for each in sorted(jobs, key=lambda each: (started_of(each), each.job_id), reverse=True):
        try:
            found = each.job().job.name
        except RecordError:  # `bai list` names it
            continue
        if found == name:
            return each
        names.add(found)
    close = difflib.get_close_matches(name, [each for each in names if each], n=1, cutoff=0.5)
    hint = f'; did you mean "{close[0]}"?' if close else "; `bai list` shows the names"
    raise UsageError(f'there is no job of the name "{name}"{hint}')


@dataclass(frozen=True, kw_only=True)
class ListedJob:
    """A job in a list: how it stands, what it was given, and what came of it."""

    status: JobStatus
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    """Of the benchmark's command."""
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

    def takes(self, job: ListedJob) -> bool:
        """Return whether labels and status are as asked for."""
        words = {word.lower() for word in (job.status.status, job.status.outcome) if word}
        return all(job.labels.get(key) == value for key, value in self.labels.items()) and (
            not self.statuses or any(each.lower() in words for each in self.statuses)
        )


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
            places.append(_place(store))
    except BaiError as error:
        troubles.append(str(error))
    found.sort(key=lambda each: (each.status.started or 0, each.status.job_id))
    return Listing(found if count is None else found[-count:], places, troubles)


def _place(store: JobStore) -> str:
    return str(store.folder or store.url)


def _listed(
    store: JobStore,
    count: int | None,
    backends: Backends,
    only: JobFilter,
    prices: Callable[[], Mapping[str, float]],
) -> list[ListedJob]:
    records = [JobRecord(store, each) for each in job_ids(store)]
    if only.since is not None or (count is not None and len(records) > count):
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            started = list(pool.map(started_of, records))
        order = sorted(range(len(records)), key=lambda i: started[i], reverse=True)
        records = [records[i] for i in order if only.since is None or started[i] >= only.since]
    # The newest first, as many at once as may do.
    portion = len(records) if count is None else max(count, 1 if only is EVERY_JOB else _PORTION)
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
    try:
        result = result_of(record) if status.outcome is not None else None
    except RecordError:
        result = None
    extracted = result.metrics if result is not None else None
    argv = job.benchmark.argv
    headlines = (extracted.headlines if extracted is not None else None) or {}
    metrics = {metric.name: metric for metric in job.metrics}
    memory = memory_floor(result.own_usage if result is not None else None)
    floors = {name: floor_of(metrics.get(each.name or name), memory) for name, each in headlines.items()}
    return ListedJob(
        status=status,
        name=job.job.name,
        labels=job.job.labels,
        arguments=argv if job.benchmark.script is not None else argv[1:],
        set=job.set,
        headlines=headlines,
        bounds={name: floor for name, floor in floors.items() if floor is not None},
        dollars=_dollars(record, status, job.strategy.nodes, prices),
    )


def _dollars(record: JobRecord, status: JobStatus, nodes: int, prices: Mapping[str, float]) -> float | None:
    if not prices or status.seconds is None:
        return None
    try:
        launch = record.read_object(record.key("attempts/0/launch.json")) or {}
    except (StoreError, RecordError):
        return None
    request = launch.get("request")
    hourly = prices.get(str(request.get("InstanceType"))) if isinstance(request, dict) else None
    return None if hourly is None else hourly * nodes * status.seconds / 3600


def started_of(record: JobRecord) -> int:
    """Return when a job was started (ms UTC); 0 where that is unknown."""
    try:
        result = result_of(record)
    except RecordError:
        result = None
    if result is not None and result.started is not None:
        return result.started
    first, _, _ = record.node().read("events", 0, limit=4096).partition(b"\n")
    times = [each.time for each in events_in(first)]
    return times[0] if times else created(record) or 0


def last_values(record: JobRecord) -> dict[str, dict[str, Any]]:
    """Return the newest record of each metric, by name and labels, among the last 256 KiB of each node's records."""
    nodes = node_records(record)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        tails = list(pool.map(_last_records, nodes))
    if len(nodes) > 1:
        tails = [with_rank(tail, node.rank) for node, tail in zip(nodes, tails, strict=True)]
    arms = arms_of_runs(record)
    return {labelled_name(each): dict(each) for tail in tails for each in with_arms(records_in(tail), arms)}


def measurements_of(record: JobRecord) -> Measurements | None:
    """Return the statistics of all of a job's records; None where there are more than are read for a glance. Raises StoreError."""
    nodes = node_records(record)
    if sum(node.size("metrics") for node in nodes) > MOST_BYTES:
        return None
    found = Measurements(
        record.job(),
        starts=benchmark_starts(nodes[0]),
        failed=failed_runs(record),
        memory_floor=memory_floor_in(record),
    )
    for content in record_lines(nodes, "metrics", follow=False):
        found.add_lines(content)
    return found


def _last_records(node: NodeRecord) -> bytes:
    content = node.read("metrics", tail_position(node, "metrics", _LAST_RECORDS), limit=_LAST_RECORDS)
    return content[: content.rfind(b"\n") + 1]
