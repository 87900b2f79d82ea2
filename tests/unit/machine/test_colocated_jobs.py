from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from run_contexts import SteppingClock

from bai_agent.job.record_types import NeighbourEvent, WaitEvent
from bai_agent.machine.colocated_jobs import (
    FOREIGN_WAIT,
    ColocationWatch,
    colocated_jobs_reported,
    neighbour_warnings,
    wait_until_alone,
)
from bai_agent.machine.job_sockets import ColocatedJob, ThisJob, Use
from bai_agent.runtime.clock import CLOCK
from bai_agent.runtime.event_log import EventLog


@pytest.fixture
def machine() -> str:
    return f"test-{uuid.uuid4()}"


def job(job_id: str, machine: str, *, place: str = "/jobs") -> ThisJob:
    return ThisJob.of(job_id, place=place, environment={"BAI_MACHINE": machine})


@pytest.fixture
def events(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path / "events.jsonl")
    yield log
    log.close()


def told(events: EventLog) -> list[NeighbourEvent]:
    return [each for each in events.seen if isinstance(each, NeighbourEvent)]


def test_the_overlap_is_from_the_later_start_to_the_earlier_end(events: EventLog) -> None:
    now = 1000
    there = [ColocatedJob(job_id="older", key="a", since=10, use=Use.RUNS)]
    watch = ColocationWatch(lambda: list(there), events, now=lambda: now, clock=lambda: now / 1000)
    watch.look()
    now = 2000
    there.append(ColocatedJob(job_id="newer", key="b", since=1900, use=Use.RUNS))
    watch.look()
    now = 3000
    del there[0]
    watch.look()
    now = 4000
    watch.end()
    ends = {each.job_id: (each.since, each.until) for each in told(events) if each.until is not None}
    assert ends == {"older": (1000, 3000), "newer": (1900, 4000)}
    assert neighbour_warnings(told(events)) == [
        "The job older ran on this machine at the same time, for 2.0 s, so the two jobs slowed each other down.",
        "The job newer ran on this machine at the same time, for 2.1 s, so the two jobs slowed each other down.",
    ]


def test_a_change_of_the_clock_does_not_change_the_measured_overlap(events: EventLog) -> None:
    # Given a neighbour that is there from the beginning
    years = 10 * 365 * 86_400_000
    now, uptime = 1_000_000, 50.0
    there = [ColocatedJob(job_id="older", key="a", since=now, use=Use.RUNS)]
    watch = ColocationWatch(lambda: list(there), events, now=lambda: now, clock=lambda: uptime)
    watch.look()

    # When the clock is set by ten years, and another one comes that was announced before that
    there.append(ColocatedJob(job_id="newer", key="b", since=now + 900, use=Use.RUNS))
    now, uptime = now + years, uptime + 1
    watch.look()
    now, uptime = now + 2000, uptime + 2
    watch.end()

    # Then both ran beside this job for seconds
    assert neighbour_warnings(told(events)) == [
        "The job older ran on this machine at the same time, for 3.0 s, so the two jobs slowed each other down.",
        "The job newer ran on this machine at the same time, for 3.0 s, so the two jobs slowed each other down.",
    ]


def test_a_job_that_only_waits_is_not_reported_as_colocated(events: EventLog, machine: str) -> None:
    with job("waits", machine).announce(Use.NEXT), colocated_jobs_reported(job("one", machine), events):  # type: ignore[union-attr]
        pass
    assert told(events) == []


def test_two_jobs_report_each_other(tmp_path: Path, machine: str) -> None:
    logs = [EventLog(tmp_path / name) for name in ("one", "other")]
    with ExitStack() as later, colocated_jobs_reported(job("one", machine), logs[0]):
        later.enter_context(colocated_jobs_reported(job("other", machine), logs[1]))
    assert [each.job_id for each in told(logs[0])] == ["other", "other"]
    assert [each.job_id for each in told(logs[1])] == ["one", "one"]


def test_an_exclusive_job_waits_for_a_running_job_and_names_it(machine: str) -> None:
    running = job("busy", machine).announce(Use.RUNS)
    assert running is not None
    heard: list[WaitEvent] = []
    clock = SteppingClock()

    def stopping() -> bool:
        if clock.passed > 5:
            running.close()
        return False

    held = wait_until_alone(job("one", machine), tell=heard.append, stopping=stopping, clock=clock)
    assert clock.passed > 5
    assert [each.jobs for each in heard] == [["busy"]]
    assert heard[0].message == "Waits until this machine is free: busy runs here."
    assert [each.use for each in job("late", machine).others()] == [Use.NEXT]
    for each in held:
        each.close()


def test_one_of_two_exclusive_jobs_waits_for_the_other(machine: str) -> None:
    first = wait_until_alone(
        job("first", machine), tell=lambda _: None, stopping=lambda: False, clock=SteppingClock()
    )
    heard: list[WaitEvent] = []
    clock = SteppingClock()

    def stopping() -> bool:
        if clock.passed > 3:
            for each in first:
                each.close()
        return False

    held = wait_until_alone(job("second", machine), tell=heard.append, stopping=stopping, clock=clock)
    assert [each.jobs for each in heard] == [["first"]]
    assert clock.passed > 3
    for each in held:
        each.close()


def test_a_wait_ends_when_the_run_is_to_end(machine: str) -> None:
    with job("busy", machine).announce(Use.RUNS):  # type: ignore[union-attr]
        clock = SteppingClock()
        held = wait_until_alone(
            job("one", machine), tell=lambda _: None, stopping=lambda: clock.passed > 2, clock=clock
        )
    assert clock.passed < 4
    for each in held:
        each.close()


_STRANGER = 65534
_CLAIMS = """\
import os, sys, time
from bai_agent.machine.job_sockets import ThisJob, Use
user, machine, use, *names = sys.argv[1:]
os.setresuid(*[int(user)] * 3)
held = [ThisJob.of(name, place="/", environment={"BAI_MACHINE": machine}).announce(Use(use)) for name in names]
assert None not in held
print(flush=True)
time.sleep(600)
"""
_LOOKS = """\
import codecs, os, sys
from bai_agent.machine.job_sockets import ThisJob
user, machine = sys.argv[1:]
codecs.lookup("ascii")  # while its file can be read
os.setresuid(*[int(user)] * 3)
for each in ThisJob.of("x", place="/", environment={"BAI_MACHINE": machine}).others():
    print(each.name)
"""


@contextmanager
def announced_by(user: int, machine: str, use: Use, *names: str) -> Iterator[None]:
    """Jobs that another process, of this user, announces."""
    argv = [sys.executable, "-c", _CLAIMS, str(user), machine, use.value, *names]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline()
            yield
        finally:
            child.kill()


@pytest.mark.root
def test_names_of_other_users_jobs_are_not_reported(events: EventLog, machine: str) -> None:
    forged = [f"forged-{each}" for each in range(20)]
    with (
        announced_by(_STRANGER, machine, Use.RUNS, *forged),
        colocated_jobs_reported(job("one", machine), events),
    ):
        pass
    assert [each.job_id for each in told(events)] == [None, None]
    (sentence,) = neighbour_warnings(told(events))
    assert sentence.startswith("Another user's job ran on this machine at the same time")


@pytest.mark.parametrize("use", list(Use))
@pytest.mark.root
def test_an_exclusive_job_waits_for_another_users_job_up_to_the_limit(machine: str, use: Use) -> None:
    heard: list[WaitEvent] = []
    clock = SteppingClock()
    with announced_by(_STRANGER, machine, use, "forged"):
        held = wait_until_alone(job("one", machine), tell=heard.append, stopping=lambda: False, clock=clock)
    assert clock.passed == pytest.approx(FOREIGN_WAIT.total_seconds(), abs=1.0)
    assert [each.message for each in heard] == [
        "Waits until this machine is free: another user's job runs here, for at most 30 min.",
        "Another user's job has kept this machine for 30 min: this job no longer waits for other users.",
    ]
    assert len(held) == 1
    held[0].close()


@pytest.mark.root
def test_after_the_limit_an_exclusive_job_waits_only_for_jobs_of_its_user(machine: str) -> None:
    running = job("busy", machine).announce(Use.RUNS)
    assert running is not None
    clock = SteppingClock(limit=7200)

    def stopping() -> bool:
        if clock.passed > FOREIGN_WAIT.total_seconds() + 60:
            running.close()
        return False

    with announced_by(_STRANGER, machine, Use.RUNS, "forged"):
        held = wait_until_alone(job("one", machine), tell=lambda _: None, stopping=stopping, clock=clock)
    # First its own user's job, then the other's for the whole limit.
    assert clock.passed == pytest.approx(2 * FOREIGN_WAIT.total_seconds() + 60, abs=2.0)
    assert len(held) == 1
    held[0].close()


@pytest.mark.root
def test_a_user_sees_names_only_of_roots_and_its_own_jobs(machine: str) -> None:
    with (
        job("roots", machine).announce(Use.RUNS),  # type: ignore[union-attr]
        announced_by(_STRANGER, machine, Use.RUNS, "own"),
        announced_by(_STRANGER - 1, machine, Use.RUNS, "forged"),
    ):
        argv = [sys.executable, "-c", _LOOKS, str(_STRANGER), machine]
        seen = subprocess.run(
            argv, capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()
    assert sorted(seen) == ["another user's job", "own", "roots"]


def test_another_users_repeated_jobs_are_reported_a_few_times(events: EventLog) -> None:
    there: list[ColocatedJob] = []
    watch = ColocationWatch(lambda: list(there), events)
    for _ in range(100):
        there[:] = [ColocatedJob(job_id=None, key="a", since=0, use=Use.RUNS)]
        watch.look()
        there.clear()
        watch.look()
    assert len(told(events)) == 32


def test_many_exclusive_jobs_run_one_at_a_time(machine: str) -> None:
    inside: list[str] = []
    most = 0

    def take(name: str) -> None:
        nonlocal most
        held = wait_until_alone(job(name, machine), tell=lambda _: None, stopping=lambda: False, clock=CLOCK)
        inside.append(name)
        most = max(most, len(inside))
        inside.remove(name)
        for each in held:
            each.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(take, [f"job-{each}" for each in range(6)]))
    assert most == 1
