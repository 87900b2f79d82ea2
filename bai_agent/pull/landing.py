"""Writes a source's files to their target paths. Files of the user are never replaced. Each file is recorded
in the journal before it gets its name."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from bai_agent.errors import NoSpaceError, PullError
from bai_agent.files.new_files import NO_LINKS
from bai_agent.files.user_rights import User, user_rights
from bai_agent.job.run_directory import FULL, boot_id
from bai_agent.pull.draft import PartialFile
from bai_agent.pull.journal import PREFIX, Journal, PlacedFile, folder_journal, is_record
from bai_agent.pull.progress import PullProgress, PullWatch
from bai_agent.pull.remote import Remote, Sums

P = ParamSpec("P")
R = TypeVar("R")


def _as_user(method: Callable[Concatenate[Landing, P], R]) -> Callable[Concatenate[Landing, P], R]:
    """Decorate a method of `Landing`. The method then accesses paths with the rights of `Landing.user`."""

    @wraps(method)
    def run(self: Landing, /, *arguments: P.args, **more: P.kwargs) -> R:
        with user_rights(self.user):
            return method(self, *arguments, **more)

    return run


class Landing:
    """The folder into which a source's files are written. A file that bai did not place is never replaced; it
    causes an error."""

    def __init__(
        self,
        *,
        root: Path,
        journal: Journal,
        src: str,
        mode: int | None,
        watch: PullWatch,
        tally: PullProgress,
        user: User | None = None,
    ) -> None:
        self.root = root
        self.user = user
        """User with whose rights all paths are accessed. None means the agent's user."""
        self.src = src
        self.watch = watch
        self.tally = tally
        self._journal = journal
        self._mode = mode
        self._folders: set[Path] = {root}
        self._placed: set[str] = set()
        self._owns_folder = journal.path == folder_journal(root)

    @_as_user
    def holds(self, remote: Remote) -> bool:
        """Return whether the file `remote` is already in place, and unchanged both here and at the origin. A
        file that is already in place counts as placed by this attempt."""
        put = self._journal.record.puts.get(remote.name)
        if (
            put is None
            or put.src != self.src
            or remote.tag is None
            or put.tag != remote.tag
            or (put.link is None and remote.size is not None and put.size != remote.size)
            or not put.matches(self.root / remote.name)
        ):
            return False
        if self._mode is not None and put.link is None:
            (self.root / remote.name).chmod(self._mode)
        self._placed.add(remote.name)
        return True

    @_as_user
    def require_free(self, name: str) -> None:
        """Raise PullError if a file that bai did not place is at `name`."""
        path = self.root / name
        if path in self._folders:
            raise self._file_and_folder(name)
        if os.path.lexists(path) and self._journal.record.owner(self.root, name) is None:
            raise PullError(
                f"{self.src}: {path} exists, but is not pulled data, or has changed since the pull; "
                "move the file away, or choose another path"
            )

    @_as_user
    def require_space(self, size: int) -> None:
        """Raise NoSpaceError if the file system has less than `size` bytes left."""
        free = free_bytes(self.root)
        if size > free:
            raise NoSpaceError(
                f"{self.src}: needs {size:,} bytes more, but the file system of {self.root} has {free:,} free; "
                "free space there or choose another path"
            )

    @_as_user
    def make_folder(self, name: str) -> Path:
        """Create the folder `name` and its parents if necessary, and return its path. Symbolic links below
        the root are never followed."""
        path = self.root / name
        if path in self._folders:
            return path
        if path != self.root:
            self.make_folder(str(Path(name).parent))
        try:
            if not stat.S_ISDIR(path.lstat().st_mode):
                self._make_way(name)
                path.mkdir(mode=0o755)
        except FileNotFoundError:
            path.mkdir(mode=0o755)
        self._folders.add(path)
        return path

    def temporary(self, name: str) -> Path:
        """Return the path of the temporary file for `name`. The path is the same after a restart."""
        if not self._owns_folder:
            return self._journal.path.with_name(f"{self._journal.path.name}.part")
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:24]
        return self.root / f"{PREFIX}.{digest}.part"

    @contextmanager
    def draft(
        self, name: str, *, tag: str | None, size: int | None, part_bytes: int = 0
    ) -> Iterator[PartialFile]:
        """Open the temporary file for `name`. Content from an earlier attempt is kept if the transfer can be
        continued.

        part_bytes: size of the parts, which can arrive in any order; 0 if the file is written from start to
        end. Without a tag, content from an earlier attempt cannot be recognised, so the file begins empty.
        """
        self.require_free(name)
        begun = self._journal.record.begun.get(name)
        path = self.temporary(name)
        with user_rights(self.user):
            is_there = path.is_file()
        resumes = (
            begun is not None
            and tag is not None
            and (begun.tag, begun.size, begun.part_bytes, begun.boot_id) == (tag, size, part_bytes, boot_id())
            and is_there
        )
        if not resumes:
            # The new start is recorded before the file is emptied. Otherwise, after a kill in between, the
            # journal would list parts that are lost.
            self._journal.begin(name, tag=tag, size=size, part_bytes=part_bytes)
        descriptor = self._open_draft(path, os.O_RDWR | (0 if resumes else os.O_TRUNC))
        try:
            yield PartialFile(self.src, self.watch, self._journal, name, path, descriptor, self.user)
        finally:
            os.close(descriptor)

    @contextmanager
    def small(self, name: str) -> Iterator[PartialFile]:
        """Open an empty temporary file for `name`. The file is written without interruption, and is not
        resumed after a kill."""
        self.require_free(name)
        path = self.temporary(name)
        descriptor = self._open_draft(path, os.O_RDWR | os.O_TRUNC)
        try:
            yield PartialFile(self.src, self.watch, self._journal, name, path, descriptor, self.user)
        finally:
            os.close(descriptor)

    @_as_user
    def place(
        self,
        draft: PartialFile,
        *,
        tag: str | None = None,
        sums: Sums | None = None,
        mode: int | None = None,
        mtime: float | None = None,
    ) -> None:
        """Rename a complete temporary file to its final name. The permissions come from the descriptor,
        otherwise from the argument `mode`, otherwise from the umask."""
        wanted = self._mode if self._mode is not None else mode
        if wanted is not None:
            os.fchmod(draft.descriptor, wanted)
        if mtime is not None:
            os.utime(draft.descriptor, (mtime, mtime))
        status = os.fstat(draft.descriptor)
        self._put(
            draft.name,
            draft.path,
            PlacedFile(
                src=self.src,
                size=status.st_size,
                mtime_ns=status.st_mtime_ns,
                tag=tag,
                md5=sums.md5 if sums else None,
                sha256=sums.sha256 if sums else None,
            ),
        )

    @_as_user
    def place_link(self, name: str, target: str, *, tag: str | None = None) -> None:
        """Create a symbolic link."""
        self.require_free(name)
        temporary = self.temporary(name)
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        self._put(name, temporary, PlacedFile(src=self.src, size=0, mtime_ns=0, link=target, tag=tag))

    @_as_user
    def place_hard_link(self, name: str, existing: str) -> None:
        """Make a hard link to the file `existing`, which this source placed. If the file system has no hard
        links, the file is copied."""
        self.require_free(name)
        put = self._journal.record.puts[existing]
        temporary = self.temporary(name)
        temporary.unlink(missing_ok=True)
        try:
            temporary.hardlink_to(self.root / existing)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            shutil.copy2(self.root / existing, temporary)
        self._put(name, temporary, put)
        # A rename between two hard links of the same file does nothing, so the temporary name must be
        # removed.
        temporary.unlink(missing_ok=True)

    @_as_user
    def unfinished_bytes(self, name: str) -> int:
        """Return the disk space that the unfinished file of an earlier attempt at `name` occupies (bytes)."""
        try:
            return self.temporary(name).stat().st_blocks * 512
        except FileNotFoundError:
            return 0

    @_as_user
    def is_intact(self) -> bool:
        """Return whether all files of this source are still in place, unchanged."""
        return self._journal.record.intact(self.root, self.src)

    def adopt(self) -> None:
        """Count all files of this source as placed by this attempt."""
        self._placed.update(name for name, put in self._journal.record.puts.items() if put.src == self.src)

    def forget(self, remote: Remote) -> None:
        """Subtract `remote` from the source's totals, because `remote` is not an object."""
        if self.tally.total_objects is not None:
            self.tally.total_objects -= 1
        if remote.size and self.tally.total_bytes is not None:
            self.tally.total_bytes -= remote.size

    def placed(self, name: str) -> bool:
        """Return whether this attempt placed a file or link at `name`."""
        return name in self._placed

    @_as_user
    def remove_stale(self) -> None:
        """Remove files from earlier pulls that this source no longer contains, unless the files were changed
        since."""
        record = self._journal.record
        for name, put in list(record.puts.items()):
            if put.src == self.src and name not in self._placed:
                if put.matches(self.root / name):
                    (self.root / name).unlink()
                self._journal.gone(name)
        if self._owns_folder:
            # A killed attempt possibly left temporary files of members and objects that no longer exist.
            for leftover in self.root.glob(f"{PREFIX}.*.part"):
                leftover.unlink()

    def counts(self) -> tuple[int, int]:
        """Return the number of this source's files that are in place, and their total size (bytes)."""
        puts = [self._journal.record.puts[name] for name in self._placed]
        return len(puts), sum(put.size for put in puts)

    @_as_user
    def discard_draft(self, name: str) -> None:
        """Remove the unfinished file for `name`."""
        self.temporary(name).unlink()

    @_as_user
    def _open_draft(self, path: Path, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise PullError(f"{self.src}: {path} is not a file; remove it")
        return descriptor

    def _put(self, name: str, temporary: Path, put: PlacedFile) -> None:
        if is_record(name):
            raise PullError(
                f'{self.src}: "{printable(name)}" is a name of our own records of pulled data; choose another path'
            )
        self.make_folder(str(Path(name).parent))
        path = self.root / name
        if path.is_dir() and not path.is_symlink():
            raise PullError(f"{self.src}: {path} is a folder, but must be a file; move the folder away")
        self._journal.put(name, put)
        temporary.rename(path)
        self._placed.add(name)

    def _make_way(self, name: str) -> None:
        if name in self._placed:
            raise self._file_and_folder(name)
        put = self._journal.record.owner(self.root, name)
        if put is None or put.src != self.src:
            raise PullError(f"{self.src}: {self.root / name} is in the way of a folder; move it away")
        (self.root / name).unlink()
        self._journal.gone(name)

    def _file_and_folder(self, name: str) -> PullError:
        return PullError(
            f"{self.src}: {printable(name)} is there as a file and as a folder, which no file system allows; rename the file or the folder"
        )


def free_bytes(path: Path) -> int:
    """Return the number of bytes available to this user in the file system of `path`, or of its nearest
    existing parent."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def printable(name: str) -> str:
    """Return a file's name in a form that can be printed in a message."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def disk_problem(src: str, error: OSError, *, root: Path) -> PullError:
    """Return the error for a failed operation on files below `root`."""
    where = error.filename2 or error.filename or root
    if error.errno in FULL:
        return NoSpaceError(
            f"{src}: the file system of {root} ran full; free space there or choose another path"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PullError(
            f"{src}: {where} cannot be written ({error.strerror}); give the job's user the right to write, choose another path, "
            "or use --data-root DIR, which puts all absolute paths below a folder of your own machine"
        )
    return PullError(f"{src}: {where}: {error.strerror or error}")
