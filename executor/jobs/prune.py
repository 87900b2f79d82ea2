"""Deletes the records of old jobs, and virtual environments that are no longer used."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from bai_agent.errors import BusyError, RecordError, StoreError
from bai_agent.job.record import JobRecord
from bai_agent.job.schema.field_types import is_job_id
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import dataclass
from bai_agent.requirements.venv_cache import cached_venvs
from executor.backends import Backends
from executor.backends.local.agent import local_agent
from executor.backends.local.folder_store import check_own
from executor.backends.local.local_submission import remove_abandoned
from executor.errors import NextStep, UsageError
from executor.jobs.job_group import GroupRecord
from executor.jobs.job_lookup import job_ids
from executor.planning.request import group_of
from executor.records.job_status import DIED, JobStatus, is_over, unknown_status


@dataclass(frozen=True)
class Pruned:
    """A job, or a virtual environment, that was deleted, or would be deleted without the dry run."""

    job_id: str
    """Id of the job, or key of the virtual environment."""
    bytes: int
    """Size of the deleted files on the disk (bytes)."""


def prune_jobs(
    store: DirectoryStore,
    *,
    before_ms: int,
    dry_run: bool,
    keep: Mapping[str, str] = MappingProxyType({}),
    left: Callable[[str], None] = lambda why: None,
    on_failure: Callable[[str], None] = lambda why: None,
) -> Iterator[Pruned]:
    """Delete the jobs that ended, or whose agent died, before `before_ms` (UTC). A job that is running, or
    possibly running, is not deleted. Drafts of killed submissions, and old groups without jobs, are also
    deleted. keep: labels; a job with any of these labels is not deleted. left: called with the reason if a
    job is not deleted because its end is unknown, or because its folder is a symbolic link. on_failure:
    called if a job could not be deleted; the other jobs are still deleted.
    """
    check_own(store.folder)
    if not dry_run:
        remove_abandoned(store)
    backends = Backends()
    for job_id in job_ids(store):
        record = JobRecord(store, job_id)
        folder = store.folder / job_id
        if folder.is_symlink():
            left(f"{folder} is a symbolic link, to {folder.readlink()}; it is not deleted")
            continue
        try:
            check_own(store.folder, job_id)
        except UsageError as error:
            left(f"{error}; the job is not deleted")
            continue
        try:
            now = backends.of(record).status(record)
        except RecordError as error:
            left(f"{error}; {job_id} is not deleted")
            continue
        if (why := unknown_status(now)) is not None:
            left(f"{why}; the job is not deleted")
            continue
        if not _ended_before(now, before_ms) or (keep and _has_label(record, keep)):
            continue
        try:
            freed = _delete(record, folder, dry_run=dry_run)
        except StoreError as error:
            on_failure(f"{job_id} could not be deleted: {error}")
            continue
        if freed is not None:
            yield Pruned(job_id, freed)
    if not dry_run:
        prune_groups(store, before_ms=before_ms)


def prune_groups(store: DirectoryStore, *, before_ms: int) -> None:
    """Delete the records of groups that were made before `before_ms` (UTC) and have no jobs any more. Raises StoreError."""
    names = store.folders("")
    there = {group_of(name) for name in names}
    for name in names:
        group = GroupRecord(store, name)
        if name not in there and is_job_id(name) and (made := group.made()) is not None and made < before_ms:
            check_own(store.folder, name)
            store.delete(f"{name}/")


def remove_job(record: JobRecord) -> int:
    """Delete one ended job; return the number of freed bytes. Raises UsageError if the job runs, belongs to
    another user or is not on this machine, StoreError if it cannot be deleted.
    """
    folder = record.store.folder
    if folder is None or local_agent(record) is None:
        raise UsageError(
            f"{record.job_id} is not on this machine, but in {record.store.url}, where a lifecycle rule of the bucket deletes jobs"
        )
    check_own(folder, record.job_id)
    freed = _delete(record, folder / record.job_id, dry_run=False)
    if freed is None:
        raise UsageError(f"{record.job_id} runs", NextStep(("cancel", record.job_id), "ends it first"))
    return freed


def _has_label(record: JobRecord, labels: Mapping[str, str]) -> bool:
    try:
        own = record.job().job.labels
    except RecordError:
        # The job's record cannot be read, so its labels are unknown, and the job is not deleted.
        return True
    return any(own.get(key) == value for key, value in labels.items())


def prune_venvs(
    cache: Path | None, *, before_ms: int, dry_run: bool, on_failure: Callable[[str], None] = lambda why: None
) -> Iterator[Pruned]:
    """Delete the saved virtual environments that no job has used since `before_ms` (UTC) and no job is using
    now."""
    for each in cached_venvs(cache) if cache is not None else ():
        try:
            with each.lock():
                if each.last_used() >= before_ms or each.in_use():
                    continue
                freed = disk_usage(each.venv)
                if not dry_run:
                    each.remove()
        except BusyError:
            continue
        except OSError as error:
            on_failure(f"{error.filename or each.venv} could not be deleted: {error.strerror}")
            continue
        yield Pruned(each.key, freed)


def disk_usage(folder: Path) -> int:
    """Return the number of bytes that deleting `folder` frees. A file with several hard links counts once,
    and counts only if all links are in the folder."""
    names: Counter[tuple[int, int]] = Counter()
    total = 0
    with suppress(OSError):  # Files that disappear during the count or cannot be read are not counted.
        for path in (folder, *folder.rglob("*")):
            with suppress(OSError):
                status = path.lstat()
                inode = (status.st_dev, status.st_ino)
                names[inode] += 1
                # A folder has a hard link for each of its subfolders, so its number of links says nothing.
                # Each folder is counted once.
                if stat.S_ISDIR(status.st_mode) or names[inode] == status.st_nlink:
                    total += status.st_blocks * 512
    return total


def _ended_before(now: JobStatus, before_ms: int) -> bool:
    last_sign = now.ended if is_over(now) else now.since or now.started
    return (is_over(now) or now.status == DIED) and last_sign is not None and last_sign < before_ms


def _delete(record: JobRecord, folder: Path, *, dry_run: bool) -> int | None:
    """Delete the job and return the number of freed bytes. Return None without deleting anything if any part
    of the job still runs. Raises StoreError."""
    agent = local_agent(record)
    assert agent is not None
    if dry_run:
        return None if agent.alive() or agent.benchmark_alive() else disk_usage(folder)
    with agent.kept_away() as nothing_lives:
        if not nothing_lives:
            return None
        freed = disk_usage(folder)
        record.store.delete(record.key(""))
        return freed
