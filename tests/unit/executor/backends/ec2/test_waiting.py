"""The times and requests of a job that waits for capacity."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from bai_agent.job.outcome import Outcome
from executor.backends.ec2.launch.launch_record import LaunchFile, Wait, expires_at
from executor.backends.ec2.launch.resolve import Candidate
from executor.backends.ec2.launch.waiting import (
    LONGEST_PAUSE,
    as_round,
    next_round,
    next_time,
    plan_sentence,
)
from executor.backends.ec2.monitor.diagnosis import diagnose
from executor.backends.ec2.monitor.job_observation import JobStage, Observation
from executor.backends.ec2.tags import EXPIRES_TAG, parse_timestamp, tag_time

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=timezone.utc)
DEADMAN = timedelta(hours=2)
EXPIRES = expires_at(NOW, DEADMAN)
TAGS = [
    {
        "ResourceType": "instance",
        "Tags": [{"Key": "Name", "Value": "bai"}, {"Key": EXPIRES_TAG, "Value": EXPIRES}],
    }
]
FIRST = LaunchFile(
    job_id="job-1",
    attempt=0,
    region="eu-central-1",
    candidates=(Candidate(subnet="subnet-1", zone="eu-central-1a"),),
    request={"InstanceType": "t3.small", "TagSpecifications": TAGS},
    server={"InstanceType": "t3.medium", "TagSpecifications": TAGS},
    security_group={"GroupName": "bai job-1 0", "TagSpecifications": TAGS},
    expires=EXPIRES,
    created=tag_time(NOW),
    wait=Wait(seconds=6 * 3600, since=tag_time(NOW)),
).sealed()


def begins(file: LaunchFile) -> datetime:
    assert file.wait is not None
    return next_time(file.wait, job_id=file.job_id, created=file.created)


def rounds(file: LaunchFile) -> list[datetime]:
    """Return when all rounds of a launch begin whose zones never have room."""
    assert file.wait is not None
    times = [parse_timestamp(file.created) or NOW]
    while times[-1] < file.wait.until:
        times.append(begins(file))
        file = next_round(file, now=times[-1], deadman=DEADMAN)
    return times


def pauses_between(times: list[datetime]) -> list[timedelta]:
    return [times[place] - times[place - 1] for place in range(1, len(times))]


@pytest.mark.parametrize("seconds", [1, 7, 60, 601, 6 * 3600])
def test_launch_attempts_become_less_frequent_and_end_with_the_wait(seconds: int) -> None:
    file = replace(FIRST, wait=Wait(seconds=seconds, since=tag_time(NOW)))

    times = rounds(file)

    between = pauses_between(times)
    assert times[-1] == NOW + timedelta(seconds=seconds)
    assert all(timedelta(0) < each <= LONGEST_PAUSE for each in between)
    # The first pause is half a minute, or a tenth of a short wait; times in records are whole seconds.
    assert between[0] <= timedelta(seconds=max(1, min(30, seconds / 10)))
    assert len(times) > 10 or seconds < 20


def test_during_a_long_wait_launch_attempts_are_minutes_apart() -> None:
    between = pauses_between(rounds(FIRST))

    assert all(each >= LONGEST_PAUSE * 0.6 - timedelta(seconds=1) for each in between[5:-1])
    assert 60 < len(between) < 150


def test_launch_attempts_of_several_jobs_are_spread_in_time() -> None:
    assert len({begins(replace(FIRST, job_id=f"job-{number}")) for number in range(50)}) > 10


def test_successive_launch_attempts_differ_only_in_times_and_token() -> None:
    later = NOW + timedelta(hours=3)
    second = next_round(FIRST, now=later, deadman=DEADMAN)

    assert second.token != FIRST.token
    assert (second.round, second.created, second.expires) == (1, tag_time(later), expires_at(later, DEADMAN))
    assert second.request["TagSpecifications"][0]["Tags"][1]["Value"] == second.expires
    assert second.server is not None
    assert second.server["TagSpecifications"][0]["Tags"][1]["Value"] == second.expires
    assert second.security_group is not None
    assert second.security_group["TagSpecifications"][0]["Tags"][1]["Value"] == second.expires
    # whoever repeats it makes the same one, from whichever round
    third = next_round(second, now=later, deadman=DEADMAN)
    assert third == as_round(FIRST, 2, now=later, deadman=DEADMAN)
    assert third.token != second.token
    assert as_round(third, 0, now=NOW, deadman=DEADMAN) == FIRST


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (6 * 3600, "requested again after 30s, later every 5m, for 6h"),
        (100, "requested again every 10s, for 1m40s"),
    ],
)
def test_the_plan_says_how_long_the_job_waits_for_capacity(seconds: int, said: str) -> None:
    assert said in plan_sentence(Wait(seconds=seconds, since=tag_time(NOW)))


def test_a_job_is_shown_as_waiting_until_its_launch_attempts_stop() -> None:
    waits = Observation(
        now=NOW,
        job_id="job-1",
        launch_age=timedelta(minutes=4),
        waiting="no zone has room; until 2026-11-21 04:00 UTC",
        expires=NOW - timedelta(hours=1),
    )
    left = replace(waits, launch_age=timedelta(hours=1))

    assert diagnose(waits).stage is JobStage.WAITING
    assert "waits for capacity: no zone has room; until 2026-11-21 04:00 UTC." in diagnose(waits).sentence
    # no result, which would keep it from being taken up again
    assert (diagnose(left).stage, diagnose(left).inferred) == (JobStage.ABANDONED, None)
    assert "submit the job again with --job-id job-1, and the job continues" in diagnose(left).sentence
    cancelled = diagnose(replace(left, cancelled=timedelta(hours=1))).inferred
    assert cancelled is not None
    assert cancelled.outcome is Outcome.CANCELLED
