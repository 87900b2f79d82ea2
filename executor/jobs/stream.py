"""A job's log or records from a position on, to the end or as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord, NodeRecord, Stream
from bai_agent.job.store import RecordError
from executor.backends import Backends
from executor.backends.backend import Backend
from executor.errors import NextStep, NoResultError, UsageError
from executor.records.follower import LONGEST_LINE, PIECE, was_truncated
from executor.records.job_status import DIED, NO_RESULT
from executor.records.nodes import with_rank
from executor.records.reading import result_of
from executor.records.retry_window import RetryWindow

_PAUSE_S, _FAR_PAUSE_S = 0.2, 2.0
"""Seconds between two looks at a stream on this machine, and elsewhere."""
_LOOK_S, _FAR_LOOK_S = 2.0, 10.0
"""Seconds between two looks whether somebody still writes."""


class DeadAgentError(UsageError):
    """The job has not ended, and its agent is gone."""


def pieces(
    node: NodeRecord,
    stream: Stream,
    *,
    follow: bool = False,
    on_truncated: Callable[[], None] = lambda: None,
    on_status: Callable[[str], None] = lambda sentence: None,
) -> Iterator[bytes]:
    """Yield what a stream of one node holds, as `pieces_of_nodes` does."""
    found = pieces_of_nodes(
        [node],
        stream,
        follow=follow,
        on_truncated=lambda _: on_truncated(),
        on_status=on_status,
    )
    return (piece for _, piece in found)


def pieces_of_nodes(
    nodes: Sequence[NodeRecord],
    stream: Stream,
    *,
    positions: Mapping[int, int] = MappingProxyType({}),
    follow: bool = False,
    on_truncated: Callable[[int], None] = lambda rank: None,
    on_status: Callable[[str], None] = lambda sentence: None,
    backends: Backends | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Yield what a stream of each of a job's nodes holds, with the node's rank. Raises DeadAgentError, NoResultError.

    Node after node; with `follow` as it comes, until the job has ended. positions: where to begin, by rank. A log that is
    truncated meanwhile is read from its start again, after `on_truncated`. `on_status` is called where a remote store
    cannot be reached for a while.
    """
    record = nodes[0].job
    near = record.store.folder is not None
    pause, look = (_PAUSE_S, _LOOK_S) if near else (_FAR_PAUSE_S, _FAR_LOOK_S)
    next_look = time.monotonic() + look
    reach = RetryWindow(far=follow and not near)
    reached = {node.rank: positions.get(node.rank, 0) for node in nodes}
    while True:
        try:
            # Asked before the stream is read: what came before the end is then in it.
            over = not follow or result_of(record) is not None
            for rank, piece in _new_pieces(nodes, stream, reached, in_turn=follow):
                yield rank, piece
                # Whoever takes the pieces may be slow: a pager that waits for a key.
                reach.reached()
            truncated = [
                node.rank for node in nodes if stream == "log" and was_truncated(node, reached[node.rank])
            ]
            for rank in truncated:
                on_truncated(rank)
                reached[rank] = 0
            if truncated:
                continue
            if over:
                return
            reach.reached()
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + look
                _check_alive(record, (backends or Backends()).of(record))
        except StoreError as error:
            on_status(reach.failed(error))
        time.sleep(pause)


def _new_pieces(
    nodes: Sequence[NodeRecord], stream: Stream, reached: dict[int, int], *, in_turn: bool
) -> Iterator[tuple[int, bytes]]:
    """Yield what has come behind `reached`, and move that.

    in_turn: a piece of each node in turn, so that one that prints without end does not hide the others.
    """
    came = True
    while came:
        came = False
        for node in nodes:
            while piece := node.read(stream, reached[node.rank], limit=PIECE):
                reached[node.rank] += len(piece)
                yield node.rank, piece
                came = in_turn
                if in_turn:
                    break


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


def record_lines(
    nodes: Sequence[NodeRecord],
    stream: Stream = "metrics",
    *,
    follow: bool = False,
    on_status: Callable[[str], None] = lambda sentence: None,
    backends: Backends | None = None,
) -> Iterator[bytes]:
    """Yield whole lines of a job's records as they come, of several nodes with the label `rank`; what `pieces_of_nodes` raises.

    A last line without a newline is left out.
    """
    lines = {node.rank: _WholeLines() for node in nodes}
    for rank, piece in pieces_of_nodes(nodes, stream, follow=follow, on_status=on_status, backends=backends):
        if whole := lines[rank].feed(piece):
            yield whole if len(nodes) == 1 else with_rank(whole, rank)


class _WholeLines:
    """Makes whole lines of pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the lines that are whole now. Raises RecordError."""
        whole, newline, after = piece.rpartition(b"\n")
        if newline:
            lines, self._rest = self._rest + whole + newline, after
            return lines
        self._rest += piece
        if len(self._rest) > LONGEST_LINE:
            raise RecordError(
                f"a line of the job's metrics is longer than {LONGEST_LINE >> 20} MiB; no agent wrote that"
            )
        return b""


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
