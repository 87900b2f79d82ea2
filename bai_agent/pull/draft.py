"""Unfinished files, which are written under a temporary name and verified before they get their final
name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from bai_agent.errors import PullError
from bai_agent.files.user_rights import User, user_rights
from bai_agent.job.run_directory import write_all
from bai_agent.light_dataclass import dataclass
from bai_agent.pull.journal import Journal, PartialTransfer
from bai_agent.pull.progress import PullWatch
from bai_agent.pull.remote import Sums

CHUNK = 1 << 20
"""Number of bytes that are read or written at a time."""
WRITE = 64 << 10
"""Number of bytes per write into a file with a reserved size. Larger writes make the page cache use larger
folios, which cost twice the processor time if their memory is cold (Linux 6.18, ext4; `benchmarks/s3.py`).
"""


@dataclass
class PartialFile:
    """An unfinished file."""

    src: str
    watch: PullWatch
    journal: Journal
    name: str
    path: Path
    descriptor: int
    user: User | None = None
    """User with whose rights the file's name is looked up. None if the name is looked up with the agent's own
    rights."""

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def reserve(self, size: int) -> None:
        """Extend the file to its final size, as a sparse file."""
        if self.size != size:
            os.ftruncate(self.descriptor, size)

    def append(self, content: bytes | memoryview) -> None:
        write_all(self.descriptor, content)

    def write_at(self, content: bytes, offset: int) -> None:
        """Write all of `content` at `offset`."""
        view = memoryview(content)
        while view:
            written = os.pwrite(self.descriptor, view[:WRITE], offset)
            view, offset = view[written:], offset + written

    def part_arrived(self, number: int) -> None:
        self.journal.part(self.name, number)

    @property
    def begun(self) -> PartialTransfer:
        """The journal's record of the transfer that this temporary file continues."""
        return self.journal.record.begun[self.name]

    def start_over(self, *, tag: str | None, size: int | None) -> None:
        """Discard the content. Called when the object at the origin has changed or the content is wrong."""
        self.journal.begin(self.name, tag=tag, size=size, part_bytes=0)
        os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)

    def discard(self) -> None:
        """Remove the unfinished file."""
        self.start_over(tag=None, size=None)
        with user_rights(self.user):
            self.path.unlink(missing_ok=True)

    def verify(self, *, size: int | None, sums: Sums) -> None:
        """Raise PullError unless the whole file has this size and these checksums. A file with another size
        or checksum is deleted."""
        if size is not None and self.size != size:
            found = self.size
            self.discard()
            raise PullError(f"{self.src}: has {found:,} bytes instead of the {size:,} that were expected")
        check_sums(self.descriptor, sums, src=self.src, watch=self.watch, on_mismatch=self.discard)


def check_sums(
    descriptor: int, sums: Sums, *, src: str, watch: PullWatch, on_mismatch: Callable[[], None]
) -> None:
    """Raise PullError unless the file's content has these checksums. Reading the file again is cheap, because
    it was just written and is in the page cache."""
    for name, found in _hash(descriptor, sums.wanted, watch).items():
        if found != getattr(sums, name):
            on_mismatch()
            raise PullError(
                f"{src}: its {name} is {found}, but {getattr(sums, name)} was expected; "
                f"the source has changed, or {name} is wrong in the descriptor"
            )


def has_sums(path: Path, sums: Sums, watch: PullWatch, *, user: User | None = None) -> bool:
    """Return whether the file `path` exists and has these checksums."""
    try:
        with user_rights(user):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return _hash(descriptor, sums.wanted, watch) == {name: getattr(sums, name) for name in sums.wanted}
    finally:
        os.close(descriptor)


def _hash(descriptor: int, names: Iterable[str], watch: PullWatch) -> dict[str, str]:
    hashes = {name: hashlib.new(name, usedforsecurity=False) for name in names}
    offset = 0
    while hashes and (chunk := os.pread(descriptor, CHUNK, offset)):
        watch.check()
        for running in hashes.values():
            running.update(chunk)
        offset += len(chunk)
    return {name: running.hexdigest() for name, running in hashes.items()}
