"""The launches of a job after its first launch. A later launch replaces lost machines or adds nodes.

    launches/<k>/launch.json      the request, written once, before it is sent for the first time; k counts from 1
    launches/<k>/launched.json    its machines, or the refusal

The machine with index i in a launch is node `first_node` + i. The number of a lost node is never used again. The
objects of the first launch are `launch.json` and `launched.json`, without a folder. An instance's policy does not
allow the instance to write any of these objects. Objects with other names are ignored, because a `*` in an
instance's policy also matches slashes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bai_agent.decode import checked
from bai_agent.job.generation_records import Nodes
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import Count, Texts
from bai_agent.light_dataclass import dataclass, field

_NAME = re.compile(r"(?:launches/([1-9][0-9]{0,5})/)?(launch|launched)\.json", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class LaunchedMachines:
    """The keys of `launched.json` that say which node each machine is."""

    instances: Texts = field(default_factory=list)
    """Ids of the instances, in the order of the node numbers; empty if EC2 refused the launch."""
    first_node: Count = 0
    replaces: Nodes = field(default_factory=list)
    """Numbers of lost nodes in whose place the machines were launched."""

    @property
    def by_node(self) -> dict[int, str]:
        """Id of the machine of each node."""
        return dict(enumerate(self.instances, self.first_node))


@dataclass(frozen=True, kw_only=True)
class JobMachines:
    """The machines of all launches of a job."""

    by_node: Mapping[int, str]
    is_first_known: bool
    """Whether `by_node` contains the machines of the first launch."""

    def has(self, node: int, instance_id: str | None, *, first: int) -> bool:
        """Return whether the machine `instance_id` may be the node `node` of the job, according to the recorded
        launches. first: number of nodes of the first launch."""
        if not self.is_first_known and node < first:
            return True
        return instance_id is not None and self.by_node.get(node) == instance_id


@dataclass(frozen=True, kw_only=True)
class LaunchSeen:
    """Times of the objects `launch.json` and `launched.json` of one launch."""

    number: int
    begun: int
    """Time at which the launch was begun (ms UTC, the store's clock)."""
    decided: int | None
    """Time at which the launch's result was recorded (ms UTC, the store's clock). None if no result is recorded
    yet."""

    @property
    def is_decided(self) -> bool:
        return self.decided is not None


def launch_key(record: JobRecord, attempt: int, number: int, name: str) -> str:
    """Return the key of the object `name` of a launch."""
    place = f"launches/{number}/" if number else ""
    return record.key(f"attempts/{attempt}/{place}{name}")


def launches_seen(record: JobRecord, attempt: int) -> list[LaunchSeen]:
    """Return all launches that have a `launch.json`, in the order of their numbers. One request finds all launches.
    Raises StoreError."""
    folder = record.key(f"attempts/{attempt}/")
    objects = record.store.find(f"{folder}launch")
    found: dict[int, dict[str, int]] = {}
    for each in objects:
        if name := _NAME.fullmatch(each.key.removeprefix(folder)):
            found.setdefault(int(name[1] or 0), {})[name[2]] = each.modified or 0
    return [
        LaunchSeen(number=number, begun=times["launch"], decided=times.get("launched"))
        for number, times in sorted(found.items())
        if "launch" in times
    ]


def launched_machines(record: JobRecord, attempt: int, number: int) -> LaunchedMachines | None:
    """Return the machines of a launch; None if the launch has no result yet. Raises StoreError,
    RecordError."""
    key = launch_key(record, attempt, number, "launched.json")
    table = record.read_object(key)
    return None if table is None else read_launched(table, where=f"{record.store.url}/{key}")


def read_launched(table: Mapping[str, Any], *, where: str) -> LaunchedMachines:
    """Return the machines of a `launched.json`. Raises RecordError."""
    return checked(LaunchedMachines, table, where=where)


def job_machines(record: JobRecord, attempt: int) -> JobMachines | None:
    """Return the machines of all launches, as far as the machines are recorded; None if no launch is
    recorded. Raises StoreError, RecordError."""
    seen = launches_seen(record, attempt)
    if not seen:
        return None
    decided = {
        each.number: launched_machines(record, attempt, each.number) for each in seen if each.is_decided
    }
    by_node = {
        node: instance
        for each in decided.values()
        if each is not None
        for node, instance in each.by_node.items()
    }
    return JobMachines(by_node=by_node, is_first_known=0 in decided)
