"""The record beside pulled data: what we put there, and how far an unfinished transfer is.

It is a hidden file that only grows, a JSON object a line, and at the same time the lock of whoever pulls there. It lets
a later job recognise data as ours and reuse it, and keeps us from ever replacing what a user put or changed. A line says
what is about to be true (`put` stands before the rename), so that a kill in between leaves nothing of unknown origin.

No source may bring a file of such a name (`is_record`). Who may write to the data's folder can still forge a record, so
it is never taken for a checksum: a file is hashed again, an archive's record counts only where it is `trusted`.
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
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from bai_agent.errors import PullError
from bai_agent.job.run_directory import append_line, boot_id, open_append
from bai_agent.job.user_rights import User, user_rights
from bai_agent.pull.progress import PullWatch

PREFIX = ".bai-pulled"
_FACTS = frozenset(("tag", "md5", "sha256", "unpack", "files", "bytes"))
"""What a record says of a source that is complete."""
_LARGEST = 1 << 30
"""Bytes of a record: some million files."""
_NAME_LIMIT = 255 - len(".part")


def folder_journal(folder: Path) -> Path:
    """Return the record's place for what lands all over `folder`."""
    return folder / PREFIX


def file_journal(target: Path) -> Path:
    """Return the record's place for the single file `target`: beside it."""
    name = f".{target.name}{PREFIX}"
    if len(os.fsencode(name)) > _NAME_LIMIT:
        name = f"{PREFIX}.{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:24]}"
    return target.with_name(name)


def is_record(name: str) -> bool:
    """Return whether a part of the path `name` is a record's name, or that of an unfinished file beside one."""
    return any(
        part.startswith(PREFIX) or (part.startswith(".") and part.endswith((PREFIX, f"{PREFIX}.part")))
        for part in name.split("/")
    )


@dataclass(frozen=True)
class PlacedFile:
    """One file or symbolic link that we put in place, and what it looked like then."""

    src: str
    size: int
    mtime_ns: int
    link: str | None = None
    tag: str | None = None
    """What the origin calls this content: an ETag, or size and time of a local file."""
    md5: str | None = None
    sha256: str | None = None

    def matches(self, path: Path) -> bool:
        """Return whether `path` is still as we left it."""
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
    """A transfer that was begun, and the parts of it that have arrived."""

    tag: str | None
    size: int | None
    part_bytes: int
    boot_id: str
    parts: set[int] = field(default_factory=set)


@dataclass
class PullRecord:
    """What a journal says."""

    puts: dict[str, PlacedFile] = field(default_factory=dict)
    older: dict[str, list[PlacedFile]] = field(default_factory=dict)
    begun: dict[str, PartialTransfer] = field(default_factory=dict)
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Source → what was true when all of it was in place."""

    def owner(self, root: Path, name: str) -> PlacedFile | None:
        """Return which of our own puts `name` below `root` still is; None where it is none (or does not exist)."""
        current = self.puts.get(name)
        for put in ([current] if current else []) + self.older.get(name, []):
            if put.matches(root / name):
                return put
        return None

    def intact(self, root: Path, src: str) -> bool:
        """Return whether all that came from `src` is still in place, unchanged."""
        return all(put.matches(root / name) for name, put in self.puts.items() if put.src == src)

    def apply(self, line: dict[str, Any]) -> None:
        if "put" in line:
            name = line.pop("put")
            if not _is_below(name):
                raise ValueError("a name that leads out of the folder")
            put = PlacedFile(**line)
            if type(put.size) is not int or not isinstance(put.src, str):
                raise ValueError("a file without size or source")
            # A source is being replaced, or has lost a file to another one: it is complete no longer.
            self.done.pop(put.src, None)
            if name in self.puts:
                self.done.pop(self.puts[name].src, None)
                self.older.setdefault(name, []).append(self.puts[name])
            self.puts[name] = put
            self.begun.pop(name, None)
        elif "begin" in line:
            name = line.pop("begin")
            self.begun[name] = PartialTransfer(**line)
        elif "part" in line:
            self.begun[line["part"]].parts.add(int(line["number"]))
        elif "gone" in line:
            self.puts.pop(line["gone"], None)
            self.older.pop(line["gone"], None)
        elif "done" in line:
            src = line.pop("done")
            if not line.keys() >= _FACTS or type(line["files"]) is not int or type(line["bytes"]) is not int:
                raise ValueError("a source without its facts")
            self.done[src] = line


def read_record(path: Path) -> PullRecord:
    """Return what the journal `path` says; an empty record where there is none. Raises PullError where it is damaged."""
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
            f"{path}: this record of pulled data is damaged; remove it and the data it is about"
        ) from error
    return record


def _require_record(path: Path, descriptor: int) -> None:
    """Raise PullError for what can be no record of ours: who may write to the folder may have put anything there."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
        raise PullError(f"{path}: this is no record of pulled data; remove it")


def _is_below(name: object) -> bool:
    """Return whether `name` is a relative path without "..": a forged record must name nothing else for removal."""
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
        """Whether nobody but this user (and root) can have written the record."""

    def put(self, name: str, put: PlacedFile) -> None:
        """Announce that `name` is about to become this."""
        self._add({"put": name, **{key: value for key, value in vars(put).items() if value is not None}})

    def begin(self, name: str, *, tag: str | None, size: int | None, part_bytes: int) -> None:
        """Announce a transfer from its start; what was known of an earlier one is void."""
        self._add({"begin": name, "tag": tag, "size": size, "part_bytes": part_bytes, "boot_id": boot_id()})

    def part(self, name: str, number: int) -> None:
        """Say that a part has arrived in the unfinished file."""
        self._add({"part": name, "number": number})

    def gone(self, name: str) -> None:
        """Say that `name` was removed."""
        self._add({"gone": name})

    def done(self, src: str, facts: dict[str, Any]) -> None:
        """Say that all of `src` is in place."""
        self._add({"done": src, **facts})

    def _add(self, line: dict[str, Any]) -> None:
        # Escaped to ASCII: a member's name may hold bytes that are not UTF-8, as lone surrogates.
        append_line(self._descriptor, (json.dumps(line) + "\n").encode("ascii"))
        self.record.apply(line)


@contextmanager
def open_journal(path: Path, watch: PullWatch, *, user: User | None = None) -> Iterator[Journal]:
    """Open the journal `path` as `user` and hold its lock; waits while another job pulls there, until `watch` ends."""
    while True:
        with user_rights(user):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _require_record(path, lock)
            _lock(lock, watch)
            with user_rights(user):
                if not _is(path, lock):  # removed, with its folder perhaps, while we waited
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
