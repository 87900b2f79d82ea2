"""How the agent watches a running benchmark: one stop order, and what follows if the shim does not obey."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from agent_runs import events_of
from run_contexts import ScriptedStopSource, SteppingClock, make_context
from shim_runs import ended_of

from bai_agent.benchmark.stopping import end_lost, request_stop
from bai_agent.job.descriptor.benchmark_tables import Benchmark
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.outcome import Outcome
from bai_agent.job.run_directory import RunDir, is_locked, read_json, write_json
from bai_agent.nodes.join import join
from bai_agent.phases.generation_loop import run_benchmark
from bai_agent.phases.prepare import prepare
from bai_agent.run.stop_sources import MaxRuntime
from bai_agent.runtime.stop import RunEndedError, StopReason
from bai_agent.shim import shim as shim_program
from bai_agent.shim.proc import boot_id, read_process

CANCELLED = StopReason(Outcome.CANCELLED, "It was cancelled.")
GRACE = timedelta(seconds=2)
WITHIN = GRACE.total_seconds() + 20.0
"""Seconds for the shim to obey: the grace and its own margin."""


@pytest.fixture
def deaf_shim(rundir: RunDir) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the shim's lock, as a shim would whose benchmark runs, and reads no order."""
    prepare(make_context(rundir))
    # The words by which a shim of this run is known stand at the end.
    deaf = [sys.executable, "-c", "import time; time.sleep(600)", shim_program.__file__, str(rundir.path)]
    lock = os.open(rundir.shim_lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with subprocess.Popen(deaf, pass_fds=[lock]) as shim:
        os.close(lock)
        seen = read_process(shim.pid)
        assert seen is not None
        ids = {"pid": shim.pid, "start": seen.start, "shim_pid": shim.pid, "shim_start": seen.start}
        write_json(rundir.started, {"boot_id": boot_id(), **ids})
        yield shim
        shim.kill()


def stops_in(rundir: RunDir) -> list[str]:
    return [each["message"] for each in events_of(rundir.path) if each["type"] == "stop"]


def test_an_unresponsive_shim_is_killed_after_grace_and_margin(
    rundir: RunDir, deaf_shim: subprocess.Popen[bytes]
) -> None:
    clock = SteppingClock(limit=100)
    source = ScriptedStopSource(CANCELLED, after=3)
    ctx = make_context(rundir, sources=[source], clock=clock, tables={"limits": Limits(grace=GRACE)})

    run_benchmark(ctx)

    assert WITHIN < clock.passed < WITHIN + 1
    assert deaf_shim.wait(timeout=60) == -signal.SIGKILL
    assert ended_of(rundir).lost
    order = read_json(rundir.stop)
    assert order == {"reason": "cancelled", "grace_seconds": 2.0, "stacks": False}
    assert stops_in(rundir) == [CANCELLED.message]
    assert ctx.reason is CANCELLED


def test_a_restarted_agent_writes_no_second_stop_order(
    rundir: RunDir, deaf_shim: subprocess.Popen[bytes]
) -> None:
    request_stop(rundir, reason=Outcome.MAX_RUNTIME, grace=GRACE)
    order = rundir.stop.read_bytes()
    clock = SteppingClock(limit=100)
    ctx = make_context(
        rundir, sources=[ScriptedStopSource(CANCELLED)], clock=clock, tables={"limits": Limits(grace=GRACE)}
    )

    run_benchmark(ctx)

    assert rundir.stop.read_bytes() == order
    assert stops_in(rundir) == []
    assert WITHIN < clock.passed < WITHIN + 1


@pytest.mark.parametrize("restarted", [False, True])
def test_if_the_machine_is_taken_away_the_grace_in_the_stop_order_counts(
    rundir: RunDir, deaf_shim: subprocess.Popen[bytes], restarted: bool
) -> None:
    # given a machine that is taken away in 100 seconds, of which draining may take 30
    clock = SteppingClock(limit=200)
    taken_away = StopReason(Outcome.INTERRUPTED, "It is taken away.", deadline=clock.start + 100)
    if restarted:
        request_stop(rundir, reason=Outcome.INTERRUPTED, grace=timedelta(seconds=70))
    limits = Limits(grace=GRACE, drain=timedelta(seconds=30))
    ctx = make_context(
        rundir, sources=[ScriptedStopSource(taken_away)], clock=clock, tables={"limits": limits}
    )

    run_benchmark(ctx)

    order = read_json(rundir.stop)
    assert order is not None
    assert 69 < order["grace_seconds"] <= 70
    assert 70 + 19 < clock.passed < 70 + 22


@pytest.mark.parametrize("order", [b"", b"{}", b'{"grace_seconds": "1"}', b'{"grace_seconds": 1e300}'])
def test_a_restarted_agent_with_an_unreadable_stop_order_waits_for_the_jobs_grace(
    rundir: RunDir, deaf_shim: subprocess.Popen[bytes], order: bytes
) -> None:
    rundir.stop.write_bytes(order)
    clock = SteppingClock(limit=100)
    ctx = make_context(rundir, sources=[], clock=clock, tables={"limits": Limits(grace=GRACE)})

    run_benchmark(ctx)

    assert WITHIN < clock.passed < WITHIN + 1


def test_a_limit_counts_from_the_start_that_the_shim_wrote(
    rundir: RunDir, deaf_shim: subprocess.Popen[bytes]
) -> None:
    limits = Limits(grace=GRACE, max_runtime=timedelta(seconds=30))
    started = read_json(rundir.started)
    assert started is not None
    write_json(rundir.started, {**started, "start": 1})  # as the machine booted, which is longer ago

    run_benchmark(make_context(rundir, sources=[MaxRuntime(limits)], tables={"limits": limits}))

    order = read_json(rundir.stop)
    assert order is not None
    assert order["reason"] == "max_runtime"


def test_a_dead_shim_makes_the_benchmark_lost(rundir: RunDir, deaf_shim: subprocess.Popen[bytes]) -> None:
    class Killing(SteppingClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            deaf_shim.kill()
            deaf_shim.wait()

    ctx = make_context(rundir, clock=Killing())

    run_benchmark(ctx)

    assert ended_of(rundir).lost
    assert stops_in(rundir) == [Outcome.LOST.sentence]
    assert not rundir.stop.exists()


def real_benchmark(rundir: RunDir, program: str, source: ScriptedStopSource) -> None:
    """Run a benchmark under its real shim, prepared as a run does it. The clock runs ahead of both, so the grace is long."""
    limits = Limits(grace=timedelta(hours=12))
    benchmark = Benchmark(argv=(sys.executable, "-c", program), inherit_env=True)
    tables = {"limits": limits, "benchmark": benchmark}
    ctx = make_context(rundir, sources=[source], clock=SteppingClock(limit=86_400), tables=tables)
    prepare(ctx)
    join(ctx)
    try:
        run_benchmark(ctx)
    finally:
        with suppress(FileNotFoundError):
            end_lost(rundir)


def test_a_reason_to_stop_gives_one_stop_order_which_the_shim_obeys(rundir: RunDir) -> None:
    # The first question comes before the start.
    source = ScriptedStopSource(CANCELLED, after=4)

    real_benchmark(rundir, "import time; time.sleep(600)", source)

    assert stops_in(rundir) == [CANCELLED.message]
    assert ended_of(rundir).stop == "cancelled"
    assert not is_locked(rundir.shim_lock)
    (ended,) = (each for each in events_of(rundir.path) if each["type"] == "benchmark_exited")
    assert ended["signal"] == signal.SIGTERM


def test_a_benchmark_that_ends_by_itself_gets_no_stop_order(rundir: RunDir) -> None:
    real_benchmark(rundir, "print('done')", ScriptedStopSource())

    assert not rundir.stop.exists()
    assert stops_in(rundir) == []
    assert rundir.output.read_text() == "done\n"
    assert ended_of(rundir).code == 0


def test_a_reason_to_stop_before_the_start_prevents_it(rundir: RunDir) -> None:
    with pytest.raises(RunEndedError) as error:
        real_benchmark(rundir, "print('done')", ScriptedStopSource(CANCELLED))

    assert error.value.reason is CANCELLED
    assert not rundir.started.exists()
