"""Compares the combinations of a group's matrix. The comparison has a row of numbers for each combination."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bai_agent.errors import DescriptorError, RecordError
from bai_agent.job.descriptor.metric_tables import Better
from bai_agent.job.figures import half_width, mean_of
from bai_agent.light_dataclass import dataclass
from executor.analysis.measured_runs import WALL_TIME, JobRuns, RunValue
from executor.jobs.compared import job_runs
from executor.jobs.job_group import Decision, GroupRecord, GroupState, ended_costs
from executor.planning.matrix import GroupPlan, MatrixJob
from executor.records.job_status import JobStatus

NOT_STARTED = "NOT STARTED"
REFUSED = "REFUSED"
_NODES = "hardware.distributed.num_instances"


@dataclass(frozen=True, kw_only=True)
class GroupJob:
    """One job of a group, with the facts that `bai status` shows."""

    job: MatrixJob
    decision: Decision | None = None
    """The decision about the job; None if the job has not been started yet."""
    status: JobStatus | None = None
    """Status of the job; None if the job has no record."""
    dollars: float | None = None
    """Cost of the job's machines (USD), or their maximum cost until the job has ended. None if unknown."""

    @property
    def word(self) -> str:
        if self.status is not None and (self.decision is None or self.decision.refused is None):
            return self.status.status
        return REFUSED if self.decision is not None and self.decision.refused is not None else NOT_STARTED

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            "job_id": self.job.job_id,
            "set": dict(self.job.set),
            "status": self.word,
            "outcome": self.status.outcome if self.status is not None else None,
            "refused": self.decision.refused if self.decision is not None else None,
            "usd": self.dollars,
        }


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """A group with the current statuses of its jobs."""

    group: GroupRecord
    plan: GroupPlan
    jobs: Sequence[GroupJob]
    """Jobs in the order in which they start."""
    cancelled: bool

    @property
    def dollars(self) -> float:
        """Cost of the ended jobs plus the maximum cost of the running jobs (USD)."""
        return sum(each.dollars or 0.0 for each in self.jobs)

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            "type": "group",
            "group": self.group.group_id,
            "cancelled": self.cancelled,
            "max_parallel": self.plan.max_parallel,
            "max_usd": self.plan.max_cost,
            "usd": self.dollars,
            "jobs": [each.as_table() for each in self.jobs],
        }


def group_view(group: GroupRecord, statuses: Mapping[str, JobStatus]) -> GroupView:
    """Return a view of a group. statuses: the statuses of the group's jobs that have a record. Raises
    StoreError, RecordError."""
    plan = group.plan()
    state = GroupState(plan=plan, decisions=group.decisions())
    state = GroupState(plan=plan, decisions=state.decisions, ended=ended_costs(group, state, {}))
    last = state.last
    jobs = [
        GroupJob(
            job=job,
            decision=last.get(job.job_id),
            status=statuses.get(job.job_id),
            dollars=state.cost(job.job_id) if job.job_id in state.started else None,
        )
        for job in plan.jobs
    ]
    return GroupView(group=group, plan=plan, jobs=jobs, cancelled=group.cancelled())


@dataclass(frozen=True, kw_only=True)
class CombinationRow:
    """One combination of a group's matrix, with the headline over its runs, and its cost."""

    set: Mapping[str, str]
    jobs: Sequence[GroupJob]
    metric: str
    units: str = ""
    better: Better | None = None
    values: tuple[float, ...] = ()
    """One number for each run of the combination's job. If the group has several rounds, one number for each
    job."""
    hourly: float | None = None
    """Cost of all machines of one job (USD per hour)."""

    @property
    def state(self) -> str:
        """The statuses of the combination's jobs, for example "SUCCEEDED" or "2 SUCCEEDED, 1 RUNNING"."""
        words = [each.word for each in self.jobs]
        kinds = list(dict.fromkeys(words))
        return kinds[0] if len(words) == 1 else ", ".join(f"{words.count(each)} {each}" for each in kinds)

    @property
    def mean(self) -> float | None:
        return mean_of(self.values) if self.values else None

    @property
    def half_width(self) -> float | None:
        """Half width of the 95 % confidence interval of the mean; None for fewer than two numbers."""
        half = half_width(self.values) if len(self.values) > 1 else math.inf
        return half if math.isfinite(half) else None

    @property
    def dollars(self) -> float | None:
        """Cost of all jobs of the combination (USD); None if unknown."""
        known = [each.dollars for each in self.jobs if each.dollars is not None]
        return sum(known) if known else None

    @property
    def per_unit(self) -> float | None:
        """Cost of the machines per unit, if the headline is a rate: USD per image for "images/s". None if the
        headline is not a rate."""
        mean = self.mean
        if self.hourly is None or mean is None or mean <= 0 or rated(self.units) is None:
            return None
        return self.hourly / 3600 / mean

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            "set": dict(self.set),
            "jobs": [each.job.job_id for each in self.jobs],
            "status": self.state,
            "metric": self.metric,
            "units": self.units,
            "runs": len(self.values),
            "mean": self.mean,
            "half_width": self.half_width,
            "usd": self.dollars,
            "usd_per_unit": self.per_unit,
        }


def rated(units: str) -> str | None:
    """Return the unit that a rate counts, for example "images" for "images/s". None if `units` is not a rate
    per second."""
    what, mark, of = units.rpartition("/")
    return what.strip() if mark and what.strip() and of.strip() in ("s", "sec", "second") else None


@dataclass(frozen=True, kw_only=True)
class GroupComparison:
    """Comparison of a group's combinations, with a row for each combination."""

    view: GroupView
    rows: Sequence[CombinationRow]
    left_out: Sequence[str]
    """A sentence for each run that the comparison does not count."""

    @property
    def metric(self) -> str:
        return self.rows[0].metric

    @property
    def keys(self) -> list[str]:
        """The keys of the matrix."""
        return list(self.rows[0].set)

    @property
    def scale(self) -> str | None:
        """The key of the matrix over which the headline is plotted: the number of machines or, if this number
        does not vary, the first key with two or more numbers. None if no key has two or more numbers."""
        numeric = [
            key for key in self.keys if len({row.set[key] for row in self.rows}) > 1 and self._is_numeric(key)
        ]
        return next((key for key in numeric if key == _NODES), next(iter(numeric), None))

    def _is_numeric(self, key: str) -> bool:
        return all(number_in(row.set[key]) is not None for row in self.rows)

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            **self.view.as_table(),
            "metric": self.metric,
            "combinations": [each.as_table() for each in self.rows],
            "left_out": list(self.left_out),
        }


def number_in(text: str) -> float | None:
    """Return a text as a number; None if the text is not a finite number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def compared_group(view: GroupView) -> GroupComparison:
    """Return the numbers of a group. Raises StoreError."""
    runs = {each.job.job_id: _runs(view.group, each) for each in view.jobs if each.status is not None}
    known = {job_id: each for job_id, each in runs.items() if isinstance(each, JobRuns)}
    metric = _headline(list(known.values()))
    by_id = {each.job.job_id: each for each in view.jobs}
    rows = [_row([by_id[job.job_id] for job in jobs], known, metric) for jobs in view.plan.combinations]
    left_out = [each if isinstance(each, str) else "; ".join(each.left_out) for each in runs.values()]
    return GroupComparison(view=view, rows=rows, left_out=[each for each in left_out if each])


def _runs(group: GroupRecord, job: GroupJob) -> JobRuns | str:
    """Return the runs of a job, or a sentence that says why the runs cannot be read. Raises StoreError."""
    try:
        return job_runs(group.job(job.job.job_id))
    except (DescriptorError, RecordError) as error:
        return str(error)


def _headline(every: Sequence[JobRuns]) -> str:
    """Return the metric that represents the group: the metric of `[repeat]`, otherwise the descriptor's first
    metric with a value."""
    names = {value.name for each in every for run in each.runs for value in run.values.values()}
    for each in every:
        repeat = each.job.repeat
        wanted = [repeat.metric] if repeat is not None and repeat.metric is not None else []
        for name in (*wanted, *(metric.name for metric in each.job.named_metrics())):
            if name in names:
                return name
    return WALL_TIME


def _row(jobs: Sequence[GroupJob], known: Mapping[str, JobRuns], metric: str) -> CombinationRow:
    numbers: list[float] = []
    first: RunValue | None = None
    for job in jobs:
        runs = known.get(job.job.job_id)
        found = [_value_of(run.values, metric) for run in runs.runs] if runs is not None else []
        values = [each for each in found if each is not None]
        first = first or next(iter(values), None)
        # Runs of one job are not independent of each other, so each job counts as one number if the
        # combination has several jobs.
        numbers += (
            [mean_of([each.value for each in values])]
            if values and len(jobs) > 1
            else [each.value for each in values]
        )
    prices = (each.decision.hourly for each in jobs if each.decision is not None)
    hourly = next((each for each in prices if each is not None), None)
    return CombinationRow(
        set=jobs[0].job.set,
        jobs=jobs,
        metric=metric,
        units=first.units if first is not None else "",
        better=first.better if first is not None else None,
        values=tuple(numbers),
        hourly=hourly,
    )


def _value_of(values: Mapping[str, RunValue], metric: str) -> RunValue | None:
    """Return the value of a metric: the value without labels or, if there is none, the value of the first set
    of labels."""
    return values.get(metric) or next((each for each in values.values() if each.name == metric), None)
