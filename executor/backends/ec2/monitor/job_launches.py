"""The launches of a job, as they are recorded: the first one, and those while it runs."""

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
    """A launch after the first one, as it is recorded."""

    number: int
    node: int
    replaces: tuple[int, ...] = ()
    """The lost node in whose place it is; empty if the job was enlarged."""
    begun: datetime
    decided: datetime | None = None
    """None if it has no answer yet."""
    instance: str | None = None
    """Its machine. None if there is none, or none yet."""
    refusal: str = ""
    """Code of EC2's refusal; empty if there is none."""
    lasting: str = ""
    """Reason of a refusal that only a person can change, in a sentence without its dot; empty for others, such as no room."""

    @property
    def is_open(self) -> bool:
        return self.decided is None


@dataclass(frozen=True, kw_only=True)
class JobLaunches:
    """All launches of a job."""

    first: tuple[str, ...] = ()
    """Ids of the first launch's machines, by node."""
    first_nodes: int = 0
    """Nodes that the first one asked for: their numbers are taken."""
    first_decided: datetime | None = None
    later: tuple[KnownLaunch, ...] = ()

    @property
    def nodes(self) -> dict[str, int]:
        """The node of each machine."""
        later = {each.instance: each.node for each in self.later if each.instance is not None}
        return {**{instance: node for node, instance in enumerate(self.first)}, **later}

    @property
    def open_numbers(self) -> Collection[int]:
        return [each.number for each in self.later if each.is_open]

    @property
    def decided_numbers(self) -> Collection[int]:
        """Launches whose machines are known, if the first one's are."""
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
        """Return the machines that EC2 accepted so recently that it may not show them yet."""
        found = {each.instance for each in self.later if each.decided and now - each.decided < CONSISTENT}
        if self.first_decided is not None and now - self.first_decided < CONSISTENT:
            found.update(self.first)
        return {each for each in found if each is not None}


class LaunchReader:
    """Reads the launches of one job repeatedly; what is decided is read only once. All methods raise StoreError, RecordError."""

    def __init__(self, record: JobRecord, attempt: int) -> None:
        self._record, self._attempt = record, attempt
        self._decision: Mapping[str, Any] = {}
        self._first: Mapping[str, Any] | None = None
        self._last: Mapping[str, Any] | None = None
        """The record of the last round of a wait for capacity, if it is decided."""
        self._ended: int | None = None
        """When the first launch went on for the last time, if it is decided (ms UTC by the store's clock)."""
        self._known: dict[int, KnownLaunch] = {}

    @property
    def launch(self) -> Mapping[str, Any] | None:
        """The record of the first launch, of its request only MaxCount; None for machines that were launched by hand, and before it
        is written.

        If the job waits for capacity, it is the record of the latest round.
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
        """The first launch's `launched.json`; an empty table if it is not written yet."""
        if not self._decision:
            self._decision = read_decision(self._record, attempt=self._attempt) or {}
        return self._decision

    def waiting(self) -> str | None:
        """Return the reason and the end of the wait; None if the job does not wait, or its first round is under way."""
        if (self.launch or {}).get("wait") is None or self.decision:
            return None
        told = read_waiting(self._record, attempt=self._attempt)
        until = None if told is None else parse_timestamp(told["until"])
        return (
            None if told is None or until is None else f"{told['sentence']}; until {until:%Y-%m-%d %H:%M} UTC"
        )

    def age(self, now: int) -> timedelta | None:
        """Return the time since the first launch was recorded or last went on; None without a record. now: the store's time (ms UTC)."""
        if (launch := self.launch) is None:
            return None
        if self._ended is not None:
            return elapsed(self._ended, now)
        # Each refusal of a zone, each round of a waiting job, and the decision show that the launch was still going on.
        names = ["launch.json", "refused/", "launched.json"]
        if launch.get("wait") is not None:
            names += ["rounds/", "waiting.json"]
        keys = [attempt_key(self._record, self._attempt, name) for name in names]
        ages = [age_of(self._record.store, key, now) for key in keys]
        age = min((age for age in ages if age is not None), default=timedelta())
        if self.decision:
            # No process works on it any more.
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
        # The request holds the user data, which is most of the record, and a service monitors many jobs.
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
