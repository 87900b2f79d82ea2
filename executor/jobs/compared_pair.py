"""Compares two sides, or a job with its history: the numbers of the runs, and the differences of the machines
and descriptors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Any

from bai_agent.light_dataclass import dataclass
from executor.analysis.baseline import AgainstHistory, against_history
from executor.analysis.comparison import Comparison, compare_sides
from executor.analysis.differences import Difference, descriptor_differences, environment_differences
from executor.errors import UsageError
from executor.jobs.compared import ComparedJob, RunReader, Side, by_arm, sides_of


@dataclass(frozen=True, kw_only=True)
class ComparedPair:
    """Comparison of side B with side A. Differences between the machines and between the descriptors are read
    on demand."""

    a: Side
    b: Side
    comparison: Comparison

    @property
    def names(self) -> tuple[str, str]:
        return self.a.name, self.b.name

    @property
    def counts(self) -> tuple[int, int]:
        """Number of compared runs of each side."""
        return len(self.a.runs), len(self.b.runs)

    @property
    def left_out(self) -> list[str]:
        """Sentences that say which runs are not compared, and why."""
        return list(dict.fromkeys([*self.a.left_out, *self.b.left_out]))

    @cached_property
    def differences(self) -> list[Difference]:
        """The differences of the machines, followed by the differences of the descriptors. Raises
        StoreError."""
        return [
            *environment_differences(self.a.environments, self.b.environments),
            *descriptor_differences(self.a.described, self.b.described),
        ]

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values. Raises StoreError."""
        a, b = (
            {"name": side.name, "runs": [run.name for run in side.runs], "left_out": side.left_out}
            for side in (self.a, self.b)
        )
        return {
            "a": a,
            "b": b,
            "differences": [each.as_table() for each in self.differences],
            "corrected_for": self.comparison.corrected_for,
            "notes": list(self.comparison.notes),
            "metrics": self.comparison.tables(),
            "only_a": list(self.comparison.only_a),
            "only_b": list(self.comparison.only_b),
        }


def compared_pairs(
    sides: Sequence[Side], *, earlier_scatter: Mapping[str, float] | None = None
) -> list[ComparedPair]:
    """Compare each side with the first side. `compare_sides` describes the comparison."""
    first, *others = sides
    found = compare_sides(first.runs, [side.runs for side in others], earlier_scatter=earlier_scatter)
    return [
        ComparedPair(a=first, b=other, comparison=comparison)
        for other, comparison in zip(others, found, strict=True)
    ]


def compared_arms(job: ComparedJob) -> list[ComparedPair]:
    """Compare the arms of a job. The result is empty if fewer than two arms have a successful run."""
    sides = sides_of(job)
    return compared_pairs(sides) if len(sides) > 1 else []


@dataclass(frozen=True, kw_only=True)
class ComparedHistory:
    """A job compared with earlier jobs with the same label and kind of machine."""

    newest: ComparedJob
    before: Sequence[ComparedJob]
    elsewhere: Sequence[ComparedJob]
    """Earlier jobs that are not compared, because they ran on other machines."""
    label: str

    @property
    def history(self) -> str:
        """The history as text."""
        jobs, runs = len(self.before), sum(len(job.runs.runs) for job in self.before)
        counted = f"{jobs} job{'' if jobs == 1 else 's'} with {self.label}"
        return f"{counted}, {runs} run{'' if runs == 1 else 's'}"

    @cached_property
    def banded(self) -> AgainstHistory:
        """The runs of the job compared with the runs of the history."""
        runs = [run for job in self.before for run in job.runs.runs]
        return against_history(by_arm(runs), by_arm(self.newest.runs.runs))

    @property
    def left_out(self) -> list[str]:
        """Sentences that say which runs are not compared, and why. Raises StoreError."""
        machines = self.newest.machines
        return [
            *(
                f"{job.runs.job_id} ran on {job.machines}, not on {machines}, so its runs are left out"
                for job in self.elsewhere
            ),
            *(sentence for job in (*self.before, self.newest) for sentence in job.runs.left_out),
        ]

    @cached_property
    def differences(self) -> list[Difference]:
        """The differences of the machines, followed by the differences of the descriptors. Raises
        StoreError."""
        earlier = [each for job in self.before for each in job.environments]
        return [
            *environment_differences(earlier, self.newest.environments),
            *descriptor_differences([job.described() for job in self.before], [self.newest.described()]),
        ]

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values. Raises StoreError."""
        return {
            "run": self.newest.runs.job_id,
            "history": [job.runs.job_id for job in self.before],
            "left_out": self.left_out,
            "differences": [each.as_table() for each in self.differences],
            "metrics": self.banded.tables(),
        }


def compared_history(
    reader: RunReader, label: str, newest: ComparedJob | None = None, *, last: int
) -> ComparedHistory:
    """Compare a job, by default the newest job with `label`, with at most `last` jobs before that job. Raises
    UsageError, StoreError."""
    if newest is None:
        newest = next(iter(reader.labelled(label, last=1)), None)
    if newest is None:
        raise UsageError(f"there is no job with the label {label} that has succeeded")
    runs = newest.runs
    if not runs.runs:
        raise UsageError(f"{runs.job_id} has no run that succeeded: {'; '.join(runs.left_out)}")
    earlier = [
        job
        for job in reader.labelled(label, but=[runs.job_id])
        if job.runs.runs and job.runs.runs[0].started <= runs.runs[0].started
    ][-last:]
    alike = [job.machines == newest.machines for job in earlier]
    found = ComparedHistory(
        newest=newest,
        before=list(compress(earlier, alike)),
        elsewhere=[job for job, same in zip(earlier, alike, strict=True) if not same],
        label=label,
    )
    if not found.before:
        why = f": {'; '.join(found.left_out)}" if found.elsewhere else ""
        raise UsageError(f"there is no earlier job with the label {label} that has succeeded{why}")
    return found
