"""Reads what is new in a job's record, again and again, in pieces: flat in memory whatever a benchmark prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.record import NodeRecord, Stream
from bai_agent.job.record_types import (
    BenchmarkExitEvent,
    BenchmarkStartEvent,
    JobResult,
    OutcomeEvent,
    PhaseEvent,
    RunEvent,
)
from bai_agent.job.store import RecordError
from executor.records.nodes import with_rank
from executor.records.reading import events_in, result_of, stop_order

PIECE = 2**20
"""Bytes of a stream that one look takes at most."""

TRUNCATED = "the benchmark truncated its output; from its start again"
"""What is said where that was seen."""

LONGEST_LINE = 16 * PIECE
"""Bytes of a line of events or metrics; ours have some hundred."""
_BEHIND = 8 * PIECE
_KEPT = PIECE // 4


@dataclass(frozen=True)
class News:
    """What came since the last look."""

    before: tuple[RunEvent, ...]
    """Events that came before `log`."""
    log: bytes
    """As the benchmark printed it; may begin and end within a line."""
    records: bytes
    """Whole lines of `metrics.jsonl`."""
    after: tuple[RunEvent, ...]
    """Events that came after the benchmark's last line; held back until `log` has reached it."""
    truncated: bool
    """The benchmark truncated its output: `log` is from its start again."""
    skipped: int
    """Bytes of output before `log` that were passed over, because too much had come."""
    more: bool
    """There is more to be read at once."""
    result: JobResult | None
    """How the job ended, once it has. With `more` false nothing comes after this."""
    ending: str | None = None
    """Why the coordinator of several nodes has just told all to end."""


class LineStream:
    """A growing stream of lines, read from the start in whole lines."""

    def __init__(self, node: NodeRecord, stream: Stream, *, piece: int = PIECE) -> None:
        """piece: bytes that one look takes, where no line is longer."""
        self._node, self._stream = node, stream
        self._position = 0
        self._piece = self._limit = piece

    def read(self) -> tuple[bytes, bool]:
        """Return the next whole lines, and whether there are more. Raises StoreError."""
        content = self._node.read(self._stream, self._position, limit=self._limit)
        end = content.rfind(b"\n") + 1
        more = len(content) == self._limit
        if more and not end and self._limit >= LONGEST_LINE:
            where = self._node.url(self._stream)
            raise RecordError(
                f"{where}: the line at byte {self._position:,} is longer than {LONGEST_LINE >> 20} MiB; no agent wrote that"
            )
        # A line longer than a piece: take a larger one, or it would never end.
        self._limit = self._limit * 2 if more and not end else self._piece
        self._position += end
        return content[:end], more


class JobFollower:
    """Follows a job through what its nodes leave, from the beginning or, for the log, from `log_position` on.

    Log and events are those of the first node, which decides for the job; records come from all, of several with the label
    `rank`. With `newest_only` it jumps ahead in a log that grows faster than it is read.
    """

    def __init__(
        self, node: NodeRecord, *, nodes: int = 1, log_position: int = 0, newest_only: bool = False
    ) -> None:
        self._node = node
        self._newest_only = newest_only
        self._log_position = log_position
        self._events = LineStream(node, "events")
        every = [node] if nodes == 1 else [node.job.node(rank, attempt=node.attempt) for rank in range(nodes)]
        self._metrics = [(each.rank, LineStream(each, "metrics")) for each in every]
        self._held: list[RunEvent] = []
        self._attempt = AttemptRecord(node.job, node.attempt) if nodes > 1 else None
        """Until the coordinator's word that the job is to end was seen."""

    def observe(self) -> News:
        """Return what is new. Raises StoreError."""
        # The end is asked for first: what was written before it is then in this look or, with `more`, in the next.
        result = result_of(self._node.job)
        events, more_events = self._events.read()
        before: list[RunEvent] = []
        for event in events_in(events):
            # All that follows the first one held back waits with it: the story keeps its order.
            (self._held if self._held or _comes_after_output(event) else before).append(event)
        skipped = self._jump() if self._newest_only else 0
        content = self._node.read("log", self._log_position, limit=PIECE)
        truncated = not content and was_truncated(self._node, self._log_position)
        if truncated:
            self._log_position = 0
            content = self._node.read("log", 0, limit=PIECE)
        self._log_position += len(content)
        records, more_records = self._records()
        more = more_events or more_records or len(content) == PIECE
        after: list[RunEvent] = []
        if not more:
            after, self._held = self._held, []
        return News(
            before=tuple(before),
            log=content,
            records=records,
            after=tuple(after),
            truncated=truncated,
            skipped=skipped,
            more=more,
            result=result,
            ending=self._why_ending() if result is None else None,
        )

    def _why_ending(self) -> str | None:
        if self._attempt is None:
            return None
        try:
            order = stop_order(self._attempt)
        except RecordError:
            # The result says it too, and comes soon.
            self._attempt = None
            return None
        if order is None:
            return None
        self._attempt = None
        return None if order.finished else order.sentence

    def _records(self) -> tuple[bytes, bool]:
        """Return the next records of all nodes, and whether there are more."""
        if len(self._metrics) == 1:
            return self._metrics[0][1].read()
        pieces = [(rank, *stream.read()) for rank, stream in self._metrics]
        content = b"".join(with_rank(piece, rank) for rank, piece, _ in pieces)
        return content, any(more for _, _, more in pieces)

    def _jump(self) -> int:
        """Move to the newest output where too much has come; return how many bytes were passed over."""
        if self._node.size("log") - self._log_position < _BEHIND:
            return 0
        position = tail_position(self._node, "log", _KEPT)
        skipped = position - self._log_position
        self._log_position = position
        return skipped


def was_truncated(node: NodeRecord, position: int) -> bool:
    """Return whether the log has become shorter than `position`, to which it was read before."""
    # In a bucket it never does: what comes after a truncation is put behind what came before.
    return node.job.store.folder is not None and node.size("log") < position


def tail_position(node: NodeRecord, stream: Stream, size: int) -> int:
    """Return where the last `size` bytes of a stream begin, at the start of a line where there is one."""
    start = max(0, node.size(stream) - size)
    if not start:
        return 0
    return start + max(0, node.read(stream, start - 1, limit=size + 1).find(b"\n"))


def events_of(node: NodeRecord) -> Iterator[RunEvent]:
    """Yield all events of a node. Raises StoreError."""
    stream, more = LineStream(node, "events"), True
    while more:
        content, more = stream.read()
        yield from events_in(content)


def benchmark_starts(node: NodeRecord) -> dict[int | None, int]:
    """Return when the benchmark was started (ms UTC), by repeat as far as that is known; None: the only run, or the first.

    Raises StoreError.
    """
    events = events_of(node)
    first = next((each.time for each in events if isinstance(each, BenchmarkStartEvent)), None)
    result = result_of(node.job)
    repeats = (result.repeats if result is not None else None) or ()
    starts: dict[int | None, int] = {
        each.repeat: each.started for each in repeats if each.started is not None
    }
    return {**starts, **({None: first} if first is not None else {})}


def _comes_after_output(event: RunEvent) -> bool:
    if isinstance(event, PhaseEvent):
        return event.phase in ("drain", "end") or (event.phase == "run" and event.state == "finished")
    return isinstance(event, (BenchmarkExitEvent, OutcomeEvent))
