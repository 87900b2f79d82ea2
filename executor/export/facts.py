"""Reads the facts of a job that are exported, independent of the target system."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Arm
from bai_agent.job.job_headlines import LastGenerations, arm_of
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult, RepeatOutcome
from bai_agent.light_dataclass import dataclass, replace
from executor.records.figures import headline, metric_of, start_of
from executor.records.follower import benchmark_starts
from executor.records.points import Points, PointSeries, SeriesKey, read_points
from executor.records.reading import result_of


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """One run: a job, or one repeat of a job with `[repeat]`."""

    repeat: int | None
    arm: str | None
    """Arm of the run in a job that compares arms; otherwise None."""
    parameters: dict[str, str]
    """Arguments, `--set` values and environment of the run. The parameters contain no secrets, because even
    the job's record contains only references to secrets."""
    outcome: str | None = None
    """Value of an `Outcome`; None while the run is in progress."""
    sentence: str
    started: int | None
    """Start of the run (ms UTC)."""
    ended: int | None = None
    series: list[PointSeries]
    numbers: dict[SeriesKey, float]
    """The headline of each series of the benchmark in this run."""

    def ended_as(self, outcome: JobResult | RepeatOutcome) -> RunFacts:
        """Return the run, completed with its end and outcome."""
        took = outcome.seconds if isinstance(outcome, JobResult) else outcome.wall_seconds
        return replace(
            self,
            outcome=outcome.outcome,
            sentence=outcome.sentence if isinstance(outcome, JobResult) else self.sentence,
            started=self.started if outcome.started is None else outcome.started,
            ended=_end(outcome.started, took, outcome.ended),
        )

    @property
    def succeeded(self) -> bool:
        return self.outcome == Outcome.SUCCEEDED.value

    @property
    def headlines(self) -> dict[SeriesKey, float]:
        """The headlines of the run; empty unless the run succeeded."""
        return self.numbers if self.succeeded else {}

    @property
    def cancelled(self) -> bool:
        return self.outcome == Outcome.CANCELLED.value


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """A job with all of its runs."""

    job: Job
    tags: dict[str, str]
    """Owner and origin of the job."""
    runs: list[RunFacts]


def job_facts(record: JobRecord) -> JobFacts:
    """Read all facts of a job that are exported. Raises StoreError, RecordError, DescriptorError."""
    job, result = record.job(), result_of(record)
    # The records are read after the result, so that all records of an ended job are included.
    points = read_points(record)
    starts = benchmark_starts(record.node())
    return JobFacts(job=job, tags=_tags(job), runs=list(_runs(job, result, points, starts)))


def steps_of(series: PointSeries) -> list[int]:
    """Return the step of each value: the steps that the benchmark printed if all of them are whole numbers,
    otherwise the values' indexes in the series."""
    steps = series.steps
    if steps is None or not all(math.isfinite(each) and each == int(each) for each in steps):
        return list(range(len(series)))
    return [int(each) for each in steps]


def _parameters(job: Job, *, commands: bool = True) -> dict[str, str]:
    """Return the parameters of a run. commands: whether to include the command; false if each arm has its own
    command."""
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


def _end(started: int | None, seconds: float | None, ended: int | None) -> int | None:
    """Return the end of a run (ms UTC). The end is computed as start plus duration, because the machine's
    clock may have been set during the run."""
    return ended if started is None or seconds is None else started + round(1000 * seconds)


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
    by_repeat: dict[int | None, list[PointSeries]] = {}
    for key, series in points.series.items():
        by_repeat.setdefault(key.repeat, []).append(series)
    repeats = {each.repeat: each for each in (result.repeats if result is not None else None) or ()}
    numbers = sorted(repeats.keys() | {each for each in by_repeat if each is not None})
    # Series that belong to no repeat, such as samples of the machine, are exported as a run of their own.
    whole = [None] if None in by_repeat or not numbers else []
    arms = _arms_of_runs(job)
    for number in [*whole, *numbers]:
        found = by_repeat.get(number, [])
        arm = arm_of(number, arms)
        run = RunFacts(
            repeat=number,
            arm=arm.name if arm is not None else None,
            parameters=_parameters(
                job if arm is None else job.of_arm(arm), commands=arm is not None or not arms
            ),
            sentence="It still runs." if number is None else _sentence(job, number, arm),
            started=_first_time(found),
            series=found,
            numbers=_headlines(job, found, starts),
        )
        outcome = result if number is None else repeats.get(number)
        yield run if outcome is None else run.ended_as(outcome)


def _sentence(job: Job, number: int, arm: Arm | None) -> str:
    return f"Repeat {number} of {job.job.id}{'' if arm is None else f', arm {arm.name}'}."


def _arms_of_runs(job: Job) -> list[Arm]:
    """Return the arm of each run, by its number; empty if the job has no arms."""
    if job.repeat is None:
        return []
    arms = {arm.name: arm for arm in job.repeat.arms}
    return [arms[name] for name in job.repeat.arms_of_runs]


def _headlines(
    job: Job, every: Sequence[PointSeries], starts: Mapping[int | None, int]
) -> dict[SeriesKey, float]:
    metrics = {metric.name: metric for metric in job.named_metrics()}
    found = {}
    for series in every:
        if series.key.is_own:
            continue
        number = headline(series, metric_of(series, metrics), started=start_of(series.key, starts))
        if number is not None:
            found[series.key] = number
    last = LastGenerations(key.place for key in found)
    return {key: number for key, number in found.items() if not last.is_past(*key.place)}


def _first_time(series: Sequence[PointSeries]) -> int | None:
    """Return the time at which the first value was read (ms UTC)."""
    return min((min(each.timestamps) for each in series if len(each)), default=None)


def place_of(key: SeriesKey) -> list[tuple[str, str]]:
    """Return the node, process and generation of a series. Each of these parts is included only if the job
    has several of them."""
    generation = str(key.generation) if key.generation is not None else None
    found = [("rank", key.rank), ("process_rank", key.process_rank), ("generation", generation)]
    return [(name, value) for name, value in found if value is not None]


def headline_key(key: SeriesKey) -> SeriesKey:
    """Return the key of a series without its generation, because a metric has only one headline over all
    generations."""
    return dataclasses.replace(key, generation=None)


def unique(wanted: str, taken: set[str]) -> str:
    """Return `wanted`, followed by a number if the name is taken, and add the result to `taken`."""
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name
