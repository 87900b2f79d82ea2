"""Repeatedly reads new content of a job's record. The content is read in pieces, so that memory is bounded
however much a benchmark prints. For an elastic job, the logs of the nodes that had rank 0 are read one after
the other."""

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

TRUNCATED = "the benchmark truncated its output; the output starts again"
"""Notice that is shown when the log was truncated."""

_BEHIND = 8 * PIECE
_KEPT = PIECE // 4


@dataclass(frozen=True)
class News:
    """Everything in a job's record that is new since the last read."""

    before: tuple[RunEvent, ...]
    """Events that happened before the output in `log`."""
    log: bytes
    """Output of the benchmark, unchanged. The output may begin and end in the middle of a line."""
    records: bytes
    """Whole lines of `metrics.jsonl`."""
    after: tuple[RunEvent, ...]
    """Events that happened after the benchmark printed its last line. `after` has these events only when
    `log` has reached the last line."""
    truncated: bool
    """Whether the benchmark truncated its output, so that `log` begins again at the start of the output."""
    skipped: int
    """Number of bytes of output before `log` that were skipped, because too much output had arrived."""
    more: bool
    """Whether more content can be read at once."""
    result: JobResult | None
    """The job's result; None until the job has ended. If there is a result and `more` is false, no further
    content follows."""
    ending: str | None = None
    """Reason why the coordinator of several nodes ends the nodes; None if the coordinator has not ordered
    their end."""
    lead: Lead | None = None
    """The node from which `log` and the following events come, if this node has just replaced another node as
    rank 0; otherwise None."""


class JobFollower:
    """Follows a job through the records of its nodes, from the beginning or, for the log, from `log_position`
    on.

    Log and events come from the first node, which decides for the job. For an elastic job log and events come
    from the node with rank 0 in each generation. Records come from all nodes, with the label `rank` if there
    are several nodes. With `newest_only`, parts of the log are skipped if the log grows faster than it is
    read.
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
        """nodes: function that lists all nodes of a job of several nodes."""
        self._node, self._nodes = node, nodes
        self._newest_only = newest_only
        self._log_position = log_position
        self._events = LineStream(node, "events")
        self._from_generation: int | None = None
        """Generation in which the current node got rank 0. Earlier events of this node are skipped. None if
        no events are skipped."""
        self._metrics: dict[int, LineStream] = {}
        self._held: list[RunEvent] = []
        self._attempt = AttemptRecord(node.job, node.attempt) if nodes is not None else None
        """Record in which the coordinator's order to end the nodes may appear. None in a job of one node, and
        once the coordinator's order was read."""
        self._leading = LeadingNodes(node.job, attempt=node.attempt) if is_elastic else None
        self._lead: Lead | None = None

    def observe(self) -> News:
        """Return the new events, output and records of the job. Raises StoreError."""
        # The job's end is read first, so that content written before the end is in this read or, with `more`,
        # in the next read.
        result = result_of(self._node.job)
        events, more_events = self._events.read()
        before: list[RunEvent] = []
        for event in self._relevant(events_in(events)):
            # If an event is held back, all later events are held back as well, to preserve their order.
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
        """Continue with the next node that got rank 0, if there is such a node. Return the next node if
        another node was read before, otherwise None."""
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
        """Yield the events of a node from the time when the node got rank 0."""
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
            # The coordinator's order cannot be read. The job's result contains the same reason, and arrives
            # soon.
            self._attempt = None
            return None
        if order is None:
            return None
        self._attempt = None
        return None if order.finished else order.sentence

    def _records(self) -> tuple[bytes, bool]:
        """Return the next records of all nodes, and whether there are more records."""
        for each in [self._node] if self._nodes is None else self._nodes():
            self._metrics.setdefault(each.rank, LineStream(each, "metrics"))
        if self._nodes is None:
            return self._metrics[self._node.rank].read()
        pieces = [(rank, *stream.read()) for rank, stream in self._metrics.items()]
        content = b"".join(with_rank(piece, rank) for rank, piece, _ in pieces)
        return content, any(more for _, _, more in pieces)

    def _jump(self) -> int:
        """Skip to the newest output if too much output has arrived since the last read; return the number of
        skipped bytes."""
        if self._node.size("log") - self._log_position < _BEHIND:
            return 0
        position = tail_position(self._node, "log", _KEPT)
        skipped = position - self._log_position
        self._log_position = position
        return skipped


def was_truncated(node: NodeRecord, position: int) -> bool:
    """Return whether the log has become shorter than `position`, the position at which the last read
    ended."""
    # The log in a bucket never becomes shorter, because output after a truncation is appended there to the
    # earlier output.
    return node.job.store.folder is not None and node.size("log") < position


def tail_position(node: NodeRecord, stream: Stream, size: int) -> int:
    """Return the position of the first line that starts in the last `size` bytes of a stream. Return the
    position of the last `size` bytes if no line starts in them."""
    start = max(0, node.size(stream) - size)
    if not start:
        return 0
    return start + max(0, node.read(stream, start - 1, limit=size + 1).find(b"\n"))


def benchmark_starts(node: NodeRecord) -> dict[int | None, int]:
    """Return the known starts of the benchmark (ms UTC), by number of the repeat or generation. The key None
    stands for the only run, or for the first generation.

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
    """A node with rank 0, and the first generation in which this node has rank 0."""

    node: int
    generation: int
    start: int
    """Length of the node's log before that generation (bytes)."""

    @property
    def sentence(self) -> str:
        return f"from node {self.node}, which is rank 0 from generation {self.generation} on"


class LeadingNodes:
    """Finds the node with rank 0 of each generation of an elastic job. Generations that never started are
    skipped."""

    def __init__(self, record: JobRecord, *, attempt: int = 0) -> None:
        self._record, self._attempt = record, AttemptRecord(record, attempt)
        self._first_members: dict[int, int | None] = {}
        """Generation → its node with rank 0; None if no benchmark runs in the generation."""
        self._events: dict[int, LineStream] = {}
        self._starts: dict[int, dict[int, int]] = {}
        """Node → length of its log before each generation that the node started."""

    def look(self) -> Sequence[Lead]:
        """Return all nodes that have or had rank 0, in the order in which they got it. Raises StoreError,
        RecordError."""
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
        """Return the position in the node's log at which the part of `lead` ends. None if the node of `lead`
        started no generation since the node of `following` got rank 0."""
        self._read(lead.node)
        later = (bytes_ for each, bytes_ in self._starts[lead.node].items() if each >= following.generation)
        return min(later, default=None)

    def _start(self, node: int, generation: int) -> int | None:
        if generation not in self._starts.get(node, {}):
            self._read(node)
        return self._starts[node].get(generation)

    def _read(self, node: int) -> None:
        """Read the new events of a node."""
        stream = self._events.setdefault(node, LineStream(self._record.node(node), "events"))
        starts = self._starts.setdefault(node, {})
        for content in stream.pieces():
            for event in events_in(content):
                if isinstance(event, BenchmarkStartEvent) and event.output_bytes is not None:
                    starts[event.generation] = event.output_bytes
