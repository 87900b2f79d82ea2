"""What is exported of a job, whichever system it goes to. Pure but for reading the job's record."""

from __future__ import annotations

import math
import shlex
from collections.abc import Container, Iterator
from dataclasses import dataclass

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Job
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult
from executor.records.points import Points, PointSeries, SeriesKey, read_points
from executor.records.reading import result_of


class ExportError(BaiError):
    """The other system, or its library, did not take the job; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """One run: a job, or one repeat of a job with `[repeat]`."""

    repeat: int | None
    outcome: str | None
    """The value of an `Outcome`; None while it lasts."""
    sentence: str
    started: int | None
    """ms UTC."""
    ended: int | None
    series: list[PointSeries]

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
    parameters: dict[str, str]
    """What it was asked to do: arguments, `--set`, environment. No secrets, which are references even in the job."""
    tags: dict[str, str]
    """Whose it is, and where it came from."""
    runs: list[RunFacts]


def job_facts(record: JobRecord) -> JobFacts:
    """Read all of a job that is exported. Raises StoreError, RecordError, DescriptorError."""
    job, result = record.job(), result_of(record)
    # After the result: of a job that has ended, all records are there.
    points = read_points(record)
    return JobFacts(
        job=job, parameters=_parameters(job), tags=_tags(job), runs=list(_runs(job, result, points))
    )


def steps_of(series: PointSeries) -> list[int]:
    """Return the step of each value: the benchmark's own where they all are whole numbers, else their places in the series."""
    steps = series.steps
    if steps is None or not all(math.isfinite(each) and each == int(each) for each in steps):
        return list(range(len(series)))
    return [int(each) for each in steps]


def _parameters(job: Job) -> dict[str, str]:
    benchmark = job.benchmark
    found = {"strategy": job.strategy.name, "nodes": str(job.strategy.nodes)}
    if job.strategy.nodes > 1:
        found["processes_per_node"] = job.strategy.processes_per_node
    if benchmark.argv:
        found["command"] = shlex.join(benchmark.argv)
    found |= {f"set.{key}": value for key, value in job.set.items()}
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


def _runs(job: Job, result: JobResult | None, points: Points) -> Iterator[RunFacts]:
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
            outcome=outcome,
            sentence=sentence,
            started=_first_time(started, by_repeat.get(None, [])),
            ended=ended,
            series=by_repeat.get(None, []),
        )
    for number in numbers:
        of_repeat, known = by_repeat.get(number, []), repeats.get(number)
        yield RunFacts(
            repeat=number,
            outcome=known.outcome if known is not None else None,
            sentence=f"Repeat {number} of {job.job.id}.",
            started=_first_time(known.started if known is not None else None, of_repeat),
            ended=known.ended if known is not None else None,
            series=of_repeat,
        )


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
