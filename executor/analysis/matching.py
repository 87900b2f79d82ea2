"""Finds the metrics that both sides have and that can be compared: their definitions must be the same, and
their units convertible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from bai_agent.job.descriptor.metric_tables import About, Better, Metric
from bai_agent.job.schema.tables import marked_keys
from bai_agent.metrics.search.units import conversion
from executor.analysis.compared_metric import Incomparable, MetricComparison
from executor.analysis.effect import Effect, centre, effect, is_relative, on_scale, paired_effect
from executor.analysis.history import FEWEST, SidesDrift, one_after_the_other, sides_drift
from executor.analysis.measured_runs import Run, RunValue
from executor.quantities import counted, quantity

_PLAIN = Metric(name="-")
"""Definition of a metric that the descriptor does not describe."""
_NO_DIRECTION = "no direction"


def converted(value: RunValue, units: str) -> float | None:
    """Return the number of a run in other units; None if the number cannot be converted. A rate is not
    converted to a duration, because the minimum of a rate is the maximum of the duration.
    """
    if value.units == units:
        return value.value
    found = conversion(value.units, units) if value.units and units else None
    if found is None or found.inverse:
        return None
    return float(value.value * found.factor.numerator / found.factor.denominator)


def why_not_comparable(a: Sequence[RunValue], b: Sequence[RunValue]) -> str | None:
    """Return the differences between a metric's definitions in the runs of two sides; None if all definitions
    are the same.

    A different pattern alone does not count as a different definition, because `differences` reports
    different patterns. If only some runs name a direction, this direction applies to all runs.
    """
    reasons = []
    units = a[0].units
    if any(converted(each, units) is None for each in (*a, *b)):
        reasons.append(_differing("units", *([each.units or "none" for each in side] for side in (a, b))))
    keys = [*map(_definition, a)], [*map(_definition, b)]
    for what in keys[0][0]:
        sides = [[each[what] for each in side] for side in keys]
        if len({*sides[0], *sides[1]} - {_NO_DIRECTION}) > 1:
            reasons.append(_differing(what, *sides))
    return "; ".join(reasons) or None


def below(side: Sequence[RunValue]) -> float | None:
    """Return the upper bound of a side's numbers; None unless all numbers are bounds."""
    bounds = [each.below for each in side if each.below is not None]
    return max(bounds) if len(bounds) == len(side) else None


def why_bounds(*sides: Sequence[RunValue]) -> str | None:
    """Return why the numbers of these runs cannot show a difference if some of them are only bounds;
    otherwise None."""
    bounds = [each for side in sides for each in side if each.below is not None]
    if not bounds:
        return None
    most = max(bounds, key=lambda each: each.below or 0)
    return f"a peak {quantity(most.below or 0, most.units, floor=most.below)[0]} cannot be distinguished from the peak of bai's shim, which starts the program"


def _definition(value: RunValue) -> dict[str, str]:
    """Return those keys of a metric, with their values, that must be the same in both sides."""
    metric = value.metric or _PLAIN
    summary = {key: getattr(metric, key) for key in marked_keys(Metric, About.SUMMARY)}
    warmup, count = metric.warmup, summary.pop("warmup_values")
    # Metrics that were recorded before presets had revisions belong to the first revision.
    is_first = metric.revision is None or metric.revision.endswith("/1")
    return {
        "better": value.better.value if value.better is not None else _NO_DIRECTION,
        **{key: str(getattr(each, "value", each)) for key, each in summary.items()},
        "warmup": f"{count} values" if warmup is None else f"{warmup.total_seconds():g} s",
        "preset": f"revision {1 if is_first else metric.revision}",
    }


def _differing(what: str, a: Sequence[str], b: Sequence[str]) -> str:
    return f"{what}: {' and '.join(' or '.join(dict.fromkeys(side)) for side in (a, b))}"


def matched(a: Sequence[Run], b: Sequence[Run]) -> dict[str, MetricComparison | Incomparable]:
    """Return the metrics that both sides have, without verdicts."""
    found = {}
    for name in dict.fromkeys(name for run in a for name in run.values):
        if any(name in run.values for run in b):
            found[name] = _metric(name, a, b)
    return found


def only_in(side: Sequence[Run], other: Sequence[Run]) -> tuple[str, ...]:
    """Return the metrics of a side that the other side does not have."""
    others = {name for run in other for name in run.values}
    return tuple(dict.fromkeys(name for run in side for name in run.values if name not in others))


def are_blocks(a: Sequence[Run], b: Sequence[Run]) -> bool:
    """Return whether two sides are arms of the same job, so that their runs alternated."""
    runs = [*a, *b]
    arms = {run.arm for run in a}.isdisjoint(run.arm for run in b)
    return arms and len({run.job_id for run in runs}) == 1 and all(run.block is not None for run in runs)


def side_notes(a: Sequence[Run], b: Sequence[Run]) -> tuple[str, ...]:
    """Return notes for the user about two sides as a whole."""
    if are_blocks(a, b):
        blocks = [{run.block for run in side} for side in (a, b)]
        both, all_ = len(blocks[0] & blocks[1]), len(blocks[0] | blocks[1])
        left_out = f"; {all_ - both} left out, because a run failed" if both < all_ else ""
        return (f"compared within {counted(both, 'block')}, each with one run of both sides{left_out}",)
    times = [[run.started for run in side] for side in (a, b)]
    if 2 <= min(len(a), len(b)) < FEWEST and one_after_the_other(*times):
        return (
            f"one side ran after the other, and with fewer than {FEWEST} runs per side a drift of the machine cannot be detected; `bai ab` takes turns",
        )
    return ()


def _metric(name: str, a: Sequence[Run], b: Sequence[Run]) -> MetricComparison | Incomparable:
    with_it = _with(name, a), _with(name, b)
    values = [[run.values[name] for run in side] for side in with_it]
    differs = why_not_comparable(*values)
    if (why := differs or why_bounds(*values)) is not None:
        return _incomparable(name, *values, why=why, differs=differs is not None)
    first = values[0][0]
    numbers = [[_in_units(each, first.units) for each in side] for side in values]
    drift = None
    if are_blocks(a, b):
        numbers, found = _within_blocks(with_it, numbers)
    else:
        found, drift = effect(*numbers), _drift(with_it, numbers)
    described = (each for each in chain(*values) if each.metric is not None)
    return MetricComparison(
        name=name,
        units=first.units,
        better=_better(*values),
        tolerance=next((each.tolerance for each in described), None),
        a=tuple(numbers[0]),
        b=tuple(numbers[1]),
        effect=found,
        drift=drift,
        notes=(*_value_notes(first, with_it, (a, b)), *_unsteady_notes(name, a, b)),
    )


def _with(name: str, side: Sequence[Run]) -> list[Run]:
    return [run for run in side if name in run.values]


def _incomparable(
    name: str, a: Sequence[RunValue], b: Sequence[RunValue], *, why: str, differs: bool
) -> Incomparable:
    return Incomparable(
        name=name,
        why=why,
        better=_better(a, b),
        a=(_centre([each.value for each in a]), a[0].units),
        b=(_centre([each.value for each in b]), b[0].units),
        below=(below(a), below(b)),
        differs=differs,
    )


def _better(a: Sequence[RunValue], b: Sequence[RunValue]) -> Better | None:
    """Return the metric's better direction, from the first run whose descriptor names a direction."""
    return next((each.better for each in (*a, *b) if each.better is not None), None)


def _within_blocks(
    sides: Sequence[Sequence[Run]], numbers: list[list[float]]
) -> tuple[list[list[float]], Effect]:
    """Return the numbers of the runs in blocks that both sides have, and the change between the sides."""
    by_block = [
        dict(zip([run.block for run in side], own, strict=True))
        for side, own in zip(sides, numbers, strict=True)
    ]
    both = [block for block in by_block[0] if block in by_block[1]]
    if not both:
        # The two sides have no block in common.
        return numbers, effect([_centre(numbers[0])], numbers[1])
    numbers = [[side[block] for block in both] for side in by_block]
    return numbers, paired_effect(*numbers)


def _drift(sides: Sequence[Sequence[Run]], numbers: Sequence[Sequence[float]]) -> SidesDrift | None:
    relative = is_relative(*numbers[0], *numbers[1])
    scaled = [
        list(zip([run.started for run in side], on_scale(own, relative=relative), strict=True))
        for side, own in zip(sides, numbers, strict=True)
    ]
    return sides_drift(*scaled)


def _in_units(value: RunValue, units: str) -> float:
    number = converted(value, units)
    assert number is not None
    return number


def _centre(values: Sequence[float]) -> float:
    return centre(values, relative=is_relative(*values))


def _value_notes(
    first: RunValue, with_it: Sequence[Sequence[Run]], sides: Sequence[Sequence[Run]]
) -> list[str]:
    notes = []
    if any(len(some) < len(side) for some, side in zip(with_it, sides, strict=True)):
        notes.append(
            f"only {len(with_it[0])} of {len(sides[0])} runs of A and {len(with_it[1])} of {len(sides[1])} of B have the metric"
        )
    if first.ranks > 1 and (first.metric is None or first.metric.over_ranks.value == "each"):
        notes.append(
            f"the mean of {first.ranks} ranks is compared, because over_ranks names no other combination"
        )
    return notes


def _unsteady_notes(name: str, a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    notes = []
    for label, side in (("A", a), ("B", b)):
        marked = [run for run in _with(name, side) if run.values[name].unsteady is not None]
        if marked:
            notes.append(
                f"{label}: {len(marked)} of {len(side)} not steady; {marked[0].name}: {marked[0].values[name].unsteady}"
            )
    return notes
