"""What of `metrics.jsonl` is still to be sent, a batch at a time."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar

from bai_agent.job.run_directory import read_json

T = TypeVar("T")

MAX_RECORDS = 2_000
MAX_BYTES = 400 * 1024
"""Of a batch's messages. With their keys and headers they fit into one produce request of the usual limit, 1 MiB."""
_READ = 512 * 1024
_HOST = re.compile(rb'"src": ?"host"')


@dataclass(frozen=True, kw_only=True)
class SendProgress:
    """How far the sink has come; the content of `kafka.offset`, `cloudwatch.offset` and `log-lines.offset`."""

    offset: int = 0
    """Bytes of `metrics.jsonl`, or of the benchmark's output, that are dealt with."""
    delivered: int = 0
    """Messages that the other side has acknowledged, or lines that were written."""
    refused: int = 0
    """Messages that the other side would not take, and never will (too large, timestamp out of its range)."""
    malformed: int = 0
    """Lines that are not records."""

    def after(self, batch: Batch[T], *, refused: int) -> SendProgress:
        """Return how far it has come when `batch` is dealt with. refused: how many of its messages were."""
        return SendProgress(
            offset=batch.end,
            delivered=self.delivered + len(batch.messages) - refused,
            refused=self.refused + refused,
            malformed=self.malformed + batch.malformed,
        )


@dataclass(frozen=True, kw_only=True)
class Batch(Generic[T]):
    """The next messages, and where the file goes on after them."""

    messages: list[T]
    end: int
    malformed: int


class Backlog(Generic[T]):
    """Reads `metrics.jsonl` from any offset on. Nothing is kept in memory between two batches."""

    def __init__(
        self, path: Path, write: Callable[[bytes], T | None], *, size: Callable[[T], int] = lambda _: 0
    ) -> None:
        """write: makes a message of a line, or none where it is not to be sent; raises ValueError where it is not a record.
        size: a message's bytes.
        """
        self._path = path
        self._write = write
        self._size = size

    def read(self, offset: int) -> Batch[T]:
        """Return the batch that starts at `offset`. Its end is `offset` where no complete line is there yet."""
        chunk = self._chunk(offset)
        messages: list[T] = []
        end, size, malformed = offset, 0, 0
        start = 0
        while len(messages) < MAX_RECORDS and size < MAX_BYTES:
            newline = chunk.find(b"\n", start)
            if newline < 0:
                break
            try:
                message = self._write(chunk[start:newline])
            except (ValueError, RecursionError):
                malformed += 1
            else:
                if message is not None:
                    messages.append(message)
                    size += self._size(message)
            start = newline + 1
            end = offset + start
        if end == offset and len(chunk) == _READ:
            # No record is half a mebibyte long. What is left of the line is passed over as one more malformed one.
            end, malformed = offset + len(chunk), 1
        return Batch(messages=messages, end=end, malformed=malformed)

    def count(self, offset: int, *, deadline: float, host_metrics: bool) -> int:
        """Return how many complete lines after `offset` are to be sent; as many as were seen by `deadline`."""
        lines = 0
        while chunk := self._chunk(offset):
            chunk = chunk[: chunk.rfind(b"\n") + 1]
            lines += chunk.count(b"\n")
            if not host_metrics:
                lines -= len(_HOST.findall(chunk))
            offset += len(chunk)
            if not chunk or time.monotonic() > deadline:
                break
        return lines

    def _chunk(self, offset: int) -> bytes:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, _READ, offset)
        finally:
            os.close(descriptor)


def read_progress(path: Path) -> SendProgress:
    """Return what `path` holds; nothing done yet where it holds nothing of use: rather twice than never."""
    content = read_json(path) or {}
    names = ("offset", "delivered", "refused", "malformed")
    if not all(_is_count(content, name) for name in names):
        return SendProgress()
    return SendProgress(**{name: content[name] for name in names})


def write_progress(path: Path, progress: SendProgress) -> None:
    """Replace `path` by `progress`. Not synced to the disk, unlike a run's other files: a kill of the process cannot undo a
    rename, a power loss at worst repeats messages, and a sync for each batch would be felt by a benchmark that uses the disk.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(asdict(progress)) + "\n")
    temporary.replace(path)


def _is_count(content: Mapping[str, object], name: str) -> bool:
    value = content.get(name)
    return type(value) is int and value >= 0
