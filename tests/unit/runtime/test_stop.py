"""Why a run ends early, and how often that is asked: by a clock that is passed in."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from run_contexts import ScriptedStopSource, SteppingClock

from bai_agent.errors import StoreError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir, boot_id, write_json
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.peers.peer_monitor import PeerMonitor
from bai_agent.run.stop_sources import (
    LOW_DISK_BYTES,
    Cancel,
    DiskFull,
    MaxRuntime,
    NoOutput,
    Signals,
    stop_sources,
)
from bai_agent.runtime.stop import StopMonitor, StopReason

CANCELLED = StopReason(Outcome.CANCELLED, "It was cancelled.")
TOO_LONG = StopReason(Outcome.MAX_RUNTIME, "It ran too long.")
MINUTE = timedelta(minutes=1)


def interrupted(deadline: float | None = None) -> StopReason:
    return StopReason(Outcome.INTERRUPTED, "The machine goes.", deadline=deadline)


@pytest.fixture
def clock() -> SteppingClock:
    return SteppingClock()


@pytest.fixture(autouse=True)
def _output_folder(rundir: RunDir) -> None:
    rundir.log_chunks.mkdir(parents=True)


# The watch


def test_the_first_reason_to_stop_is_final() -> None:
    early, late = ScriptedStopSource(), ScriptedStopSource(TOO_LONG)
    watch = StopMonitor([early, late])

    assert watch.reason() is TOO_LONG
    early.found = CANCELLED

    assert watch.reason() is TOO_LONG
    assert watch.stopping()


def test_of_two_simultaneous_reasons_the_earlier_source_in_the_list_decides() -> None:
    assert (
        StopMonitor(
            [ScriptedStopSource(), ScriptedStopSource(CANCELLED), ScriptedStopSource(TOO_LONG)]
        ).reason()
        is CANCELLED
    )


def test_stop_sources_are_not_asked_again_after_a_reason() -> None:
    source = ScriptedStopSource(TOO_LONG)
    watch = StopMonitor([source])

    for _ in range(3):
        watch.reason(running_s=7.0)

    assert source.asked == [7.0]


@pytest.mark.parametrize("unwanted", [CANCELLED, interrupted()])
def test_a_cancel_after_another_reason_marks_a_run_as_abandoned(
    unwanted: StopReason, clock: SteppingClock
) -> None:
    full = StopReason(Outcome.DISK_FULL, "It is full.")
    source = ScriptedStopSource()
    watch = StopMonitor([ScriptedStopSource(full), source], clock=clock)
    assert watch.reason() is full
    assert not watch.abandoned()

    source.found = unwanted
    clock.sleep(1.0)

    assert watch.abandoned()
    assert watch.reason() is full


def test_a_run_ended_by_a_limit_does_not_count_as_abandoned(clock: SteppingClock) -> None:
    assert not StopMonitor([ScriptedStopSource(TOO_LONG)], clock=clock).abandoned()


def test_abandoned_asks_the_stop_sources_once_per_interval(clock: SteppingClock) -> None:
    source = ScriptedStopSource()
    watch = StopMonitor([source], clock=clock)

    for _ in range(10):
        watch.abandoned()
    clock.sleep(0.99)
    watch.abandoned()
    assert len(source.asked) == 1

    clock.sleep(0.01)
    watch.abandoned()
    assert len(source.asked) == 2


def test_an_abandoned_run_stays_abandoned(clock: SteppingClock) -> None:
    source = ScriptedStopSource(CANCELLED)
    watch = StopMonitor([source], clock=clock)
    assert watch.abandoned()

    source.found = TOO_LONG
    clock.sleep(100)

    assert watch.abandoned()


@pytest.mark.parametrize(("first", "second"), [(50.0, 80.0), (80.0, 50.0), (50.0, None), (None, 50.0)])
def test_the_earlier_of_two_deadlines_applies(
    first: float | None, second: float | None, clock: SteppingClock
) -> None:
    lost = ScriptedStopSource(StopReason(Outcome.LOST, "It is lost.", deadline=first))
    watch = StopMonitor([lost, ScriptedStopSource(interrupted(second))], clock=clock)
    assert watch.reason() is lost.found

    assert watch.deadline() == 50.0


def test_a_deadline_announced_after_a_cancel_is_the_jobs_and_the_reason_stays_the_cancel(
    clock: SteppingClock,
) -> None:
    notice = ScriptedStopSource()
    watch = StopMonitor([ScriptedStopSource(CANCELLED), notice], clock=clock)
    assert watch.reason() is CANCELLED
    assert watch.abandoned()
    assert watch.deadline() is None

    notice.found = interrupted(50.0)
    clock.sleep(1.0)

    assert watch.deadline() == 50.0
    assert watch.reason() is CANCELLED


def test_a_reason_to_stop_without_a_time_has_no_deadline(clock: SteppingClock) -> None:
    watch = StopMonitor([ScriptedStopSource(CANCELLED)], clock=clock)
    watch.reason()

    assert watch.deadline() is None


# Its sources


def test_the_stop_sources_of_a_run_are_asked_in_order(rundir: RunDir) -> None:
    job = Job(job=Identity(id="job-1"), benchmark=Benchmark(argv=("true",)))
    signals, disk, spot = Signals(), DiskFull(rundir), ScriptedStopSource()

    found = stop_sources(job, rundir, signals=signals, disk=disk, cancelled=lambda: False, spot=spot)

    assert [type(each) for each in found] == [
        Signals,
        ScriptedStopSource,
        MaxRuntime,
        NoOutput,
        Cancel,
        DiskFull,
    ]
    assert found[0] is signals
    assert found[1] is spot
    assert found[-1] is disk


def test_max_runtime_counts_from_the_benchmarks_start() -> None:
    source = MaxRuntime(Limits(max_runtime=MINUTE))

    assert source.reason(None) is None
    assert source.reason(59.9) is None
    reason = source.reason(60.0)

    assert reason is not None
    assert reason.outcome is Outcome.MAX_RUNTIME
    assert "limits.max_runtime (1m)" in reason.message


def test_max_runtime_does_not_apply_to_a_serving_node(tmp_path: Path) -> None:
    # It starts sshd before the launcher starts the benchmark.
    monitor = PeerMonitor(AttemptRecord(JobRecord(DirectoryStore(tmp_path), "job-1")), rank=1, nodes=2)
    source = MaxRuntime(Limits(max_runtime=MINUTE), peers=monitor)
    assert source.reason(60.0) is not None

    monitor.serves = True

    assert source.reason(60.0) is None


def test_a_run_without_limits_is_never_ended_by_one(rundir: RunDir, clock: SteppingClock) -> None:
    assert MaxRuntime(Limits()).reason(1e9) is None
    assert NoOutput(Limits(), rundir, clock=clock).reason(1e9) is None


@pytest.mark.parametrize("name", ["kept_output", "emit"])
def test_the_no_output_limit_counts_from_the_last_byte(
    name: str, rundir: RunDir, clock: SteppingClock
) -> None:
    source = NoOutput(Limits(no_output=MINUTE), rundir, clock=clock)
    path: Path = getattr(rundir, name)
    running = 1000.0

    def say(text: str) -> None:
        with path.open("a") as file:
            file.write(text)
        os.utime(path, (clock.time(), clock.time()))

    say("begun\n")
    assert source.reason(running) is None
    clock.sleep(59)
    assert source.reason(running) is None
    say("still here\n")
    assert source.reason(running) is None
    clock.sleep(59.9)
    assert source.reason(running) is None
    assert source.reason(None) is None
    clock.sleep(0.2)  # not 0.1: 59.9 and 0.1 may be less than 60
    reason = source.reason(running)

    assert reason is not None
    assert reason.outcome is Outcome.NO_OUTPUT
    assert "limits.no_output (1m)" in reason.message


def test_silence_before_an_agent_restart_counts_towards_the_no_output_limit(
    rundir: RunDir, clock: SteppingClock
) -> None:
    rundir.kept_output.write_text("begun\n")
    printed = clock.time() - 61
    os.utime(rundir.kept_output, (printed, printed))

    assert NoOutput(Limits(no_output=MINUTE), rundir, clock=clock).reason(1000.0) is not None
    # A file's time may be wrong; a benchmark that has run for 10 s was not silent for longer.
    assert NoOutput(Limits(no_output=MINUTE), rundir, clock=clock).reason(10.0) is None


def test_a_clock_set_forward_does_not_count_as_silence(rundir: RunDir, clock: SteppingClock) -> None:
    write_json(
        rundir.started,
        {
            "shim_pid": 1,
            "shim_start": 0,
            "pid": 1,
            "start": int((time.clock_gettime(time.CLOCK_BOOTTIME) - 100) * os.sysconf("SC_CLK_TCK")),
            "boot_id": boot_id(),
            "time": int((clock.time() - 100) * 1000),
        },
    )
    rundir.kept_output.write_text("begun\n")
    printed = clock.time() - 30
    os.utime(rundir.kept_output, (printed, printed))
    clock.set_forward(3600)

    assert NoOutput(Limits(no_output=MINUTE), rundir, clock=clock).reason(100.0) is None
    printed -= 40
    os.utime(rundir.kept_output, (printed, printed))
    assert NoOutput(Limits(no_output=MINUTE), rundir, clock=clock).reason(100.0) is not None


def test_a_cancel_in_the_run_directory_is_seen_within_a_second(rundir: RunDir, clock: SteppingClock) -> None:
    source = Cancel(rundir, cancelled=lambda: False, clock=clock)
    assert source.reason(None) is None

    rundir.cancel.touch()
    assert source.reason(None) is None
    clock.sleep(1.0)
    reason = source.reason(None)

    assert reason is not None
    assert reason.outcome is Outcome.CANCELLED
    rundir.cancel.unlink()
    clock.sleep(1.0)
    assert source.reason(None) == reason


def test_a_store_is_asked_for_a_cancel_once_per_second(rundir: RunDir, clock: SteppingClock) -> None:
    answers: list[bool | StoreError] = [StoreError("away"), False, True]
    left = list(answers)

    def cancelled() -> bool:
        answer = left.pop(0)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    source = Cancel(rundir, cancelled=cancelled, clock=clock)
    seen = []
    for _ in range(3):
        seen += [source.reason(None) is not None for _ in range(5)]
        clock.sleep(1.0)

    assert seen == [False] * 10 + [True] * 5
    assert not left


def test_a_full_disk_is_seen_within_a_second(rundir: RunDir, clock: SteppingClock) -> None:
    free = LOW_DISK_BYTES
    asked: list[Path] = []

    def free_bytes(folder: Path) -> int:
        asked.append(folder)
        return free

    source = DiskFull(rundir, clock=clock, free_bytes=free_bytes)
    assert source.reason(None) is None

    free -= 1
    assert source.reason(None) is None
    assert asked == [rundir.path]
    assert source.look() is not None
    clock.sleep(1.0)
    reason = source.reason(None)

    assert reason is not None
    assert reason.outcome is Outcome.DISK_FULL
    assert f"{rundir.path} has 4.0 MiB left" in reason.message


def test_a_disk_whose_free_space_is_unknown_does_not_count_as_full(
    rundir: RunDir, clock: SteppingClock
) -> None:
    def gone(folder: Path) -> int:
        raise FileNotFoundError(folder)

    assert DiskFull(rundir, clock=clock, free_bytes=gone).reason(None) is None


@pytest.fixture
def signals() -> Iterator[Signals]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    found = Signals()
    found.listen()
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(signal.SIGTERM, Outcome.INTERRUPTED), (signal.SIGINT, Outcome.CANCELLED), (signal.SIGHUP, None)],
)
def test_sigterm_and_sigint_are_reasons_to_stop_and_sighup_is_not(
    signals: Signals, number: signal.Signals, outcome: Outcome | None
) -> None:
    assert signals.reason(None) is None

    signal.raise_signal(number)
    reason = signals.reason(None)

    assert (reason.outcome if reason is not None else None) is outcome
    assert signals.received == (outcome is not None)
