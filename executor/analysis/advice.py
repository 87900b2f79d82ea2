"""How many more runs would tell, and from what that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from executor.analysis.effect import ALPHA, Effect, centre, student

ASSUMED_SCATTER = 0.05
"""Of runs, where there are none to learn it from: a common figure for single instances of a cloud, said to be an assumption."""
ASSUMED_DIFFERENCE = 0.05
"""What is to be found, where a metric has no tolerance."""
POWER = 0.8
"""With so many runs as we advise, a difference of the size that is named is found four times of five."""
_MOST_RUNS = 10_000


def how_many(
    numbers: tuple[Sequence[float], Sequence[float]],
    found: Effect,
    tolerance: float | None,
    earlier: float | None,
) -> tuple[int | None, str]:
    """Return about how many more runs a side would tell, and a sentence that says from what that follows."""
    fewest = min(len(side) for side in numbers)
    one = "one run a side says nothing of how much runs scatter; " if fewest < 2 else ""
    # Runs that gave one and the same number do not say that the next ones will.
    own = found.scatter or None
    if not found.relative:
        if own is None or tolerance is None:
            return None, f"{one}five a side would show it"
        difference = tolerance * abs(centre(numbers[0], relative=False))
        scatter, source = own, "as these runs scatter"
        wanted = f"a difference of {difference:.3g}"
    else:
        difference = tolerance or ASSUMED_DIFFERENCE
        if own is not None:
            scatter, source = own, f"as these runs scatter by {_percent(own)}"
        elif earlier is not None:
            scatter, source = earlier, f"as earlier runs scatter by {_percent(earlier)}"
        else:
            why = (
                "these do not scatter" if found.scatter == 0 else "there are no earlier ones to learn it from"
            )
            scatter = ASSUMED_SCATTER
            source = f"if runs scatter by {_percent(scatter)}, an assumption, as {why}"
        wanted = f"a difference of {_percent(difference)}" + (", its tolerance" if tolerance else "")
    if not difference > 0:
        return None, f"{one}no number of runs shows that there is no difference at all"
    needed = runs_needed(scatter=scatter, difference=difference, paired=found.paired and own is not None)
    if needed is None:
        return None, f"{one}more than 10,000 a side would be needed for {wanted}, {source}"
    more = needed - fewest
    if more <= 0:
        return (
            None,
            f"{wanted} would be found with these runs, {source}: the change is too near to that for a verdict",
        )
    return more, f"{one}about {more:,} more run{'s' if more > 1 else ''} a side would tell {wanted}, {source}"


def runs_needed(*, scatter: float, difference: float, paired: bool = False) -> int | None:
    """Return how many runs a side find a difference of that size, both on one scale; None: more than 10,000.

    By the usual approximation of a t test's power: `POWER`, with a false alarm in `ALPHA` of all cases. paired: `scatter` is that
    of the differences within blocks, and as many blocks are needed.
    """
    from scipy import special

    share = scatter / difference
    # Not `**`, which raises where this is infinite.
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
    return f"{share * 100:.2g} %" if share < 1 else f"{share * 100:,.0f} %"
