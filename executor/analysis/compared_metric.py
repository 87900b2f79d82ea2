"""One metric of two sides: its numbers, what was found, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from bai_agent.job.descriptor import Better
from executor.analysis.drift import SidesDrift
from executor.analysis.effect import Effect, centre


class Verdict(str, Enum):
    """What is said of a metric."""

    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"
    """The metric does not say which direction is better."""
    NONE = "no difference found"
    WITHIN = "within tolerance"
    UNKNOWN = "cannot tell"
    INCOMPARABLE = "not comparable"


@dataclass(frozen=True, kw_only=True)
class MetricComparison:
    """One metric of the two sides."""

    name: str
    units: str = ""
    better: Better | None = None
    tolerance: float | None = None
    a: tuple[float, ...]
    b: tuple[float, ...]
    """One number for each run that has the metric; of `paired` ones with one index a block."""
    effect: Effect
    p_corrected: float | None = None
    """By Holm, over the metrics of its family: those with a direction, or those without."""
    corrected_for: int = 1
    """Metrics in that family; with several arms those of each pair."""
    drift: SidesDrift | None = None
    """Of sides that ran one after the other; None where nothing can be seen."""
    drifts: bool = False
    """Whether both sides drift, so that their change says nothing of the programs."""
    verdict: Verdict = Verdict.UNKNOWN
    more_runs: int | None = None
    """About so many more a side are needed, where one cannot tell."""
    notes: tuple[str, ...] = ()

    @property
    def centre_a(self) -> float:
        return centre(self.a, relative=self.effect.relative)

    @property
    def centre_b(self) -> float:
        return centre(self.b, relative=self.effect.relative)

    @property
    def change(self) -> float:
        return self.effect.change

    @property
    def relative(self) -> bool:
        return self.effect.relative

    @property
    def p(self) -> float | None:
        """That of its test alone."""
        return self.effect.p

    @property
    def unknown(self) -> str | None:
        """Why no condition on it can be judged; None if one can."""
        if self.drifts:
            return "as both sides drift; use `bai ab`, whose runs take turns"
        if self.effect.p is None:
            return "with one run on a side; take two or more, better five"
        return None

    @property
    def verdict_text(self) -> str:
        """The verdict for reading: where its interval alone would say more than can be said of so many metrics, with that word."""
        if self.verdict is Verdict.NONE and self.effect.excludes_zero:
            return f"{self.verdict.value}\n(of {self.corrected_for} metrics, corrected)"
        return self.verdict.value

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "name": self.name,
            "units": self.units,
            "better": self.better.value if self.better is not None else None,
            "tolerance": self.tolerance,
            "verdict": self.verdict.value,
            "relative": self.effect.relative,
            "paired": self.effect.paired,
            "change": self.effect.change,
            "interval": [self.effect.low, self.effect.high] if self.effect.low is not None else None,
            "p": self.effect.p,
            "p_corrected": self.p_corrected,
            "corrected_for": self.corrected_for,
            "permutation_p": self.effect.permutation_p,
            "rank_p": self.effect.rank_p,
            "scatter": self.effect.scatter,
            "more_runs": self.more_runs,
            "drifts": self.drifts,
            "a": {"value": self.centre_a, "runs": list(self.a)},
            "b": {"value": self.centre_b, "runs": list(self.b)},
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True)
class Incomparable:
    """One metric that both sides have, and that is not the same thing on both, or has bounds for numbers."""

    name: str
    why: str
    """In what the definitions differ, or what the bounds come from."""
    better: Better | None
    a: tuple[float, str]
    b: tuple[float, str]
    """The number that stands for the side, and its units."""
    below: tuple[float | None, float | None] = (None, None)
    """For a side whose numbers are all bounds: what they are below, in its units."""
    differs: bool = True
    """Whether the definitions differ; else it is the same metric, and some of its numbers are only bounds."""

    @property
    def both_below(self) -> bool:
        """Whether neither side has more than can be measured: no reason to fear that one is worse."""
        return None not in self.below

    @property
    def note(self) -> str:
        if not self.differs:
            return f"not comparable: {self.why}"
        return f"not comparable, as it is not the same on both sides: {self.why}"

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values, with the keys of a comparison."""
        return {
            "name": self.name,
            "better": self.better.value if self.better is not None else None,
            "verdict": Verdict.INCOMPARABLE.value,
            "change": None,
            "interval": None,
            "p": None,
            "a": _side(*self.a, self.below[0]),
            "b": _side(*self.b, self.below[1]),
            "notes": [self.note],
        }


def _side(value: float, units: str, below: float | None) -> dict[str, Any]:
    return (
        {"value": value, "units": units} if below is None else {"value": None, "units": units, "below": below}
    )
