"""One series of a report: its points, its figures without the warm-up, and which way it went."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bai_agent.job.descriptor import Metric
from executor.analysis.figures import Figures, figures, headline, warmup_count
from executor.analysis.steady import series_unsteady
from executor.records.points import PointSeries

SPARKLINE = 240
"""Values that a small picture is made of."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One series of a metric."""

    label: str
    """What tells it from the others: "node 1", "repeat 3"; empty where it is the only one."""
    points: PointSeries
    left_out: int
    """How many of its first values are warm-up."""
    start: int | None
    """When its run began, ms UTC."""
    figures: Figures | None
    """Without the warm-up; None where nothing is left."""
    headline: float | None
    """The number that stands for the run."""
    change: float | None
    """By what share the mean of the second half differs from that of the first; None where a share says nothing."""

    unsteady: str | None
    """Why it had not settled, as a sentence; None where it had, or nothing can be said."""

    @property
    def sketch(self) -> list[float]:
        """A few values for a small picture, the warm-up among them."""
        values = self.points.values
        return [values[index] for index in chosen(values, SPARKLINE)]


def line_of(points: PointSeries, label: str, metric: Metric | None, starts: Mapping[int | None, int]) -> Line:
    """Return a series with its figures. starts: when the benchmark was started, by repeat; None: the only run, or the first."""
    start = starts.get(points.key.repeat, starts.get(None))
    left_out = warmup_count(points, metric, started=start)
    values = points.values[left_out:]
    found = figures(values)
    why = series_unsteady(points, metric, values)
    return Line(
        label=label,
        points=points,
        left_out=left_out,
        start=start,
        figures=found,
        headline=headline(points, metric, started=start),
        change=_change(values),
        unsteady=why.sentence if why is not None else None,
    )


_OF_A_STRETCH = 4


def chosen(values: Sequence[float], limit: int) -> Sequence[int]:
    """Return the indices of at most `limit` values, in order, extremes among them; all where there are no more. limit: 4 or more.

    Of each stretch they are the first, the least, the greatest and the last value: a picture stays the same to the pixel as long as a stretch
    is no wider than one, and no peak is lost however wide it is. The method is M4's (Jugel, Jerzak, Hackenbroich, Markl: M4, a
    visualization-oriented time series data aggregation, VLDB 2014), over stretches of equally many values.
    """
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


def _change(values: array[float]) -> float | None:
    half = len(values) // 2
    if half < 2:
        return None
    # Halved, so that no sum of finite numbers overflows.
    first = math.fsum(each / 2 / half for each in values[:half])
    second = math.fsum(each / 2 / half for each in values[-half:])
    change = (second - first) / abs(first) if first else math.inf
    return change if math.isfinite(change) else None
