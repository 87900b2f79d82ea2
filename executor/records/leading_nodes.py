"""The node whose output is shown for an elastic job: rank 0 of each generation, from the start of its part
of the log."""

from __future__ import annotations

from collections.abc import Sequence

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import DecisionKind
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import BenchmarkStartEvent
from bai_agent.light_dataclass import dataclass
from executor.records.reading import LineStream, events_in


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
