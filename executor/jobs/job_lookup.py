"""Finds the jobs of a store, sorts them by start time, and finds the job that a name stands for."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent.errors import BaiError, RecordError, StoreError
from bai_agent.job.descriptor.benchmark_tables import Identity
from bai_agent.job.record import JobRecord
from bai_agent.job.schema.field_types import is_job_id
from bai_agent.job.store import JobStore
from executor.errors import UsageError
from executor.jobs.ended_jobs import StartedJob, ended_jobs
from executor.jobs.job_group import GroupNamedError, find_group
from executor.planning.request import LAST
from executor.records.job_status import created
from executor.records.reading import events_in, read_each, result_of

if TYPE_CHECKING:
    # Reading jobs must not import the reader of descriptors.
    from executor.descriptor.job_reference import JobReference

_LAST_OF = f"{LAST}:"


def job_ids(store: JobStore) -> list[str]:
    """Return the ids of all jobs in `store`. Raises StoreError."""
    names = job_names(store)
    folder = store.folder
    if folder is not None:
        return [name for name in names if _has_descriptor(folder, name)]
    exist = read_each(lambda name: JobRecord(store, name).exists(), names, folder=None)
    return [name for name, exists in zip(names, exist, strict=True) if exists]


def job_names(store: JobStore) -> list[str]:
    """Return the names of folders that may be jobs. Raises StoreError."""
    # Folders whose names do not have the form of a job id are ignored, because ids are printed, completed in
    # shells and used in paths.
    return [name for name in store.folders("") if is_job_id(name)]


def newest_first(store: JobStore) -> list[StartedJob]:
    """Return all jobs of `store`, the most recently started first. Raises StoreError.

    For a store in a folder, an index contains the ended jobs. In a bucket, each job is read, because a
    listing does not show whether a job was replaced by another job of the same id.
    """
    folder = store.folder
    if folder is None:
        ended, others = {}, job_ids(store)
    else:
        names = job_names(store)
        ended = ended_jobs(folder, names, lambda job_id: _ended(folder, JobRecord(store, job_id)))
        others = [name for name in names if name not in ended and _has_descriptor(folder, name)]
    started = read_each(lambda job_id: started_of(JobRecord(store, job_id)), others, folder=folder)
    jobs = [*ended.values(), *map(StartedJob, others, started)]
    return sorted(jobs, key=lambda each: (each.started, each.job_id), reverse=True)


def started_of(record: JobRecord) -> int:
    """Return the time at which a job was started (ms UTC); 0 if unknown. Raises StoreError."""
    try:
        result = result_of(record)
    except RecordError:
        result = None
    if result is not None and result.started is not None:
        return result.started
    first, _, _ = record.node().read("events", 0, limit=4096).partition(b"\n")
    times = [each.time for each in events_in(first)]
    return times[0] if times else created(record) or 0


def find_job(stores: Iterable[JobStore], name: str) -> JobRecord:
    """Return the job that `name` stands for: its id, a unique beginning of its id, "last", or "last:NAME".
    Raises UsageError, GroupNamedError, StoreError.

    If several stores have the job, the first of these stores is used. An unreachable store is an error only
    if no other store has the job.
    """
    found, opened, failed = _with_id(stores, name)
    if found is not None:
        return found
    if name == LAST and failed is None and (jobs := _newest(opened)):
        return jobs[0]
    if (group := find_group(opened, name)) is not None:
        raise GroupNamedError(group)
    every, failed = _every(opened, failed)
    meant = [each for each in every if name and each.job_id.startswith(name)]
    if len(meant) == 1:
        return meant[0]
    if failed is not None:
        raise failed
    if name.startswith(_LAST_OF) and every:
        return _newest_of(name.removeprefix(_LAST_OF), _newest(opened))
    raise UsageError(_why_not_found(name, every, meant, where=" and ".join(map(place_of, opened))))


def _with_id(
    stores: Iterable[JobStore], job_id: str
) -> tuple[JobRecord | None, list[JobStore], BaiError | None]:
    """Search the stores in order for the job with this id. Return the job or None, the stores that were
    searched without finding the job, and the error of an unreachable store or None. The search ends at an
    unreachable store. Raise the error if this store is the first.
    """
    opened: list[JobStore] = []
    try:
        for store in stores:
            record = JobRecord(store, job_id)
            if is_job_id(job_id) and record.exists():
                return record, opened, None
            opened.append(store)
    except BaiError as error:
        if not opened:
            raise
        return None, opened, error
    return None, opened, None


def _every(stores: Iterable[JobStore], failed: BaiError | None) -> tuple[list[JobRecord], BaiError | None]:
    """Return the jobs of all stores that can be read, and the first error of a store."""
    every: list[JobRecord] = []
    for store in stores:
        try:
            every += [JobRecord(store, job_id) for job_id in job_ids(store)]
        except StoreError as error:
            failed = failed or error
    return every, failed


def _why_not_found(name: str, every: Sequence[JobRecord], meant: Sequence[JobRecord], *, where: str) -> str:
    if not every:
        return f"there are no jobs in {where}; name another store with --store or BAI_STORE"
    if meant:
        names = ", ".join(each.job_id for each in meant[:5])
        shown = names + (f" and {len(meant) - 5} more" if len(meant) > 5 else "")
        return f'"{name}" may mean any of {shown}; write more of the id'
    hint = did_you_mean(name, [each.job_id for each in every], "`bai list` shows all jobs")
    return f'there is no job "{name}" in {where}; {hint}'


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint for an unknown name: the most similar known name or, if no name is similar, the sentence
    `otherwise`."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f'did you mean "{close[0]}"?' if close else otherwise


def _newest(stores: Sequence[JobStore]) -> list[JobRecord]:
    """Return the jobs of all stores, the newest first."""
    started = [(each.started, each.job_id, store) for store in stores for each in newest_first(store)]
    started.sort(key=lambda each: each[:2], reverse=True)
    return [JobRecord(store, job_id) for _, job_id, store in started]


def _newest_of(name: str, jobs: Iterable[JobRecord]) -> JobRecord:
    """Return the first of `jobs` that runs a benchmark of this name. Raises UsageError, StoreError."""
    found, names = _first(jobs, lambda identity: identity.name == name, lambda identity: identity.name)
    if found is None:
        hint = did_you_mean(name, names, "`bai list` shows the names")
        raise UsageError(f'there is no job of the name "{name}"; {hint}')
    return found


def find_labelled(stores: Iterable[JobStore], key: str, value: str) -> JobRecord:
    """Return the newest job with the label `key`=`value`. Raises UsageError, StoreError."""
    found, values = _first(
        _newest(list(stores)),
        lambda identity: identity.labels.get(key) == value,
        lambda identity: identity.labels.get(key),
    )
    if found is None:
        hint = did_you_mean(value, values, f"`bai list --label {key}={value}` shows none")
        raise UsageError(f"there is no job with the label {key}={value}; {hint}")
    return found


def find_reference(reference: JobReference, stores: Iterable[JobStore]) -> JobRecord:
    """Return the job that a reference in a descriptor names. Raises UsageError, StoreError."""
    label = reference.label
    return find_labelled(stores, *label) if label is not None else find_job(stores, reference.job)


def _first(
    jobs: Iterable[JobRecord],
    matches: Callable[[Identity], bool],
    read: Callable[[Identity], str | None],
) -> tuple[JobRecord | None, list[str]]:
    """Return the first job that matches, and the values that `read` returned for the jobs before that job."""
    values: dict[str, None] = {}
    for each in jobs:
        try:
            identity = each.job().job
        except RecordError:  # A job with a broken record is skipped here. `bai list` reports such a job.
            continue
        if matches(identity):
            return each, list(values)
        if (value := read(identity)) is not None:
            values[value] = None
    return None, list(values)


def place_of(store: JobStore) -> str:
    """Return a text for the location of a store."""
    return str(store.folder or store.url)


def _has_descriptor(folder: Path, job_id: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(f"{folder}/{job_id}/job.toml").st_mode)  # noqa: PTH116 - of each of very many
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreError(f"the job store failed at {error.filename}: {error.strerror}") from error


def _ended(folder: Path, record: JobRecord) -> StartedJob | None:
    """Return the outcome and the start time of a job that has ended; None if the result lacks one of them, or
    if the folder is not a job."""
    if not _has_descriptor(folder, record.job_id):
        return None
    try:
        result = result_of(record)
    except RecordError:
        return None
    if result is None or result.started is None:
        return None
    return StartedJob(record.job_id, result.started, result.status, result.outcome)
