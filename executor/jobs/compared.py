"""Reads the runs for a comparison: the runs of named jobs, of all jobs with a label, or of the arms of one
job."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from bai_agent.errors import DescriptorError, RecordError, StoreError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.source_tables import SourceKind
from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore
from bai_agent.light_dataclass import dataclass, replace
from executor.analysis.history import successive_scatter
from executor.analysis.measured_runs import SUCCEEDED, JobRuns, Run, RunValue, runs_of, sides_of_arms
from executor.errors import UsageError
from executor.jobs.job_lookup import job_ids, started_of
from executor.planning.rerun_record import REQUEST
from executor.records.follower import benchmark_starts
from executor.records.machine_facts import environments, table_in
from executor.records.points import read_points
from executor.records.reading import result_of
from executor.records.series import labelled_name

VERSUS = "vs"
"""The word on the command line between two sides that have several jobs each."""
_AT_ONCE = 16
_EARLIER = 20
"""Number of earlier jobs whose runs are used to estimate the scatter of runs."""
_FEWEST = 3


@dataclass(frozen=True)
class ComparedJob:
    """One compared job with its runs. Facts about the job's machines and software are read on demand."""

    record: JobRecord
    runs: JobRuns

    @cached_property
    def environments(self) -> list[Mapping[str, Any]]:
        """Environments of the nodes whose environment is known. Raises StoreError."""
        return [each.environment for each in environments(self.record) if each.environment is not None]

    @property
    def machines(self) -> str:
        """Machines of the job, for example "2 x c5.large", or "2 nodes" if the instance type is unknown.
        Raises StoreError."""
        types = [table_in(each, "instance").get("type") for each in self.environments]
        known = sorted({each for each in types if isinstance(each, str)})
        nodes = self.runs.nodes
        return f"{nodes} x {' and '.join(known)}" if known else f"{nodes} node{'' if nodes == 1 else 's'}"

    def described(self, arm: str | None = None) -> Job:
        """Return the job's descriptor; if `arm` is given, the descriptor of this arm alone. References to
        scripts on this machine contain the scripts' checksum. Raises StoreError."""
        job = self.runs.job
        arms = job.repeat.arms if job.repeat is not None else ()
        found = next((each for each in arms if each.name == arm), None)
        job = job if found is None else job.of_arm(found)
        digest = found.scripts_sha256 if found is not None else None
        if all(each.kind is not SourceKind.SCRIPTS or each.sha256 for each in job.sources):
            return job
        digest = digest or (self.record.read_object(self.record.key(REQUEST)) or {}).get("scripts_sha256")
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            return job
        sources = (
            replace(each, sha256=each.sha256 or digest) if each.kind is SourceKind.SCRIPTS else each
            for each in job.sources
        )
        return replace(job, sources=tuple(sources))


def by_arm(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return the runs, with the name of each run's arm added as a label to the run's metrics, so that numbers
    of different arms are not mixed."""
    return tuple(
        run
        if run.arm is None
        else replace(run, values={_of_arm_name(each, run.arm): each for each in run.values.values()})
        for run in runs
    )


def _of_arm_name(value: RunValue, arm: str) -> str:
    return labelled_name({"name": value.name, "labels": {**dict(value.labels), "arm": arm}})


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a comparison."""

    name: str
    runs: tuple[Run, ...]
    jobs: tuple[ComparedJob, ...]
    arm: str | None = None
    """Arm of the side's only job; None if the side is not an arm."""

    @property
    def environments(self) -> list[Mapping[str, Any]]:
        """Environments of all nodes of all jobs of the side. Raises StoreError."""
        found = [each for job in self.jobs for each in job.environments]
        return [{**each, **_of_arm(each, self.arm)} for each in found]

    @property
    def described(self) -> list[Job]:
        """The job descriptors of the side's runs. Raises StoreError."""
        return [each.described(self.arm) for each in self.jobs]

    @property
    def left_out(self) -> list[str]:
        return [sentence for job in self.jobs for sentence in job.runs.left_out]


class RunReader:
    """Finds jobs, and reads the runs of each job only once."""

    def __init__(self, find: Callable[[str], JobRecord], stores: Callable[[], Iterable[JobStore]]) -> None:
        self._find = find
        self._stores = stores
        self._read: dict[tuple[str, str], ComparedJob] = {}
        self._nodes: int | None = None
        """Number of nodes of the first job. If a later job has generations on this number of nodes, only
        these generations are used."""

    def job(self, record: JobRecord) -> ComparedJob:
        """Return a job's runs. Raises StoreError, DescriptorError."""
        key = (record.store.url, record.job_id)
        if key not in self._read:
            self._read[key] = ComparedJob(record, job_runs(record, nodes=self._nodes))
            self._nodes = self._nodes or self._read[key].runs.nodes
        return self._read[key]

    def sides(self, words: Sequence[str]) -> list[Side]:
        """Return the sides that the user named. Raises UsageError, StoreError, DescriptorError.

        Each word of the command line names one side of the comparison. If the word "vs" is present, all words
        between two occurrences of "vs" are one side. A word is the name of a job, or KEY=VALUE for all jobs
        with this label. If the only word names a job that compares descriptors, the job's arms are the sides.
        """
        groups = _groups(words)
        if len(groups) == 1:
            return self._arms(groups[0])
        sides = [replace(side, runs=by_arm(side.runs)) for side in map(self._side, groups)]
        counts = Counter(job.runs.job_id for side in sides for job in side.jobs)
        for job_id, count in counts.items():
            if count > 1:
                raise UsageError(f"{job_id} is named {count} times; a comparison takes each job once")
        for side in sides:
            if not side.runs:
                why = "; ".join(side.left_out) or "it has none"
                raise UsageError(f"{side.name} has no successful run to compare: {why}")
        return sides

    def labelled(self, label: str, *, last: int | None = None, but: Iterable[str] = ()) -> list[ComparedJob]:
        """Return the newest `last` succeeded jobs with the label KEY=VALUE, the oldest first, except the jobs
        in `but`.

        Raises UsageError, StoreError.
        """
        key, _, value = label.partition("=")
        if not key or not value:
            raise UsageError(
                f'"{label}" is no label; write KEY=VALUE as in [info] labels, for example task_name=digits'
            )
        found = self._jobs(lambda job: job.job.labels.get(key) == value, but=but)
        return [self.job(record) for record in (found if last is None else found[-last:])]

    def earlier_scatter(self, side: Side, *, but: Iterable[str]) -> dict[str, float]:
        """Return the relative standard deviation of each metric over earlier runs of the same benchmark, by
        metric. Raises StoreError."""
        name = side.jobs[0].runs.job.job.name
        found = self._jobs(lambda job: job.job.name == name, but=but)[-_EARLIER:]
        runs = [run for record in found for run in self.job(record).runs.runs]
        scatters = {}
        for metric in {metric for run in runs for metric in run.values}:
            values = [run.values[metric].value for run in runs if metric in run.values]
            if len(values) >= _FEWEST and (scatter := successive_scatter(values)) is not None:
                scatters[metric] = scatter
        return scatters

    def _jobs(self, wanted: Callable[[Job], bool], *, but: Iterable[str]) -> list[JobRecord]:
        """Return those jobs that have a successful run, the oldest first."""
        left_out = set(but)
        found: list[tuple[int, JobRecord]] = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for store in self._stores():
                records = [JobRecord(store, each) for each in job_ids(store) if each not in left_out]
                starts = pool.map(lambda record: _started(record, wanted), records)
                found += [(at, each) for at, each in zip(starts, records, strict=True) if at is not None]
        return [record for _, record in sorted(found, key=lambda each: (each[0], each[1].job_id))]

    def _side(self, group: Sequence[str]) -> Side:
        jobs = [job for word in group for job in self._jobs_of(word)]
        name = group[0] if len(group) == 1 and len(jobs) > 1 else ", ".join(job.runs.job_id for job in jobs)
        return Side(name=name, runs=tuple(run for job in jobs for run in job.runs.runs), jobs=tuple(jobs))

    def _jobs_of(self, word: str) -> list[ComparedJob]:
        # No job id contains "=".
        if "=" not in word:
            return [self.job(self._find(word))]
        jobs = self.labelled(word)
        if not jobs:
            raise UsageError(f"there is no job with the label {word} that has succeeded")
        return jobs

    def _arms(self, group: Sequence[str]) -> list[Side]:
        side = self._side(group)
        if len(side.jobs) == 1:
            arms = sides_of(side.jobs[0])
            if len(arms) > 1:
                return arms
        raise UsageError(
            f"{side.name} is only one side: name a second job, or two groups of jobs with the word {VERSUS} "
            "between the groups, or --baseline KEY=VALUE for earlier runs with a label"
        )


def sides_of(job: ComparedJob) -> list[Side]:
    """Return the arms of a job as sides, in their order; empty for a job without arms."""
    return [
        Side(name=f"{job.runs.job_id} {arm}", runs=tuple(runs), jobs=(job,), arm=arm)
        for arm, runs in sides_of_arms(job.runs).items()
    ]


def job_runs(record: JobRecord, *, nodes: int | None = None) -> JobRuns:
    """Return the runs of a job with their numbers. From an elastic job, only generations on one number of
    nodes are used: if possible, `nodes` nodes. Raises StoreError, DescriptorError."""
    job, result, points = record.job(), result_of(record), read_points(record)
    starts = benchmark_starts(record.node())
    return runs_of(record.job_id, job, result, points, starts=starts, of_one_size=True, nodes=nodes)


def _of_arm(environment: Mapping[str, Any], arm: str | None) -> Mapping[str, Any]:
    """Return `environment.json` with the facts about one arm."""
    arms = environment.get("arms")
    found = arms.get(arm) if isinstance(arms, Mapping) and arm is not None else None
    return found if isinstance(found, Mapping) else {}


def _groups(words: Sequence[str]) -> list[list[str]]:
    if VERSUS not in words:
        return [[word] for word in words]
    groups: list[list[str]] = [[]]
    for word in words:
        if word == VERSUS:
            groups.append([])
        else:
            groups[-1].append(word)
    if not all(groups):
        raise UsageError(f"a side is empty: name jobs before and after the word {VERSUS}")
    return groups


def _started(record: JobRecord, wanted: Callable[[Job], bool]) -> int | None:
    """Return the start time of a job; None if `wanted` is false for the job, or if the job has no successful
    run."""
    try:
        if not wanted(record.job()):
            return None
        result = result_of(record)
        succeeded = result is not None and (
            result.outcome == SUCCEEDED or any(each.outcome == SUCCEEDED for each in result.repeats or ())
        )
        return started_of(record) if succeeded else None
    except (StoreError, DescriptorError, RecordError):
        # A job whose record is broken, or of another version, is left out. The other jobs can still be
        # compared.
        return None
