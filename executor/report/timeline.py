"""When what happened on each node: its launch and boot, the phases of its agent, the runs of its benchmark."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from bai_agent.errors import StoreError
from bai_agent.job.record import NodeRecord
from bai_agent.job.record_types import AgentEvent, BenchmarkStartEvent, PhaseEvent, PullEvent
from executor.records.follower import events_of
from executor.records.run_state import PHASES

LAUNCH, BOOT = "launch", "boot"
ALL_PHASES = (LAUNCH, BOOT, *PHASES)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A phase of a node. ms UTC."""

    phase: str
    start: int
    end: int
    goes_on: bool = False
    """Nobody has said that it ended; `end` is the last thing that was heard."""

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1000


@dataclass(kw_only=True)
class Lane:
    """What happened on one node."""

    rank: int
    bars: list[Bar] = field(default_factory=list)
    benchmark: int | None = None
    """When the benchmark was started, the first time."""
    restarts: int = 0
    """How often its agent was started again."""
    pulls: dict[str, PullEvent] = field(default_factory=dict)
    """How far each source came, by its address."""


def lane_of(node: NodeRecord, *, asked: int | None, launched: int | None) -> Lane:
    """Return what is known of a node. asked, launched: when its machine was asked for, and when EC2 had answered. Raises StoreError."""
    lane = Lane(rank=node.rank)
    open_: dict[str, int] = {}
    last = None
    agents = 0
    with suppress(StoreError):
        for event in events_of(node):
            if last is None:
                lane.bars += _before(event.time, asked=asked, launched=launched)
            last = max(last or 0, event.time)
            match event:
                case AgentEvent():
                    agents += 1
                case BenchmarkStartEvent():
                    lane.benchmark = lane.benchmark or event.time
                case PullEvent():
                    lane.pulls[event.src] = event
                case PhaseEvent(state="started") if event.phase in PHASES:
                    # An agent that was started again runs through phases that had begun before.
                    open_.setdefault(event.phase, event.time)
                case PhaseEvent(state="finished") if event.phase in open_:
                    start = open_.pop(event.phase)
                    lane.bars = [each for each in lane.bars if each.phase != event.phase]
                    lane.bars.append(Bar(phase=event.phase, start=start, end=max(start, event.time)))
    for phase, start in open_.items():
        if all(each.phase != phase for each in lane.bars):
            lane.bars.append(Bar(phase=phase, start=start, end=max(start, last or start), goes_on=True))
    lane.bars.sort(key=lambda each: (each.start, ALL_PHASES.index(each.phase)))
    lane.restarts = max(0, agents - 1)
    return lane


def _before(first: int, *, asked: int | None, launched: int | None) -> list[Bar]:
    """Return the bars of what came before a node's agent had its first word."""
    if asked is None or asked > first:
        return []
    if launched is None or not asked <= launched <= first:
        return [Bar(phase=BOOT, start=asked, end=first)]
    return [
        Bar(phase=LAUNCH, start=asked, end=launched),
        Bar(phase=BOOT, start=launched, end=first),
    ]
