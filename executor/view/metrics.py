"""A table of metrics that fits the screen: what does not fit goes, the least wanted first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from bai_agent.job.descriptor import Better
from executor.quantities import aligned, quantity
from executor.records.statistics import Series
from executor.view.text import plain_text, sparkline

_NAME_SHARE = 3
"""A name may take this part of the width."""
_TREND_WIDTH = (6, 24)

_VALUES: dict[str, Callable[[Series], float]] = {
    "first": lambda series: series.first,
    "last": lambda series: series.last,
    "min": lambda series: series.minimum,
    "max": lambda series: series.maximum,
    "mean": lambda series: series.mean,
}
_LEAST = dict.fromkeys(("last", "min", "max", "mean"), 6)
"""So that the columns do not jump with every other value."""
_ORDER = ("metric", "units", "trend", "first", "last", "min", "max", "mean", "count")


def metric_table(
    all_series: Sequence[Series], *, width: int, rows: int = 15, summary: bool = False, unicode: bool = True
) -> Table:
    """Return the first `rows` series as a table of at most `width` columns. A summary would rather show trends than units."""
    shown = all_series[:rows]
    # Of two wants that do not fit together the first wins.
    wanted = ["metric", "last", "min", "max", "mean", "count"]
    wanted += ["trend", "units", "first"] if summary else ["units", "trend"]
    cells = {
        name: [_cell(name, series, width // _NAME_SHARE, unicode=unicode) for series in shown]
        for name in wanted
    }
    for name in _VALUES:
        if name in cells:
            cells[name] = aligned(cells[name])
    widths = {
        name: max(_LEAST.get(name, len(name)), *map(len, column)) for name, column in cells.items() if column
    }
    widths["trend"] = _TREND_WIDTH[0]
    chosen: list[str] = []
    left = width
    for name in wanted:
        if widths[name] + 2 <= left + (2 if not chosen else 0):
            chosen.append(name)
            left -= widths[name] + (2 if len(chosen) > 1 else 0)
    if "trend" in chosen:
        widths["trend"] = min(_TREND_WIDTH[1], _TREND_WIDTH[0] + left)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    columns = [name for name in _ORDER if name in chosen]
    for name in columns:
        side = "left" if name in ("metric", "units", "trend") else "right"
        heading = "" if name == "trend" else name
        table.add_column(heading, justify=side, no_wrap=True, width=widths[name], overflow="ellipsis")  # type: ignore[arg-type]
    for index, series in enumerate(shown):
        row = []
        for name in columns:
            text = cells[name][index]
            if name == "trend":
                text = sparkline(series.trend.points, widths["trend"], unicode=unicode)
            row.append(Text(text, style=_style(name, series)))
        table.add_row(*row)
    return table


def direction(series: Series, *, unicode: bool = True) -> str:
    """Return a sign for the direction in which the metric gets better, or nothing."""
    if series.better is None:
        return ""
    if series.better is Better.LOWER:
        return " ↓" if unicode else " (lower)"
    return " ↑" if unicode else " (higher)"


def _cell(name: str, series: Series, name_width: int, *, unicode: bool) -> str:
    if name == "metric":
        return _shortened(plain_text(series.name), name_width, unicode=unicode) + direction(
            series, unicode=unicode
        )
    if name == "units":
        # Where the values say it, the column need not.
        return plain_text(quantity(series.last, series.units)[1])
    if name == "trend":
        return ""
    if name == "count":
        return f"{series.count:,}"
    return quantity(_VALUES[name](series), series.units)[0] if series.count else "-"


def _shortened(name: str, width: int, *, unicode: bool) -> str:
    """Return `name` without its middle: what tells long names apart is often their end."""
    if len(name) <= width:
        return name
    end = width // 2
    return name[: width - end - 1] + ("…" if unicode else "~") + name[-end:]


def _style(name: str, series: Series) -> str:
    best = {Better.LOWER: "min", Better.HIGHER: "max"}.get(series.better) if series.better else None
    if series.count and name == best:
        return "green"
    return {"metric": "bold", "last": "bold", "trend": "cyan", "units": "dim", "count": "dim"}.get(name, "")
