"""What is to be asked of EC2 for a job: `launch.json`, written once, before it is asked for the first time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

from bai_agent import __version__
from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord
from executor.backends.ec2.launch.launch_record import VERSION, latest_round, read_launch_table, round_key
from executor.backends.ec2.launch.placement import Candidate
from executor.backends.ec2.timestamps import parse_timestamp


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
