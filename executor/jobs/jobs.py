"""The jobs in a store: which there are, which one a person means, and how each stands."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bai_agent.errors import BaiError, DescriptorError, StoreError
from bai_agent.job.descriptor import is_job_id
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.job.store import JobStore, RecordError
from bai_agent.job.store.directory import DirectoryStore
from executor.backends import Backends
from executor.errors import UsageError
from executor.planning.request import LAST
from executor.records.follower import tail_position
from executor.records.job_status import JobStatus, created
from executor.records.reading import events_in, records_in, result_of
from executor.records.statistics import labelled_name

_AT_ONCE = 16
"""Jobs that are read side by side; in a bucket each takes several requests."""


def job_ids(store: JobStore) -> list[str]:
    """Return the ids of all jobs in `store`."""
    # Whatever else lies there: an id is printed, completed in shells and part of paths.
    names = [name for name in store.folders("") if is_job_id(name)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        exist = pool.map(lambda name: JobRecord(store, name).exists(), names)
        return [name for name, exists in zip(names, exist, strict=True) if exists]


def find_job(stores: Iterable[JobStore], name: str) -> JobRecord:
    """Return the job that `name` means: its id, the only id that starts so, or "last". Raises UsageError, StoreError.

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


@dataclass(frozen=True)
class Listing:
    """Jobs with their names, the newest last."""

    jobs: list[tuple[JobStatus, str]]
    places: list[str]
    """The stores that were looked into."""
    troubles: list[str]
    """Why one was not."""


def listed(stores: Iterable[JobStore], count: int | None, backends: Backends) -> Listing:
    """Return the newest `count` jobs of all stores; one that cannot be reached is a trouble, no error."""
    found, places, troubles = [], [], []
    try:
        for store in stores:
            found += _listed(store, count, backends)
            places.append(_place(store))
    except BaiError as error:
        troubles.append(str(error))
    found.sort(key=lambda each: (each[0].started or 0, each[0].job_id))
    return Listing(found if count is None else found[-count:], places, troubles)


def _place(store: JobStore) -> str:
    return str(store.folder) if isinstance(store, DirectoryStore) else store.url


def _listed(store: JobStore, count: int | None, backends: Backends) -> list[tuple[JobStatus, str]]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        records = [JobRecord(store, each) for each in job_ids(store)]
        if count is not None and len(records) > count:
            started = list(pool.map(started_of, records))
            order = sorted(range(len(records)), key=lambda i: started[i])
            records = [records[i] for i in order[-count:]]
        names = list(pool.map(_name, records))
    of_backend: dict[str, list[JobRecord]] = {}
    for record in records:
        of_backend.setdefault(backends.of(record).name, []).append(record)
    statuses = {
        status.job_id: status
        for name, its in of_backend.items()
        for status in backends.named(name).statuses(its)
    }
    return [(statuses[record.job_id], name) for record, name in zip(records, names, strict=True)]


def _name(record: JobRecord) -> str:
    try:
        return record.job().job.name
    except (DescriptorError, RecordError):
        # Another version's, or broken: no reason to hide the other jobs.
        return ""


def started_of(record: JobRecord) -> int:
    """Return when a job was started; 0 where nothing tells."""
    try:
        result = result_of(record)
    except RecordError:
        result = None
    if result is not None and result.get("started") is not None:
        return int(result["started"])
    first, _, _ = record.node().read("events", 0, limit=4096).partition(b"\n")
    times = [int(each["time"]) for each in events_in(first)]
    return times[0] if times else created(record) or 0


def last_values(node: NodeRecord) -> dict[str, dict[str, Any]]:
    """Return the newest record of each metric of a node, by name and labels, among the last 256 KiB of records."""
    position = tail_position(node, "metrics", 2**18)
    found: dict[str, dict[str, Any]] = {}
    content = node.read("metrics", position, limit=2**18)
    for each in records_in(content[: content.rfind(b"\n") + 1]):
        found[labelled_name(each)] = dict(each)
    return found
