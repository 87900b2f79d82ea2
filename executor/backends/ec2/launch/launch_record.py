"""What stands in the store about a launch, validated: `launch.json`, `refused/<k>.json` and `launched.json` of an attempt.

Of a launch that waits for capacity also `rounds/<k>/launch.json`, `rounds/<k>/refused/<n>.json` and `waiting.json`.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired, TypedDict

from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import Count, Rule, Text, Texts
from bai_agent.job.store import RecordError
from executor.backends.ec2.timestamps import parse_timestamp
from executor.records.reading import validated, wrong_value

VERSION = 1
"""Of `launch.json`."""
LAUNCH_WINDOW = timedelta(minutes=30)
"""How long after its submission a job may still be launched: enough to ask each of six zones for five minutes."""


def _timestamp(value: Any) -> Any:
    if type(value) is not str or parse_timestamp(value) is None:
        raise PydanticCustomError("record", 'expected a time such as "2026-11-20T22:00:00Z"')
    return value


_Timestamp = Annotated[Any, AfterValidator(_timestamp)]


class _Candidate(TypedDict):
    subnet: Text
    az: Text
    type: NotRequired[Text | None]
    market: NotRequired[Text | None]


class _Group(TypedDict):
    GroupName: Text
    Description: Text
    VpcId: Text
    TagSpecifications: Annotated[list[dict[str, Any]], Field(min_length=1)]


class _Wait(TypedDict):
    seconds: Annotated[int, Rule("a time in seconds", 1, 2**31)]
    since: _Timestamp
    round: Count


class _Launch(TypedDict):
    attempt: Count
    region: Text
    candidates: Annotated[list[_Candidate], Field(min_length=1)]
    request: dict[str, Any]
    security_group: NotRequired[_Group | None]
    token: Text
    expires: _Timestamp
    created: _Timestamp
    boot_limit: NotRequired[Annotated[int, Rule("a time in seconds", 0, 2**31)] | None]
    wait: NotRequired[_Wait | None]
    bai: NotRequired[Text | None]


class _Waiting(TypedDict):
    sentence: Text
    until: _Timestamp


class _Refusal(TypedDict):
    outcome: Outcome
    code: Text
    sentence: Text


class _Decision(TypedDict):
    instances: Texts
    subnet: NotRequired[Text | None]
    az: NotRequired[Text | None]
    type: NotRequired[Text | None]
    market: NotRequired[Text | None]


class _DecidedAgainst(TypedDict):
    outcome: Outcome
    sentence: Text


def read_launch_table(record: JobRecord, *, attempt: int, number: int = 0) -> dict[str, Any] | None:
    """Return what was to be asked of EC2, or None where that is not written yet. Raises StoreError, RecordError.

    number: of the round, where the launch waits for capacity.
    """
    key = round_key(record, attempt, number, "launch.json")
    table = record.read_object(key)
    if table is None:
        return None
    where = f"{record.store.url}/{key}"
    version = table.get("version")
    if type(version) is int and version != VERSION:
        raise RecordError(
            f"{where}: version {version} of a launch; this `bai` reads version {VERSION}. Use the one that wrote it"
        )
    for name, expected in (("version", VERSION), ("job_id", record.job_id)):
        if (found := table.get(name)) != expected or type(found) is bool:
            raise wrong_value(f"{where}: {name}", f"expected {json.dumps(expected)}", found)
    validated(_Launch, table, where=where)
    return table


def read_decision(record: JobRecord, *, attempt: int) -> dict[str, Any] | None:
    """Return what `launched.json` says: instances, or none and why; None where that is open. Raises StoreError, RecordError."""
    key = attempt_key(record, attempt, "launched.json")
    table = record.read_object(key)
    if table is not None:
        where = f"{record.store.url}/{key}"
        validated(_Decision, table, where=where)
        if not table["instances"]:
            validated(_DecidedAgainst, table, where=where)
    return table


def latest_round(record: JobRecord, *, attempt: int) -> int:
    """Return the number of the round that was begun last, of a launch that waits for capacity. Raises StoreError."""
    there = record.store.folders(attempt_key(record, attempt, "rounds/"))
    return max((int(each) for each in there if each.isdecimal()), default=0)


def read_waiting(record: JobRecord, *, attempt: int) -> dict[str, Any] | None:
    """Return what `waiting.json` says for people, or None where there is none. Raises StoreError, RecordError."""
    key = attempt_key(record, attempt, "waiting.json")
    table = record.read_object(key)
    if table is not None:
        validated(_Waiting, table, where=f"{record.store.url}/{key}")
    return table


def read_refusal(
    record: JobRecord, candidate: int, *, attempt: int, number: int = 0
) -> dict[str, Any] | None:
    """Return how a candidate was refused in round `number`, or None where it was not. Raises StoreError, RecordError."""
    key = round_key(record, attempt, number, f"refused/{candidate}.json")
    table = record.read_object(key)
    if table is not None:
        validated(_Refusal, table, where=f"{record.store.url}/{key}")
    return table


def attempt_key(record: JobRecord, attempt: int, name: str) -> str:
    """Return the key of an attempt's object `name`."""
    return record.key(f"attempts/{attempt}/{name}")


def round_key(record: JobRecord, attempt: int, number: int, name: str) -> str:
    """Return the key of an object `name` of one round; the first round's are the attempt's own."""
    return attempt_key(record, attempt, name if number == 0 else f"rounds/{number}/{name}")
