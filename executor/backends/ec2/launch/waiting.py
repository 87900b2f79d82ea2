"""Waits for capacity. If EC2 has no capacity for any candidate, all candidates are requested again in rounds,
until a candidate has capacity or the wait ends.

Each round is a launch with its own times and token, recorded before the round's request is sent. The first round is
recorded as the attempt's `launch.json`. Each later round is recorded as `rounds/<k>/launch.json`. Each round has
its own folder `refused/`. Only the last round can launch machines, so all rounds belong to one attempt. A round's
start is computed from the start of the previous round, so that a resumed submission keeps its schedule.
`waiting.json` shows the result of the latest round to users; no decision depends on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from bai_agent.backoff import Backoff
from bai_agent.errors import BaiError
from bai_agent.job.schema.durations import format_duration
from executor.backends.backend import CapacityWait
from executor.backends.ec2.launch.error_classes import ErrorClass
from executor.backends.ec2.launch.launch_record import LaunchFile, Wait, expires_at
from executor.backends.ec2.launch.resolve import Candidate, named, type_names
from executor.backends.ec2.tags import EXPIRES_TAG, need_time, tag_time

FIRST_PAUSE = timedelta(seconds=30)
LONGEST_PAUSE = timedelta(minutes=5)
"""Longest time between the starts of two rounds. Each round writes to the store, so the time must be shorter
than `ABANDONED`, after which a submission without a write counts as abandoned."""
_PART = 10
"""The longest pause is the whole wait divided by this number, so that even a wait of two minutes has more
than two rounds."""


class NoCapacityError(BaiError):
    """Raised if EC2 has no capacity for any candidate now. Nothing was launched, and all candidates are
    requested again later."""

    def __init__(self, wait: CapacityWait) -> None:
        super().__init__(wait.sentence)
        self.wait = wait


def pauses(whole: timedelta) -> tuple[timedelta, timedelta]:
    """Return the first and the longest pause between the rounds of a wait for capacity that takes `whole` in
    total."""
    return min(FIRST_PAUSE, whole / _PART), min(LONGEST_PAUSE, whole / _PART)


def next_time(wait: Wait, *, job_id: str, created: str) -> datetime:
    """Return the start of the next round. created: the start of the current round. The last round starts when the
    wait ends.

    Each pause is shortened by up to two fifths, by a different amount for each job and round. The different
    pauses keep many jobs from sending their requests at the same time.
    """
    first, longest = pauses(timedelta(seconds=wait.seconds))
    backoff = Backoff(first.total_seconds(), longest.total_seconds())
    for _ in range(min(wait.round, 20)):
        backoff.next()
    drawn = hashlib.sha256(f"{job_id} {wait.round}".encode()).digest()[0] / 255
    # Times in records are whole seconds.
    pause = max(1.0, backoff.next() * (0.6 + 0.4 * drawn))
    return min(need_time(created) + timedelta(seconds=pause), wait.until)


def next_round(file: LaunchFile, *, now: datetime, deadman: timedelta) -> LaunchFile:
    """Return the launch of a new round that begins now. file: the previous round."""
    return as_round(file, file.round + 1, now=now, deadman=deadman)


def as_round(file: LaunchFile, number: int, *, now: datetime, deadman: timedelta) -> LaunchFile:
    """Return round `number` of a launch that waits for capacity, beginning now. The returned launch differs from
    `file` only in the times and the token."""
    if file.wait is None:
        raise ValueError("a launch that does not wait has one round")
    expires = expires_at(now, deadman)
    group = file.security_group
    return replace(
        file,
        request=_expiring(file.request, expires),
        server=None if file.server is None else _expiring(file.server, expires),
        security_group=None if group is None else _expiring(group, expires),
        expires=expires,
        created=tag_time(now),
        wait=replace(file.wait, round=number),
    ).sealed()


def no_capacity(
    file: LaunchFile,
    wait: Wait,
    refusals: Sequence[tuple[Candidate, ErrorClass]],
    *,
    is_cancelled: Callable[[], bool],
) -> CapacityWait:
    """Return the state of the wait for capacity after the round `file`, in which no candidate had
    capacity."""
    tried = "; ".join(f"{named(each, file.candidates)}: {why.sentence}" for each, why in refusals)
    what = f"no zone has room for {type_names(file.candidates)}"
    sentence = f"{what} ({tried})" if tried else "the last round of requests was interrupted"
    codes = "\n".join(f"{each.subnet} {each.type} {each.market} {why.code}" for each, why in refusals)
    return CapacityWait(
        job_id=file.job_id,
        sentence=sentence,
        again=next_time(wait, job_id=file.job_id, created=file.created),
        until=wait.until,
        key=hashlib.sha256(codes.encode()).hexdigest()[:12],
        is_cancelled=is_cancelled,
    )


def plan_sentence(wait: Wait) -> str:
    """Return a launch's wait for capacity as a sentence for the user."""
    whole = timedelta(seconds=wait.seconds)
    first, longest = pauses(whole)
    often = (
        f"after {_rounded(first)}, later every {_rounded(longest)}"
        if first < longest
        else f"every {_rounded(first)}"
    )
    return f"If no zone has capacity, all zones are requested again {often}, for {format_duration(whole)}"


def _rounded(pause: timedelta) -> str:
    return format_duration(timedelta(seconds=max(1, round(pause.total_seconds()))))


def _expiring(request: Mapping[str, Any], expires: str) -> dict[str, Any]:
    """Return `request` with another expiry time in its tags."""
    tagged = [
        {
            **each,
            "Tags": [{**tag, "Value": expires} if tag["Key"] == EXPIRES_TAG else tag for tag in each["Tags"]],
        }
        for each in request["TagSpecifications"]
    ]
    return {**request, "TagSpecifications": tagged}
