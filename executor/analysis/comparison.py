"""Two sides of runs compared: the verdict of each metric, with the rate of false alarms kept over all of them together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bai_agent.job.descriptor import Better
from executor.analysis.advice import how_many
from executor.analysis.compared_metric import Incomparable, MetricComparison, Verdict
from executor.analysis.drift import DRIFTS
from executor.analysis.effect import ALPHA, CONFIDENCE, Effect, holm
from executor.analysis.matching import matched, only_in, side_notes
from executor.analysis.runs import Run


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All metrics that both sides have, and those that only one has."""

    metrics: tuple[MetricComparison, ...]
    incomparable: tuple[Incomparable, ...] = ()
    """Metrics of which both sides have another definition, or some numbers are only bounds."""
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    corrected_for: int = 0
    """Metrics with a direction, of all pairs of sides, among which the verdicts keep the rate of false alarms."""
    notes: tuple[str, ...] = ()
    """What is to be said of all of them."""

    @property
    def every(self) -> tuple[MetricComparison | Incomparable, ...]:
        """The metrics of both sides, those last that cannot be compared."""
        return (*self.metrics, *self.incomparable)

    @property
    def worse(self) -> bool:
        return any(each.verdict is Verdict.WORSE for each in self.metrics)

    @property
    def unjudged(self) -> bool:
        """Whether nobody can say if a metric with a direction is worse: it drifts, or is not the same on both sides."""
        return any(each.better is not None and not each.both_below for each in self.incomparable) or any(
            each.drifts and each.better is not None for each in self.metrics
        )

    def tables(self) -> list[dict[str, Any]]:
        """Return all metrics as JSON values."""
        return [*(each.as_table() for each in self.metrics), *(each.as_table() for each in self.incomparable)]

    def find(self, name: str) -> MetricComparison | None:
        return next((each for each in self.metrics if each.name == name), None)


def compare(
    a: Sequence[Run], b: Sequence[Run], *, earlier_scatter: Mapping[str, float] | None = None
) -> Comparison:
    """Compare the runs `b` with the runs `a`; see `compare_sides`."""
    return compare_sides(a, [b], earlier_scatter=earlier_scatter)[0]


def compare_sides(
    first: Sequence[Run],
    others: Sequence[Sequence[Run]],
    *,
    earlier_scatter: Mapping[str, float] | None = None,
) -> list[Comparison]:
    """Compare each side of `others` with the first one. The rate of false alarms is kept over all of them together.

    Arms of one job are compared within their blocks. earlier_scatter: the relative standard deviation of earlier runs by
    metric, from which it is learnt how many are needed.
    """
    every = [matched(first, other) for other in others]
    metrics = {
        (i, name): each
        for i, found in enumerate(every)
        for name, each in found.items()
        if isinstance(each, MetricComparison)
    }
    tested = {key: each for key, each in metrics.items() if each.effect.p is not None}
    for directed in (True, False):
        family = {key: each for key, each in tested.items() if (each.better is not None) == directed}
        for key, p in _corrected({key: each.effect.p or 0.0 for key, each in family.items()}).items():
            metrics[key] = replace(metrics[key], p_corrected=p, corrected_for=len(family))
    metrics |= _with_drifts(metrics)
    return [
        Comparison(
            metrics=tuple(
                _judged(each, (earlier_scatter or {}).get(name))
                for (k, name), each in metrics.items()
                if k == i
            ),
            incomparable=tuple(each for each in found.values() if isinstance(each, Incomparable)),
            only_a=only_in(first, other),
            only_b=only_in(other, first),
            corrected_for=sum(each.better is not None for each in tested.values()),
            notes=side_notes(first, other),
        )
        for i, (found, other) in enumerate(zip(every, others, strict=True))
    ]


_LEAST = -1 + 1e-15
"""A share that has a logarithm."""
_Key = tuple[int, str]
"""The number of a pair of sides, and a metric."""


def _corrected(ps: Mapping[Any, float]) -> dict[Any, float]:
    return dict(zip(ps, holm(list(ps.values())), strict=True))


def _with_drifts(metrics: Mapping[_Key, MetricComparison]) -> dict[_Key, MetricComparison]:
    """Return the metrics of which both sides drift, marked, and those of which one does, with a note."""
    seen = {key: each.drift for key, each in metrics.items() if each.drift is not None}
    both = _corrected({key: drift.both_p for key, drift in seen.items()})
    single = _corrected({(key, i): drift.each_p[i] for key, drift in seen.items() for i in (0, 1)})
    found = {}
    for key, drift in seen.items():
        each = metrics[key]
        change = each.effect.change
        if both[key] <= DRIFTS and drift.explains(
            math.log1p(max(change, _LEAST)) if each.effect.relative else change
        ):
            found[key] = replace(each, drifts=True)
        elif alone := [letter for i, letter in enumerate("AB") if single[key, i] <= DRIFTS]:
            sentence = (
                f"the runs of {' and of '.join(alone)} drift: their scatter is more than that of the program"
            )
            found[key] = replace(each, notes=(*each.notes, sentence))
    return found


def _judged(each: MetricComparison, earlier: float | None) -> MetricComparison:
    """Return it with its verdict, and what is to be said of that in front of its notes."""
    found = each.effect
    # What is compared with the change: where that is absolute, a share of A's level.
    level = 1.0 if found.relative else abs(each.centre_a)
    bound = (each.tolerance or 0.0) * level
    p = each.p_corrected
    shown = found.excludes_zero and p is not None and p <= ALPHA
    notes = [*found.notes]
    more: int | None = None
    if each.drifts:
        verdict = Verdict.UNKNOWN
        notes.append(
            "both sides drift, by as much as would make half of the change or more: use `bai ab`, whose runs take turns"
        )
    elif found.p is None:
        verdict = Verdict.UNKNOWN
        more, why = how_many((each.a, each.b), found, each.tolerance, earlier)
        notes.append(why)
    elif each.tolerance is not None and found.within(bound):
        verdict = Verdict.WITHIN
    elif shown and abs(found.change) > bound:
        verdict = _direction(found.change, each.better)
    elif each.tolerance is not None:
        verdict = Verdict.UNKNOWN
        more, why = how_many((each.a, each.b), found, each.tolerance, None)
        notes.append(why)
    else:
        verdict = Verdict.NONE
    if found.excludes_zero and not shown and not each.drifts:
        notes.append(
            f"its interval excludes zero, but one such among {each.corrected_for} metrics may be chance"
        )
    return replace(
        each, verdict=verdict, more_runs=more, notes=(*notes, *_second_opinions(found), *each.notes)
    )


def _direction(change: float, better: Better | None) -> Verdict:
    if better is None:
        return Verdict.DIFFERENT
    return Verdict.BETTER if (change > 0) == (better is Better.HIGHER) else Verdict.WORSE


def _second_opinions(found: Effect) -> list[str]:
    """Return a sentence where tests that assume less than the one that decides come to another answer."""
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
        f"{' and '.join(others)}, which assume{'s' if len(others) == 1 else ''} less, "
        f"do{'es' if len(others) == 1 else ''} not agree (p = {found.p:.2g}): look at the runs for outliers; more runs would settle it"
    ]


METHOD = (
    f"The unit is the run. Each interval holds the true change with {CONFIDENCE * 100:.0f} % confidence (Welch's t, for arms of one job Student's t of "
    f"the differences within blocks; of logarithms where all values are positive). A difference is found where it is excluded that there is none, with "
    f"{ALPHA * 100:.0f} % of false alarms over all metrics that name their better direction together, and over all others (Holm)."
)
"""What is printed below a comparison."""
