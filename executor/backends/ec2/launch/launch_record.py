"""Reads, validates and writes the records of a launch in the store: `launch.json`, `refused/<k>.json` and
`launched.json` of an attempt.

`launch.json` is the request to EC2, written once, before the request is sent for the first time. A launch
that waits for capacity also has `rounds/<k>/launch.json`, `rounds/<k>/refused/<n>.json` and `waiting.json`.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Annotated, Any

from bai_agent import __version__
from bai_agent.decode import Rule, checked, wrong_value
from bai_agent.errors import RecordError, StoreError
from bai_agent.job.generation_records import Nodes
from bai_agent.job.launches import launch_key
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import Count, Text, Texts
from bai_agent.light_dataclass import asdict, dataclass, field, fields, replace
from executor.backends.ec2.launch.resolve import Candidate
from executor.backends.ec2.tags import need_time, parse_timestamp, tag_time

VERSION = 1
"""Version of `launch.json`."""
LAUNCH_WINDOW = timedelta(minutes=30)
"""Time after a job's submission within which the job may be launched. Within this window, each of six zones can be
requested for five minutes."""

EXPIRED = "Expired"
"""Refusal code of an interrupted launch whose request is now too old to be sent."""
_ROUND = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
"""Name of a round's folder."""


def expires_at(start: datetime, deadman: timedelta) -> str:
    """Return the time by which a machine submitted at `start` must be gone, in the format of tags.

    The machine may be launched within LAUNCH_WINDOW, and may run for the whole of `deadman` after the launch.
    """
    return tag_time(start + LAUNCH_WINDOW + deadman)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A job's wait for capacity, and its current round."""

    seconds: int
    since: str
    """Time of the job's submission, in the format of tags."""
    round: int = 0

    @property
    def until(self) -> datetime:
        return need_time(self.since) + timedelta(seconds=self.seconds)


@dataclass(frozen=True, kw_only=True)
class LaunchFile:
    """The content of `launch.json`: everything that is needed to repeat the launch. Times are UTC, in the
    format of tags."""

    job_id: str
    attempt: int
    region: str
    candidates: tuple[Candidate, ...]
    request: Mapping[str, Any]
    """Parameters of RunInstances without subnet and token; UserData is base64. Each candidate sets its own
    type and market."""
    expires: str
    created: str
    server: Mapping[str, Any] | None = None
    """Parameters of RunInstances in which the request for the job's server differs from `request`; None if
    the job has no server."""
    security_group: Mapping[str, Any] | None = None
    """Parameters of CreateSecurityGroup; None if no group is created for the job."""
    boot_limit: int | None = None
    """Time within which a machine writes a heartbeat or powers itself off (seconds)."""
    wait: Wait | None = None
    """The job's wait for capacity; None if the job does not wait for capacity."""
    number: int = 0
    """Number of the launch; 0 for the launch at the job's start."""
    first_node: int = 0
    """Number of the node on the machine with index 0."""
    replaces: tuple[int, ...] = ()
    """Lost nodes that the machines of this launch replace."""
    token: str = ""
    """Checksum of all other fields of the record. A repeated submission recognises its own launch by the checksum;
    see `sealed`."""
    bai: str = __version__
    """Version of `bai` that wrote the file. Another version of `bai` may render the same job differently."""
    version: int = VERSION

    def sealed(self) -> LaunchFile:
        """Return this launch with its token, the checksum of all other fields."""
        table = json.dumps(self.as_table() | {"token": ""}, sort_keys=True)
        return replace(self, token=hashlib.sha256(table.encode()).hexdigest())

    def as_table(self) -> dict[str, Any]:
        """Return the launch as JSON values."""
        table = asdict(self)
        table["candidates"] = [candidate_table(each) for each in self.candidates]
        for name in ("server", "security_group", "wait"):
            if table[name] is None:
                del table[name]
        for name in ("number", "first_node", "replaces") if self.number == 0 else ():
            del table[name]
        return table

    @property
    def begun(self) -> datetime:
        return need_time(self.created)

    @property
    def ends(self) -> datetime:
        """Time by which the launch's machines must be gone."""
        return need_time(self.expires)

    @property
    def round(self) -> int:
        return 0 if self.wait is None else self.wait.round


def candidate_table(candidate: Candidate) -> dict[str, str]:
    """Return a candidate as JSON values."""
    where = {"subnet": candidate.subnet, "az": candidate.zone}
    what = {"type": candidate.type, "market": candidate.market}
    return {**where, **{key: value for key, value in what.items() if value}}


def write_launch(record: JobRecord, file: LaunchFile) -> LaunchFile:
    """Write `launch.json` unless it exists; return the stored launch."""
    content = json.dumps(file.as_table(), ensure_ascii=False).encode() + b"\n"
    key = round_key(record, file.attempt, file.round, "launch.json", launch=file.number)
    if record.store.put(key, content, if_absent=True):
        return file
    found = read_launch(record, attempt=file.attempt, number=file.round, launch=file.number)
    if found is None:
        raise StoreError(f"{record.store.url}/{key} was deleted during the read")
    return found


def read_latest_round(record: JobRecord, file: LaunchFile) -> LaunchFile:
    """Return the latest round of the launch that began with `file`. Raises StoreError, RecordError."""
    if file.wait is None or (number := latest_round(record, attempt=file.attempt)) == 0:
        return file
    return read_launch(record, attempt=file.attempt, number=number) or file


def read_launch(
    record: JobRecord, *, attempt: int = 0, number: int = 0, launch: int = 0
) -> LaunchFile | None:
    """Return the content of `launch.json`, or None. Raises StoreError, RecordError. number: number of the
    round. launch: number of the launch."""
    table = read_launch_table(record, attempt=attempt, number=number, launch=launch)
    if table is None:
        return None
    if table.get("wait") is not None:
        table["wait"] = Wait(**{each.name: table["wait"][each.name] for each in fields(Wait)})
    table["replaces"] = tuple(table.get("replaces", ()))
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


def read_decision(record: JobRecord, *, attempt: int, launch: int = 0) -> dict[str, Any] | None:
    """Return the content of `launched.json`: the instances, or no instances and the reason of the refusal; None if
    the file does not exist yet. Raises StoreError, RecordError."""
    key = launch_key(record, attempt, launch, "launched.json")
    table = _read(record, key, _Decision)
    if table is not None and not table["instances"]:
        checked(_DecidedAgainst, table, where=f"{record.store.url}/{key}")
    return table


def read_waiting(record: JobRecord, *, attempt: int) -> dict[str, Any] | None:
    """Return `waiting.json`, which is only shown to users, or None. Raises StoreError, RecordError."""
    return _read(record, attempt_key(record, attempt, "waiting.json"), _Waiting)


def read_refusal(
    record: JobRecord, candidate: int, *, attempt: int, number: int = 0, launch: int = 0
) -> dict[str, Any] | None:
    """Return a candidate's refusal in round `number`, or None. Raises StoreError, RecordError."""
    return _read(
        record, round_key(record, attempt, number, f"refused/{candidate}.json", launch=launch), _Refusal
    )


def _read(record: JobRecord, key: str, form: type[Any]) -> dict[str, Any] | None:
    """Return the object `key` as an instance of the dataclass `form`; None if there is no such object."""
    table = record.read_object(key)
    if table is not None:
        checked(form, table, where=f"{record.store.url}/{key}")
    return table


def attempt_key(record: JobRecord, attempt: int, name: str) -> str:
    """Return the key of an attempt's object `name`."""
    return record.key(f"attempts/{attempt}/{name}")


def round_key(record: JobRecord, attempt: int, number: int, name: str, *, launch: int = 0) -> str:
    """Return the key of an object `name` of a round. Objects of the first round are in the launch's own
    folder."""
    return launch_key(record, attempt, launch, name if number == 0 else f"rounds/{number}/{name}")


_Timestamp = Annotated[
    str, Rule('a time such as "2026-11-20T22:00:00Z"', check=lambda value: parse_timestamp(value) is not None)
]


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    subnet: Text
    az: Text
    type: Text | None = None
    market: Text | None = None


@dataclass(frozen=True, kw_only=True)
class _Group:
    GroupName: Text
    Description: Text
    VpcId: Text
    TagSpecifications: Annotated[list[dict[str, Any]], Rule("a list that is not empty", check=bool)]


@dataclass(frozen=True, kw_only=True)
class _Wait:
    seconds: Annotated[int, Rule("a time in seconds", 1, 2**31)]
    since: _Timestamp
    round: Count


@dataclass(frozen=True, kw_only=True)
class _Launch:
    attempt: Count
    region: Text
    candidates: Annotated[list[_Candidate], Rule("a list that is not empty", check=bool)]
    request: dict[str, Any]
    server: dict[str, Any] | None = None
    security_group: _Group | None = None
    token: Text
    expires: _Timestamp
    created: _Timestamp
    boot_limit: Annotated[int, Rule("a time in seconds", 0, 2**31)] | None = None
    wait: _Wait | None = None
    number: Count = 0
    first_node: Count = 0
    replaces: Nodes = field(default_factory=list)
    bai: Text | None = None


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    sentence: Text
    until: _Timestamp


@dataclass(frozen=True, kw_only=True)
class _Refusal:
    outcome: Outcome
    code: Text
    sentence: Text


@dataclass(frozen=True, kw_only=True)
class _Decision:
    instances: Texts
    first_node: Count = 0
    replaces: Nodes = field(default_factory=list)
    subnet: Text | None = None
    az: Text | None = None
    type: Text | None = None
    market: Text | None = None


@dataclass(frozen=True, kw_only=True)
class _DecidedAgainst:
    outcome: Outcome
    sentence: Text


def latest_round(record: JobRecord, *, attempt: int) -> int:
    """Return the number of the latest round of a launch that waits for capacity; 0 if there is only the first
    round. Raises StoreError.

    Rounds are numbered without gaps. An instance may create folders of any name among the rounds, but the
    instance's policy does not allow it to write a `launch.json` there.
    """
    names = record.store.folders(attempt_key(record, attempt, "rounds/"))
    numbers = {int(each) for each in names if _ROUND.fullmatch(each)}
    last = next(number for number in count(1) if number not in numbers) - 1
    if last == 0 or _has_round(record, attempt, last):
        return last
    return bisect_left(range(1, last), True, key=lambda number: not _has_round(record, attempt, number))


def _has_round(record: JobRecord, attempt: int, number: int) -> bool:
    key = round_key(record, attempt, number, "launch.json")
    return any(each.key == key for each in record.store.find(key))


def read_launch_table(
    record: JobRecord, *, attempt: int, number: int = 0, launch: int = 0
) -> dict[str, Any] | None:
    """Return the recorded request to EC2, or None if the request is not recorded yet. Raises StoreError,
    RecordError. number: number of the round, if the launch waits for capacity. launch: number of the launch.
    """
    key = round_key(record, attempt, number, "launch.json", launch=launch)
    table = record.read_object(key)
    if table is None:
        return None
    where = f"{record.store.url}/{key}"
    version = table.get("version")
    if type(version) is int and version != VERSION:
        raise RecordError(
            f"{where}: version {version} of a launch; this `bai` reads version {VERSION}. Use the version of `bai` that wrote the launch"
        )
    for name, expected in (("version", VERSION), ("job_id", record.job_id)):
        if (found := table.get(name)) != expected or type(found) is bool:
            raise wrong_value(f"{where}: {name}", json.dumps(expected), found)
    checked(_Launch, table, where=where)
    return table
