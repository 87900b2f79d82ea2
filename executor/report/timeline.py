"""Makes the timeline of each node: launch and boot, phases of the agent, runs of the benchmark."""

from __future__ import annotations

from contextlib import suppress

from bai_agent.errors import StoreError
from bai_agent.job.record import NodeRecord
from bai_agent.job.record_types import AgentEvent, BenchmarkStartEvent, PhaseEvent, PullEvent, RunEvent
from bai_agent.light_dataclass import dataclass, field
from executor.records.reading import events_of
from executor.records.run_state import PHASES

LAUNCH, BOOT = "launch", "boot"
ALL_PHASES = (LAUNCH, BOOT, *PHASES)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of a timeline, which stands for a phase of a node. Times are ms UTC."""

    phase: str
    start: int
    end: int
    goes_on: bool = False
    """Whether the phase's end is not recorded, so that `end` is the time of the last event."""

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1000


@dataclass(kw_only=True)
class Lane:
    """The timeline of one node."""

    rank: int
    bars: list[Bar] = field(default_factory=list)
    benchmark: int | None = None
    """Time at which the benchmark first started (ms UTC)."""
    restarts: int = 0
    """Number of restarts of the node's agent."""
    pulls: dict[str, PullEvent] = field(default_factory=dict)
    """Latest progress of the pull of each source, by the source's address."""


def lane_of(node: NodeRecord, *, asked: int | None, launched: int | None) -> Lane:
    """Return the timeline of a node. asked, launched: times of the request for the node's machine and of
    EC2's answer. Raises StoreError."""
    lane, open_ = Lane(rank=node.rank), dict[str, int]()
    last: int | None = None
    clock = _BootClock()
    with suppress(StoreError):
        for event in events_of(node):
            time = clock.time_of(event)
            if last is None:
                lane.bars += _before(time, asked=asked, launched=launched)
            last = max(last or 0, time)
            _apply(lane, open_, event, time)
    for phase, start in open_.items():
        if all(each.phase != phase for each in lane.bars):
            lane.bars.append(Bar(phase=phase, start=start, end=max(start, last or start), goes_on=True))
    lane.bars.sort(key=lambda each: (each.start, ALL_PHASES.index(each.phase)))
    lane.restarts = max(0, lane.restarts - 1)
    return lane


def _apply(lane: Lane, open_: dict[str, int], event: RunEvent, time: int) -> None:
    """Add an event to a lane. open_: start times of the phases that have not ended."""
    match event:
        case AgentEvent():
            lane.restarts += 1
        case BenchmarkStartEvent():
            lane.benchmark = lane.benchmark or time
        case PullEvent():
            lane.pulls[event.src] = event
        case PhaseEvent(state="started") if event.phase in PHASES:
            # A restarted agent repeats phases that its predecessor had already begun.
            open_.setdefault(event.phase, time)
        case PhaseEvent(state="finished") if event.phase in open_:
            start = open_.pop(event.phase)
            lane.bars = [each for each in lane.bars if each.phase != event.phase]
            lane.bars.append(Bar(phase=event.phase, start=start, end=max(start, time)))


class _BootClock:
    """Corrects the times of events for changes of the node's clock after the first phase of a boot."""

    def __init__(self) -> None:
        self._boot_id: str | None = None
        self._booted: float | None = None
        """Time of the current boot (ms UTC), computed from the first phase of this boot that has an
        uptime."""
        self._set_by = 0.0

    def time_of(self, event: RunEvent) -> int:
        """Return the corrected time of an event (ms UTC). The events of a node must be passed in order."""
        match event:
            case AgentEvent(boot_id=boot_id) if boot_id != self._boot_id:
                self._boot_id, self._booted, self._set_by = boot_id, None, 0.0
            case PhaseEvent(uptime=float() as uptime):
                booted = event.time - 1000 * uptime
                self._booted = booted if self._booted is None else self._booted
                self._set_by = booted - self._booted
        return round(event.time - self._set_by)


def _before(first: int, *, asked: int | None, launched: int | None) -> list[Bar]:
    """Return the bars for the time before the first event of a node's agent: launch and boot."""
    if asked is None or asked > first:
        return []
    if launched is None or not asked <= launched <= first:
        return [Bar(phase=BOOT, start=asked, end=first)]
    return [
        Bar(phase=LAUNCH, start=asked, end=launched),
        Bar(phase=BOOT, start=launched, end=first),
    ]
