"""Reads and writes the record of a group of jobs in a store: the group's plan, and the ledger of the starts
of its jobs.

```
<group>/group.json         the request, and the jobs in the order in which they start: written once
<group>/starts/<n>.json    the n-th decision: a job may start, with its maximum cost, or was refused; written once, in order
<group>/max_cost.json      a higher max_cost than the plan's, if the user has raised it
<group>/cancel.json        no further job starts
```
Each decision depends on all earlier decisions. A conditional put adds a decision to the ledger as the next
entry, or fails if another process has already added that entry. So several `bai` processes that run the same
group at once neither exceed the group's bounds nor start a job twice. A killed process leaves nothing to
repair, because a job's id is known before the job starts. A second start with the same id does not start a
second job.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent.decode import checked
from bai_agent.errors import DescriptorError, RecordError
from bai_agent.job.descriptor.limit_tables import Power
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import Count, JobResult, Moment, Number, Text
from bai_agent.job.run_directory import now_ms
from bai_agent.job.schema.field_types import is_job_id
from bai_agent.job.store import JobStore
from bai_agent.light_dataclass import asdict, dataclass, field, replace
from executor.errors import UsageError
from executor.records.reading import result_of

if TYPE_CHECKING:
    from executor.planning.matrix import GroupPlan, MatrixJob

_PLAN = "group.json"
_RAISED = "max_cost.json"
_STARTS = "starts/"
_SHUTDOWN_MS = 120_000
"""Time for which the machines of an ended job are still charged (ms)."""


class GroupNamedError(UsageError):
    """The user named a group of jobs, but the command needs a single job."""

    def __init__(self, group: GroupRecord) -> None:
        super().__init__(
            f"{group.group_id} is a group of jobs, but this command takes one job; `bai status {group.group_id}` lists its jobs"
        )
        self.group = group


@dataclass(frozen=True, kw_only=True)
class Decision:
    """An entry of the ledger."""

    job_id: Text
    by: Text
    """Random text by which the writer of an entry recognises its own entry if the put is repeated."""
    time: Moment
    bound: Number | None = None
    """Maximum cost of the job (USD); None if unknown, as for jobs on this machine."""
    hourly: Number | None = None
    """Cost of all of the job's machines (USD per hour); None if unknown."""
    refused: Text | None = None
    """Reason why the job was not started; None if the job may run."""
    exit_code: Count = 0
    """Exit code of the error because of which the job was not started."""


@dataclass(frozen=True, kw_only=True)
class _MaxCost:
    """The content of `max_cost.json`."""

    usd: Number


@dataclass(frozen=True)
class GroupRecord:
    """One group in `store`. Each method reads the store again."""

    store: JobStore
    group_id: str

    @property
    def _record(self) -> JobRecord:
        return JobRecord(self.store, self.group_id)

    @property
    def left_out(self) -> list[Path]:
        """Folders that are not copied with the scripts of the group's jobs: only the store's folder."""
        return [] if self.store.folder is None else [self.store.folder]

    def job(self, job_id: str) -> JobRecord:
        return JobRecord(self.store, job_id)

    def exists(self) -> bool:
        return self.made() is not None

    def made(self) -> int | None:
        """Return the time at which the group was created (ms UTC, by the store's clock); None if there is no
        such group. Raises StoreError."""
        key = self._record.key(_PLAN)
        return next((each.modified or 0 for each in self.store.find(key) if each.key == key), None)

    def create(self, plan: GroupPlan) -> bool:
        """Write the plan; return False if the group already has a plan. Raises StoreError."""
        return self._record.settle(self._record.key(_PLAN), _line(asdict(plan)))

    def plan(self) -> GroupPlan:
        """Return the plan, with a raised `max_cost`. Raises RecordError, StoreError."""
        plan, key = self.first_plan(), self._record.key(_RAISED)
        found = self._record.read_object(key)
        if found is None:
            return plan
        return replace(plan, max_cost=checked(_MaxCost, found, where=f"{self.store.url}/{key}").usd)

    def raise_max_cost(self, usd: float) -> None:
        """Raise the maximum cost of all jobs together (USD). Raises UsageError, RecordError, StoreError.

        Another `bai` process that is already running the group continues to use the lower maximum cost.
        """
        before = self.plan().max_cost
        if before is None:
            raise UsageError(f"--max-cost: the group {self.group_id} has no max_cost that can be raised")
        if not before <= usd < math.inf:
            raise UsageError(
                f"--max-cost {usd:g}: the group {self.group_id} has {before:,.2f} USD, and max_cost can only be raised"
            )
        self.store.put(self._record.key(_RAISED), _line({"usd": usd}))

    def first_plan(self) -> GroupPlan:
        """Return the plan as it was created. Raises RecordError, StoreError."""
        from executor.planning.matrix import GroupPlan, check_plan

        key = self._record.key(_PLAN)
        where = f"{self.store.url}/{key}"
        found = self._record.read_object(key)
        if found is None:
            raise RecordError(f"{where} is missing: there is no such group")
        plan = checked(GroupPlan, found, where=where)
        check_plan(plan, self.group_id, where=where)
        return plan

    def decisions(self, known: Collection[Decision] = ()) -> list[Decision]:
        """Return the entries of the ledger. known: entries at the beginning of the ledger that need not be
        read again. Raises RecordError, StoreError."""
        found = list(known)
        for each in self.store.find(self._record.key(_STARTS))[len(found) :]:
            table = self._record.read_listed(each.key)
            found.append(checked(Decision, table, where=f"{self.store.url}/{each.key}"))
        return found

    def decide(self, number: int, decision: Decision) -> bool:
        """Make `decision` the ledger's entry `number`; return False if that entry already exists. Raises
        RecordError, StoreError."""
        key = self._record.key(f"{_STARTS}{number:06}.json")
        if self._record.settle(key, _line(asdict(decision))):
            return True
        there = self._record.read_object(key) or {}
        return there.get("by") == decision.by

    def cancel(self) -> bool:
        """Record that no further job may start; return False if the end was already requested."""
        return self._record.cancel(by="bai cancel")

    def cancelled(self) -> bool:
        return self._record.cancelled()


def _line(table: Mapping[str, object]) -> bytes:
    return json.dumps(table, ensure_ascii=True).encode() + b"\n"


def new_decision(job: MatrixJob, **values: float | str | None) -> Decision:
    """Return an entry for the ledger about `job`."""
    return Decision(job_id=job.job_id, by=os.urandom(8).hex(), time=now_ms(), **values)  # type: ignore[arg-type]


def find_group(stores: Iterable[JobStore], name: str) -> GroupRecord | None:
    """Return the group with this id from the first of the stores that contains the group; None if no store
    contains it. Raises StoreError."""
    groups = (GroupRecord(store, name) for store in stores if is_job_id(name))
    return next((each for each in groups if each.exists()), None)


@dataclass(frozen=True, kw_only=True)
class GroupState:
    """The state of a group, computed from the ledger and the ended jobs. The methods do no I/O."""

    plan: GroupPlan
    decisions: Collection[Decision]
    ended: Mapping[str, float | None] = field(default_factory=dict)
    """Ended job → cost (USD). None if the cost is unknown; the job's maximum cost counts instead."""

    @property
    def last(self) -> dict[str, Decision]:
        """Job → last decision on the job."""
        return {each.job_id: each for each in self.decisions}

    @property
    def started(self) -> dict[str, Decision]:
        """The jobs that were started, whether or not they have ended."""
        return {job_id: each for job_id, each in self.last.items() if each.refused is None}

    @property
    def running(self) -> list[str]:
        return [job_id for job_id in self.started if job_id not in self.ended]

    def pending(self, again: Collection[str] = ()) -> list[MatrixJob]:
        """Return the jobs that are still to be started, in the plan's order. again: refused jobs that are
        tried again."""
        last = self.last
        return [job for job in self.plan.jobs if job.job_id not in last or job.job_id in again]

    def committed(self, *, without: str | None = None) -> float:
        """Return the cost of the ended jobs plus the maximum cost of the other started jobs (USD). without: a
        job whose cost is left out."""
        return sum(self.cost(job_id) or 0.0 for job_id in self.started if job_id != without)

    def cost(self, job_id: str) -> float | None:
        """Return the cost of an ended job, or the maximum cost of any other job (USD); None if unknown."""
        known = self.ended.get(job_id)
        return known if known is not None else self.started[job_id].bound

    def over_cost(self, job: MatrixJob, bound: float | None) -> str | None:
        """Return the reason why the group's `max_cost` does not allow a job with this maximum cost to start;
        None if the job may start. bound: the job's maximum cost (USD); None if unknown."""
        most = self.plan.max_cost
        if most is None:
            return None
        committed = self.committed(without=job.job_id)
        if bound is not None and committed + bound <= most:
            return None
        cost = f"{bound:,.2f}" if bound is not None else "an unknown amount"
        return f"max_cost allows {most:,.2f} USD, {committed:,.2f} are spent or reserved, and {job.job_id} may cost {cost}"


def job_cost(record: JobRecord, decision: Decision, result: JobResult) -> float | None:
    """Return the cost of the machines of an ended job (USD), at most the job's maximum; None if unknown.
    Raises StoreError."""
    if decision.hourly is None or decision.bound is None or result.ended is None or _is_kept(record, result):
        return None
    launched = record.put_time("attempts/0/launched.json")
    if launched is None:
        return None
    hours = max(0, result.ended + _SHUTDOWN_MS - launched) / 3_600_000
    return min(decision.bound, hours * decision.hourly)


def _is_kept(record: JobRecord, result: JobResult) -> bool:
    """Return whether machines of an ended job may still be on."""
    try:
        end = record.job().end
    except (DescriptorError, RecordError):
        return True
    return end.power is Power.STAY or bool(end.keep_time(result.exit_code))


def ended_costs(
    group: GroupRecord, state: GroupState, known: Mapping[str, float | None]
) -> dict[str, float | None]:
    """Return the ended jobs of a group with their costs. known: ended jobs that need not be read again.
    Raises StoreError."""
    found = dict(known)
    for job_id, decision in state.started.items():
        if job_id not in found and (result := _result(group.job(job_id))) is not None:
            found[job_id] = job_cost(group.job(job_id), decision, result)
    return found


def _result(record: JobRecord) -> JobResult | None:
    try:
        return result_of(record)
    except RecordError:
        return None
