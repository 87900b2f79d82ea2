"""Uploads a snapshot. The snapshot's files are uploaded first, eight at a time. The marker, which makes the
snapshot a checkpoint, is uploaded last."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from bai_agent.backoff import Backoff
from bai_agent.checkpoint.snapshot import Snapshot
from bai_agent.errors import CheckpointError, StoreError, StoreRefusedError
from bai_agent.generations.checkpoint_marker import (
    CheckpointFile,
    CheckpointMarker,
    CheckpointRecord,
    marker_bytes,
)
from bai_agent.job.record import LARGEST_OBJECT
from bai_agent.job.run_directory import FULL
from bai_agent.light_dataclass import dataclass, replace
from bai_agent.run.stop_sources import LOW_DISK_BYTES, free_bytes
from bai_agent.runtime.clock import CLOCK, Clock

T = TypeVar("T")

AT_ONCE = 8
"""Number of a checkpoint's files that are read or uploaded at a time."""
_CHUNK = 1 << 20
_SECONDS_BYTES = 16
"""Number of bytes by which a marker grows when the duration of the upload is added to the marker."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
_SPARE_BYTES = 16 * LOW_DISK_BYTES
"""Number of bytes that must stay free on the disk if the job store is a folder. A checkpoint that used this
reserve could end the run, because the run ends if less than `LOW_DISK_BYTES` is free."""


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """Saves the checkpoints of one generation to the job store."""

    record: CheckpointRecord
    node: int
    generation: int
    patience: timedelta
    """Longest time for which a request to an unreachable store is retried."""

    def keep(
        self, snapshot: Snapshot, *, last: CheckpointMarker | None, over: Callable[[], bool]
    ) -> CheckpointMarker | None:
        """Upload a snapshot, and return its marker. Return None if the checkpoint `last` has the same
        content. Raises CheckpointError.

        over: function that returns whether the upload must be abandoned. Several threads call `over`.
        """
        begun = time.monotonic()
        files = self._sums(snapshot, over)
        if last is None:
            # An agent that ran before this agent was restarted may have saved this checkpoint already.
            generation = self.generation
            last = self._insist(lambda: self.record.newest(before=generation + 1, since=generation), over)
        if last is not None and files == last.files:
            return None
        marker = self._insist(lambda: self._next_marker(snapshot, files), over)
        _require_readable(marker)
        self._require_space(marker.bytes)

        def put(place: int, name: str) -> None:
            key = self.record.file_key(marker, place)
            self._insist(lambda: self.record.attempt.job.store.put_file(key, snapshot.paths[name]), over)

        side_by_side(
            [partial(put, place, each.name) for place, each in enumerate(files) if each.link is None]
        )
        if (name := snapshot.rewritten()) is not None:
            raise CheckpointError(
                f"{name} was rewritten in place during the upload; write a new file, and rename the complete file to this name"
            )
        marker = replace(marker, seconds=round(time.monotonic() - begun, 3))
        if not self._insist(lambda: self.record.write(marker), over):
            raise CheckpointError(f"another node has written {marker.name}")
        return marker

    def _sums(self, snapshot: Snapshot, over: Callable[[], bool]) -> list[CheckpointFile]:
        names = list(snapshot.paths)
        sums = side_by_side([partial(sha256_of, snapshot.paths[name], over) for name in names])
        of_files = dict(zip(names, sums, strict=True))
        return [
            CheckpointFile(name=name, size=each.size, sha256=of_files.get(name), link=each.link)
            for name, each in snapshot.listing.files.items()
        ]

    def _next_marker(self, snapshot: Snapshot, files: list[CheckpointFile]) -> CheckpointMarker:
        generation, number = self.record.next_number(self.generation)
        return CheckpointMarker(
            generation=generation,
            number=number,
            node=self.node,
            slot=self.record.next_slot(self.node),
            files=files,
            time=snapshot.time_ns // 1_000_000,
        )

    def _require_space(self, size: int) -> None:
        folder = self.record.attempt.job.store.folder
        if folder is None:
            return
        try:
            free = free_bytes(folder)
        except OSError as error:
            raise CheckpointError(f"{folder}: {error.strerror}") from error
        if free < size + _SPARE_BYTES:
            raise CheckpointError(
                f"the file system of {folder} has {free:,} bytes free, of which {_SPARE_BYTES:,} are reserved for the job"
            )

    def _insist(self, work: Callable[[], T], over: Callable[[], bool]) -> T:
        """Return the result of `work`. After an error of the job store, `work` is repeated within `patience`.
        Raises CheckpointError."""
        try:
            return ask_patiently(work, patience=self.patience, check=lambda: require_time(over))
        except StoreError as error:
            raise CheckpointError(str(error)) from error
        except OSError as error:
            raise CheckpointError(f"{error.filename}: {error.strerror or error}") from error


def ask_patiently(
    work: Callable[[], T], *, patience: timedelta, check: Callable[[], None], clock: Clock = CLOCK
) -> T:
    """Return the result of `work`. After a temporary error of the job store, `work` is repeated within
    `patience`. `check` is called before each try. Raises StoreError, and the errors of `check`."""
    backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    give_up_at = clock.monotonic() + patience.total_seconds()
    while True:
        check()
        try:
            return work()
        except StoreError as error:
            is_final = isinstance(error, StoreRefusedError) or _is_full(error)
            if is_final or clock.monotonic() >= give_up_at:
                raise
        clock.sleep(backoff.next())


def _require_readable(marker: CheckpointMarker) -> None:
    """Raise CheckpointError if the marker would be too long to be read back, because of the files' names."""
    size = len(marker_bytes(marker)) + _SECONDS_BYTES
    if size > LARGEST_OBJECT:
        raise CheckpointError(
            f"the list of its {len(marker.files):,} files has {size:,} bytes, but may have at most {LARGEST_OBJECT:,}; "
            "save fewer files, or use shorter names"
        )


def sha256_of(path: Path, over: Callable[[], bool]) -> str:
    """Return the SHA-256 of a file. Raises CheckpointError, also if `over()` returns True before the end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    try:
        return sha256_of_open(descriptor, over)
    finally:
        os.close(descriptor)


def sha256_of_open(descriptor: int, over: Callable[[], bool]) -> str:
    """Return the SHA-256 of an open file's whole content. Raises CheckpointError."""
    found, offset = hashlib.sha256(), 0
    while True:
        require_time(over)
        try:
            chunk = os.pread(descriptor, _CHUNK, offset)
        except OSError as error:
            raise CheckpointError(str(error)) from error
        if not chunk:
            return found.hexdigest()
        found.update(chunk)
        offset += len(chunk)


def require_time(over: Callable[[], bool]) -> None:
    if over():
        raise CheckpointError("there was no time left")


def side_by_side(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run the tasks on several threads; return their results, in order. After the first error no further task
    starts, and the call waits until the running tasks have ended."""
    if not tasks:
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(tasks)), thread_name_prefix="checkpoint") as pool:
        begun: list[Future[T]] = [pool.submit(each) for each in tasks]
        try:
            return [each.result() for each in begun]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _is_full(error: BaseException) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in FULL
