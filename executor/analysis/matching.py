"""What of two sides of runs is compared: the numbers of each metric that both have, if they are numbers of one thing."""

from __future__ import annotations

from collections.abc import Sequence

from executor.analysis.compared_metric import Incomparable, MetricComparison
from executor.analysis.definition import below, converted, why_bounds, why_not_comparable
from executor.analysis.drift import FEWEST, one_after_the_other, sides_drift
from executor.analysis.effect import centre, effect, is_relative, on_scale, paired_effect
from executor.analysis.runs import Run, RunValue


def matched(a: Sequence[Run], b: Sequence[Run]) -> dict[str, MetricComparison | Incomparable]:
    """Return the metrics that both sides have, not judged yet."""
    found = {}
    for name in dict.fromkeys(name for run in a for name in run.values):
        if any(name in run.values for run in b):
            found[name] = _metric(name, a, b)
    return found


def only_in(side: Sequence[Run], other: Sequence[Run]) -> tuple[str, ...]:
    """Return the metrics that the other side does not have."""
    others = {name for run in other for name in run.values}
    return tuple(dict.fromkeys(name for run in side for name in run.values if name not in others))


def are_blocks(a: Sequence[Run], b: Sequence[Run]) -> bool:
    """Return whether two sides are arms of one job, which took turns."""
    runs = [*a, *b]
    arms = {run.arm for run in a}.isdisjoint(run.arm for run in b)
    return arms and len({run.job_id for run in runs}) == 1 and all(run.block is not None for run in runs)


def side_notes(a: Sequence[Run], b: Sequence[Run]) -> tuple[str, ...]:
    """Return what is to be said of two sides as a whole."""
    if are_blocks(a, b):
        blocks = [{run.block for run in side} for side in (a, b)]
        both, all_ = len(blocks[0] & blocks[1]), len(blocks[0] | blocks[1])
        left_out = f"; {all_ - both} left out, as a run failed" if both < all_ else ""
        return (f"compared within {both} block{'' if both == 1 else 's'} of one run of each{left_out}",)
    times = [[run.started for run in side] for side in (a, b)]
    if 2 <= min(len(a), len(b)) < FEWEST and one_after_the_other(*times):
        return (
            f"one side ran after the other, and with fewer than {FEWEST} runs a side a drift of the machine cannot be seen; `bai ab` takes turns",
        )
    return ()


def _metric(name: str, a: Sequence[Run], b: Sequence[Run]) -> MetricComparison | Incomparable:
    with_it = [run for run in a if name in run.values], [run for run in b if name in run.values]
    values = [[run.values[name] for run in side] for side in with_it]
    first = values[0][0]
    described = [each.metric for side in values for each in side if each.metric is not None]
    better = next((each.better for each in described if each.better is not None), None)
    differs = why_not_comparable(*values)
    if (why := differs or why_bounds(*values)) is not None:
        ends = [_centre([each.value for each in side]) for side in values]
        return Incomparable(
            name=name,
            why=why,
            better=better,
            a=(ends[0], first.units),
            b=(ends[1], values[1][0].units),
            below=(below(values[0]), below(values[1])),
            differs=differs is not None,
        )
    numbers = [[_in_units(each, first.units) for each in side] for side in values]
    relative = is_relative(*numbers[0], *numbers[1])
    drift = None
    if not are_blocks(a, b):
        found = effect(*numbers)
        scaled = [
            list(zip([run.started for run in side], on_scale(own, relative=relative), strict=True))
            for side, own in zip(with_it, numbers, strict=True)
        ]
        drift = sides_drift(*scaled)
    else:
        blocks = [
            dict(zip([run.block for run in side], own, strict=True))
            for side, own in zip(with_it, numbers, strict=True)
        ]
        both = [block for block in blocks[0] if block in blocks[1]]
        if both:
            numbers = [[side[block] for block in both] for side in blocks]
            found = paired_effect(*numbers)
        else:
            # No two of these runs were side by side.
            found = effect([_centre(numbers[0])], numbers[1])
    return MetricComparison(
        name=name,
        units=first.units,
        better=better,
        tolerance=described[0].tolerance if described else None,
        a=tuple(numbers[0]),
        b=tuple(numbers[1]),
        effect=found,
        drift=drift,
        notes=(*_value_notes(first, with_it, (a, b)), *_unsteady_notes(name, a, b)),
    )


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
            f"only {len(with_it[0])} of {len(sides[0])} runs of A and {len(with_it[1])} of {len(sides[1])} of B have it"
        )
    if first.ranks > 1 and (first.metric is None or first.metric.over_ranks.value == "each"):
        notes.append(f"its {first.ranks} ranks are taken as their mean, as over_ranks names nothing else")
    return notes


def _unsteady_notes(name: str, a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    notes = []
    for label, side in (("A", a), ("B", b)):
        marked = [run for run in side if name in run.values and run.values[name].unsteady is not None]
        if marked:
            notes.append(
                f"{label}: {len(marked)} of {len(side)} not steady; {marked[0].name}: {marked[0].values[name].unsteady}"
            )
    return notes
