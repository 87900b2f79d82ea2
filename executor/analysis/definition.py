"""Whether numbers of one name are numbers of one thing: their units, and how a descriptor makes one number of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bai_agent.job.descriptor import Metric
from bai_agent.metrics.units import conversion
from executor.analysis.runs import RunValue
from executor.quantities import quantity

_PLAIN = Metric(name="-")
"""What a metric is that no descriptor describes."""
_NO_DIRECTION = "no direction"


def converted(value: RunValue, units: str) -> float | None:
    """Return the number of a run in other units; None if it cannot be one.

    A rate does not become a duration: the least of one is the greatest of the other.
    """
    if value.units == units:
        return value.value
    found = conversion(value.units, units) if value.units and units else None
    if found is None or found.inverse:
        return None
    return float(value.value * found.factor.numerator / found.factor.denominator)


def why_not_comparable(a: Sequence[RunValue], b: Sequence[RunValue]) -> str | None:
    """Return in what the definitions of a metric differ, among the runs of two sides; None if all are the same.

    Another pattern alone is no other definition: `differences` names it. A direction that only some name is that of all.
    """
    reasons = []
    units = a[0].units
    if any(converted(each, units) is None for each in (*a, *b)):
        reasons.append(_differing("units", a, b, lambda each: each.units or "none"))
    for what, of in _DEFINING.items():
        if len({of(each) for each in (*a, *b)} - {_NO_DIRECTION}) > 1:
            reasons.append(_differing(what, a, b, of))
    return "; ".join(reasons) or None


def below(side: Sequence[RunValue]) -> float | None:
    """Return what all numbers of a side are below; None unless all are bounds."""
    bounds = [each.below for each in side if each.below is not None]
    return max(bounds) if len(bounds) == len(side) else None


def why_bounds(*sides: Sequence[RunValue]) -> str | None:
    """Return why no difference can be seen, if some of the numbers of these runs are only bounds; else None."""
    bounds = [each for side in sides for each in side if each.below is not None]
    if not bounds:
        return None
    most = max(bounds, key=lambda each: each.below or 0)
    return f"a peak {quantity(most.below or 0, most.units, floor=most.below)[0]} cannot be told from that of our shim, which starts the program"


def _described(value: RunValue) -> Metric:
    return value.metric or _PLAIN


def _better(value: RunValue) -> str:
    better = _described(value).better
    return better.value if better is not None else _NO_DIRECTION


def _warmup(value: RunValue) -> str:
    metric = _described(value)
    if metric.warmup is not None:
        return f"{metric.warmup.total_seconds():g} s"
    return f"{metric.warmup_values} values"


def _revision(value: RunValue) -> str:
    revision = _described(value).revision
    # Before presets had revisions their metrics had none: that was the first one.
    return "revision 1" if revision is None or revision.endswith("/1") else f"revision {revision}"


_DEFINING: dict[str, Callable[[RunValue], str]] = {
    "better": _better,
    "headline": lambda value: _described(value).headline.value,
    "warmup": _warmup,
    "over_ranks": lambda value: _described(value).over_ranks.value,
    "preset": _revision,
}


def _differing(what: str, a: Sequence[RunValue], b: Sequence[RunValue], of: Callable[[RunValue], str]) -> str:
    sides = (" or ".join(dict.fromkeys(map(of, side))) for side in (a, b))
    return f"{what}: {' and '.join(sides)}"
