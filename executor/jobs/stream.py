"""Reads a job's log or records from a position on, to the current end or continuously."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from bai_agent.errors import RecordError, StoreError
from bai_agent.job.record import JobRecord, NodeRecord, Stream
from executor.backends import Backends
from executor.backends.backend import Backend
from executor.errors import DeadAgentError, NextStep, NoResultError, UsageError
from executor.jobs.wait import RetryWindow
from executor.records.counted_values import repeats_of
from executor.records.follower import Lead, LeadingNodes, was_truncated
from executor.records.job_status import DIED, NO_RESULT
from executor.records.nodes import has_ranks
from executor.records.reading import LONGEST_LINE, PIECE, result_of
from executor.records.series_lines import RecordLines

_PAUSE_S, _FAR_PAUSE_S = 0.2, 2.0
"""Time between two reads of a stream on this machine, and elsewhere (seconds)."""
_LOOK_S, _FAR_LOOK_S = 2.0, 10.0
"""Time between two checks of whether a process still writes, on this machine and elsewhere (seconds)."""


def pieces_of_nodes(
    nodes: Sequence[NodeRecord],
    stream: Stream,
    *,
    positions: Mapping[int, int] = MappingProxyType({}),
    follow: bool = False,
    on_truncated: Callable[[int], None] = lambda rank: None,
    on_status: Callable[[str], None] = lambda sentence: None,
    backends: Backends | None = None,
    again: Callable[[], Sequence[NodeRecord]] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Yield the content of a stream of each of a job's nodes, with the node's rank. Raises DeadAgentError,
    NoResultError.

    Without `follow`, the nodes are read one after the other; with `follow`, content is yielded as it arrives,
    until the job has ended. positions: position of the first byte to read, by rank. If a log is truncated
    while it is read, `on_truncated` is called, and the log is read from its start again. `on_status` is
    called if a remote store cannot be reached for a while. again: function that lists the nodes before each
    read, for jobs that more nodes may join.
    """
    source = _NodeStreams(nodes, stream, positions, in_turn=follow, again=again)
    return _pieces_of(
        source,
        nodes[0].job,
        follow=follow,
        on_truncated=on_truncated,
        on_status=on_status,
        backends=backends,
    )


def pieces_of_leads(
    record: JobRecord,
    *,
    lines: int | None = None,
    follow: bool = False,
    on_lead: Callable[[Lead], None] = lambda lead: None,
    on_truncated: Callable[[int], None] = lambda rank: None,
    on_status: Callable[[str], None] = lambda sentence: None,
    backends: Backends | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Yield the log of the node with rank 0 of an elastic job, in pieces like those of `pieces_of_nodes`.

    lines: number of last lines of the log of the newest node with rank 0, with which the output begins. If
    None, yield all lines of all nodes that have or had rank 0. on_lead: called before the output of another
    node.
    """
    source = _LeadLogs(record, lines=lines, on_lead=on_lead)
    return _pieces_of(
        source, record, follow=follow, on_truncated=on_truncated, on_status=on_status, backends=backends
    )


class _Source(Protocol):
    """Streams that are read repeatedly, each from the position of the last read."""

    def new_pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield new content of the streams, with the number of the node that wrote it. Raises StoreError."""
        ...

    def rewind_truncated(self) -> list[int]:
        """Set the position of each truncated log back to its start; return the nodes of these logs. Raises
        StoreError."""
        ...


def _pieces_of(
    source: _Source,
    record: JobRecord,
    *,
    follow: bool,
    on_truncated: Callable[[int], None],
    on_status: Callable[[str], None],
    backends: Backends | None,
) -> Iterator[tuple[int, bytes]]:
    near = record.store.folder is not None
    pause, look = (_PAUSE_S, _LOOK_S) if near else (_FAR_PAUSE_S, _FAR_LOOK_S)
    next_look = time.monotonic() + look
    reach = RetryWindow(far=follow and not near)
    while True:
        try:
            # The job's end is checked before the stream is read, so that this read gets everything that was
            # written before the end.
            over = not follow or result_of(record) is not None
            for rank, piece in source.new_pieces():
                yield rank, piece
                # The reader of bai's output may be slow, for example a pager that waits for a key press.
                reach.reached()
            if truncated := source.rewind_truncated():
                for rank in truncated:
                    on_truncated(rank)
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


class _NodeStreams:
    """One stream for each node."""

    def __init__(
        self,
        nodes: Sequence[NodeRecord],
        stream: Stream,
        positions: Mapping[int, int],
        *,
        in_turn: bool,
        again: Callable[[], Sequence[NodeRecord]] | None,
    ) -> None:
        """in_turn: whether to yield one piece per node in turn, so that a node that prints continuously does
        not hide the output of the other nodes."""
        self._nodes, self._stream, self._again = nodes, stream, again
        self._in_turn = in_turn
        self._reached = defaultdict(int, positions)

    def new_pieces(self) -> Iterator[tuple[int, bytes]]:
        if self._again is not None:
            self._nodes = self._again()
        came = True
        while came:
            came = False
            for node in self._nodes:
                while piece := node.read(self._stream, self._reached[node.rank], limit=PIECE):
                    self._reached[node.rank] += len(piece)
                    yield node.rank, piece
                    came = self._in_turn
                    if self._in_turn:
                        break

    def rewind_truncated(self) -> list[int]:
        if self._stream != "log":
            return []
        truncated = [each.rank for each in self._nodes if was_truncated(each, self._reached[each.rank])]
        self._reached.update(dict.fromkeys(truncated, 0))
        return truncated


class _LeadLogs:
    """The logs of the nodes that have or had rank 0."""

    def __init__(self, record: JobRecord, *, lines: int | None, on_lead: Callable[[Lead], None]) -> None:
        self._record, self._on_lead = record, on_lead
        self._leading = LeadingNodes(record)
        self._lead: Lead | None = None
        self._position = 0
        leads = self._leading.look()
        if leads and lines is not None:
            self._lead = leads[-1]
            last = position_of_last_lines(record.node(self._lead.node), lines)
            self._position = max(self._lead.start, last)

    def new_pieces(self) -> Iterator[tuple[int, bytes]]:
        leads = self._leading.look()
        if self._lead is None and leads:
            self._lead, self._position = leads[0], leads[0].start
        while self._lead is not None:
            following = next((each for each in leads if each.generation > self._lead.generation), None)
            end = self._leading.end(self._lead, following) if following is not None else None
            for piece in _log_between(self._record.node(self._lead.node), self._position, end):
                self._position += len(piece)
                yield self._lead.node, piece
            if following is None:
                return
            self._on_lead(following)
            self._lead, self._position = following, following.start

    def rewind_truncated(self) -> list[int]:
        if self._lead is None or not was_truncated(self._record.node(self._lead.node), self._position):
            return []
        self._position = 0
        return [self._lead.node]


def _check_alive(record: JobRecord, backend: Backend) -> None:
    """Raise DeadAgentError or NoResultError if no process of the job is left that writes to the streams. If
    the job's machines are gone, this check makes the backend write the job's result."""
    now = backend.status(record)
    if now.status in NO_RESULT:
        raise NoResultError(str(now.machine).removesuffix("."))
    if now.status == DIED:
        raise DeadAgentError(
            f"the agent of {record.job_id} has died, so nothing more will be printed",
            NextStep(("resume", record.job_id), "starts it again"),
        )


def record_lines(
    nodes: Sequence[NodeRecord],
    stream: Stream = "metrics",
    *,
    follow: bool = False,
    on_status: Callable[[str], None] = lambda sentence: None,
    backends: Backends | None = None,
    again: Callable[[], Sequence[NodeRecord]] | None = None,
) -> Iterator[RecordLines]:
    """Yield whole lines of a job's records as the lines arrive. Raises the same errors as `pieces_of_nodes`.
    A last line without a newline is left out.
    """
    lines: dict[int, _WholeLines] = defaultdict(_WholeLines)
    ranked = len(nodes) > 1 or has_ranks(nodes[0].job)
    for rank, piece in pieces_of_nodes(
        nodes, stream, follow=follow, on_status=on_status, backends=backends, again=again
    ):
        if whole := lines[rank].feed(piece):
            yield RecordLines(whole, rank if ranked else None)


class _WholeLines:
    """Joins pieces into whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the lines that are complete after `piece` was added. Raises RecordError."""
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


def pieces_of_repeat(node: NodeRecord, number: int) -> Iterator[bytes]:
    """Yield the output of one run of a `[repeat]` job, up to now if the run is still in progress. Raises
    UsageError, StoreError."""
    runs = repeats_of(node).measured
    if not 0 <= number < len(runs):
        known = f"its runs are 0 to {len(runs) - 1}" if runs else "none has begun"
        raise UsageError(f"--repeat: {node.job.job_id} has no run {number}; {known}")
    run = runs[number]
    end = run.ended.output_bytes if run.ended is not None else None
    position = run.output_bytes
    if end is not None and end < position:
        # The benchmark truncated its log, so only the output after the truncation exists.
        position = 0
    yield from _log_between(node, position, end)


def _log_between(node: NodeRecord, position: int, end: int | None) -> Iterator[bytes]:
    """Yield a part of a node's log. end: if None, the part reaches to the current end of the log."""
    while end is None or position < end:
        piece = node.read("log", position, limit=PIECE if end is None else min(PIECE, end - position))
        if not piece:
            return
        yield piece
        position += len(piece)


def position_of_last_lines(node: NodeRecord, count: int) -> int:
    """Return the position of the last `count` lines of the log."""
    end = position = node.size("log")
    found = 0
    while position > 0:
        start = max(0, position - PIECE)
        content = node.read("log", start, limit=position - start)
        at = len(content)
        # A newline at the very end belongs to the last line, and does not begin another line.
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
