"""Tells the user which process monitors a job on EC2 after `bai` has exited, and what the job may cost if no
process monitors the job."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bai_agent.errors import BaiError
from bai_agent.job.record import JobRecord
from bai_agent.job.schema.durations import format_duration
from executor.backends.ec2.clock import span, store_now
from executor.backends.ec2.launch.cost import price
from executor.backends.ec2.launch.launch_record import read_decision, read_launch_table
from executor.backends.ec2.session import aws_session
from executor.backends.ec2.watched_jobs import Look, Looker, last_looks
from executor.configuration.config import Settings
from executor.errors import NextStep

log = logging.getLogger(__name__)

_NAMES = {
    Looker.WATCHER: "the watcher in the account",
    Looker.REAP: "`bai reap`",
    Looker.SERVICE: "`bai serve`",
}


def who_looks(record: JobRecord, settings: Settings) -> tuple[str, NextStep | None] | None:
    """Return a sentence that says which process monitors a running job, with advice if no process does.

    Returns None if the job has ended, or if the store or EC2 cannot be queried.
    """
    try:
        if record.result() is not None:
            return None
        looks = [each for each in last_looks(record.store, store_now(record.store.url)) if each.goes_on]
        if not looks:
            look = NextStep(("status", record.job_id), "checks the job and its machines")
            return _nobody(record, settings), look
        first = looks[0]
        launches = first.kind is not Looker.SERVICE or not record.job().is_elastic
        return look_sentence(first, "the job") + (
            "" if launches else ", without replacing lost machines"
        ), None
    except BaiError as error:
        log.info("it is unknown which process checks %s: %s", record.job_id, error)
        return None


def look_sentence(look: Look, what: str) -> str:
    """Return a sentence that says which process checks `what`, how often, and how long ago its last check
    was."""
    if look.kind is Looker.WATCHER:
        return f"{_NAMES[look.kind]} checks {what} every minute, most recently {span(look.age)} ago"
    every = f"every {format_duration(look.every)}" if look.every else "from time to time"
    return f"{_NAMES[look.kind]} checks {what} {every}, most recently {span(look.age)} ago"


def _hourly(kinds: Sequence[str], region: object, settings: Settings) -> float | None:
    """Return the total price (USD per hour) of machines of these types, one machine per entry of `kinds`; None if
    the price of any type is unknown."""
    if not region or not all(kinds):
        return None
    aws = aws_session(settings, region=str(region))
    prices = {each: price(each, settings.prices, aws)[0] for each in set(kinds)}
    known = [one for each in kinds if (one := prices[each]) is not None]
    return sum(known) if len(known) == len(kinds) else None


def _nobody(record: JobRecord, settings: Settings) -> str:
    launch, decision = read_launch_table(record, attempt=0) or {}, read_decision(record, attempt=0) or {}
    types = [decision.get("type"), *(each.get("type") for each in launch.get("candidates", ()))]
    kind = next((str(each) for each in types if each), str(launch.get("request", {}).get("InstanceType", "")))
    count = len(decision.get("instances", ())) or 1
    server = launch.get("server")
    kinds = [kind, str(server.get("InstanceType"))] if server else [kind] * count
    hourly = _hourly(kinds, launch.get("region"), settings)
    cost = f", at about {hourly:,.4f} USD an hour" if hourly is not None else ""
    lost = ", and lost machines are not replaced" if record.job().is_elastic else ""
    return f"nothing checks the job until you do, so a machine that hangs or never boots stays on{cost}{lost}"
