"""How jobs on EC2 stand, in the words that `bai status` and `bai list` have for every job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any

from bai_agent.errors import BaiError, DescriptorError
from bai_agent.job import Power
from bai_agent.outcome import ExitCode, Status
from bai_agent.store import RecordError
from bai_agent.store.record import JobRecord
from executor.config import Settings
from executor.ec2.cost import price
from executor.ec2.instances import Instance, instances_by_id, instances_of
from executor.ec2.lookout import Lookout
from executor.ec2.session import Aws, aws_of
from executor.ec2.state import Situation, Stage
from executor.follow import events_of
from executor.given import Given
from executor.records import result_of
from executor.standing import (
    ENDING,
    SILENT,
    UNKNOWN,
    UNLAUNCHED,
    Standing,
    created,
    ended_standing,
    unreadable_standing,
)
from executor.state import RunState

_AT_ONCE = 16
"""Jobs that are read side by side: each takes several small requests."""


def lookout_of(record: JobRecord, settings: Settings) -> Lookout:
    """Return who looks after this job."""

    @cache
    def aws(region: str | None) -> Aws:
        return aws_of(settings, region=region)

    return Lookout(record, aws)


def standing_on_ec2(record: JobRecord, given: Given) -> Standing:
    """Return how a job stands, after doing what is due for it. Raises BaiError."""
    result = result_of(record)
    if result is not None:
        kept = kept_machines(record, result, given)
        return replace(ended_standing(record, result), where="ec2", machine=kept)
    lookout = lookout_of(record, given.settings)
    found = lookout.look_after()
    result = result_of(record)
    if result is not None:
        return replace(ended_standing(record, result), where="ec2", machine=found.sentence)
    return _standing(record, found)


def standings_on_ec2(records: Sequence[JobRecord], settings: Settings) -> list[Standing]:
    """Return how jobs stand, with a question or two to EC2 for each region; changes nothing. Raises StoreError."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(_result_or_why, records))
        open_ = [record for record, result in zip(records, results, strict=True) if result is None]
        lookouts = [lookout_of(record, settings) for record in open_]
        regions = list(pool.map(_region, lookouts))
        launched = list(pool.map(_launched_ids, lookouts))
        known: dict[str, list[Instance] | None] = {}
        for region in dict.fromkeys(regions):
            jobs = {
                lookout.record.job_id: ids
                for lookout, its, ids in zip(lookouts, regions, launched, strict=True)
                if its == region
            }
            known.update(_asked(lookouts[0].aws, region, jobs))
        found = dict(
            zip(
                [record.job_id for record in open_],
                pool.map(lambda each: _looked(each, known[each.record.job_id]), lookouts),
                strict=True,
            )
        )
    return [
        found[record.job_id]
        if result is None
        else unreadable_standing(record, result, where="ec2")
        if isinstance(result, RecordError)
        else replace(ended_standing(record, result), where="ec2")
        for record, result in zip(records, results, strict=True)
    ]


def _result_or_why(record: JobRecord) -> dict[str, Any] | RecordError | None:
    try:
        return result_of(record)
    except RecordError as error:
        return error


def _asked(
    aws: Callable[[str | None], Aws], region: str | None, jobs: Mapping[str, Sequence[str]]
) -> dict[str, list[Instance] | None]:
    """Return the instances of these jobs, by job; None for each where EC2 cannot be asked. jobs: the ids of their launches."""
    try:
        ec2 = aws(region).ec2()
        tagged = instances_of(ec2, jobs)
        seen = {each.id for each in tagged}
        untagged = instances_by_id(ec2, [each for ids in jobs.values() for each in ids if each not in seen])
    except BaiError:
        return dict.fromkeys(jobs)
    owners = {each: job_id for job_id, ids in jobs.items() for each in ids}
    found: dict[str, list[Instance] | None] = {each: [] for each in jobs}
    for instance in (*tagged, *untagged):
        mine = found.get(instance.job_id or owners.get(instance.id, ""))
        if mine is not None:
            mine.append(instance)
    return found


def _looked(lookout: Lookout, known: list[Instance] | None) -> Standing:
    try:
        return _standing(lookout.record, lookout.look(known=known, ask=False))
    except (DescriptorError, RecordError) as error:
        return unreadable_standing(lookout.record, error, where="ec2")


def _launched_ids(lookout: Lookout) -> list[str]:
    try:
        return lookout.launched_ids
    except (DescriptorError, RecordError):
        return []


def _region(lookout: Lookout) -> str | None:
    try:
        return lookout.region
    except (DescriptorError, RecordError):
        return None


def _standing(record: JobRecord, found: Situation) -> Standing:
    state = RunState()
    for event in events_of(record):
        state.apply(event)
    verdict = found.verdict
    return Standing(
        job_id=record.job_id,
        status=_status(found, state),
        phase=state.phase or found.stage.value,
        since=state.since,
        started=state.started if state.started is not None else created(record),
        ended=None,
        outcome=verdict.outcome.value if verdict else None,
        exit_code=int(verdict.outcome.exit_code) if verdict else None,
        sentence=verdict.sentence if verdict else None,
        agent_alive=found.stage is Stage.RUNNING if state.agents else None,
        cancelling=record.cancelled(),
        warnings=state.cautions,
        where="ec2",
        machine=found.sentence,
    )


def _status(found: Situation, state: RunState) -> str:
    if found.verdict is not None:
        return found.verdict.outcome.status.value
    if found.stage is Stage.RUNNING:
        # Its agent lives, and the first events are on their way.
        return state.status.value if state.phase is not None else Status.INITIALIZING.value
    words = {
        Stage.SILENT: SILENT,
        Stage.ENDING: ENDING,
        Stage.ABANDONED: UNLAUNCHED,
        Stage.UNKNOWN: UNKNOWN,
    }
    return words.get(found.stage, Status.PENDING.value)


def kept_machines(record: JobRecord, result: Mapping[str, Any], given: Given) -> str | None:
    """Return what is still there of a job that ended with `result` and may keep its machines, until when, and what it costs.

    None where nothing is, or EC2 cannot be asked. Raises StoreError, DescriptorError.
    """
    lookout = lookout_of(record, given.settings)
    end = lookout.job.end
    failed = result.get("exit_code") not in (ExitCode.SUCCEEDED, ExitCode.CANCELLED)
    if end.power is not Power.STAY and (end.keep_on_failure is None or not failed):
        return None
    try:
        there = [each for each in lookout.instances() if each.living]
    except BaiError:
        return None
    if not there:
        return None
    which = f"{', '.join(each.id for each in there)} {'is' if len(there) == 1 else 'are'}"
    first, aws = there[0], lookout.aws(lookout.region)
    hourly, _ = price(
        first.type, given.settings.prices, aws, operation=first.operation, tenancy=first.tenancy
    )
    cost = f", at about {len(there) * hourly:,.4f} USD an hour" if hourly is not None else ""
    if end.keep_on_failure is None:
        return f'{which} still there, as [end] power = "stay" has it{cost}'
    release = f"`{given.command('release', record.job_id)}` lets {'it' if len(there) == 1 else 'them'} go"
    return f"{which} kept to look into{_until(lookout, result, end.keep_on_failure)}{cost}; {release}"


def _until(lookout: Lookout, result: Mapping[str, Any], kept: timedelta) -> str:
    """Return until when a machine is kept: its time begins at the job's end, and no machine outlives its deadline."""
    moments = [lookout.expires] if lookout.expires is not None else []
    if (ended := result.get("ended")) is not None:
        moments.append(datetime.fromtimestamp(int(ended) / 1000, tz=timezone.utc) + kept)
    return f" until {min(moments):%Y-%m-%d %H:%M} UTC" if moments else ""
