"""Two sides of runs compared, metric by metric: what can be said of each, in one of six verdicts and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from bai_agent.job.descriptor import Better
from executor.analysis.effect import (
    ALPHA,
    CONFIDENCE,
    Effect,
    centre,
    effect,
    holm,
    runs_needed,
)
from executor.analysis.runs import Run

ASSUMED_SCATTER = 0.05
"""Of runs, where there are none to learn it from: a common figure for single instances of a cloud, said to be an assumption."""
ASSUMED_DIFFERENCE = 0.05
"""What is to be found, where a metric has no tolerance."""


class Verdict(str, Enum):
    """What is said of a metric."""

    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"
    """The metric does not say which direction is better."""
    NONE = "no difference found"
    WITHIN = "within tolerance"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True, kw_only=True)
class MetricComparison:
    """One metric of the two sides."""

    name: str
    units: str = ""
    better: Better | None = None
    tolerance: float | None = None
    a: tuple[float, ...]
    b: tuple[float, ...]
    """One number for each run that has the metric."""
    effect: Effect
    p_corrected: float | None = None
    """By Holm, over all metrics that say which direction is better."""
    verdict: Verdict
    more_runs: int | None = None
    """About so many more a side are needed, where one cannot tell."""
    notes: tuple[str, ...] = ()

    @property
    def centre_a(self) -> float:
        return centre(self.a, relative=self.effect.relative)

    @property
    def centre_b(self) -> float:
        return centre(self.b, relative=self.effect.relative)

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "name": self.name,
            "units": self.units,
            "better": self.better.value if self.better is not None else None,
            "tolerance": self.tolerance,
            "verdict": self.verdict.value,
            "relative": self.effect.relative,
            "change": self.effect.change,
            "interval": [self.effect.low, self.effect.high] if self.effect.low is not None else None,
            "p": self.effect.p,
            "p_corrected": self.p_corrected,
            "permutation_p": self.effect.permutation_p,
            "scatter": self.effect.scatter,
            "more_runs": self.more_runs,
            "a": {"value": self.centre_a, "runs": list(self.a)},
            "b": {"value": self.centre_b, "runs": list(self.b)},
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All metrics that both sides have, and those that only one has."""

    metrics: tuple[MetricComparison, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    corrected_for: int = 0
    """Metrics among which the verdicts keep the rate of false alarms."""

    @property
    def worse(self) -> bool:
        return any(each.verdict is Verdict.WORSE for each in self.metrics)

    def find(self, name: str) -> MetricComparison | None:
        return next((each for each in self.metrics if each.name == name), None)


def compare(
    a: Sequence[Run], b: Sequence[Run], *, earlier_scatter: Mapping[str, float] | None = None
) -> Comparison:
    """Compare the runs `b` with the runs `a`.

    earlier_scatter: the relative standard deviation of earlier runs by metric, from which it is learnt how many are needed.
    """
    names_a, names_b = ({name: None for run in side for name in run.values} for side in (a, b))
    both = [name for name in names_a if name in names_b]
    effects = {name: effect(_numbers(a, name), _numbers(b, name)) for name in both}
    directed = [name for name in both if _better(a, name) is not None and effects[name].p is not None]
    corrected = dict(zip(directed, holm([effects[name].p or 0.0 for name in directed]), strict=True))
    return Comparison(
        metrics=tuple(
            _compared(name, a, b, effects[name], corrected.get(name), len(directed), earlier_scatter or {})
            for name in both
        ),
        only_a=tuple(name for name in names_a if name not in names_b),
        only_b=tuple(name for name in names_b if name not in names_a),
        corrected_for=len(directed),
    )


def _numbers(side: Sequence[Run], name: str) -> list[float]:
    return [run.values[name].value for run in side if name in run.values]


def _better(side: Sequence[Run], name: str) -> Better | None:
    metric = _first(side, name).metric
    return metric.better if metric is not None else None


def _first(side: Sequence[Run], name: str) -> Any:
    return next(run.values[name] for run in side if name in run.values)


def _compared(
    name: str,
    a: Sequence[Run],
    b: Sequence[Run],
    found: Effect,
    p_corrected: float | None,
    corrected_for: int,
    earlier: Mapping[str, float],
) -> MetricComparison:
    first = _first(a, name)
    metric = first.metric
    better = metric.better if metric is not None else None
    tolerance = metric.tolerance if metric is not None else None
    numbers = tuple(_numbers(a, name)), tuple(_numbers(b, name))
    # What is compared with the change: where that is absolute, a share of A's level.
    level = 1.0 if found.relative else abs(centre(numbers[0], relative=False))
    bound = (tolerance or 0.0) * level
    p = p_corrected if p_corrected is not None else found.p
    shown = found.excludes_zero and p is not None and p <= ALPHA
    notes = [*found.notes]
    more: int | None = None
    if found.p is None:
        verdict = Verdict.UNKNOWN
        more, why = _how_many(numbers, found, tolerance, earlier.get(name))
        notes.append(why)
    elif tolerance is not None and found.within(bound):
        verdict = Verdict.WITHIN
    elif shown and abs(found.change) > bound:
        verdict = _direction(found.change, better)
    elif tolerance is not None:
        verdict = Verdict.UNKNOWN
        more, why = _how_many(numbers, found, tolerance, None)
        notes.append(why)
    else:
        verdict = Verdict.NONE
    if found.excludes_zero and not shown:
        notes.append(f"its interval excludes zero, but one such among {corrected_for} metrics may be chance")
    if found.permutation_p is not None and found.p is not None and found.p > 0:
        agrees = (found.permutation_p <= ALPHA) == (found.p <= ALPHA)
        if not agrees:
            notes.append(
                f"a permutation test, which assumes less, does not agree (p = {found.permutation_p:.2g}): more runs would settle it"
            )
    if len(numbers[0]) < len(a) or len(numbers[1]) < len(b):
        notes.append(
            f"only {len(numbers[0])} of {len(a)} runs of A and {len(numbers[1])} of {len(b)} of B have it"
        )
    if first.ranks > 1 and (metric is None or metric.over_ranks.value == "each"):
        notes.append(f"its {first.ranks} ranks are taken as their mean, as over_ranks names nothing else")
    notes += _unsteady_notes(name, a, b)
    return MetricComparison(
        name=name, units=first.units, better=better, tolerance=tolerance, a=numbers[0], b=numbers[1],
        effect=found, p_corrected=p_corrected, verdict=verdict, more_runs=more, notes=tuple(notes),
    )  # fmt: skip


def _direction(change: float, better: Better | None) -> Verdict:
    if better is None:
        return Verdict.DIFFERENT
    return Verdict.BETTER if (change > 0) == (better is Better.HIGHER) else Verdict.WORSE


def _how_many(
    numbers: tuple[Sequence[float], Sequence[float]],
    found: Effect,
    tolerance: float | None,
    earlier: float | None,
) -> tuple[int | None, str]:
    """Return about how many more runs a side would tell, and a sentence that says from what that follows."""
    fewest = min(len(side) for side in numbers)
    one = "one run a side says nothing of how much runs scatter; " if fewest < 2 else ""
    if not found.relative:
        if found.scatter is None or tolerance is None:
            return None, f"{one}five a side would show it"
        difference = tolerance * abs(centre(numbers[0], relative=False))
        scatter, source = found.scatter, "as these runs scatter"
    else:
        difference = tolerance or ASSUMED_DIFFERENCE
        if found.scatter is not None:
            scatter, source = found.scatter, f"as these runs scatter by {_percent(found.scatter)}"
        elif earlier is not None:
            scatter, source = earlier, f"as earlier runs scatter by {_percent(earlier)}"
        else:
            scatter = ASSUMED_SCATTER
            source = f"if runs scatter by {_percent(scatter)}, an assumption, as there are no earlier ones to learn it from"
    wanted = (
        f"a difference of {difference:.3g}" if not found.relative else f"a difference of {difference:.2g}"
    )
    if found.relative:
        wanted = f"a difference of {_percent(difference)}" + (", its tolerance" if tolerance else "")
    needed = runs_needed(scatter=scatter, difference=difference) if difference > 0 else None
    if needed is None:
        return None, f"{one}more than 10,000 a side would be needed for {wanted}, {source}"
    more = max(1, needed - fewest)
    return more, f"{one}about {more:,} more run{'s' if more > 1 else ''} a side would tell {wanted}, {source}"


def _unsteady_notes(name: str, a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    notes = []
    for label, side in (("A", a), ("B", b)):
        marked = [run for run in side if name in run.values and run.values[name].unsteady is not None]
        if marked:
            notes.append(
                f"{label}: {len(marked)} of {len(side)} not steady; {marked[0].name}: {marked[0].values[name].unsteady}"
            )
    return notes


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 1 else f"{share * 100:,.0f} %"


METHOD = (
    f"The unit is the run. Intervals hold the true change with {CONFIDENCE * 100:.0f} % confidence (Welch's t, of logarithms where all "
    f"values are positive); a difference is found where it is excluded that there is none, with {ALPHA * 100:.0f} % of false alarms over all metrics "
    "that name their better direction (Holm)."
)
"""What is printed below a comparison."""
