"""How many machines are launched for a job that runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.light_dataclass import replace
from executor.backends.ec2.monitor.machine_needs import (
    FIRST_PAUSE,
    LEAST_TIME,
    LONGEST_PAUSE,
    DueMachines,
    MachinesSeen,
    enlarged_by,
    machines_due,
    pause,
)

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
SEEN = MachinesSeen(
    desired=4, living=3, launched=4, wanted=4, replacements=2, left=HOUR, needed=timedelta(seconds=90)
)
COUNTS = st.integers(0, 50)
SPANS = st.timedeltas(timedelta(), timedelta(hours=2))
ANY = st.builds(
    MachinesSeen,
    desired=COUNTS,
    living=COUNTS,
    coming=COUNTS,
    launched=COUNTS,
    wanted=COUNTS,
    replacements=COUNTS,
    is_over=st.booleans(),
    left=SPANS,
    needed=SPANS,
    failures=st.integers(0, 2000),
    since_failure=SPANS,
    refusal=st.sampled_from(["", "its terms are not accepted"]),
)


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 1),
        ({"living": 0}, 2),  # no more than the replacements
        ({"living": 4}, 0),
        ({"coming": 1, "launched": 5}, 0),
        ({"replacements": 0}, 0),
        ({"launched": 6}, 0),  # they are used up
        ({"wanted": 5, "replacements": 0}, 1),  # it was enlarged
        ({"desired": 3}, 0),
        ({"is_over": True}, 0),
        ({"refusal": "its terms are not accepted"}, 0),
        ({"left": LEAST_TIME + timedelta(seconds=89)}, 0),
        ({"left": LEAST_TIME + timedelta(seconds=90)}, 1),
    ],
)
def test_a_lost_machine_is_replaced_within_the_limits(changes: dict[str, Any], count: int) -> None:
    found = machines_due(replace(SEEN, **changes))

    assert (found.count, found.wait) == (count, None)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"launched": 6}, "all replacements are used"),
        ({"left": LEAST_TIME}, "too little time is left"),
        ({"launched": 6, "living": 4}, ""),
        ({"launched": 6, "is_over": True}, ""),
        ({"replacements": 0}, ""),
    ],
)
def test_the_reason_why_no_replacement_is_launched_is_reported(changes: dict[str, Any], why: str) -> None:
    assert machines_due(replace(SEEN, **changes)).why == why


def test_the_pause_doubles_with_each_failed_replacement_up_to_half_an_hour() -> None:
    assert [pause(each) / MINUTE for each in range(1, 6)] == [5, 10, 20, 30, 30]
    assert (FIRST_PAUSE, LONGEST_PAUSE) == (5 * MINUTE, 30 * MINUTE)

    early = machines_due(replace(SEEN, failures=2, since_failure=9 * MINUTE))
    later = machines_due(replace(SEEN, failures=2, since_failure=10 * MINUTE))
    in_vain = machines_due(replace(SEEN, failures=2, since_failure=MINUTE, left=20 * MINUTE))

    assert (early, later, in_vain) == (
        DueMachines(wait=MINUTE),
        DueMachines(count=1),
        DueMachines(why="too little time is left"),
    )


@given(seen=ANY)
def test_no_job_has_more_machines_or_replacements_than_desired(seen: MachinesSeen) -> None:
    due = machines_due(seen)

    assert due.count >= 0
    assert due.count == 0 or due.wait is None
    if due.any:
        assert not seen.is_over
        assert seen.left >= seen.needed + LEAST_TIME
    if due.count:
        assert seen.living + seen.coming + due.count <= seen.desired
        assert seen.launched + due.count <= seen.wanted + seen.replacements


@given(
    first=st.integers(1, 8),
    replacements=st.integers(0, 5),
    steps=st.lists(st.tuples(st.sampled_from(["loses", "refuses", "grows", "shrinks"]), SPANS), max_size=60),
)
def test_no_history_of_failures_launches_more_machines_than_allowed(
    first: int, replacements: int, steps: list[tuple[str, timedelta]]
) -> None:
    """Machines go, EC2 refuses, and somebody scales the job, in whatever order."""
    requested: list[int] = []
    desired = living = launched = first
    failures, since, left = 0, timedelta(), 24 * HOUR
    for event, passes in steps:
        left, since = left - passes, since + passes
        if event == "loses":
            living = max(0, living - 1)
        elif event in ("grows", "shrinks"):
            desired = max(1, desired + (1 if event == "grows" else -1))
            living = min(living, desired)
            requested.append(desired)
        grown = enlarged_by(first, requested)
        due = machines_due(
            MachinesSeen(
                desired=desired,
                living=living,
                launched=launched,
                wanted=first + grown,
                replacements=replacements,
                left=left,
                failures=failures,
                since_failure=since,
            )
        )
        if not due.count:
            continue
        if event == "refuses":
            failures, since = failures + 1, timedelta()
            continue
        failures, launched, living = 0, launched + due.count, living + due.count
        assert left >= LEAST_TIME
        assert living <= desired
        assert launched <= first + grown + replacements


@given(first=COUNTS, requested=st.lists(COUNTS))
def test_only_scale_requests_above_the_current_size_enlarge_a_job(first: int, requested: list[int]) -> None:
    grown = enlarged_by(first, requested)

    assert grown >= max([0, *(each - first for each in requested)])
    assert enlarged_by(first, sorted([first, *requested], reverse=True)) == max(
        [0, *(each - first for each in requested)]
    )
