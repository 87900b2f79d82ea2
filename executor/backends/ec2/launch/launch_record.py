"""What stands in the store about a launch, validated: `launch.json`, `refused/<k>.json` and `launched.json` of an attempt.

`launch.json` is what is to be asked of EC2, written once, before it is asked for the first time. Of a launch that waits for
capacity there are also `rounds/<k>/launch.json`, `rounds/<k>/refused/<n>.json` and `waiting.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired, TypedDict

from bai_agent import __version__
from bai_agent.errors import StoreError
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import Count, Rule, Text, Texts
from bai_agent.job.store import RecordError
from executor.backends.ec2.launch.resolve import Candidate
from executor.backends.ec2.tags import parse_timestamp
from executor.records.reading import validated, wrong_value

VERSION = 1
"""Of `launch.json`."""
LAUNCH_WINDOW = timedelta(minutes=30)
"""How long after its submission a job may still be launched: enough to ask each of six zones for five minutes."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """For how long a job waits for capacity, and in which round it is."""

    seconds: int
    since: str
    """The time of its submission, as in tags."""
    round: int = 0

    @property
    def until(self) -> datetime:
        begun = parse_timestamp(self.since)
        if begun is None:
            raise ValueError(f"{self.since} is not a time")
        return begun + timedelta(seconds=self.seconds)


@dataclass(frozen=True, kw_only=True)
class LaunchFile:
    """`launch.json`: all that a repeated launch needs. Times are UTC, as in tags."""

    job_id: str
    attempt: int
    region: str
    candidates: tuple[Candidate, ...]
    request: Mapping[str, Any]
    """RunInstances' parameters without subnet and token; UserData is base64. Type and market are as each candidate says."""
    expires: str
    created: str
    security_group: Mapping[str, Any] | None = None
    """CreateSecurityGroup's parameters, where the machines are in a group of their own."""
    boot_limit: int | None = None
    """Seconds after which a machine has given a sign of life, or has ended by itself."""
    wait: Wait | None = None
    """For how long the job waits for capacity, and in which round it is; None where it does not."""
    token: str = ""
    """Made of all the rest, so that a repeat can tell whether it is this launch's own; see `sealed`."""
    bai: str = __version__
    """The version of `bai` that wrote it; another one may render the same job differently."""
    version: int = VERSION

    def sealed(self) -> LaunchFile:
        """Return this launch with its token."""
        table = json.dumps(self.as_table() | {"token": ""}, sort_keys=True)
        return replace(self, token=hashlib.sha256(table.encode()).hexdigest())

    def as_table(self) -> dict[str, Any]:
        """Return it as JSON values."""
        table = asdict(self)
        table["candidates"] = [candidate_table(each) for each in self.candidates]
        for name in ("security_group", "wait"):
            if table[name] is None:
                del table[name]
        return table

    @property
    def round(self) -> int:
        return 0 if self.wait is None else self.wait.round


def candidate_table(candidate: Candidate) -> dict[str, str]:
    """Return a candidate as JSON values."""
    where = {"subnet": candidate.subnet, "az": candidate.zone}
    what = {"type": candidate.type, "market": candidate.market}
    return {**where, **{key: value for key, value in what.items() if value}}


def write_launch(record: JobRecord, file: LaunchFile) -> LaunchFile:
    """Write `launch.json` unless there is one; return what stands there."""
    content = json.dumps(file.as_table(), ensure_ascii=False).encode() + b"\n"
    key = round_key(record, file.attempt, file.round, "launch.json")
    if record.store.put(key, content, if_absent=True):
        return file
    found = read_launch(record, attempt=file.attempt, number=file.round)
    if found is None:
        raise StoreError(f"{record.store.url}/{key} went away while it was read")
    return found


def read_latest_round(record: JobRecord, file: LaunchFile) -> LaunchFile:
    """Return the round that was begun last, of the launch that began with `file`. Raises StoreError, RecordError."""
    if file.wait is None or (number := latest_round(record, attempt=file.attempt)) == 0:
        return file
    return read_launch(record, attempt=file.attempt, number=number) or file


def read_launch(record: JobRecord, *, attempt: int = 0, number: int = 0) -> LaunchFile | None:
    """Return what `launch.json` holds, or None. Raises StoreError, RecordError. number: of the round."""
    table = read_launch_table(record, attempt=attempt, number=number)
    if table is None:
        return None
    if table.get("wait") is not None:
        table["wait"] = Wait(**{each.name: table["wait"][each.name] for each in fields(Wait)})
    table["candidates"] = tuple(
        Candidate(
            subnet=each["subnet"],
            zone=each["az"],
            type=each.get("type") or "",
            market=each.get("market") or "",
        )
        for each in table["candidates"]
    )
    return LaunchFile(
        **{"bai": "", **{each.name: table[each.name] for each in fields(LaunchFile) if each.name in table}}
    )


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


def latest_round(record: JobRecord, *, attempt: int) -> int:
    """Return the number of the round that was begun last, of a launch that waits for capacity. Raises StoreError."""
    there = record.store.folders(attempt_key(record, attempt, "rounds/"))
    return max((int(each) for each in there if each.isdecimal()), default=0)


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
