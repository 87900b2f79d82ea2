"""Two sides compared: what the runs of each say, and what else differs between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from executor.analysis.comparison import Comparison, compare_sides
from executor.analysis.differences import Difference, descriptor_differences, environment_differences
from executor.jobs.compared import ComparedJob, Side, sides_of


@dataclass(frozen=True, kw_only=True)
class ComparedPair:
    """The side B compared with the side A. What differs is read when it is asked for."""

    a: Side
    b: Side
    comparison: Comparison

    @property
    def names(self) -> tuple[str, str]:
        return self.a.name, self.b.name

    @property
    def counts(self) -> tuple[int, int]:
        """The number of runs of each side."""
        return len(self.a.runs), len(self.b.runs)

    @property
    def left_out(self) -> list[str]:
        """Runs that are not compared, and why: a sentence each."""
        return list(dict.fromkeys([*self.a.left_out, *self.b.left_out]))

    @cached_property
    def differences(self) -> list[Difference]:
        """What else differs: machines, then descriptors. Raises StoreError."""
        return [
            *environment_differences(self.a.environments, self.b.environments),
            *descriptor_differences(self.a.described, self.b.described),
        ]

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values. Raises StoreError."""
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
    """Compare each side with the first one; see `compare_sides`."""
    first, *others = sides
    found = compare_sides(first.runs, [side.runs for side in others], earlier_scatter=earlier_scatter)
    return [
        ComparedPair(a=first, b=other, comparison=comparison)
        for other, comparison in zip(others, found, strict=True)
    ]


def compared_arms(job: ComparedJob) -> list[ComparedPair]:
    """Compare the arms of a job; nothing if fewer than two have a run that succeeded."""
    sides = sides_of(job)
    return compared_pairs(sides) if len(sides) > 1 else []
