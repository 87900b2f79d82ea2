"""What is exported of a job, whichever system it goes to. Pure but for reading the job's record."""

from __future__ import annotations

import math
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Job
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult
from executor.analysis.figures import headline, metric_of
from executor.records.follower import benchmark_starts
from executor.records.points import Points, PointSeries, SeriesKey, read_points
from executor.records.reading import result_of


class ExportError(BaiError):
    """The other system, or its library, did not take the job; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """One run: a job, or one repeat of a job with `[repeat]`."""

    repeat: int | None
    arm: str | None
    """Which arm it is of, in a job that compares some."""
    parameters: dict[str, str]
    """What it was asked to do: arguments, `--set`, environment. No secrets, which are references even in the job."""
    outcome: str | None
    """The value of an `Outcome`; None while it lasts."""
    sentence: str
    started: int | None
    """ms UTC."""
    ended: int | None
    series: list[PointSeries]
    headlines: dict[SeriesKey, float]
    """Of a run that succeeded: the number of each series of the benchmark that stands for it."""

    @property
    def succeeded(self) -> bool:
        return self.outcome == Outcome.SUCCEEDED.value

    @property
    def cancelled(self) -> bool:
        return self.outcome == Outcome.CANCELLED.value


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """A job with all of its runs."""

    job: Job
    tags: dict[str, str]
    """Whose it is, and where it came from."""
    runs: list[RunFacts]


def job_facts(record: JobRecord) -> JobFacts:
    """Read all of a job that is exported. Raises StoreError, RecordError, DescriptorError."""
    job, result = record.job(), result_of(record)
    # After the result: of a job that has ended, all records are there.
    points = read_points(record)
    starts = benchmark_starts(record.node())
    return JobFacts(job=job, tags=_tags(job), runs=list(_runs(job, result, points, starts)))


def steps_of(series: PointSeries) -> list[int]:
    """Return the step of each value: the benchmark's own where they all are whole numbers, else their places in the series."""
    steps = series.steps
    if steps is None or not all(math.isfinite(each) and each == int(each) for each in steps):
        return list(range(len(series)))
    return [int(each) for each in steps]


def _parameters(job: Job, *, commands: bool = True) -> dict[str, str]:
    """commands: false where each arm has its own."""
    benchmark = job.benchmark
    found = {"strategy": job.strategy.name, "nodes": str(job.strategy.nodes)}
    if job.strategy.nodes > 1:
        found["processes_per_node"] = job.strategy.processes_per_node
    if benchmark.argv and commands:
        found["command"] = shlex.join(benchmark.argv)
    found |= {f"set.{key}": value for key, value in job.set.items()}
    if commands:
        found |= {f"env.{name}": value for name, value in benchmark.env.items()}
    return found


def _tags(job: Job) -> dict[str, str]:
    identity = job.job
    found = {f"label.{name}": value for name, value in identity.labels.items()}
    found |= {"bai.job_id": identity.id, "bai.client_id": identity.client_id}
    if identity.action_id is not None:
        found["bai.action_id"] = identity.action_id
    if job.git is not None:
        found |= {"git.commit": job.git.commit, "git.dirty": str(job.git.dirty).lower()}
        if job.git.branch:
            found["git.branch"] = job.git.branch
    return found


def _runs(
    job: Job, result: JobResult | None, points: Points, starts: Mapping[int | None, int]
) -> Iterator[RunFacts]:
    arms = {arm.name: job.of_arm(arm) for arm in job.repeat.arms} if job.repeat is not None else {}
    names = job.repeat.arms_of_runs if job.repeat is not None else []
    by_repeat: dict[int | None, list[PointSeries]] = {}
    for key, series in points.series.items():
        by_repeat.setdefault(key.repeat, []).append(series)
    outcome, sentence = (result.outcome, result.sentence) if result is not None else (None, "It still runs.")
    started, ended = (result.started, result.ended) if result is not None else (None, None)
    repeats = {each.repeat: each for each in (result.repeats or ())} if result is not None else {}
    numbers = sorted(repeats.keys() | {each for each in by_repeat if each is not None})
    # What belongs to no repeat, such as the machine's own numbers, is a run too.
    if None in by_repeat or not numbers:
        yield RunFacts(
            repeat=None,
            arm=None,
            parameters=_parameters(job, commands=not arms),
            outcome=outcome,
            sentence=sentence,
            started=_first_time(started, by_repeat.get(None, [])),
            ended=ended,
            series=by_repeat.get(None, []),
            headlines=_headlines(job, by_repeat.get(None, []), starts)
            if outcome == Outcome.SUCCEEDED.value
            else {},
        )
    for number in numbers:
        of_repeat, known = by_repeat.get(number, []), repeats.get(number)
        arm = names[number] if number < len(names) else None
        succeeded = known is not None and known.outcome == Outcome.SUCCEEDED.value
        yield RunFacts(
            repeat=number,
            arm=arm,
            parameters=_parameters(arms[arm] if arm is not None else job),
            outcome=known.outcome if known is not None else None,
            sentence=f"Repeat {number} of {job.job.id}{f', arm {arm}' if arm is not None else ''}.",
            started=_first_time(known.started if known is not None else None, of_repeat),
            ended=known.ended if known is not None else None,
            series=of_repeat,
            headlines=_headlines(job, of_repeat, starts) if succeeded else {},
        )


def _headlines(
    job: Job, every: Sequence[PointSeries], starts: Mapping[int | None, int]
) -> dict[SeriesKey, float]:
    metrics = {metric.name: metric for metric in job.named_metrics()}
    found = {}
    for series in every:
        if series.key.src in ("host", "run"):
            continue
        started = starts.get(series.key.repeat, starts.get(None))
        number = headline(series, metric_of(series, metrics), started=started)
        if number is not None:
            found[series.key] = number
    return found


def _first_time(known: int | None, series: list[PointSeries]) -> int | None:
    """Return when a run began, where nobody noted it when its first value was read."""
    return (
        known
        if known is not None
        else min((min(each.timestamps) for each in series if len(each)), default=None)
    )


def place_of(key: SeriesKey) -> list[tuple[str, str]]:
    """Return which node and process a series is of, where there are several."""
    found = [("rank", key.rank), ("process_rank", key.process_rank)]
    return [(name, value) for name, value in found if value is not None]


def unique(wanted: str, taken: Container[str]) -> str:
    """Return `wanted`, with a number behind it where two series would have that name."""
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name
