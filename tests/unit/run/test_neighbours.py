from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from run_contexts import SteppingClock

from bai_agent.job.events import EventLog
from bai_agent.job.record_types import NeighbourEvent, WaitEvent
from bai_agent.run.neighbours import (
    Me,
    Neighbour,
    NeighbourWatch,
    Use,
    neighbour_warnings,
    neighbours_told,
    wait_until_alone,
)


@pytest.fixture
def machine() -> str:
    return f"test-{uuid.uuid4()}"


def job(job_id: str, machine: str, *, place: str = "/jobs") -> Me:
    return Me.of(job_id, place=place, environment={"BAI_MACHINE": machine})


@pytest.fixture
def events(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path / "events.jsonl")
    yield log
    log.close()


def told(events: EventLog) -> list[NeighbourEvent]:
    return [each for each in events.seen if isinstance(each, NeighbourEvent)]


def test_jobs_see_each_other_and_not_themselves(machine: str) -> None:
    one, other = job("one", machine), job("other", machine)
    with one.announce(Use.RUNS), other.announce(Use.RUNS):  # type: ignore[union-attr]
        assert [each.job_id for each in one.others()] == ["other"]
        assert [each.job_id for each in other.others()] == ["one"]
    assert one.others() == []


def test_two_nodes_of_a_job_are_no_neighbours(machine: str) -> None:
    node = job("one", machine)
    with node.announce(Use.RUNS):  # type: ignore[union-attr]
        assert job("one", machine).others() == []


def test_jobs_of_one_id_in_two_stores_are_neighbours(machine: str) -> None:
    with job("one", machine, place="/here").announce(Use.RUNS):  # type: ignore[union-attr]
        assert len(job("one", machine, place="/there").others()) == 1


def test_a_long_id_is_told_by_its_beginning(machine: str) -> None:
    with job("j" * 128, machine).announce(Use.RUNS):  # type: ignore[union-attr]
        assert [each.job_id for each in job("other", machine).others()] == ["j" * 60]


def test_names_of_others_are_no_jobs(tmp_path: Path, machine: str) -> None:
    me = job("one", machine)
    with job("two", machine).announce(Use.RUNS):  # type: ignore[union-attr]
        (line,) = [each for each in Path("/proc/net/unix").read_text().splitlines() if each.endswith("/two")]
    names = tmp_path / "unix"
    forged = [line[:-3] + "\x1b[2J", line[:-3] + "a b", line + "/x", line.replace("runs", "flies"), "@bai-"]
    names.write_text("\n".join([*forged, line.replace("/two", "/2"), ""]))
    assert [each.job_id for each in me.others(names)] == ["2"]


def test_a_killed_job_is_gone(machine: str) -> None:
    holds = (
        "import sys, time; from bai_agent.run.neighbours import Me, Use; "
        f"held = Me.of('killed', place='/jobs', environment={{'BAI_MACHINE': {machine!r}}}).announce(Use.RUNS); "
        "print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        there = job("one", machine).others()
        child.kill()
    assert [each.job_id for each in there] == ["killed"]
    assert job("one", machine).others() == []


def test_the_overlap_is_from_the_later_start_to_the_earlier_end(events: EventLog) -> None:
    now = 1000
    there = [Neighbour(job_id="older", key="a", since=10, use=Use.RUNS)]
    watch = NeighbourWatch(lambda: list(there), events, now=lambda: now, clock=lambda: now / 1000)
    watch.look()
    now = 2000
    there.append(Neighbour(job_id="newer", key="b", since=1900, use=Use.RUNS))
    watch.look()
    now = 3000
    del there[0]
    watch.look()
    now = 4000
    watch.end()
    ends = {each.job_id: (each.since, each.until) for each in told(events) if each.until is not None}
    assert ends == {"older": (1000, 3000), "newer": (1900, 4000)}
    assert neighbour_warnings(told(events)) == [
        "The job older ran on this machine at the same time, for 2.0 s: both took from each other.",
        "The job newer ran on this machine at the same time, for 2.1 s: both took from each other.",
    ]


def test_an_overlap_is_counted_through_a_clock_that_is_set(events: EventLog) -> None:
    # Given a neighbour that is there from the beginning
    years = 10 * 365 * 86_400_000
    now, uptime = 1_000_000, 50.0
    there = [Neighbour(job_id="older", key="a", since=now, use=Use.RUNS)]
    watch = NeighbourWatch(lambda: list(there), events, now=lambda: now, clock=lambda: uptime)
    watch.look()

    # When the clock is set by ten years, and another one comes that was announced before that
    there.append(Neighbour(job_id="newer", key="b", since=now + 900, use=Use.RUNS))
    now, uptime = now + years, uptime + 1
    watch.look()
    now, uptime = now + 2000, uptime + 2
    watch.end()

    # Then both ran beside this job for seconds
    assert neighbour_warnings(told(events)) == [
        "The job older ran on this machine at the same time, for 3.0 s: both took from each other.",
        "The job newer ran on this machine at the same time, for 3.0 s: both took from each other.",
    ]


def test_a_job_that_only_waits_is_no_neighbour(events: EventLog, machine: str) -> None:
    with job("waits", machine).announce(Use.NEXT), neighbours_told(job("one", machine), events):  # type: ignore[union-attr]
        pass
    assert told(events) == []


def test_both_are_told_of_each_other(tmp_path: Path, machine: str) -> None:
    logs = [EventLog(tmp_path / name) for name in ("one", "other")]
    with ExitStack() as later, neighbours_told(job("one", machine), logs[0]):
        later.enter_context(neighbours_told(job("other", machine), logs[1]))
    assert [each.job_id for each in told(logs[0])] == ["other", "other"]
    assert [each.job_id for each in told(logs[1])] == ["one", "one"]


def test_waits_for_a_job_that_runs_and_says_for_which(machine: str) -> None:
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
    assert job("late", machine).take_machine() is None
    for each in held:
        each.close()


def test_of_two_that_want_it_alone_one_waits_for_the_other(machine: str) -> None:
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
