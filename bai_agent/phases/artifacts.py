"""Saves the benchmark's files that the descriptor lists as artifacts."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from bai_agent.errors import StoreError
from bai_agent.files.globs import matching_files
from bai_agent.files.user_rights import User, open_as, user_rights
from bai_agent.job.store import JobStore
from bai_agent.light_dataclass import dataclass

log = logging.getLogger(__name__)

_SMALL = 2**20
_AT_A_TIME = 16
"""Number of files of up to `_SMALL` bytes that are uploaded in parallel, because a remote store answers
slowly. Larger files are uploaded one at a time, in parallel parts."""
_NAMED = 20
"""Largest number of failed artifacts for which a warning names each file. On a full disk, saving can fail for
thousands of artifacts."""


@dataclass(frozen=True)
class ArtifactSummary:
    """Number and total size (bytes) of the saved artifacts, and a sentence for each file that was not
    saved."""

    files: int
    bytes: int
    warnings: tuple[str, ...]

    def __add__(self, other: ArtifactSummary) -> ArtifactSummary:
        return ArtifactSummary(
            self.files + other.files, self.bytes + other.bytes, self.warnings + other.warnings
        )


def keep_artifacts(
    globs: Sequence[str],
    *,
    folder: Path,
    store: JobStore,
    prefix: str,
    stopping: Callable[[], bool],
    user: User | None = None,
    expected: bool = True,
) -> ArtifactSummary:
    """Copy the files that `globs` match below `folder` into `store` under `prefix`, with their relative paths
    as names.

    The copying stops before the next file when `stopping()` returns True. A file that cannot be saved causes
    a warning, not an error. user: the benchmark's user, if it is not the agent's user. Only files that `user`
    can read are saved. expected: whether a pattern that matches no file causes a warning.
    """
    # Imported here because most jobs save nothing, and the import would delay every start.
    from concurrent.futures import ThreadPoolExecutor

    found: dict[Path, None] = {}
    nothing: list[str] = []
    for pattern in globs:
        try:
            with user_rights(user):
                matches = list(matching_files(folder, pattern))
        except OSError as error:
            nothing.append(f'output.artifacts "{pattern}" cannot be searched in {folder}: {error.strerror}.')
            continue
        found.update(dict.fromkeys(matches))
        if expected and not matches:
            nothing.append(f'No file matched output.artifacts "{pattern}" in {folder}.')

    def keep(path: Path) -> int | str | None:
        """Return the number of saved bytes, or the reason why the file was not saved. Return None if no time
        was left."""
        name = path.relative_to(folder).as_posix()
        if stopping():
            return None
        try:
            if user is None:
                store.put_file(f"{prefix}{name}", path)
                return path.stat().st_size
            return _put_as(
                user, path, folder=folder, put=lambda opened: store.put_file(f"{prefix}{name}", opened)
            )
        except (StoreError, OSError) as error:
            return f"The artifact {name} was not kept: {error}"

    with user_rights(user):
        small = [path for path in found if _size(path) <= _SMALL]
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="artifacts") as pool:
        came_of = dict(zip(small, pool.map(keep, small), strict=True))
    came_of.update((path, keep(path)) for path in found if path not in came_of)
    kept = [each for each in came_of.values() if isinstance(each, int)]
    warnings = [each for path in found if isinstance(each := came_of[path], str)]
    refused = len(warnings)
    if refused > _NAMED:
        warnings[_NAMED:] = [f"{refused - _NAMED} more artifacts were not kept."]
    if late := len(found) - len(kept) - refused:
        warnings.append(f"{late} artifacts were not kept: there was no time left.")
    return ArtifactSummary(len(kept), sum(kept), (*warnings, *nothing))


def _put_as(user: User, path: Path, *, folder: Path, put: Callable[[Path], None]) -> int:
    """Upload the file `path` with the rights of `user`, and return the file's size (bytes). The upload
    continues if the file is renamed during the upload. Raises OSError, StoreError."""
    descriptor = open_as(user, path)
    try:
        opened = Path(f"/proc/self/fd/{descriptor}")
        if not opened.readlink().is_relative_to(folder.resolve()):
            raise OSError(errno.EACCES, "leads out of the benchmark's folder", str(path))
        put(opened)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
