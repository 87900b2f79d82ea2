"""What stands in the store about a launch, checked: `launch.json`, `refused/<k>.json` and `launched.json` of an attempt."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.store import RecordError
from executor.backends.ec2.timestamps import parse_moment
from executor.records.reading import (
    COUNT,
    TEXT,
    Kind,
    check,
    list_of,
    one_of,
    or_null,
    read_checked,
    table_of,
)

VERSION = 1
"""Of `launch.json`."""
LAUNCH_WINDOW = timedelta(minutes=30)
"""How long after its submission a job may still be launched: enough to ask each of six zones for five minutes."""

_MOMENT = Kind(
    'a moment such as "2026-11-20T22:00:00Z"',
    lambda value: type(value) is str and parse_moment(value) is not None,
)
_SPAN = Kind("a time in seconds", lambda value: type(value) is int and 0 <= value < 2**31)
_PLACE = table_of(subnet=TEXT, az=TEXT)
_LAUNCH = table_of(
    attempt=COUNT,
    region=TEXT,
    candidates=Kind("a list of places", lambda value: type(value) is list and bool(value)),
    request=table_of(),
    token=TEXT,
    expires=_MOMENT,
    created=_MOMENT,
    boot_limit=or_null(_SPAN),
    bai=or_null(TEXT),
)
_OUTCOME = one_of(*(each.value for each in Outcome))
_REFUSAL = table_of(outcome=_OUTCOME, code=TEXT, sentence=TEXT)
_DECISION = table_of(instances=list_of(TEXT), subnet=or_null(TEXT), az=or_null(TEXT))
_DECIDED_AGAINST = table_of(outcome=_OUTCOME, sentence=TEXT)


def read_launch_table(record: JobRecord, *, attempt: int) -> dict[str, Any] | None:
    """Return what was to be asked of EC2, or None where that is not written yet. Raises StoreError, RecordError."""
    key = attempt_key(record, attempt, "launch.json")
    table = record.read_object(key)
    if table is None:
        return None
    where = f"{record.store.url}/{key}"
    version = table.get("version")
    if type(version) is int and version != VERSION:
        raise RecordError(
            f"{where}: version {version} of a launch; this `bai` reads version {VERSION}. Use the one that wrote it"
        )
    check(table, table_of(version=one_of(VERSION), job_id=one_of(record.job_id)), where=where)
    check(table, _LAUNCH, where=where)
    for number, each in enumerate(table["candidates"]):
        check(each, _PLACE, where=where, key=f"candidates[{number}]")
    return table


def read_decision(record: JobRecord, *, attempt: int) -> dict[str, Any] | None:
    """Return what `launched.json` says: instances, or none and why; None where that is open. Raises StoreError, RecordError."""
    key = attempt_key(record, attempt, "launched.json")
    table = read_checked(record, key, _DECISION)
    if table is not None and not table["instances"]:
        check(table, _DECIDED_AGAINST, where=f"{record.store.url}/{key}")
    return table


def read_refusal(record: JobRecord, number: int, *, attempt: int) -> dict[str, Any] | None:
    """Return how candidate `number` was refused, or None where it was not. Raises StoreError, RecordError."""
    return read_checked(record, attempt_key(record, attempt, f"refused/{number}.json"), _REFUSAL)


def attempt_key(record: JobRecord, attempt: int, name: str) -> str:
    """Return the key of an attempt's object `name`."""
    return record.key(f"attempts/{attempt}/{name}")
