"""Computes the line of one series in a report: its points, its figures without the warm-up, and its trend."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.job.figures import mean_of
from bai_agent.job.job_headlines import LastGenerations
from bai_agent.light_dataclass import dataclass, replace
from executor.analysis.steady import series_unsteady
from executor.records.figures import Figures, figures, headline, start_of, warmup_count
from executor.records.points import PointSeries

SPARKLINE = 240
"""Maximum number of values in a sparkline."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One series of a metric."""

    label: str
    """Name that distinguishes the series, for example "node 1" or "repeat 3"; empty if the metric has only
    one series."""
    points: PointSeries
    left_out: int
    """Number of values at the beginning that belong to the warm-up."""
    start: int | None
    """Start of the series' run (ms UTC); None if unknown."""
    figures: Figures | None
    """Figures without the warm-up; None if all values belong to the warm-up."""
    headline: float | None
    """The number that represents the run."""
    change: float | None
    """Relative change of the mean from the first half to the second; None if the change is undefined."""

    superseded: bool = False
    """Whether a later generation has a headline for the same metric and labels."""
    steps: Sequence[float] | None = None
    """Step of each value; NaN for a value without a step, and for a step that a later generation repeated.
    None if no value has a step."""
    unsteady: str | None
    """Reason why the series is not steady, as a sentence; None if the series is steady, or if it is unknown
    whether it is steady."""

    @property
    def sketch(self) -> list[float]:
        """A few values for a sparkline, including the warm-up."""
        values = self.points.values
        return [values[index] for index in chosen(values, SPARKLINE)]


def line_of(
    points: PointSeries,
    label: str,
    metric: Metric | None,
    starts: Mapping[int | None, int],
) -> Line:
    """Return a series with its figures. starts: start of the benchmark (ms UTC), by repeat or generation; the
    key None stands for the only or first run."""
    start = start_of(points.key, starts)
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
        steps=points.steps,
        unsteady=why.sentence if why is not None else None,
    )


def with_superseded(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of one metric. In a job with generations, lines and steps that later generations
    replace are marked."""
    if all(line.points.key.generation is None for line in lines):
        return list(lines)
    last = LastGenerations(line.points.key.place for line in lines if line.headline is not None)
    firsts = [(line.points.key, _first_step(line)) for line in lines]
    marked = []
    for line in lines:
        key = line.points.key
        later = (
            first
            for other, first in firsts
            if other.labels == key.labels and (other.generation or 0) > (key.generation or 0)
        )
        steps = _steps_before(line, min(later, default=math.inf))
        marked.append(replace(line, superseded=last.is_past(*key.place), steps=steps))
    return marked


def _first_step(line: Line) -> float:
    """Return the smallest step of a line; infinite if the line has no steps."""
    return min((step for step in line.points.steps or () if not math.isnan(step)), default=math.inf)


def _steps_before(line: Line, first: float) -> Sequence[float] | None:
    """Return the steps of a line, with NaN for the steps from `first` on; None if no step is left."""
    steps = line.points.steps
    if steps is None or math.isinf(first):
        return steps
    left = array("d", (step if step < first else math.nan for step in steps))
    return None if all(map(math.isnan, left)) else left


_OF_A_STRETCH = 4


def chosen(values: Sequence[float], limit: int) -> Sequence[int]:
    """Return the indices of at most `limit` values to draw, in order, including the extremes. If there are
    not more than `limit` values, return all indices. limit: 4 or more.

    The first, smallest, largest and last value of each part are selected. The plot looks exactly as with all
    values if each part is at most a pixel wide. A plot with wider parts still shows each peak. The method is
    M4 (Jugel, Jerzak, Hackenbroich, Markl: M4, a visualization-oriented time series data aggregation, VLDB
    2014), with parts of equally many values.
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
    first, second = mean_of(values[:half]), mean_of(values[-half:])
    change = (second - first) / abs(first) if first else math.inf
    return change if math.isfinite(change) else None
