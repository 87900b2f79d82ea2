"""The time left for the benchmark's end, and for the drain after it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from run_contexts import ScriptedStopSource, SteppingClock, make_context

from bai_agent.job.descriptor.limit_tables import End, Limits, Power
from bai_agent.job.outcome import Outcome
from bai_agent.job.run_directory import RunDir
from bai_agent.run.run_context import RunContext
from bai_agent.run.stop_sources import Signals
from bai_agent.runtime.stop import StopReason


class TerminatedSignals(Signals):
    """As after a SIGTERM."""

    @property
    def received(self) -> bool:
        return True


def context(
    rundir: RunDir,
    *,
    taken_away_in: float | None = None,
    terminated: bool = False,
    power: Power = Power.STAY,
    grace: float = 30,
    drain: float = 40,
) -> RunContext:
    """taken_away_in: in how many seconds the machine goes, where that was said. terminated: by a signal to the agent."""
    clock = SteppingClock()
    source = ScriptedStopSource()
    if taken_away_in is not None:
        source.found = StopReason(Outcome.INTERRUPTED, "It goes.", deadline=clock.start + taken_away_in)
    limits = Limits(grace=timedelta(seconds=grace), drain=timedelta(seconds=drain))
    return make_context(
        rundir,
        clock=clock,
        sources=[source],
        signals=TerminatedSignals() if terminated else Signals(),
        tables={"limits": limits, "end": End(power=power)},
    )


@pytest.mark.parametrize(
    ("taken_away_in", "terminated", "power", "seconds"),
    [
        (None, False, Power.OFF, 40),
        (None, True, Power.STAY, 5),
        # Whoever stays longer than 5 s holds up the machine's end.
        (None, True, Power.OFF, 0.9),
        # The other half is for the artifacts and the result.
        (60, False, Power.OFF, 30),
        (100, False, Power.OFF, 40),
        (-1, False, Power.OFF, 0),
        (60, True, Power.OFF, 0.9),
    ],
)
def test_the_drain_deadline_leaves_time_to_write_the_result(
    taken_away_in: float | None, terminated: bool, power: Power, seconds: float, rundir: RunDir
) -> None:
    ctx = context(rundir, taken_away_in=taken_away_in, terminated=terminated, power=power)

    assert ctx.drain_deadline() - ctx.clock.monotonic() == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("taken_away_in", "terminated", "power", "seconds"),
    [
        (None, False, Power.OFF, 30),
        (None, True, Power.STAY, 30),
        (None, True, Power.OFF, 1),
        # What is left, less the time for draining: 40 s, or the half where there is less.
        (120, False, Power.OFF, 80),
        (60, False, Power.OFF, 30),
        (20, False, Power.OFF, 10),
        (-1, False, Power.OFF, 0),
    ],
)
def test_the_grace_leaves_time_for_the_drain(
    taken_away_in: float | None, terminated: bool, power: Power, seconds: float, rundir: RunDir
) -> None:
    ctx = context(rundir, taken_away_in=taken_away_in, terminated=terminated, power=power)

    assert ctx.grace().total_seconds() == pytest.approx(seconds)


def test_a_short_grace_is_not_made_longer_by_a_power_off(rundir: RunDir) -> None:
    assert context(rundir, terminated=True, power=Power.OFF, grace=0.2).grace() == timedelta(seconds=0.2)


def test_a_short_drain_is_not_made_longer_by_a_signal(rundir: RunDir) -> None:
    ctx = context(rundir, terminated=True, drain=2)

    assert ctx.drain_deadline() == ctx.clock.monotonic() + 2
