"""Compares the runs of two sides, and gives a verdict on each metric. One rate of false alarms applies to all
metrics together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bai_agent.light_dataclass import dataclass, replace
from executor.analysis.compared_metric import ComparedMetrics, Incomparable, MetricComparison, Verdict
from executor.analysis.effect import ALPHA, CONFIDENCE, Effect, centre, holm_in_families, holm_of, student
from executor.analysis.history import DRIFTS
from executor.analysis.matching import matched, only_in, side_notes
from executor.analysis.measured_runs import Run
from executor.quantities import percent


@dataclass(frozen=True, kw_only=True)
class Comparison(ComparedMetrics[MetricComparison]):
    """The metrics of two sides."""

    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    corrected_for: int = 0
    """Number of metrics for which the p values are corrected: all metrics with a direction, counted over all
    pairs of sides."""
    notes: tuple[str, ...] = ()
    """Notes that apply to all metrics."""

    @property
    def unjudged(self) -> bool:
        """Whether any metric with `better` cannot be judged, because the metric drifts or its definitions
        differ."""
        return super().unjudged or any(each.drifts and each.better is not None for each in self.metrics)

    def find(self, name: str) -> MetricComparison | None:
        return next((each for each in self.metrics if each.name == name), None)


def compare(
    a: Sequence[Run], b: Sequence[Run], *, earlier_scatter: Mapping[str, float] | None = None
) -> Comparison:
    """Compare the runs `b` with the runs `a`. `compare_sides` describes the comparison."""
    return compare_sides(a, [b], earlier_scatter=earlier_scatter)[0]


def compare_sides(
    first: Sequence[Run],
    others: Sequence[Sequence[Run]],
    *,
    earlier_scatter: Mapping[str, float] | None = None,
) -> list[Comparison]:
    """Compare each side of `others` with the first side. One rate of false alarms applies to all metrics
    together.

    Arms of one job are compared block by block. earlier_scatter: relative standard deviation of earlier runs,
    by metric. The number of runs that a verdict needs is estimated from this deviation.
    """
    every = [matched(first, other) for other in others]
    judged = _judged_together(every, earlier_scatter or {})
    directed = sum(each.better is not None and each.p is not None for pair in judged for each in pair)
    return [
        Comparison(
            metrics=metrics,
            incomparable=tuple(each for each in found.values() if isinstance(each, Incomparable)),
            only_a=only_in(first, other),
            only_b=only_in(other, first),
            corrected_for=directed,
            notes=side_notes(first, other),
        )
        for metrics, found, other in zip(judged, every, others, strict=True)
    ]


def _judged_together(
    every: Sequence[Mapping[str, MetricComparison | Incomparable]], earlier_scatter: Mapping[str, float]
) -> list[tuple[MetricComparison, ...]]:
    """Return the metrics of each pair of sides with their verdicts."""
    metrics: dict[_Key, MetricComparison] = {
        (i, name): each
        for i, found in enumerate(every)
        for name, each in found.items()
        if isinstance(each, MetricComparison)
    }
    tested = {key: (p, each.better is not None) for key, each in metrics.items() if (p := each.p) is not None}
    for key, (p, size) in holm_in_families(tested).items():
        metrics[key] = replace(metrics[key], p_corrected=p, corrected_for=size)
    metrics |= _with_drifts(metrics)
    judged: list[list[MetricComparison]] = [[] for _ in every]
    for (i, name), each in metrics.items():
        judged[i].append(_judged(each, earlier_scatter.get(name)))
    return [tuple(pair) for pair in judged]


_DRIFTS = "both sides drift, enough to explain half of the change or more: use `bai ab`, whose runs alternate"
_LEAST = -1 + 1e-15
"""Lower limit for relative changes, so that 1 + change has a logarithm."""
_Key = tuple[int, str]
"""Number of a pair of sides, and name of a metric."""


def _with_drifts(metrics: Mapping[_Key, MetricComparison]) -> dict[_Key, MetricComparison]:
    """Return the metrics with their drifts. If both sides of a metric drift, `drifts` is set. If only one
    side drifts, the metric gets a note."""
    seen = {key: each.drift for key, each in metrics.items() if each.drift is not None}
    both = holm_of({key: drift.both_p for key, drift in seen.items()})
    single = holm_of({(key, i): p for key, drift in seen.items() for i, p in enumerate(drift.each_p)})
    found = {}
    for key, drift in seen.items():
        each = metrics[key]
        if both[key] <= DRIFTS and drift.explains(_on_scale(each.effect)):
            found[key] = replace(each, drifts=True)
        elif alone := " and of ".join(letter for i, letter in enumerate("AB") if single[key, i] <= DRIFTS):
            sentence = f"the runs of {alone} drift, so they scatter more than the program itself"
            found[key] = replace(each, notes=(*each.notes, sentence))
    return found


def _on_scale(found: Effect) -> float:
    """Return a relative change as a logarithm, as drifts are measured; return any other change unchanged."""
    return math.log1p(max(found.change, _LEAST)) if found.relative else found.change


class _Judgement(NamedTuple):
    verdict: Verdict
    note: str = ""
    more_runs: int | None = None


def _judged(each: MetricComparison, earlier: float | None) -> MetricComparison:
    """Return the metric with its verdict. The verdict's notes precede the metric's notes."""
    found, p = each.effect, each.p_corrected
    shown = found.excludes_zero and p is not None and p <= ALPHA
    judgement = _judgement(each, earlier, shown=shown)
    notes = [*found.notes, *filter(None, [judgement.note])]
    if found.excludes_zero and not shown and not each.drifts:
        notes.append(
            f"the interval excludes zero, but among {each.corrected_for} metrics one interval may do so by chance"
        )
    return replace(
        each,
        verdict=judgement.verdict,
        more_runs=judgement.more_runs,
        notes=(*notes, *_second_opinions(found), *each.notes),
    )


def _judgement(each: MetricComparison, earlier: float | None, *, shown: bool) -> _Judgement:
    """Return the verdict of the first rule that applies. shown: whether the change is significant."""
    found = each.effect
    # A tolerance is relative, so an absolute change is compared with the tolerance times side A's centre.
    bound = (each.tolerance or 0.0) * (1.0 if found.relative else abs(each.centre_a))
    if each.drifts:
        return _Judgement(Verdict.UNKNOWN, _DRIFTS)
    if found.p is None:
        return _unknown(each, earlier)
    if each.tolerance is not None and found.within(bound):
        return _Judgement(Verdict.WITHIN)
    # The last digits are ignored. Because of rounding, a change that equals the tolerance could otherwise
    # exceed it.
    if shown and abs(found.change) > bound * (1 + 1e-9):
        return _Judgement(Verdict.of_change(found.change, each.better))
    return _unknown(each, None) if each.tolerance is not None else _Judgement(Verdict.NONE)


def _unknown(each: MetricComparison, earlier: float | None) -> _Judgement:
    more, why = how_many((each.a, each.b), each.effect, each.tolerance, earlier)
    return _Judgement(Verdict.UNKNOWN, why, more)


def _second_opinions(found: Effect) -> list[str]:
    """Return a sentence if tests with fewer assumptions disagree with the test that decides the verdict."""
    if found.p is None:
        return []
    opinions = {"a permutation test": found.permutation_p, "a rank test": found.rank_p}
    others = [
        f"{name} (p = {p:.2g})"
        for name, p in opinions.items()
        if p is not None and (p <= ALPHA) != (found.p <= ALPHA)
    ]
    if not others:
        return []
    return [
        f"{' and '.join(others)}, which make{'s' if len(others) == 1 else ''} fewer assumptions, "
        f"do{'es' if len(others) == 1 else ''} not agree with the t test (p = {found.p:.2g}): look for outliers among the runs, or make more runs"
    ]


METHOD = (
    f"Each run counts as one number. A and B are the geometric means of their runs' numbers, or the means if some numbers are not positive. Each interval holds the true "
    f"change with {CONFIDENCE * 100:.0f} % confidence (Welch's t, for arms of one job Student's t of the differences within blocks; of logarithms if all "
    f"values are positive). A difference is reported if its interval, corrected for the number of metrics, excludes no change: {ALPHA * 100:.0f} % false "
    f"alarms over all metrics with a better direction together, and again over all other metrics together (Holm)."
)
"""Explanation below the table."""


ASSUMED_SCATTER = 0.05
"""Relative scatter of runs that is assumed if the true scatter is unknown. A scatter of 5 % is typical of
single cloud instances."""
ASSUMED_DIFFERENCE = 0.05
"""Relative difference that should be detected if a metric has no tolerance."""
POWER = 0.8
"""Probability with which the recommended number of runs detects a difference of the given size."""
_MOST_RUNS = 10_000


class _Aim(NamedTuple):
    """The difference that further runs should detect, and the scatter of runs that hides this difference."""

    difference: float
    wanted: str
    scatter: float
    source: str
    """Origin of `scatter`, as part of a sentence."""


def how_many(
    numbers: tuple[Sequence[float], Sequence[float]],
    found: Effect,
    tolerance: float | None,
    earlier: float | None,
) -> tuple[int | None, str]:
    """Return approximately how many more runs per side would be enough for a verdict, and a sentence with the
    reason."""
    fewest = min(map(len, numbers))
    one = "one run per side does not show how much runs scatter; " if fewest < 2 else ""
    aim = (
        _relative_aim(found, tolerance, earlier)
        if found.relative
        else _absolute_aim(numbers[0], found, tolerance)
    )
    if aim is None:
        return None, f"{one}five runs per side would show the scatter"
    if not aim.difference > 0:
        return None, f"{one}no number of runs can confirm a tolerance of zero"
    paired = found.paired and bool(found.scatter)
    needed = runs_needed(scatter=aim.scatter, difference=aim.difference, paired=paired)
    if needed is None:
        return None, f"{one}more than 10,000 runs per side would be needed for {aim.wanted}, {aim.source}"
    more = needed - fewest
    if more <= 0:
        near = "the change is too close to this difference for a verdict"
        return None, f"{aim.wanted} would be found with these runs, {aim.source}: {near}"
    runs = f"about {more:,} more run{'s' if more > 1 else ''} per side"
    return more, f"{one}{runs} would show {aim.wanted}, {aim.source}"


def _absolute_aim(first: Sequence[float], found: Effect, tolerance: float | None) -> _Aim | None:
    if not found.scatter or tolerance is None:
        return None
    difference = tolerance * abs(centre(first, relative=False))
    return _Aim(
        difference, f"a difference of {difference:.3g}", found.scatter, "given the scatter of these runs"
    )


def _relative_aim(found: Effect, tolerance: float | None, earlier: float | None) -> _Aim:
    difference = tolerance or ASSUMED_DIFFERENCE
    wanted = f"a difference of {_percent(difference)}" + (", its tolerance" if tolerance else "")
    # A measured scatter of 0 is not used, because further runs may give other numbers even if all runs so far
    # gave the same number.
    if found.scatter:
        return _Aim(
            difference, wanted, found.scatter, f"given that these runs scatter by {_percent(found.scatter)}"
        )
    if earlier is not None:
        return _Aim(difference, wanted, earlier, f"given that earlier runs scatter by {_percent(earlier)}")
    why = "these do not scatter" if found.scatter == 0 else "there are no earlier runs that show the scatter"
    source = f"if runs scatter by {_percent(ASSUMED_SCATTER)}, an assumption, because {why}"
    return _Aim(difference, wanted, ASSUMED_SCATTER, source)


def runs_needed(*, scatter: float, difference: float, paired: bool = False) -> int | None:
    """Return the number of runs per side that detect a difference of size `difference`; None if more than
    10,000 runs are needed.

    scatter, difference: on the same scale. paired: whether `scatter` is the scatter of the differences within
    blocks; if so, the result is a number of blocks. The number is computed by the usual approximation for a t
    test, with the power `POWER` and the false alarm rate `ALPHA`.
    """
    from scipy import special

    share = scatter / difference
    # `**` is not used, because `**` raises an error if the result is infinite.
    ratio = (1 if paired else 2) * share * share
    if not scatter:
        return 2
    if not ratio < _MOST_RUNS:
        return None
    runs = max(2, math.ceil(ratio * float(special.ndtri(1 - ALPHA / 2) + special.ndtri(POWER)) ** 2))
    while runs <= _MOST_RUNS:
        freedom = (runs - 1) * (1 if paired else 2)
        if runs >= ratio * (student(freedom, 1 - ALPHA / 2) + student(freedom, POWER)) ** 2:
            return runs
        runs += 1
    return None


def _percent(share: float) -> str:
    return percent(share, ".2g" if share < 1 else ",.0f")
