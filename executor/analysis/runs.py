"""The runs of a job, each with one number for each metric: what comparisons are made of.

A run is a job, or one repeat of a job that repeats its benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bai_agent.job.descriptor import Job, Metric, OfRun
from bai_agent.job.interval import half_width, mean_of
from bai_agent.job.job_headlines import headline_of, labelled_name, over_ranks_of, with_arm
from bai_agent.job.record_types import JobResult
from executor.analysis.figures import figures, measured, metric_of
from executor.analysis.steady import series_unsteady
from executor.records.memory_floor import floor_of, memory_floor
from executor.records.points import Points, PointSeries

SUCCEEDED = "succeeded"
WALL_TIME = "wall time"
"""The row of how long the benchmark took, which every run has."""
_NOT_OF_BENCHMARK = ("host", "run")
"""Sources of what we measure ourselves."""


@dataclass(frozen=True, kw_only=True)
class RunValue:
    """The number that stands for one run of one metric."""

    value: float
    count: int
    """Of the values that it was made of, without warm-up."""
    name: str = WALL_TIME
    """The metric's, without its labels."""
    labels: tuple[tuple[str, str], ...] = ()
    units: str = ""
    metric: Metric | None = None
    """What the descriptor says of it."""
    ranks: int = 1
    """More than one: it is over the values of so many."""
    unsteady: str | None = None
    """Why its values had not settled; of the first rank for which that is so."""
    below: float | None = None
    """The bound, of peak memory that cannot be told from our shim's: nothing is known but that it is less. None if `value` is exact."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run that succeeded."""

    job_id: str
    repeat: int | None = None
    arm: str | None = None
    block: int | None = None
    """Of a job whose arms take turns: which of its blocks of one run of each."""
    started: int = 0
    """ms UTC; 0 where that is unknown."""
    values: Mapping[str, RunValue]
    """By the metric's name with its labels."""

    @property
    def name(self) -> str:
        return self.job_id if self.repeat is None else f"{self.job_id} #{self.repeat}"


@dataclass(frozen=True, kw_only=True)
class JobRuns:
    """The runs of one job that can be compared, and what was left out."""

    job_id: str
    job: Job
    runs: tuple[Run, ...]
    left_out: tuple[str, ...] = ()
    """A sentence for each run that did not succeed."""


def runs_of(
    job_id: str, job: Job, result: JobResult | None, points: Points, *, started: int | None
) -> JobRuns:
    """Return the runs of a job.

    started: when its benchmark was started (ms UTC), for the warm-up; unset: from the first value on.
    """
    if result is None:
        return JobRuns(job_id=job_id, job=job, runs=(), left_out=(f"{job_id} has not ended",))
    by_repeat: dict[int | None, list[PointSeries]] = {}
    for series in points.series.values():
        if series.key.src not in _NOT_OF_BENCHMARK:
            by_repeat.setdefault(series.key.repeat, []).append(series)
    floor = memory_floor(result.own_usage)
    if result.repeats is None:
        if result.outcome != SUCCEEDED:
            return JobRuns(job_id=job_id, job=job, runs=(), left_out=(f"{job_id} ended as {result.outcome}",))
        wall = result.benchmark.wall_seconds if result.benchmark is not None else None
        values = _values(by_repeat.get(None, []), job, started, wall, floor)
        run = Run(job_id=job_id, started=result.started or started or 0, values=values)
        return JobRuns(job_id=job_id, job=job, runs=(run,))
    runs, left_out = [], []
    arms = len(job.repeat.arms) if job.repeat is not None else 0
    for each in result.repeats:
        if each.outcome != SUCCEEDED:
            left_out.append(f"{job_id} #{each.repeat} ended as {each.outcome}")
            continue
        values = _values(by_repeat.get(each.repeat, []), job, each.started, each.wall_seconds, floor)
        runs.append(
            Run(
                job_id=job_id,
                repeat=each.repeat,
                arm=each.arm,
                block=each.repeat // arms if arms else None,
                started=each.started or 0,
                values=values,
            )
        )
    return JobRuns(job_id=job_id, job=job, runs=tuple(runs), left_out=tuple(left_out))


@dataclass(frozen=True, kw_only=True)
class OverRuns:
    """One metric over the runs that succeeded and have a value of it."""

    name: str
    units: str
    values: tuple[float, ...]
    """One for each run, in their order."""
    below: float | None = None
    """The bound of the mean, if some of the values are bounds; None if it is exact."""

    @property
    def mean(self) -> float:
        return mean_of(self.values)

    @property
    def half_width(self) -> float:
        """How far the 95 % confidence interval of the mean reaches to either side; infinite of one run, and of bounds."""
        return half_width(self.values) if self.below is None else math.inf

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        half = self.half_width
        return {
            "name": self.name,
            "units": self.units,
            "runs": len(self.values),
            "mean": self.mean if self.below is None else None,
            "half_width": half if math.isfinite(half) else None,
            **({"below": self.below} if self.below is not None else {}),
        }


def over_runs(runs: JobRuns) -> list[OverRuns]:
    """Return the metrics of a job that did several runs, in the order in which a run has them."""
    groups: dict[tuple[str, str | None], list[RunValue]] = {}
    for run in runs.runs:
        for name, value in run.values.items():
            groups.setdefault((name, run.arm), []).append(value)
    # Arms of one metric stand together.
    order = list(dict.fromkeys(name for name, _ in groups))
    arms = runs.job.repeat.arms if runs.job.repeat is not None else ()
    places = {arm.name: place for place, arm in enumerate(arms)}
    found = []
    for name, arm in sorted(groups, key=lambda key: (order.index(key[0]), places.get(key[1] or "", 0))):
        values = groups[name, arm]
        title = labelled_name(values[0].name, with_arm(values[0].labels, arm))
        bounds = [each.value if each.below is None else each.below for each in values]
        exact = all(each.below is None for each in values)
        found.append(
            OverRuns(
                name=title,
                units=values[0].units,
                values=tuple(each.value for each in values),
                below=None if exact else mean_of(bounds),
            )
        )
    return found


def _values(
    every: list[PointSeries], job: Job, started: int | None, wall_seconds: float | None, floor: int
) -> dict[str, RunValue]:
    metrics = {metric.name: metric for metric in job.named_metrics()}
    groups: dict[str, list[PointSeries]] = {}
    for series in every:
        groups.setdefault(series.key.labelled, []).append(series)
    # In the descriptor's order, whichever came first.
    order = {name: i for i, name in enumerate(metrics)}
    names = sorted(groups, key=lambda name: order.get(groups[name][0].key.name, len(order)))
    values = {}
    for name in names:
        value = _value(groups[name], metric_of(groups[name][0], metrics), started, floor)
        if value is not None:
            values[name] = value
    of_wall = any(metric.of_run is OfRun.WALL_TIME for metric in job.metrics)
    if wall_seconds is not None and WALL_TIME not in values and not of_wall:
        values[WALL_TIME] = RunValue(value=wall_seconds, count=1, units="s")
    return values


def _value(
    group: list[PointSeries], metric: Metric | None, started: int | None, memory: int
) -> RunValue | None:
    """Return one number for a metric that one rank prints, or several."""
    if metric is None:
        metric = Metric(name=group[0].key.name, pattern="")
        described = None
    else:
        described = metric
    found: list[float] = []
    count = 0
    why: str | None = None
    for series in group:
        values = measured(series, metric, started=started)
        known = figures(values)
        if known is None:
            continue
        found.append(headline_of(metric.headline, values))
        count += known.count
        mark = series_unsteady(series, metric, values) if why is None else None
        why = why or (mark.sentence if mark is not None else None)
    if not found:
        return None
    value, below = over_ranks_of(found, metric.over_ranks), None
    if (floor := floor_of(described, memory)) is not None and min(found) <= floor:
        below = over_ranks_of([max(each, floor) for each in found], metric.over_ranks)
    return RunValue(
        value=value,
        count=count,
        name=group[0].key.name,
        labels=group[0].key.labels,
        units=group[0].units,
        metric=described,
        ranks=len(found),
        unsteady=why,
        below=below,
    )


def sides_of_arms(runs: JobRuns) -> dict[str, list[Run]]:
    """Return the runs of a job that compares two descriptors, by their arms; nothing of other jobs."""
    arms: dict[str, list[Run]] = {}
    for run in runs.runs:
        if run.arm is not None:
            arms.setdefault(run.arm, []).append(run)
    # The first one is what the other is compared with.
    names = [arm.name for arm in runs.job.repeat.arms] if runs.job.repeat is not None else []
    return {name: arms[name] for name in dict.fromkeys([*names, *sorted(arms)]) if name in arms}
