"""Makes the data for the plots of a page: downsampled series in columns, and the headings of the columns."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from bai_agent.light_dataclass import dataclass
from executor.documents.text import plain_text
from executor.report.contents import HOST_FIRST, MetricPart, Report
from executor.report.lines import Line, chosen

_PAGE = 120_000
"""Maximum number of points on a page: about 3 MB, which every browser draws quickly."""
_PLOT = 16_000
"""Maximum number of points in a plot: several for each pixel of its width."""
_LINES = 24
"""Maximum number of series in a plot. The number is limited because readers could not distinguish more
series."""
_LEAST = 48
_HOST_NAMES = {
    "cpu_percent": "CPU",
    "gpu_utilization_percent": "GPU utilisation",
    "disk_read_bytes_per_second": "disk read",
    "disk_write_bytes_per_second": "disk written",
    "network_receive_bytes_per_second": "network received",
    "network_send_bytes_per_second": "network sent",
    "load_1m": "load, 1 min",
}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A plot of the page."""

    number: int
    part: MetricPart
    title: str
    host: bool
    primary: bool
    """Whether the page shows the plot at once and not only after a click. Used only for plots of the
    machines' samples."""
    drawn: int
    """Number of points that are drawn."""
    lines: list[Line]
    """Series that are drawn."""


@dataclass(frozen=True, kw_only=True)
class Plots:
    """All plots of a page."""

    plots: list[Plot]
    table: dict[str, Any]
    """Data for the page's script, as JSON values."""

    @property
    def steps(self) -> bool:
        """Whether any plot can have the benchmark's steps as its horizontal axis."""
        return any(each["steps"] for each in self.table["plots"])

    @property
    def aligned(self) -> bool:
        """Whether any plot has several runs that can be drawn on top of each other."""
        return any(each["aligned"] for each in self.table["plots"])


def plot_data(report: Report) -> Plots:
    """Return the plots of a report: first the metrics' plots, then the plots of the machines' usage."""
    parts = [(part, False) for part in report.metrics] + [(part, True) for part in report.host]
    share = max(4 * _LEAST, min(_PLOT, _PAGE // max(1, len(parts))))
    plots, tables = [], []
    for number, (part, host) in enumerate(parts):
        lines = part.lines[:_LINES]
        limit = max(_LEAST, share // len(lines))
        thinned = [(line, chosen(line.points.values, limit)) for line in lines]
        plot = Plot(
            number=number,
            part=part,
            title=_host_title(part.name) if host else part.name,
            host=host,
            primary=part.name in HOST_FIRST,
            drawn=sum(len(indices) for _, indices in thinned),
            lines=lines,
        )
        plots.append(plot)
        tables.append(_table(plot, thinned, report))
    first, last = _time_range([line for part, _ in parts for line in part.lines], report.origin)
    margin = max(1, (last - first) // 100)
    table = {"from": (first - margin) / 1000, "to": (last + margin) / 1000, "plots": tables}
    return Plots(plots=plots, table=table)


def _host_title(name: str) -> str:
    plain = re.sub(r"_(percent|bytes|bytes_per_second|celsius|watts)$", "", name).replace("_", " ")
    return _HOST_NAMES.get(name, plain.replace("gpu", "GPU"))


def _table(plot: Plot, thinned: Sequence[tuple[Line, Sequence[int]]], report: Report) -> dict[str, Any]:
    return {
        "title": plain_text(plot.title),
        "units": plain_text(plot.part.units),
        "host": plot.host,
        "steps": any(line.points.steps is not None for line in plot.lines),
        "aligned": len({line.points.key.part for line in plot.lines}) > 1,
        "marks": [] if plot.host else _marks(report, plot.part, plot.lines),
        "series": [_series(line, indices, report.origin) for line, indices in thinned],
    }


def _time_range(lines: Sequence[Line], origin: int) -> tuple[int, int]:
    """Return the times of the first and the last value (ms after `origin`)."""
    if not lines:
        return 0, 1000
    first = min(line.points.timestamps[0] for line in lines)
    last = max(line.points.timestamps[-1] for line in lines)
    return min(first, last) - origin, max(first, last) - origin


def _series(line: Line, indices: Sequence[int], origin: int) -> dict[str, Any]:
    times, values, steps = line.points.timestamps, line.points.values, line.steps
    found: dict[str, Any] = {"label": plain_text(line.label), "v": [_short(values[i]) for i in indices]}
    before, deltas = 0, []
    for i in indices:
        deltas.append(times[i] - origin - before)
        before = times[i] - origin
    found["t"] = deltas
    found["o"] = line.start - origin if line.start is not None else 0
    if steps is not None:
        found["s"] = [None if math.isnan(steps[i]) else _short(steps[i]) for i in indices]
    return found


def _short(value: float) -> float | int:
    """Return an equal number that needs fewer characters in JSON."""
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _marks(report: Report, part: MetricPart, lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the marks of a plot over time: the warm-up, and the start of each run."""
    marks: list[dict[str, Any]] = []
    starts = sorted(
        {(line.start, line.points.key.part_words) for line in lines if line.start is not None},
        key=lambda each: each[0],
    )
    warmup = part.described.warmup if part.described is not None else None
    for start, _ in starts:
        if warmup is not None:
            at = start - report.origin
            marks.append({"x": at, "to": at + round(warmup.total_seconds() * 1000)})
    if len(starts) > 1:
        marks += [{"x": start - report.origin, "label": part} for start, part in starts]
    return marks
