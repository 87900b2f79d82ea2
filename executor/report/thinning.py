"""Fewer points of a series for a picture: of each stretch the first, the least, the greatest and the last value.

The picture stays the same to the pixel as long as a stretch is no wider than one, and no peak is lost however wide it is. The method is M4's
(Jugel, Jerzak, Hackenbroich, Markl: M4, a visualization-oriented time series data aggregation, VLDB 2014), over stretches of equally
many values.
"""

from __future__ import annotations

from collections.abc import Sequence

_OF_A_STRETCH = 4


def chosen(values: Sequence[float], limit: int) -> Sequence[int]:
    """Return the indices of at most `limit` values, in order, extremes among them; all where there are no more. limit: 4 or more."""
    count = len(values)
    if count <= limit:
        return range(count)
    stretches = max(1, limit // _OF_A_STRETCH)
    found: list[int] = []
    for number in range(stretches):
        start, end = count * number // stretches, count * (number + 1) // stretches
        stretch = values[start:end]
        least, greatest = stretch.index(min(stretch)), stretch.index(max(stretch))
        found += sorted({start, start + least, start + greatest, end - 1})
    return found
