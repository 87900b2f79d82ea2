"""How many runs a difference takes to be found."""

from __future__ import annotations

import math

from executor.analysis.effect import ALPHA, student

POWER = 0.8
"""With so many runs as we advise, a difference of the size that is named is found four times of five."""
_MOST_RUNS = 10_000


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
