"""Repeatedly reads new content of a job's record, in pieces, so that memory is bounded however much a
benchmark prints; for an elastic job from the nodes with rank 0, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from bai_agent.errors import RecordError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import DecisionKind
from bai_agent.job.record import JobRecord, NodeRecord, Stream
from bai_agent.job.record_types import (
    BenchmarkExitEvent,
    BenchmarkStartEvent,
    JobResult,
    OutcomeEvent,
    PhaseEvent,
    RunEvent,
)
from bai_agent.light_dataclass import dataclass
from executor.records.reading import PIECE, LineStream, events_in, events_of, result_of, stop_order
from executor.records.series_lines import with_rank

TRUNCATED = "the benchmark truncated its output; from its start again"
"""Notice that is shown at a truncation."""

_BEHIND = 8 * PIECE
_KEPT = PIECE // 4


@dataclass(frozen=True)
class News:
    """News since the last look."""

    before: tuple[RunEvent, ...]
    """Events that came before `log`."""
    log: bytes
    """Unchanged output of the benchmark; may begin and end within a line."""
    records: bytes
    """Whole lines of `metrics.jsonl`."""
    after: tuple[RunEvent, ...]
    """Events after the benchmark's last line; held back until `log` has reached it."""
    truncated: bool
    """The benchmark truncated its output: `log` is from its start again."""
    skipped: int
    """Bytes of output before `log` that were skipped, because too much had arrived."""
    more: bool
    """Whether there is more to read at once."""
    result: JobResult | None
    """The job's result, after its end. With `more` false nothing follows after this."""
    ending: str | None = None
    """Reason for the coordinator's end of several nodes."""
    lead: Lead | None = None
    """The node that `log` and the next events come from, if another node had rank 0 before."""


class JobFollower:
    """Follows a job through the records of its nodes, from the beginning or, for the log, from `log_position`
    on.

    Log and events are those of the first node, which decides for the job, and of the node with rank 0 in each
    generation of an elastic job; records come from all nodes, with the label `rank` if there are several.
    With `newest_only` it skips ahead in a log that grows faster than it is read.
    """

    def __init__(
        self,
        node: NodeRecord,
        *,
        nodes: Callable[[], Sequence[NodeRecord]] | None = None,
        is_elastic: bool = False,
        log_position: int = 0,
        newest_only: bool = False,
    ) -> None:
        """nodes: lists all of a job of several nodes."""
        self._node, self._nodes = node, nodes
        self._newest_only = newest_only
        self._log_position = log_position
        self._events = LineStream(node, "events")
        self._from_generation: int | None = None
        """Events of this node from before it started this generation are skipped. None if none are."""
        self._metrics: dict[int, LineStream] = {}
        self._held: list[RunEvent] = []
        self._attempt = AttemptRecord(node.job, node.attempt) if nodes is not None else None
        """True until the coordinator's order to end was seen."""
        self._leading = LeadingNodes(node.job, attempt=node.attempt) if is_elastic else None
        self._lead: Lead | None = None

    def observe(self) -> News:
        """Return what is new. Raises StoreError."""
        # The end is read first: content written before it is then in this look or, with `more`, in the next.
        result = result_of(self._node.job)
        events, more_events = self._events.read()
        before: list[RunEvent] = []
        for event in self._relevant(events_in(events)):
            # All events after the first one that is held back wait too, so that the order is kept.
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
        lead = self._next_lead() if not more else None
        more = more or lead is not None
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
            lead=lead,
        )

    def _next_lead(self) -> Lead | None:
        """Continue with the next node that has rank 0, if there is one; return it unless nothing was read of
        another node before."""
        if self._leading is None:
            return None
        leads = self._leading.look()
        if self._lead is None and leads and leads[0].node == self._node.rank:
            self._lead = leads[0]
        newest = self._lead.generation if self._lead is not None else -1
        following = next((each for each in leads if each.generation > newest), None)
        if following is None:
            return None
        self._lead = following
        self._node = self._node.job.node(following.node, attempt=self._node.attempt)
        self._log_position = following.start
        self._events = LineStream(self._node, "events")
        self._from_generation = following.generation
        return following

    def _relevant(self, events: Iterable[RunEvent]) -> Iterator[RunEvent]:
        """Yield the events of a node since it has rank 0."""
        for event in events:
            if isinstance(event, BenchmarkStartEvent) and event.generation == self._from_generation:
                self._from_generation = None
            if self._from_generation is None:
                yield event

    def _why_ending(self) -> str | None:
        if self._attempt is None:
            return None
        try:
            order = stop_order(self._attempt)
        except RecordError:
            # The result contains it as well, and arrives soon.
            self._attempt = None
            return None
        if order is None:
            return None
        self._attempt = None
        return None if order.finished else order.sentence

    def _records(self) -> tuple[bytes, bool]:
        """Return the next records of all nodes, and whether there are more."""
        for each in [self._node] if self._nodes is None else self._nodes():
            self._metrics.setdefault(each.rank, LineStream(each, "metrics"))
        if self._nodes is None:
            return self._metrics[self._node.rank].read()
        pieces = [(rank, *stream.read()) for rank, stream in self._metrics.items()]
        content = b"".join(with_rank(piece, rank) for rank, piece, _ in pieces)
        return content, any(more for _, _, more in pieces)

    def _jump(self) -> int:
        """Skip to the newest output if too much has arrived; return the number of skipped bytes."""
        if self._node.size("log") - self._log_position < _BEHIND:
            return 0
        position = tail_position(self._node, "log", _KEPT)
        skipped = position - self._log_position
        self._log_position = position
        return skipped


def was_truncated(node: NodeRecord, position: int) -> bool:
    """Return whether the log has become shorter than `position`, the end of the last read."""
    # In a bucket it never does: output after a truncation is appended to the earlier output.
    return node.job.store.folder is not None and node.size("log") < position


def tail_position(node: NodeRecord, stream: Stream, size: int) -> int:
    """Return the beginning of the last `size` bytes of a stream, at the start of a line if there is one."""
    start = max(0, node.size(stream) - size)
    if not start:
        return 0
    return start + max(0, node.read(stream, start - 1, limit=size + 1).find(b"\n"))


def benchmark_starts(node: NodeRecord) -> dict[int | None, int]:
    """Return the starts of the benchmark (ms UTC) by repeat or generation, as far as known; None: the only run, or the first.

    Raises StoreError.
    """
    starts: dict[int | None, int] = {}
    for event in events_of(node):
        if isinstance(event, BenchmarkStartEvent):
            starts.setdefault(event.generation or None, event.time)
    if (result := result_of(node.job)) is not None:
        runs = [(each.repeat, each.started) for each in result.repeats or ()]
        runs += [(each.generation, each.started) for each in result.generations or ()]
        starts |= {number: started for number, started in runs if started is not None}
    return starts


def _comes_after_output(event: RunEvent) -> bool:
    if isinstance(event, PhaseEvent):
        return event.phase in ("drain", "end") or (event.phase == "run" and event.state == "finished")
    return isinstance(event, (BenchmarkExitEvent, OutcomeEvent))


@dataclass(frozen=True, kw_only=True)
class Lead:
    """A node that has rank 0 from a generation on, until another one has."""

    node: int
    generation: int
    start: int
    """Length of the node's log before that generation."""

    @property
    def sentence(self) -> str:
        return f"from node {self.node}, which is rank 0 from generation {self.generation} on"


class LeadingNodes:
    """Finds the nodes with rank 0 as generations begin. A generation that was never launched on its node is
    skipped."""

    def __init__(self, record: JobRecord, *, attempt: int = 0) -> None:
        self._record, self._attempt = record, AttemptRecord(record, attempt)
        self._first_members: dict[int, int | None] = {}
        """By generation its node with rank 0; None if no benchmark runs."""
        self._events: dict[int, LineStream] = {}
        self._starts: dict[int, dict[int, int]] = {}
        """By node: the length of its log before each generation that it started."""

    def look(self) -> Sequence[Lead]:
        """Return all past ones, in their order. Raises StoreError, RecordError."""
        control = self._attempt.control()
        for generation in sorted(control.begun.keys() & set(control.decided)):
            if generation not in self._first_members:
                decision = self._attempt.decision(generation, control)
                runs = decision.kind is DecisionKind.RUN
                self._first_members[generation] = decision.members[0] if runs else None
        found: list[Lead] = []
        for generation, node in sorted(self._first_members.items()):
            if node is None or (start := self._start(node, generation)) is None:
                continue
            if not found or found[-1].node != node:
                found.append(Lead(node=node, generation=generation, start=start))
        return found

    def end(self, lead: Lead, following: Lead) -> int | None:
        """Return the end of the part of `lead` in its node's log; None if that node started nothing from
        `following` on."""
        self._read(lead.node)
        later = (bytes_ for each, bytes_ in self._starts[lead.node].items() if each >= following.generation)
        return min(later, default=None)

    def _start(self, node: int, generation: int) -> int | None:
        if generation not in self._starts.get(node, {}):
            self._read(node)
        return self._starts[node].get(generation)

    def _read(self, node: int) -> None:
        """Add the new events of a node."""
        stream = self._events.setdefault(node, LineStream(self._record.node(node), "events"))
        starts = self._starts.setdefault(node, {})
        for content in stream.pieces():
            for event in events_in(content):
                if isinstance(event, BenchmarkStartEvent) and event.output_bytes is not None:
                    starts[event.generation] = event.output_bytes
