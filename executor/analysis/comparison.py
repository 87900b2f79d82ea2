"""Two sides of runs compared, metric by metric: what can be said of each, in one of six verdicts and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from bai_agent.job.descriptor import Better
from executor.analysis.advice import how_many
from executor.analysis.effect import ALPHA, CONFIDENCE, Effect, centre, effect, holm, paired_effect
from executor.analysis.runs import Run, RunValue


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
    """One number for each run that has the metric; of `paired` ones with one index a block."""
    effect: Effect
    p_corrected: float | None = None
    """By Holm, over the metrics of its family: those with a direction, or those without."""
    corrected_for: int = 1
    """Metrics in that family; with several arms those of each pair."""
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
    """Metrics with a direction, of all pairs of sides, among which the verdicts keep the rate of false alarms."""
    notes: tuple[str, ...] = ()
    """What is to be said of all of them."""

    @property
    def worse(self) -> bool:
        return any(each.verdict is Verdict.WORSE for each in self.metrics)

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
    matched = [_matched(first, other) for other in others]
    families: dict[bool, list[tuple[int, str]]] = {True: [], False: []}
    for i, metrics in enumerate(matched):
        for name, each in metrics.items():
            if each.effect.p is not None:
                families[each.better is not None].append((i, name))
    corrected: dict[tuple[int, str], float] = {}
    for family in families.values():
        ps = [matched[i][name].effect.p or 0.0 for i, name in family]
        corrected |= dict(zip(family, holm(ps), strict=True))
    return [
        Comparison(
            metrics=tuple(
                _judged(
                    replace(
                        each,
                        p_corrected=corrected.get((i, name)),
                        corrected_for=len(families[each.better is not None]),
                    ),
                    (earlier_scatter or {}).get(name),
                )
                for name, each in metrics.items()
            ),
            only_a=_only(first, other),
            only_b=_only(other, first),
            corrected_for=len(families[True]),
            notes=_block_notes(first, other),
        )
        for i, (metrics, other) in enumerate(zip(matched, others, strict=True))
    ]


def are_blocks(a: Sequence[Run], b: Sequence[Run]) -> bool:
    """Return whether two sides are arms of one job, which took turns."""
    runs = [*a, *b]
    arms = {run.arm for run in a}.isdisjoint(run.arm for run in b)
    return arms and len({run.job_id for run in runs}) == 1 and all(run.block is not None for run in runs)


def _only(side: Sequence[Run], other: Sequence[Run]) -> tuple[str, ...]:
    others = {name for run in other for name in run.values}
    return tuple(dict.fromkeys(name for run in side for name in run.values if name not in others))


def _matched(a: Sequence[Run], b: Sequence[Run]) -> dict[str, MetricComparison]:
    """Return the metrics that both sides have, not judged yet."""
    found = {}
    for name in dict.fromkeys(name for run in a for name in run.values):
        if any(name in run.values for run in b):
            found[name] = _metric(name, a, b)
    return found


def _metric(name: str, a: Sequence[Run], b: Sequence[Run]) -> MetricComparison:
    with_it = [run for run in a if name in run.values], [run for run in b if name in run.values]
    notes = []
    if len(with_it[0]) < len(a) or len(with_it[1]) < len(b):
        notes.append(
            f"only {len(with_it[0])} of {len(a)} runs of A and {len(with_it[1])} of {len(b)} of B have it"
        )
    blocks = [{run.block: run.values[name].value for run in side} for side in with_it]
    both = [block for block in blocks[0] if block in blocks[1]]
    numbers = [[run.values[name].value for run in side] for side in with_it]
    if not are_blocks(a, b):
        found = effect(*numbers)
    elif both:
        numbers = [[side[block] for block in both] for side in blocks]
        found = paired_effect(*numbers)
    else:
        # No two of these runs were side by side.
        found = effect([centre(numbers[0], relative=False)], numbers[1])
    first: RunValue = with_it[0][0].values[name]
    metric = first.metric
    if first.ranks > 1 and (metric is None or metric.over_ranks.value == "each"):
        notes.append(f"its {first.ranks} ranks are taken as their mean, as over_ranks names nothing else")
    return MetricComparison(
        name=name,
        units=first.units,
        better=metric.better if metric is not None else None,
        tolerance=metric.tolerance if metric is not None else None,
        a=tuple(numbers[0]),
        b=tuple(numbers[1]),
        effect=found,
        verdict=Verdict.UNKNOWN,
        notes=(*notes, *_unsteady_notes(name, a, b)),
    )


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
    if found.p is None:
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
    if found.excludes_zero and not shown:
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


def _block_notes(a: Sequence[Run], b: Sequence[Run]) -> tuple[str, ...]:
    if not are_blocks(a, b):
        return ()
    blocks = [{run.block for run in side} for side in (a, b)]
    both, all_ = len(blocks[0] & blocks[1]), len(blocks[0] | blocks[1])
    left_out = f"; {all_ - both} left out, as a run failed" if both < all_ else ""
    return (f"compared within {both} block{'' if both == 1 else 's'} of one run of each{left_out}",)


def _unsteady_notes(name: str, a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    notes = []
    for label, side in (("A", a), ("B", b)):
        marked = [run for run in side if name in run.values and run.values[name].unsteady is not None]
        if marked:
            notes.append(
                f"{label}: {len(marked)} of {len(side)} not steady; {marked[0].name}: {marked[0].values[name].unsteady}"
            )
    return notes


METHOD = (
    f"The unit is the run. Each interval holds the true change with {CONFIDENCE * 100:.0f} % confidence (Welch's t, for arms of one job Student's t of "
    f"the differences within blocks; of logarithms where all values are positive). A difference is found where it is excluded that there is none, with "
    f"{ALPHA * 100:.0f} % of false alarms over all metrics that name their better direction together, and over all others (Holm)."
)
"""What is printed below a comparison."""
