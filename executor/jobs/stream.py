"""A job's log or records from a position on, to the end or as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord, NodeRecord, Stream
from bai_agent.job.store import RecordError
from bai_agent.job.store.directory import DirectoryStore
from executor.backends import Backends
from executor.backends.backend import Backend
from executor.errors import NextStep, NoResultError, UsageError
from executor.records.follower import LONGEST_LINE, PIECE, was_truncated
from executor.records.job_status import DIED, NO_RESULT
from executor.records.reading import result_of
from executor.records.retry_window import RetryWindow

_PAUSE, _FAR_PAUSE = 0.2, 2.0
"""Seconds between two looks at a stream on this machine, and elsewhere."""
_LOOK, _FAR_LOOK = 2.0, 10.0
"""Seconds between two looks whether somebody still writes."""


class DeadAgentError(UsageError):
    """Nothing more will come of a job that has not ended."""


def pieces(
    node: NodeRecord,
    stream: Stream,
    *,
    position: int = 0,
    follow: bool = False,
    on_truncated: Callable[[], None] = lambda: None,
    said: Callable[[str], None] = lambda sentence: None,
    backends: Backends | None = None,
) -> Iterator[bytes]:
    """Yield what a stream of a node holds from `position` on; with `follow` until the job has ended. Raises DeadAgentError, NoResultError.

    A log that is truncated meanwhile is read from its start again, after `on_truncated`. `said` hears that a store elsewhere
    cannot be reached for a while.
    """
    record = node.job
    near = isinstance(record.store, DirectoryStore)
    pause, look = (_PAUSE, _LOOK) if near else (_FAR_PAUSE, _FAR_LOOK)
    next_look = time.monotonic() + look
    reach = RetryWindow(far=follow and not near)
    while True:
        try:
            # Asked before the stream is read: what came before the end is then in it.
            over = not follow or result_of(record) is not None
            while piece := node.read(stream, position, limit=PIECE):
                position += len(piece)
                yield piece
                # Whoever takes the pieces may be slow: a pager that waits for a key.
                reach.reached()
            if stream == "log" and was_truncated(node, position):
                on_truncated()
                position = 0
                continue
            if over:
                return
            reach.reached()
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + look
                _check_alive(record, (backends or Backends()).of(record))
        except StoreError as error:
            said(reach.failed(error))
        time.sleep(pause)


def _check_alive(record: JobRecord, backend: Backend) -> None:
    """Raise DeadAgentError or NoResultError where nobody writes. Where the machines of a job are gone, this writes its result."""
    now = backend.status(record)
    if now.status in NO_RESULT:
        raise NoResultError(str(now.machine).removesuffix("."))
    if now.status == DIED:
        raise DeadAgentError(
            f"the agent of {record.job_id} is gone and nothing more will come",
            NextStep(("resume", record.job_id), "starts it again"),
        )


def whole_lines(all_pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield pieces that end where a line ends; a last line without a newline is left out. Raises RecordError."""
    rest = b""
    for piece in all_pieces:
        whole, newline, after = piece.rpartition(b"\n")
        if newline:
            yield rest + whole + newline
            rest = after
        else:
            rest += piece
            if len(rest) > LONGEST_LINE:
                raise RecordError(
                    f"a line of the job's metrics is longer than {LONGEST_LINE >> 20} MiB; no agent wrote that"
                )


def position_of_last_lines(node: NodeRecord, count: int) -> int:
    """Return where the last `count` lines of the log begin."""
    end = position = node.size("log")
    found = 0
    while position > 0:
        start = max(0, position - PIECE)
        content = node.read("log", start, limit=position - start)
        at = len(content)
        # The newline at the very end ends the last line; it begins no other.
        if position == end and content.endswith(b"\n"):
            at -= 1
        while (at := content.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found == count:
                return start + at + 1
        if not count:
            return end
        position = start
    return 0
