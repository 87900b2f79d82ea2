"""Compares one metric between two sides: the metric's numbers, the measured change, and the verdict."""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from bai_agent.job.descriptor.metric_tables import Better
from bai_agent.light_dataclass import dataclass
from executor.analysis.effect import Effect, centre
from executor.analysis.history import SidesDrift


class Verdict(str, Enum):
    """Verdict on the change of a metric."""

    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"
    """The metric changed, but its descriptor does not say which direction is better."""
    NONE = "no difference found"
    WITHIN = "within tolerance"
    UNKNOWN = "cannot tell"
    INCOMPARABLE = "not comparable"

    @classmethod
    def of_change(cls, change: float, better: Better | None) -> Verdict:
        """Return the verdict on a significant change."""
        if better is None:
            return cls.DIFFERENT
        return cls.BETTER if (change > 0) == (better is Better.HIGHER) else cls.WORSE


@dataclass(frozen=True, kw_only=True)
class MetricComparison:
    """Comparison of one metric between two sides."""

    name: str
    units: str = ""
    better: Better | None = None
    tolerance: float | None = None
    a: tuple[float, ...]
    b: tuple[float, ...]
    """One number for each run that has the metric. If the runs are `paired`, numbers with the same index are
    from one block."""
    effect: Effect
    p_corrected: float | None = None
    """p value corrected (Holm) within the metric's family, which is all metrics with `better`, or all metrics
    without `better`."""
    corrected_for: int = 1
    """Number of metrics in the family for which `p_corrected` is corrected. With several arms, the metrics of
    all pairs of arms are counted."""
    drift: SidesDrift | None = None
    """Drift of the two sides, if one side ran after the other; None if the drift cannot be determined."""
    drifts: bool = False
    """True if the numbers of both sides drift; the change then says nothing about the compared programs."""
    verdict: Verdict = Verdict.UNKNOWN
    more_runs: int | None = None
    """Approximate number of further runs per side that are needed for a verdict. None if there is a verdict,
    or if the needed number is unknown."""
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
        """p value of this metric's test, without correction."""
        return self.effect.p

    @property
    def unknown(self) -> str | None:
        """Reason why a condition on this metric cannot be judged; None if the condition can be judged."""
        if self.drifts:
            return "because both sides drift; use `bai ab`, whose runs alternate"
        if self.effect.p is None:
            return "because a side has only one run; make at least two runs per side, better five"
        return None

    @property
    def verdict_text(self) -> str:
        """The verdict as text for the user. If only the correction for the number of metrics makes the
        verdict `no difference found`, the text says so."""
        if self.verdict is Verdict.NONE and self.effect.excludes_zero:
            return f"{self.verdict.value}\n(of {self.corrected_for} metrics, corrected)"
        return self.verdict.value

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
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
    """A metric that both sides have, but that cannot be compared, because its definitions differ or some of
    its numbers are only bounds."""

    name: str
    why: str
    """Difference between the definitions, or reason why some numbers are known only as bounds."""
    better: Better | None
    a: tuple[float, str]
    b: tuple[float, str]
    """Headline of side B, and the headline's units."""
    below: tuple[float | None, float | None] = (None, None)
    """Upper bound of each side's numbers, in the side's units. None for a side in which any number is
    exact."""
    differs: bool = True
    """True if the two definitions differ; false if the definitions are the same, but some numbers are only
    bounds."""

    @property
    def both_below(self) -> bool:
        """Whether the numbers of both sides are bounds, so that neither side can be called worse."""
        return None not in self.below

    @property
    def note(self) -> str:
        if not self.differs:
            return f"not comparable: {self.why}"
        return f"not comparable, because the metric is not defined in the same way on both sides: {self.why}"

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values, with the keys of a comparison."""
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


class _Judged(Protocol):
    @property
    def verdict(self) -> str: ...

    def as_table(self) -> dict[str, Any]: ...


Judged = TypeVar("Judged", bound=_Judged, covariant=True)


@dataclass(frozen=True, kw_only=True)
class ComparedMetrics(Generic[Judged]):
    """All metrics that both sides have."""

    metrics: tuple[Judged, ...]
    incomparable: tuple[Incomparable, ...] = ()
    """Metrics that cannot be compared, because their definitions differ or some numbers are only bounds."""

    @property
    def every(self) -> tuple[Judged | Incomparable, ...]:
        """All metrics; metrics that cannot be compared come last."""
        return (*self.metrics, *self.incomparable)

    @property
    def worse(self) -> bool:
        """Whether any metric is worse."""
        return any(each.verdict == Verdict.WORSE for each in self.metrics)

    @property
    def unjudged(self) -> bool:
        """Whether any metric with `better` cannot be judged, because its definitions differ."""
        return any(each.better is not None and not each.both_below for each in self.incomparable)

    def tables(self) -> list[dict[str, Any]]:
        """Return all metrics as JSON values."""
        return [each.as_table() for each in self.every]
