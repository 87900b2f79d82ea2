"""Writes a job of this machine into its store: exactly once for a job id."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import make_folder
from bai_agent.job.store.directory import DirectoryStore
from executor.errors import UsageError
from executor.owned_folders import new_owned_folder, remove_unowned
from executor.planning.job_toml import job_toml
from executor.planning.repetition import keep_request, kept_scripts
from executor.planning.request import (
    JobRequest,
    Submitted,
    archive_of_request,
    check_id,
    check_start,
    new_job_id,
    planned,
    same_job,
    scripts_of_request,
)
from executor.planning.scripts_folder import ScriptsOrigin, copy_scripts

if TYPE_CHECKING:
    from executor.descriptor import Descriptor


def submit(
    job_request: JobRequest,
    descriptor: Descriptor,
    store: DirectoryStore,
    *,
    job_id: str | None = None,
    on_submit: Callable[[str], None] = lambda job_id: None,
) -> Submitted:
    """Write the job of `job_request` into `store`, with a copy of its scripts. `on_submit` is called with the job id before that.

    A job id that is there already with the same content is that job; with another it is a UsageError.
    """
    # Only where a job is made is the planner needed.
    from executor.planning.arm_files import arm_files
    from executor.planning.plan import nodes_on_this_machine

    if sys.platform != "linux":
        raise UsageError(
            f"benchmarks run on Linux (x86_64, aarch64) with this version, not on {sys.platform}"
        )
    if job_id is not None:
        check_id(job_id)
    drawn = job_id or new_job_id(job_request, descriptor)
    record = JobRecord(store, drawn)
    original = scripts_of_request(job_request, descriptor)
    nodes = nodes_on_this_machine(descriptor)
    scripts = ScriptsOrigin(path=kept_scripts(record, nodes=nodes)) if original is not None else None
    arms = arm_files(descriptor, leave_out=[store.folder])
    kept = {
        name: replace(each, scripts=ScriptsOrigin(path=kept_scripts(record, nodes=nodes, arm=name)))
        for name, each in arms.items()
        if each.scripts is not None
    }
    job = planned(job_request, descriptor, job_id=drawn, store=store, scripts=scripts, arms={**arms, **kept})
    on_submit(drawn)
    if not record.exists():
        check_start(job, os.environ)
        with job_draft(store, drawn) as draft:
            if original is not None:
                copy_scripts(original, draft.scripts(nodes=nodes), leave_out=[store.folder])
            for name, each in arms.items():
                if each.scripts is not None:
                    copy = draft.scripts(nodes=nodes, arm=name)
                    copy_scripts(each.scripts, copy, leave_out=[store.folder])
            files = original or archive_of_request(job_request, descriptor)
            keep_request(draft.record, job_request, files, leave_out=[store.folder])
            # An agent may start as soon as the job is there: with its scripts, or not at all.
            if draft.publish(job_toml(job).encode()):
                return Submitted(record, job, new=True)
    there = record.job()
    same_job(there, job, job_request)
    return Submitted(record, there, new=False)


_DRAFTS = ".drafts"
"""A folder of the store, so that a rename publishes a job; no job can have this id."""


@dataclass(frozen=True)
class JobDraft:
    """A job that nobody sees yet."""

    store: DirectoryStore
    """Where it will be."""
    record: JobRecord
    """Where it is made; it has the keys that the job will have."""

    def scripts(self, *, nodes: int = 1, arm: str | None = None) -> Path:
        """Return where the copy of its scripts goes."""
        return kept_scripts(self.record, nodes=nodes, arm=arm)

    def publish(self, descriptor: bytes) -> bool:
        """Make it a job of the store; return False where the store has a job of this id already. Raises StoreError."""
        self.record.store.put(self.record.key("job.toml"), descriptor)
        job_id = self.record.job_id
        target = self.store.folder / job_id
        try:
            # Fails where a folder with anything in it has the name: of several who make one job, one succeeds.
            _folder_of(self.record).rename(target)
        except OSError as error:
            if JobRecord(self.store, job_id).exists():
                return False
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise StoreError(
                    f"{target} is in the way and holds no job; move it away, or give another --job-id"
                ) from error
            raise _unwritable(error) from error
        return True


@contextmanager
def job_draft(store: DirectoryStore, job_id: str) -> Iterator[JobDraft]:
    """Yield a new draft of the job `job_id`; what was not published is gone after the block. Raises StoreError."""
    remove_abandoned(store)
    with ExitStack() as stack:
        folder = _new_folder(store, stack)
        stack.callback(_remove, folder)
        draft = JobDraft(store, JobRecord(DirectoryStore(folder), job_id))
        try:
            make_folder(draft.scripts().parent, private=store.folder)
        except OSError as error:
            raise _unwritable(error) from error
        yield draft


def remove_abandoned(store: DirectoryStore) -> None:
    """Remove the drafts whose makers were killed. Those that cannot be removed stay for the next one who tries."""
    drafts = store.folder / _DRAFTS
    remove_unowned(drafts)
    with suppress(OSError):
        drafts.rmdir()  # while nobody else makes a job


def _new_folder(store: DirectoryStore, stack: ExitStack) -> Path:
    """Return a new folder whose lock is ours until `stack` ends."""
    try:
        return new_owned_folder(store.folder / _DRAFTS, private=store.folder, stack=stack)
    except OSError as error:
        raise _unwritable(error) from error


def _folder_of(record: JobRecord) -> Path:
    assert isinstance(record.store, DirectoryStore)
    return record.store.folder / record.job_id


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()  # while nobody else makes a job


def _unwritable(error: OSError) -> StoreError:
    return StoreError(
        f"the job store cannot be written: {error.filename}: {error.strerror}; name another with --store"
    )
