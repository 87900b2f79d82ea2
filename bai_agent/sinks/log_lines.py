"""Appends the lines of the benchmark's output to a file for log shippers, each line as a JSON object.

The objects have the form of the benchmark service's index of logs. A log shipper on the machine, such as
fluent-bit, reads the file. Each line is written at least once. After a kill of the agent, the lines of the
last second are possibly written twice.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from bai_agent.backoff import Backoff
from bai_agent.job.descriptor import Job
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.sinks.backlog import SendProgress, labels_of, read_progress, write_progress
from bai_agent.sinks.sink import Delivery, SinkThread

_POLL_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
_READ = 256 * 1024
_LONGEST = 64 * 1024
"""Largest size of one entry (bytes). A longer line becomes several entries, because log shippers drop long
lines."""


class LogLinesFile(SinkThread):
    """Reads the benchmark's output from the position in `log-lines.offset` on, and writes its lines to the
    file."""

    _on_this_machine = True

    def __init__(self, job: Job, rundir: RunDir, *, rank: int, redactor: Redactor) -> None:
        super().__init__("the log file")
        if job.log_lines is None:
            raise ValueError("the job names no file for log lines")
        self._path = Path(job.log_lines.path)
        self._output = rundir.kept_output
        self._offset_file = rundir.log_lines_offset
        self._place = {"kubernetes": {"container_name": "benchmark", "labels": labels_of(job, rank=rank)}}
        self._redactor = redactor
        self._progress = read_progress(rundir.log_lines_offset)
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    def _summary(self, deadline: float) -> Delivery:
        done = self._progress
        return Delivery.of(
            delivered=done.delivered,
            undelivered=self._lines_after(done.offset, deadline),
            what="lines of the output",
            place=str(self._path),
            why=self._error or "the time was over",
        )

    def _round(self, *, last: bool) -> float | None:
        try:
            more = self._take(last=last)
        except OSError as error:
            self._failed(f"{self._path} cannot be written: {error.strerror}")
            return None if last else self._backoff.next()
        self._error = None
        self._backoff.reset()
        if more:
            return 0.0
        return None if last else _POLL_S

    def _take(self, *, last: bool) -> bool:
        """Write the next lines of the output. Return whether there were any. Raises OSError.

        last: whether the output is complete.
        """
        before = self._progress
        offset, chunk = self._read(before.offset)
        lines, end = _split(chunk, whole=last and len(chunk) < _READ)
        if not lines:
            return False
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
        entries = [
            json.dumps({"@timestamp": now, "log": self._redactor.redact(text), **self._place})
            for text in lines
        ]
        self._append("".join(f"{each}\n" for each in entries).encode())
        self._progress = SendProgress(offset=offset + end, delivered=before.delivered + len(entries))
        write_progress(self._offset_file, self._progress)
        return True

    def _read(self, offset: int) -> tuple[int, bytes]:
        """Return the next bytes of the output, and the offset at which they start. The offset is 0 if the
        benchmark has truncated its output."""
        with _opened(self._output, os.O_RDONLY) as descriptor:
            if descriptor is None:
                return offset, b""
            if os.fstat(descriptor).st_size < offset:
                offset = 0
            return offset, os.pread(descriptor, _READ, offset)

    def _append(self, content: bytes) -> None:
        # The file is opened for each write, because a log shipper can move it away.
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with _opened(self._path, flags) as descriptor:
            if descriptor is None or not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(0, "it is no file")
            size = os.fstat(descriptor).st_size
            # A failed write or a killed agent can leave an incomplete line, which must not be joined to the
            # next line.
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            rest = memoryview(b"\n" + content if torn else content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]

    def _lines_after(self, offset: int, deadline: float) -> int:
        """Return the number of lines that were not written, as counted until `deadline`. If any line was not written, the number
        is at least 1."""
        count = 0
        while True:
            try:
                offset, chunk = self._read(offset)
            except OSError:
                return count
            lines, end = _split(chunk, whole=len(chunk) < _READ)
            count, offset = count + len(lines), offset + end
            if not lines or time.monotonic() > deadline:
                return count


def _split(chunk: bytes, *, whole: bool) -> tuple[list[str], int]:
    """Return the lines of a chunk of the output, and the offset at which the last line ends.

    whole: whether the text after the last newline is a line too.
    """
    end = len(chunk) if whole else chunk.rfind(b"\n") + 1
    if end == 0 and len(chunk) >= _LONGEST:
        end = _LONGEST
    pieces: list[str] = []
    for line in chunk[:end].removesuffix(b"\n").split(b"\n") if end else ():
        for start in range(0, max(1, len(line)), _LONGEST):
            piece = line[start : start + _LONGEST]
            pieces.append(piece.decode(errors="replace").rstrip("\r"))
    return pieces, end


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int | None]:
    """Context manager that opens a file, and closes the file at the end. Yields None if a file for reading does not exist. Raises
    OSError."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o640)
    except FileNotFoundError:
        if flags & os.O_CREAT:
            raise
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
