"""Sources with file:///absolute/path addresses. A source is a file or a folder on this machine, which is
copied, or cloned if the file system supports clones."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bai_agent.errors import PullError
from bai_agent.files.user_rights import User, open_as, user_rights
from bai_agent.job.descriptor.source_tables import Source
from bai_agent.job.run_directory import write_all
from bai_agent.job.schema.source_schemes import file_path, source_name
from bai_agent.pull.draft import CHUNK, PartialFile
from bai_agent.pull.landing import Landing
from bai_agent.pull.progress import PullWatch
from bai_agent.pull.remote import Remote, RemoteListing

_PIECE = 64 << 20
_NO_CLONE = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM)


class LocalOrigin:
    """Origin of a source that is a file or folder of this machine."""

    def __init__(self, source: Source, watch: PullWatch) -> None:
        self._src = source_name(source.src)
        self._watch = watch
        path = file_path(source.src)
        if path is None:
            raise PullError(f"{self._src}: must be absolute: file:///folder/file")
        self._path = path
        self._folder = source.directory or source.src.endswith("/")
        self.reader: User | None = None
        """User with whose rights the source is read. None means the agent's user."""

    def survey(self) -> RemoteListing:
        """List the file, or all files below the folder. Raises PullError."""
        with user_rights(self.reader):
            return self._survey()

    def _survey(self) -> RemoteListing:
        try:
            if self._path.is_dir():
                return RemoteListing(tuple(self._walk(self._path)), folder=True, here=self._path)
            if self._folder and self._path.exists():
                raise PullError(f"{self._src}: is a file; remove the slash at the end, or directory = true")
            file = self._remote(self._path, self._path.name, self._path.stat())
            return RemoteListing((file,), folder=False, here=self._path)
        except FileNotFoundError as error:
            raise PullError(f"{self._src}: there is no such file on this machine") from error
        except OSError as error:
            raise PullError(f"{self._src}: {error.filename} cannot be read: {error.strerror}") from error

    def fetch(
        self, remotes: Sequence[Remote], landing: Landing, *, keep: Callable[[PartialFile, Remote], None]
    ) -> None:
        """Copy the files `remotes`. Call `keep` with each complete temporary file. Raises PullError."""
        for remote in remotes:
            self._watch.check()
            if remote.link is not None:
                landing.place_link(remote.name, remote.link, tag=remote.tag)
                continue
            try:
                origin = open_as(self.reader, Path(remote.key))
            except OSError as error:
                raise PullError(f"{self._src}: {remote.key} cannot be read: {error.strerror}") from error
            try:
                with landing.small(remote.name) as draft:
                    self._copy(origin, draft, landing)
                    if self._remote(Path(remote.key), remote.name, os.fstat(origin)).tag != remote.tag:
                        raise PullError(
                            f"{self._src}: {remote.key} was changed while it was copied; run again"
                        )
                    keep(draft, remote)
            finally:
                os.close(origin)

    def _copy(self, origin: int, draft: PartialFile, landing: Landing) -> None:
        clone = True
        while True:
            self._watch.check()
            count = 0
            if clone:
                try:
                    count = os.copy_file_range(origin, draft.descriptor, _PIECE)
                except OSError as error:
                    if error.errno not in _NO_CLONE:
                        raise
            if count == 0:
                # Zero copied bytes mean the end of the file, but some special file systems also return zero
                # instead of an error.
                clone = False
                piece = os.read(origin, CHUNK)
                if not piece:
                    return
                write_all(draft.descriptor, piece)
                count = len(piece)
            landing.tally.bytes += count

    def _walk(self, folder: Path) -> Iterator[Remote]:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            self._watch.check()
            path = Path(entry.path)
            name = str(path.relative_to(self._path))
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                target = str(path.readlink())
                if not Path(target).is_absolute() and path.resolve().is_relative_to(self._path.resolve()):
                    yield Remote(name=name, key=entry.path, size=0, tag=f"link:{target}", link=target)
                    continue
                status = path.stat()  # for a link out of the folder, the target is copied
                if not stat.S_ISREG(status.st_mode):
                    raise PullError(
                        f"{self._src}: {name} is a link to {target}, which is outside the folder and not a file; remove the link"
                    )
            if stat.S_ISDIR(status.st_mode):
                yield from self._walk(path)
            elif stat.S_ISREG(status.st_mode):
                yield self._remote(path, name, status)
            else:
                raise PullError(
                    f"{self._src}: {name} is neither file, folder nor link and cannot be copied; remove it"
                )

    def _remote(self, path: Path, name: str, status: os.stat_result) -> Remote:
        if not stat.S_ISREG(status.st_mode):
            raise PullError(f"{self._src}: is neither a file nor a folder")
        return Remote(
            name=name,
            key=str(path),
            size=status.st_size,
            tag=f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}",
            mode=stat.S_IMODE(status.st_mode) & 0o755,
        )
