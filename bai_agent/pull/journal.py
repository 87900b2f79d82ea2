"""A hidden record beside pulled data. The record lists the files that bai placed and the progress of unfinished
transfers.

The record is an append-only file with one JSON object per line. A job locks the record while the job pulls into
the folder. With the record, a later job reuses files that bai placed, and never replaces files that a user created
or changed. Each line is written before the step that it describes (`put` precedes the rename), so that a kill
leaves no file of unknown origin.

A source must not contain a file with the name of a record (`is_record`). Anybody who can write to the folder can
forge a record, so a record never replaces a checksum. Therefore a file is hashed again, and an archive's record is
used only if the record is `trusted`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from bai_agent.errors import PullError
from bai_agent.files.user_rights import User, user_rights
from bai_agent.job.run_directory import append_line, boot_id, open_append
from bai_agent.light_dataclass import dataclass, field
from bai_agent.pull.progress import PullWatch

PREFIX = ".bai-pulled"
_LARGEST = 1 << 30
"""Largest record (bytes). A record of this size can list some million files."""
_NAME_LIMIT = 255 - len(".part")


def folder_journal(folder: Path) -> Path:
    """Return the path of the record for data that is placed anywhere in `folder`."""
    return folder / PREFIX


def file_journal(target: Path) -> Path:
    """Return the path of the record beside the single file `target`."""
    name = f".{target.name}{PREFIX}"
    if len(os.fsencode(name)) > _NAME_LIMIT:
        name = f"{PREFIX}.{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:24]}"
    return target.with_name(name)


def is_record(name: str) -> bool:
    """Return whether any component of the path `name` is the name of a record or of an unfinished file."""
    return any(
        part.startswith(PREFIX) or (part.startswith(".") and part.endswith((PREFIX, f"{PREFIX}.part")))
        for part in name.split("/")
    )


@dataclass(frozen=True)
class PlacedFile:
    """A file or symbolic link that bai placed, with its state just after it was placed."""

    src: str
    size: int
    mtime_ns: int
    link: str | None = None
    tag: str | None = None
    """Tag of the content at the origin: an ETag, or size and modification time of a local file."""
    md5: str | None = None
    sha256: str | None = None

    def matches(self, path: Path) -> bool:
        """Return whether `path` is unchanged since bai placed it."""
        try:
            status = path.lstat()
            if self.link is not None:
                return stat.S_ISLNK(status.st_mode) and str(path.readlink()) == self.link
        except (FileNotFoundError, NotADirectoryError):
            return False
        return stat.S_ISREG(status.st_mode) and (status.st_size, status.st_mtime_ns) == (
            self.size,
            self.mtime_ns,
        )


@dataclass
class PartialTransfer:
    """An unfinished transfer, with the parts that have already arrived."""

    tag: str | None
    size: int | None
    part_bytes: int
    boot_id: str
    parts: set[int] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """Properties of a source at the time when all its files were in place."""

    tag: str | None = None
    md5: str | None = None
    sha256: str | None = None
    unpack: str
    files: int
    bytes: int


@dataclass
class PullRecord:
    """Content of a journal."""

    puts: dict[str, PlacedFile] = field(default_factory=dict)
    older: dict[str, list[PlacedFile]] = field(default_factory=dict)
    begun: dict[str, PartialTransfer] = field(default_factory=dict)
    done: dict[str, SourceFacts] = field(default_factory=dict)
    """Finished sources with their properties."""

    def owner(self, root: Path, name: str) -> PlacedFile | None:
        """Return the record of the file `name` below `root` if the file is still the one that bai placed;
        None otherwise."""
        current = self.puts.get(name)
        for put in ([current] if current else []) + self.older.get(name, []):
            if put.matches(root / name):
                return put
        return None

    def intact(self, root: Path, src: str) -> bool:
        """Return whether all files of `src` are still in place, unchanged."""
        return all(put.matches(root / name) for name, put in self.puts.items() if put.src == src)

    def apply(self, line: dict[str, Any]) -> None:
        """Apply one line of the journal to this record. Exactly one key of the line names its kind, for
        example `put`. Raises ValueError, TypeError or KeyError if the line is malformed."""
        kind = next((each for each in ("put", "begin", "part", "gone", "done") if each in line), None)
        if kind is not None:
            getattr(self, f"_{kind}")(line.pop(kind), **line)

    def _put(self, name: str, **facts: Any) -> None:
        if not _is_below(name):
            raise ValueError("a name that leads out of the folder")
        put = PlacedFile(**facts)
        if type(put.size) is not int or not isinstance(put.src, str):
            raise ValueError("a file without size or source")
        # A source is no longer complete if one of its files is being replaced, by the same or by another
        # source.
        self.done.pop(put.src, None)
        if name in self.puts:
            self.done.pop(self.puts[name].src, None)
            self.older.setdefault(name, []).append(self.puts[name])
        self.puts[name] = put
        self.begun.pop(name, None)

    def _begin(self, name: str, **facts: Any) -> None:
        self.begun[name] = PartialTransfer(**facts)

    def _part(self, name: str, number: int) -> None:
        self.begun[name].parts.add(int(number))

    def _gone(self, name: str) -> None:
        self.puts.pop(name, None)
        self.older.pop(name, None)

    def _done(self, src: str, **facts: Any) -> None:
        found = SourceFacts(**facts)
        if type(found.files) is not int or type(found.bytes) is not int:
            raise ValueError("a source without its facts")
        self.done[src] = found


def read_record(path: Path) -> PullRecord:
    """Return the record in `path`; an empty record if the file does not exist. Raises PullError if the file
    is damaged."""
    record = PullRecord()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return record
    with os.fdopen(descriptor, "rb") as file:
        _require_record(path, descriptor)
        content = file.read(_LARGEST)
    try:
        for line in content[: content.rfind(b"\n") + 1].splitlines():
            record.apply(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PullError(
            f"{path}: this record of pulled data is damaged; remove the record and the data"
        ) from error
    return record


def _require_record(path: Path, descriptor: int) -> None:
    """Raise PullError if the file cannot be a record that bai wrote. Other users can possibly write to the
    folder."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
        raise PullError(f"{path}: this is not a record of pulled data; remove it")


def _is_below(name: object) -> bool:
    """Return whether `name` is a relative path without "..", so that a forged record cannot make bai remove
    files elsewhere."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)


class Journal:
    """A record that is open for writing, and locked."""

    def __init__(self, path: Path, descriptor: int, user: User | None = None) -> None:
        self.path = path
        with user_rights(user):
            self.record = read_record(path)
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self.trusted = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        """Whether only this user or root can have written the record."""

    def put(self, name: str, put: PlacedFile) -> None:
        """Record which content the file `name` is about to get."""
        self._add({"put": name, **{key: value for key, value in vars(put).items() if value is not None}})

    def begin(self, name: str, *, tag: str | None, size: int | None, part_bytes: int) -> None:
        """Record that the transfer of the file `name` starts from the beginning. An earlier unfinished
        transfer is discarded."""
        self._add({"begin": name, "tag": tag, "size": size, "part_bytes": part_bytes, "boot_id": boot_id()})

    def part(self, name: str, number: int) -> None:
        """Record that a part has arrived in the unfinished file."""
        self._add({"part": name, "number": number})

    def gone(self, name: str) -> None:
        """Record that `name` was removed."""
        self._add({"gone": name})

    def done(self, src: str, facts: SourceFacts) -> None:
        """Record that all files of the source `src` are in place."""
        self._add({"done": src, **vars(facts)})

    def _add(self, line: dict[str, Any]) -> None:
        # The line is escaped to ASCII, because a member's name can contain lone surrogates, which stand for
        # bytes that are not UTF-8.
        append_line(self._descriptor, (json.dumps(line) + "\n").encode("ascii"))
        self.record.apply(line)


@contextmanager
def open_journal(path: Path, watch: PullWatch, *, user: User | None = None) -> Iterator[Journal]:
    """Open the journal `path` as `user` and hold its lock. Waits while another job pulls into the same
    folder; `watch` can end the wait."""
    while True:
        with user_rights(user):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _require_record(path, lock)
            _lock(lock, watch)
            with user_rights(user):
                if not _is(path, lock):  # removed, perhaps with its folder, while we waited
                    continue
                descriptor = open_append(path)
            try:
                yield Journal(path, descriptor, user)
            finally:
                os.close(descriptor)
            return
        finally:
            os.close(lock)


def _lock(descriptor: int, watch: PullWatch) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise
        else:
            return
        watch.pause(0.05)


def _is(path: Path, descriptor: int) -> bool:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(status, os.fstat(descriptor))
