"""Reduces a job to its runs, with one number per run and metric, for comparisons. A run is a whole job, or
one repeat of a job that repeats its benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.metric_tables import Better, Metric, OfRun
from bai_agent.job.figures import half_width, mean_of
from bai_agent.job.job_headlines import LastGenerations, headline_of, labelled_name, over_ranks_of, with_arm
from bai_agent.job.record_types import JobResult, RepeatOutcome
from bai_agent.light_dataclass import dataclass, replace
from executor.analysis.steady import series_unsteady
from executor.quantities import counted
from executor.records.counted_values import floor_of, memory_floor
from executor.records.figures import measured, metric_of, start_of
from executor.records.points import Points, PointSeries

SUCCEEDED = "succeeded"
WALL_TIME = "wall time"
"""Name of the benchmark's wall time, a metric that every run has."""


@dataclass(frozen=True, kw_only=True)
class RunValue:
    """The headline of one metric in one run."""

    value: float
    count: int
    """Number of values that contributed to the headline; the warm-up is not counted."""
    name: str = WALL_TIME
    """Name of the metric, without its labels."""
    labels: tuple[tuple[str, str], ...] = ()
    units: str = ""
    metric: Metric | None = None
    """The metric's table in the descriptor; None if the descriptor has no such table."""
    ranks: int = 1
    """Number of ranks that contributed to the headline."""
    unsteady: str | None = None
    """Reason why the values of the first unsteady rank are not steady; None if the values of all ranks are
    steady."""
    below: float | None = None
    """Upper bound of `value`, for a peak memory that is not above the shim's own peak; None if `value` is
    exact."""

    @property
    def better(self) -> Better | None:
        """Direction in which a change is an improvement; None if the descriptor names no direction."""
        return self.metric.better if self.metric is not None else None

    @property
    def tolerance(self) -> float | None:
        """Relative change of the metric that does not matter to the user; None if the descriptor names no
        tolerance."""
        return self.metric.tolerance if self.metric is not None else None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One successful run."""

    job_id: str
    repeat: int | None = None
    arm: str | None = None
    block: int | None = None
    """Number of the run's block, which contains one run of each arm; None if the job has no arms."""
    started: int = 0
    """Start of the run (ms UTC); 0 if unknown."""
    values: Mapping[str, RunValue]
    """Values by the metric's name with its labels."""

    @property
    def name(self) -> str:
        return self.job_id if self.repeat is None else f"{self.job_id} #{self.repeat}"


@dataclass(frozen=True, kw_only=True)
class JobRuns:
    """The runs of one job that can be compared, and sentences about the other runs of the job."""

    job_id: str
    job: Job
    runs: tuple[Run, ...]
    left_out: tuple[str, ...] = ()
    """Sentences about runs that did not succeed, and about generations with another number of nodes."""
    nodes: int = 1
    """Number of nodes on which the values were measured."""

    def by_metric(self) -> dict[tuple[str, str | None], list[RunValue]]:
        """Return the values of all runs, grouped by metric (with its labels) and arm."""
        groups: dict[tuple[str, str | None], list[RunValue]] = {}
        for run in self.runs:
            for name, value in run.values.items():
                groups.setdefault((name, run.arm), []).append(value)
        return groups


def runs_of(
    job_id: str,
    job: Job,
    result: JobResult | None,
    points: Points,
    *,
    starts: Mapping[int | None, int],
    of_one_size: bool = False,
    nodes: int | None = None,
    generation: int | None = None,
) -> JobRuns:
    """Return the runs of a job. starts: start of the benchmark (ms UTC) by generation (None for the first or
    only one). The warm-up begins at this start; if the start is missing, at the first value. of_one_size:
    whether to use only generations with the same number of nodes: `nodes`, or the number of nodes of the last
    generation. generation: if set, only values of this generation are used.
    """
    if result is None:
        return JobRuns(job_id=job_id, job=job, runs=(), left_out=(f"{job_id} has not ended",))
    by_repeat: dict[int | None, list[PointSeries]] = {}
    for series in points.series.values():
        if not series.key.is_own:
            by_repeat.setdefault(series.key.repeat, []).append(series)
    floor = memory_floor(result.own_usage)
    if result.repeats is None:
        size = _size(job_id, job, result, nodes) if of_one_size else _Size(nodes=job.strategy.nodes)
        if generation is not None:
            size = replace(size, generations=frozenset({generation}))
        return _single_run(job_id, job, result, by_repeat.get(None, []), starts, floor, size)
    runs = (
        _repeated_run(job_id, job, each, by_repeat.get(each.repeat, []), floor)
        for each in result.repeats
        if each.outcome == SUCCEEDED
    )
    failed = (each for each in result.repeats if each.outcome != SUCCEEDED)
    left_out = tuple(f"{job_id} #{each.repeat} ended as {each.outcome}" for each in failed)
    return JobRuns(job_id=job_id, job=job, runs=tuple(runs), left_out=left_out, nodes=job.strategy.nodes)


@dataclass(frozen=True, kw_only=True)
class _Size:
    """The generations whose values are used, selected by their number of nodes."""

    nodes: int
    generations: frozenset[int] | None = None
    """Numbers of the generations; None if all generations are used."""
    sentence: str = ""
    """Sentence about the generations that are left out; empty if no generation is left out."""


def _size(job_id: str, job: Job, result: JobResult, wanted: int | None) -> _Size:
    sizes = {each.generation: len(each.members) for each in result.generations or () if each.members}
    if not sizes:
        return _Size(nodes=job.strategy.nodes)
    nodes = wanted if wanted in sizes.values() else sizes[max(sizes)]
    assert nodes is not None
    taken = sorted(number for number, size in sizes.items() if size == nodes)
    sentences = []
    if wanted is not None and wanted != nodes:
        sentences.append(f"no generation ran on {counted(wanted, 'node')}")
    if len(taken) < len(sizes):
        others = ", ".join(
            f"{number} on {counted(size, 'node')}" for number, size in sizes.items() if size != nodes
        )
        listed = ", ".join(map(str, taken))
        sentences.append(
            f"the comparison uses generation {listed} on {counted(nodes, 'node')}; left out: {others}"
        )
    sentence = f"{job_id}: {'; '.join(sentences)}" if sentences else ""
    return _Size(nodes=nodes, generations=frozenset(taken), sentence=sentence)


def _single_run(
    job_id: str,
    job: Job,
    result: JobResult,
    every: list[PointSeries],
    starts: Mapping[int | None, int],
    floor: int,
    size: _Size,
) -> JobRuns:
    if result.outcome != SUCCEEDED:
        return JobRuns(job_id=job_id, job=job, runs=(), left_out=(f"{job_id} ended as {result.outcome}",))
    taken = size.generations
    series = [each for each in every if taken is None or (each.key.generation or 0) in taken]
    generations = [each for each in result.generations or () if taken is None or each.generation in taken]
    wall = result.benchmark.wall_seconds if result.benchmark is not None else None
    if generations:
        wall = generations[-1].wall_seconds
    values = _values(series, job, starts, wall, floor)
    run = Run(job_id=job_id, started=result.started or starts.get(None) or 0, values=values)
    left_out = (size.sentence,) if size.sentence else ()
    return JobRuns(job_id=job_id, job=job, runs=(run,), left_out=left_out, nodes=size.nodes)


def _repeated_run(
    job_id: str, job: Job, outcome: RepeatOutcome, series: list[PointSeries], floor: int
) -> Run:
    arms = len(job.repeat.arms) if job.repeat is not None else 0
    starts: dict[int | None, int] = {}
    if outcome.started is not None:
        starts[outcome.repeat] = outcome.started
    return Run(
        job_id=job_id,
        repeat=outcome.repeat,
        arm=outcome.arm,
        block=outcome.repeat // arms if arms else None,
        started=outcome.started or 0,
        values=_values(series, job, starts, outcome.wall_seconds, floor),
    )


@dataclass(frozen=True, kw_only=True)
class OverRuns:
    """One metric of a job, over all successful runs that have a value of the metric."""

    name: str
    units: str
    values: tuple[float, ...]
    """One value for each run, in the order of the runs."""
    below: float | None = None
    """Upper bound of the mean, if some values are bounds; None if the mean is exact."""

    @property
    def mean(self) -> float:
        return mean_of(self.values)

    @property
    def half_width(self) -> float:
        """Half width of the 95 % confidence interval of the mean; infinite for one run, and for bounds."""
        return half_width(self.values) if self.below is None else math.inf

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
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
    """Return the metrics over the runs of a job with several runs. The metrics are in the same order as the
    metrics of a single run."""
    groups = runs.by_metric()
    # For each metric, the rows of all arms are listed together.
    order = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in groups))}
    arms = runs.job.repeat.arms if runs.job.repeat is not None else ()
    places = {arm.name: place for place, arm in enumerate(arms)}
    keys = sorted(groups, key=lambda key: (order[key[0]], places.get(key[1] or "", 0)))
    return [_over(groups[key], arm=key[1]) for key in keys]


def _over(values: Sequence[RunValue], *, arm: str | None) -> OverRuns:
    """Summarise one metric over the runs. The mean is only a bound if any value is only a bound."""
    bounds = [each.value if each.below is None else each.below for each in values]
    exact = all(each.below is None for each in values)
    return OverRuns(
        name=labelled_name(values[0].name, with_arm(values[0].labels, arm)),
        units=values[0].units,
        values=tuple(each.value for each in values),
        below=None if exact else mean_of(bounds),
    )


def _values(
    every: list[PointSeries],
    job: Job,
    starts: Mapping[int | None, int],
    wall_seconds: float | None,
    floor: int,
) -> dict[str, RunValue]:
    metrics = {metric.name: metric for metric in job.named_metrics()}
    groups: dict[str, list[PointSeries]] = {}
    for series in every:
        groups.setdefault(series.key.labelled, []).append(series)
    # The metrics are listed in the descriptor's order, not in the order in which they first appeared.
    order = {name: i for i, name in enumerate(metrics)}
    names = sorted(groups, key=lambda name: order.get(groups[name][0].key.name, len(order)))
    values = {}
    for name in names:
        value = _value(groups[name], metric_of(groups[name][0], metrics), starts, floor)
        if value is not None:
            values[name] = value
    of_wall = any(metric.of_run is OfRun.WALL_TIME for metric in job.metrics)
    if wall_seconds is not None and WALL_TIME not in values and not of_wall:
        values[WALL_TIME] = RunValue(value=wall_seconds, count=1, units="s")
    return values


def _value(
    group: list[PointSeries], metric: Metric | None, starts: Mapping[int | None, int], memory: int
) -> RunValue | None:
    """Return one number for a metric that one or more ranks print."""
    how = metric or Metric(name=group[0].key.name, pattern="")
    every = ((each, measured(each, how, started=start_of(each.key, starts))) for each in group)
    measured_ones = [(each, values) for each, values in every if values]
    last = LastGenerations(each.key.place for each, _ in measured_ones)
    counted = [(each, values) for each, values in measured_ones if not last.is_past(*each.key.place)]
    if not counted:
        return None
    found = [headline_of(how.headline, values) for _, values in counted]
    return RunValue(
        value=over_ranks_of(found, how.over_ranks),
        count=sum(len(values) for _, values in counted),
        name=group[0].key.name,
        labels=group[0].key.labels,
        units=group[0].units,
        metric=metric,
        ranks=len(found),
        unsteady=_first_unsteady(counted, how),
        below=_bound(found, floor_of(metric, memory), how),
    )


def _first_unsteady(every: Iterable[tuple[PointSeries, Sequence[float]]], metric: Metric) -> str | None:
    marks = (series_unsteady(series, metric, values) for series, values in every)
    return next((mark.sentence for mark in marks if mark is not None), None)


def _bound(found: Sequence[float], floor: float | None, metric: Metric) -> float | None:
    """Return the upper bound of a number over ranks if the value of any rank is only a bound; otherwise
    None."""
    if floor is None or min(found) > floor:
        return None
    return over_ranks_of([max(each, floor) for each in found], metric.over_ranks)


def sides_of_arms(runs: JobRuns) -> dict[str, list[Run]]:
    """Return the runs of a job that compares arms, by the arms' names; empty for any other job."""
    arms: dict[str, list[Run]] = {}
    for run in runs.runs:
        if run.arm is not None:
            arms.setdefault(run.arm, []).append(run)
    # The job's first arm must be the first side, because all other arms are compared with the first side.
    names = [arm.name for arm in runs.job.repeat.arms] if runs.job.repeat is not None else []
    return {name: arms[name] for name in dict.fromkeys([*names, *sorted(arms)]) if name in arms}
