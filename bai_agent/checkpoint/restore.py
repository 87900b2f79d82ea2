"""Makes the checkpoint folder equal to a stored checkpoint, with the rights of the benchmark's user.

Files are first downloaded to a subfolder. When the checksums of all downloaded files match the marker, the
downloaded files replace the content of the checkpoint folder. If the agent is killed at any point, the folder
is restored again later, because a generation begins only after a complete restore.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bai_agent.checkpoint.keep import sha256_of_open, side_by_side
from bai_agent.checkpoint.snapshot import STAGING, list_folder
from bai_agent.files.user_rights import User, open_as, user_rights
from bai_agent.generations.checkpoint_marker import CheckpointFile, CheckpointMarker, CheckpointRecord
from bai_agent.job.descriptor.sink_tables import Store
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.light_dataclass import dataclass
from bai_agent.pull import pull


@dataclass(frozen=True, kw_only=True)
class Restorer:
    """Restores checkpoints into a folder."""

    folder: Path
    user: User | None
    record: CheckpointRecord
    store: Store | None
    manifest: Path
    """Path of the puller's manifest of finished sources."""
    deadline: float
    """Deadline of the restore (`time.monotonic()`)."""
    stopping: Callable[[], bool]

    def is_there(self, marker: CheckpointMarker) -> bool:
        """Return whether the folder already has exactly the files of a checkpoint. Raises CheckpointError,
        OSError."""
        listing = list_folder(self.folder, user=self.user)
        wanted = {each.name: (each.size, each.link) for each in marker.files}
        return (
            not listing.skipped
            and wanted == {name: (each.size, each.link) for name, each in listing.files.items()}
            and self._fit(marker, {each.name: self.folder / each.name for each in _real(marker)})
        )

    def restore(self, marker: CheckpointMarker) -> bool:
        """Replace the folder's content by the files of a checkpoint. If the store's files do not match the
        checkpoint's marker, leave the folder unchanged and return False.

        Raises PullError, PullStopped, StoreError, CheckpointError, OSError.
        """
        if not self.record.has_files(marker):
            return False
        staging = self.folder / STAGING
        if _real(marker):
            self._pull(marker, staging)
        arrived = {each.name: staging / f"{place:06}" for place, each in enumerate(marker.files)}
        if not self._fit(marker, {each.name: arrived[each.name] for each in _real(marker)}):
            self._discard(staging)
            return False
        with user_rights(self.user):
            for each in self.folder.iterdir():
                if each.name != STAGING:
                    _remove(each)
            for file in marker.files:
                path = self.folder / file.name
                path.parent.mkdir(parents=True, exist_ok=True)
                if file.link is not None:
                    path.symlink_to(file.link)
                else:
                    arrived[file.name].rename(path)
        self._discard(staging)
        return True

    def _pull(self, marker: CheckpointMarker, staging: Path) -> None:
        # Files from an earlier restore may belong to another checkpoint in the same slot. The manifest is
        # deleted, so that the puller compares the earlier files with the store's current files.
        self.manifest.unlink(missing_ok=True)
        key = self.record.folder(marker)
        source = Source(
            src=f"{self.record.attempt.job.store.url}/{key}",
            path=f"{staging}/",
            directory=True,
            region=self.store.region if self.store is not None else None,
            endpoint=self.store.endpoint if self.store is not None else None,
        )
        pull(
            [source],
            folders={SourceKind.DATA: self.folder},
            manifest=self.manifest,
            deadline=self.deadline,
            report=lambda _: None,
            stopping=self.stopping,
            user=self.user,
        )

    def _fit(self, marker: CheckpointMarker, paths: dict[str, Path]) -> bool:
        """Return whether downloaded files have the sizes and checksums in the marker."""
        try:
            return all(side_by_side([partial(self._fits, each, paths[each.name]) for each in _real(marker)]))
        except FileNotFoundError:
            return False

    def _fits(self, file: CheckpointFile, path: Path) -> bool:
        descriptor = open_as(self.user, path, follow=False)
        try:
            return (
                os.fstat(descriptor).st_size == file.size
                and sha256_of_open(descriptor, self.stopping) == file.sha256
            )
        finally:
            os.close(descriptor)

    def _discard(self, staging: Path) -> None:
        with user_rights(self.user):
            shutil.rmtree(staging, ignore_errors=True)
        self.manifest.unlink(missing_ok=True)


def _real(marker: CheckpointMarker) -> list[CheckpointFile]:
    return [each for each in marker.files if each.link is None]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
