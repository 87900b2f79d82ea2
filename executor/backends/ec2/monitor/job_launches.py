"""Reads the recorded launches of a job: the first launch, and later launches of single machines while the job
runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from bai_agent.job.launches import LaunchSeen, launches_seen
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import dataclass, replace
from executor.backends.ec2.clock import age_of, elapsed, moment
from executor.backends.ec2.launch.launch_record import (
    EXPIRED,
    attempt_key,
    latest_round,
    read_decision,
    read_launch_table,
    read_waiting,
)
from executor.backends.ec2.monitor.job_observation import CONSISTENT
from executor.backends.ec2.tags import parse_timestamp


@dataclass(frozen=True, kw_only=True)
class KnownLaunch:
    """The record of a launch that came after the job's first launch."""

    number: int
    node: int
    replaces: tuple[int, ...] = ()
    """The lost node that the launch replaces; empty if the job was enlarged."""
    begun: datetime
    decided: datetime | None = None
    """Time of EC2's definite answer; None if EC2 has not answered yet."""
    instance: str | None = None
    """Id of the launch's machine; None if EC2 refused the launch, or has not answered yet."""
    refusal: str = ""
    """Code of EC2's refusal; empty if EC2 has not refused the launch."""
    lasting: str = ""
    """Reason of a refusal that only a user can resolve, as a sentence without a full stop; empty for any other
    refusal, such as no capacity."""

    @property
    def is_open(self) -> bool:
        return self.decided is None


@dataclass(frozen=True, kw_only=True)
class JobLaunches:
    """All launches of a job."""

    first: tuple[str, ...] = ()
    """Ids of the first launch's machines, in the order of their nodes."""
    first_nodes: int = 0
    """Number of nodes that the first launch requested. The nodes of later launches are numbered from
    `first_nodes` on."""
    first_decided: datetime | None = None
    later: tuple[KnownLaunch, ...] = ()

    @property
    def nodes(self) -> dict[str, int]:
        """Instance id → number of its node."""
        later = {each.instance: each.node for each in self.later if each.instance is not None}
        return {**{instance: node for node, instance in enumerate(self.first)}, **later}

    @property
    def open_numbers(self) -> Collection[int]:
        return [each.number for each in self.later if each.is_open]

    @property
    def decided_numbers(self) -> Collection[int]:
        """Numbers of the launches whose machines are known. The first launch is always included, so the
        caller must know the first launch's machines."""
        return [0, *(each.number for each in self.later if not each.is_open)]

    @property
    def next_node(self) -> int:
        return max((self.first_nodes, *(each.node + 1 for each in self.later)))

    @property
    def next_number(self) -> int:
        return max((1, *(each.number + 1 for each in self.later)))

    @property
    def replaced(self) -> set[int]:
        """Lost nodes with a launched or requested replacement."""
        return {node for each in self.later if not each.refusal for node in each.replaces}

    def shown_late(self, now: datetime) -> set[str]:
        """Return the ids of machines that EC2 launched so recently that EC2 may not show the machines yet."""
        found = {each.instance for each in self.later if each.decided and now - each.decided < CONSISTENT}
        if self.first_decided is not None and now - self.first_decided < CONSISTENT:
            found.update(self.first)
        return {each for each in found if each is not None}


class LaunchReader:
    """Reads the launches of one job repeatedly. A launch is read only once after its result is known. All methods
    raise StoreError, RecordError."""

    def __init__(self, record: JobRecord, attempt: int) -> None:
        self._record, self._attempt = record, attempt
        self._decision: Mapping[str, Any] = {}
        self._first: Mapping[str, Any] | None = None
        self._last: Mapping[str, Any] | None = None
        """Record of the last round of the wait for capacity; None until the launch's result is known."""
        self._ended: int | None = None
        """Time of the first launch's last recorded step (ms UTC by the store's clock), if the launch's result
        is known."""
        self._known: dict[int, KnownLaunch] = {}

    @property
    def launch(self) -> Mapping[str, Any] | None:
        """The record of the first launch; None before the record is written, and if a user launched the machines by
        hand. The record's request contains only MaxCount.

        If the job waits for capacity, the latest round's record is returned.
        """
        if self._last is not None:
            return self._last
        if self._first is None:
            self._first = self._read_round(0)
        if self._first is None or self._first.get("wait") is None:
            return self._first
        decided = bool(self.decision)
        latest = self._read_round(latest_round(self._record, attempt=self._attempt)) or self._first
        if decided:
            self._last = latest
        return latest

    @property
    def decision(self) -> Mapping[str, Any]:
        """The first launch's `launched.json`; an empty table if the file is not written yet."""
        if not self._decision:
            self._decision = read_decision(self._record, attempt=self._attempt) or {}
        return self._decision

    def waiting(self) -> str | None:
        """Return the reason and the end of the job's wait for capacity; None if the job does not wait, or if the
        wait's first round is still in progress."""
        if (self.launch or {}).get("wait") is None or self.decision:
            return None
        told = read_waiting(self._record, attempt=self._attempt)
        until = None if told is None else parse_timestamp(told["until"])
        return (
            None if told is None or until is None else f"{told['sentence']}; until {until:%Y-%m-%d %H:%M} UTC"
        )

    def age(self, now: int) -> timedelta | None:
        """Return the time since the first launch's last recorded step; None if the launch has no record. now:
        the store's time (ms UTC)."""
        if (launch := self.launch) is None:
            return None
        if self._ended is not None:
            return elapsed(self._ended, now)
        # The submitter was still working at the launch when it wrote a refusal of a zone, a round of the wait
        # for capacity, or the launch's result.
        names = ["launch.json", "refused/", "launched.json"]
        if launch.get("wait") is not None:
            names += ["rounds/", "waiting.json"]
        keys = [attempt_key(self._record, self._attempt, name) for name in names]
        ages = [age_of(self._record.store, key, now) for key in keys]
        age = min((age for age in ages if age is not None), default=timedelta())
        if self.decision:
            # No process works on this launch any more.
            self._ended = now - age // timedelta(milliseconds=1)
        return age

    def read(self) -> JobLaunches:
        """Return all launches."""
        seen = {each.number: each for each in launches_seen(self._record, self._attempt)}
        first = self._read_first(seen.pop(0, None))
        for number, each in seen.items():
            if number not in self._known or self._known[number].is_open:
                self._known[number] = self._read_later(each)
        return replace(first, later=tuple(self._known[number] for number in sorted(seen)))

    def _read_round(self, number: int) -> Mapping[str, Any] | None:
        table = read_launch_table(self._record, attempt=self._attempt, number=number)
        if table is None:
            return None
        # Only MaxCount of the request is cached. The request contains the user data, which is most of the
        # record, and a benchmark service monitors many jobs.
        return {**table, "request": {"MaxCount": table["request"].get("MaxCount", 0)}}

    def _read_first(self, seen: LaunchSeen | None) -> JobLaunches:
        if seen is None or seen.decided is None:
            return JobLaunches()
        return JobLaunches(
            first=tuple(self.decision.get("instances", ())),
            first_nodes=int((self.launch or {}).get("request", {}).get("MaxCount", 0)),
            first_decided=moment(seen.decided),
        )

    def _read_later(self, seen: LaunchSeen) -> KnownLaunch:
        record, attempt, number = self._record, self._attempt, seen.number
        table: Mapping[str, Any] = read_launch_table(record, attempt=attempt, launch=number) or {}
        begun = KnownLaunch(
            number=number,
            node=table.get("first_node", 0),
            replaces=tuple(table.get("replaces", ())),
            begun=moment(seen.begun),
        )
        decision = read_decision(record, attempt=attempt, launch=number) if seen.is_decided else None
        if decision is None or seen.decided is None:
            return begun
        if instances := decision["instances"]:
            return replace(begun, decided=moment(seen.decided), instance=instances[0])
        error = decision.get("error") or {}
        code = str(error.get("code") or "refused")
        is_lasting = decision["outcome"] == Outcome.LAUNCH_FAILED.value and code != EXPIRED
        lasting = str(error.get("message") or decision["sentence"]).removesuffix(".") if is_lasting else ""
        return replace(begun, decided=moment(seen.decided), refusal=code, lasting=lasting)
