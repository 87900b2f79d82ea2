"""Reads what is new in a job's record, again and again, in pieces: flat in memory whatever a benchmark prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bai_agent.job.record import NodeRecord, Stream
from bai_agent.job.store import RecordError
from bai_agent.job.store.directory import DirectoryStore
from executor.records.reading import events_in, result_of

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

    before: tuple[Mapping[str, Any], ...]
    """Events that came before `log`."""
    log: bytes
    """As the benchmark printed it; may begin and end within a line."""
    records: bytes
    """Whole lines of `metrics.jsonl`."""
    after: tuple[Mapping[str, Any], ...]
    """Events that came after the benchmark's last line; held back until `log` has reached it."""
    truncated: bool
    """The benchmark truncated its output: `log` is from its start again."""
    skipped: int
    """Bytes of output before `log` that were passed over, because too much had come."""
    more: bool
    """There is more to be read at once."""
    result: Mapping[str, Any] | None
    """How the job ended, once it has. With `more` false nothing comes after this."""


class LineStream:
    """A growing stream of lines, read from the start in whole lines."""

    def __init__(self, node: NodeRecord, stream: Stream, position: int = 0) -> None:
        self._node, self._stream = node, stream
        self._position = position
        self._limit = PIECE

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
        self._limit = self._limit * 2 if more and not end else PIECE
        self._position += end
        return content[:end], more


class JobFollower:
    """Follows a job through what one of its nodes leaves, from the beginning or, for its log, from `log_position` on.

    With `newest_only` it jumps ahead in a log that grows faster than it is read.
    """

    def __init__(self, node: NodeRecord, *, log_position: int = 0, newest_only: bool = False) -> None:
        self._node = node
        self._newest_only = newest_only
        self._log_position = log_position
        self._events = LineStream(node, "events")
        self._metrics = LineStream(node, "metrics")
        self._held: list[dict[str, Any]] = []

    def observe(self) -> News:
        """Return what is new. Raises StoreError."""
        # The end is asked for first: what was written before it is then in this look or, with `more`, in the next.
        result = result_of(self._node.job)
        events, more_events = self._events.read()
        before: list[dict[str, Any]] = []
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
        records, more_records = self._metrics.read()
        more = more_events or more_records or len(content) == PIECE
        after: list[dict[str, Any]] = []
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
        )

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
    return isinstance(node.job.store, DirectoryStore) and node.size("log") < position


def tail_position(node: NodeRecord, stream: Stream, size: int) -> int:
    """Return where the last `size` bytes of a stream begin, at the start of a line where there is one."""
    start = max(0, node.size(stream) - size)
    if not start:
        return 0
    return start + max(0, node.read(stream, start - 1, limit=size + 1).find(b"\n"))


def events_of(node: NodeRecord) -> Iterator[dict[str, Any]]:
    """Yield all events of a node. Raises StoreError."""
    stream, more = LineStream(node, "events"), True
    while more:
        content, more = stream.read()
        yield from events_in(content)


def _comes_after_output(event: Mapping[str, Any]) -> bool:
    if event.get("type") == "phase":
        phase = event.get("phase")
        return phase in ("drain", "end") or (phase == "run" and event.get("state") == "finished")
    return event.get("type") in ("benchmark_exited", "outcome")
