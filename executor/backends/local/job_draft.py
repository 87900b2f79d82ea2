"""The folder of a new local job while it is made: the job appears in its store complete, all at once, or never."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import make_folder
from bai_agent.job.store.directory import DirectoryStore
from executor.owned_folders import new_owned_folder, remove_unowned
from executor.planning.repetition import kept_scripts

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


def _new_folder(store: DirectoryStore, stack: ExitStack) -> Path:
    """Return a new folder whose lock is ours until `stack` ends."""
    try:
        return new_owned_folder(store.folder / _DRAFTS, private=store.folder, stack=stack)
    except OSError as error:
        raise _unwritable(error) from error


def remove_abandoned(store: DirectoryStore) -> None:
    """Remove the drafts whose makers were killed. Those that cannot be removed stay for the next one who tries."""
    drafts = store.folder / _DRAFTS
    remove_unowned(drafts)
    with suppress(OSError):
        drafts.rmdir()  # while nobody else makes a job


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
