"""A table of metrics that fits the screen: the least important columns go first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from bai_agent.job.descriptor import Better, Headline
from executor.analysis.steady import unsteady
from executor.quantities import aligned, quantity
from executor.records.over_ranks import Spread
from executor.records.statistics import SAMPLE, Series
from executor.view.text import plain_text, shortened, sparkline

_NAME_SHARE = 3
"""A name may take this part of the width."""
_TREND_WIDTH = (6, 24)
_NAMED = 6
"""Metrics that a note names."""

_VALUES: dict[str, Callable[[Series], float | None]] = {
    "first": lambda series: series.first,
    "last": lambda series: series.last,
    "median": lambda series: series.median,
    # Of bounds there is none.
    "stdev": lambda series: series.stdev if not series.is_bound else None,
    "p95": lambda series: series.p95,
    "min": lambda series: series.minimum,
    "max": lambda series: series.maximum,
    "mean": lambda series: series.mean,
}
_LEAST = dict.fromkeys(("last", "median", "stdev", "p95", "min", "max", "mean"), 6)
"""So that the columns do not jump with every other value."""
_SPREAD: dict[str, Callable[[Series], float]] = {
    "last": lambda series: series.last,
    "mean": lambda series: series.mean,
}
_ORDER = (
    "metric", "units", "trend", "headline", "first", "last", "median", "stdev", "p95", "min", "max", "mean", "count",
)  # fmt: skip


def metric_table(
    all_series: Sequence[Series], *, width: int, rows: int = 15, summary: bool = False, unicode: bool = True
) -> Table:
    """Return the first `rows` series as a table of at most `width` columns.

    A summary has more figures.
    """
    shown = all_series[:rows]
    # Of two wants that do not fit together the first wins.
    if summary:
        # Where it is the last value there is a column of that anyway.
        heads = ["headline"] if any(_has_headline(series) for series in shown) else []
        wanted = ["metric", *heads, "last", "units", "median", "stdev", "p95", "min", "max", "mean", "count"]
        wanted += ["trend", "first"]
    else:
        wanted = ["metric", "last", "min", "max", "mean", "count", "units", "trend"]
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


def spread_table(every: Sequence[Spread], *, unicode: bool = True) -> Table:
    """Return metrics of many ranks, a row for each: the least and the greatest that any of its ranks has."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    table.add_column("metric", no_wrap=True, overflow="ellipsis", style="bold")
    for heading in ("ranks", *(f"{name} of ranks" for name in _SPREAD), "mean headline", "count"):
        table.add_column(heading, justify="right", no_wrap=True)
    for spread in every:
        units = spread.ranks[0].units
        between = (
            _between(spread.between(_SPREAD[name]), units, floor=spread.floor, unicode=unicode)
            for name in _SPREAD
        )
        table.add_row(
            Text(plain_text(spread.name) + direction(spread.ranks[0], unicode=unicode)),
            f"{len(spread.ranks):,}",
            *between,
            plain_text(" ".join(quantity(spread.headline, units, floor=spread.floor)).strip()),
            f"{spread.count:,}",
        )
    return table


def between_text(
    ends: tuple[float, float], units: str, *, floor: float | None = None, unicode: bool = True
) -> tuple[str, str]:
    """Return the least and the greatest of some values for reading, and the units that are still to be named."""
    texts = [quantity(end, units, floor=floor) for end in ends]
    dash = " – " if unicode else " to "
    return (texts[0][0] if texts[0] == texts[1] else dash.join(text for text, _ in texts)), texts[0][1]


def _between(ends: tuple[float, float], units: str, *, floor: float | None, unicode: bool) -> str:
    text, named = between_text(ends, units, floor=floor, unicode=unicode)
    return plain_text(f"{text} {named}".strip())


def direction(series: Series, *, unicode: bool = True) -> str:
    """Return a sign for the direction in which the metric gets better, or nothing."""
    if series.better is None:
        return ""
    if series.better is Better.LOWER:
        return " ↓" if unicode else " (lower)"
    return " ↑" if unicode else " (higher)"


def _cell(name: str, series: Series, name_width: int, *, unicode: bool) -> str:
    if name == "metric":
        return name_text(series, name_width, unicode=unicode)
    if name == "units":
        # Where the values say it, the column need not.
        return plain_text(quantity(series.last, series.units)[1])
    if name == "trend":
        return ""
    if name == "count":
        return f"{series.count:,}"
    if name == "headline":
        return _headline(series)
    if name == "last" and not series.count and series.left_out:
        # Of the warm-up: what a person who watches it wants to see.
        return quantity(series.newest, series.units, floor=series.floor)[0]
    value = _VALUES[name](series) if series.count else None
    # A deviation is a distance: a small one is exact.
    floor = series.floor if name != "stdev" else None
    return quantity(value, series.units, floor=floor)[0] if value is not None else "-"


def _has_headline(series: Series) -> bool:
    return bool(series.count) and (series.runs > 1 or series.headline_is not in (None, Headline.LAST))


def _headline(series: Series) -> str:
    """Return the number that stands for the run, and which one it is."""
    if not series.count or series.headline_is is None:
        return "-"
    number = quantity(series.headline, series.units, floor=series.floor)[0]
    return number if series.headline_is is Headline.LAST else f"{series.headline_is.value} {number}"


def metric_notes(every: Sequence[Series]) -> Iterator[tuple[str, str]]:
    """Yield what has to be said of the figures in a table: the sentence, and its style."""
    warm = [f"{series.name} ({series.left_out:,})" for series in every if series.left_out]
    if warm:
        more = f" and of {len(warm) - _NAMED} more" if len(warm) > _NAMED else ""
        yield f"without the first values, which are warm-up, of {', '.join(warm[:_NAMED])}{more}", "dim"
    failed = sum(series.of_failed for series in every)
    if failed:
        yield f"without {failed:,} value{'' if failed == 1 else 's'} of runs that failed", "dim"
    runs = max((series.runs for series in every), default=0)
    if runs > 1 and any(series.headline_is is not None for series in every):
        yield f"headline: the median of {runs} runs", "dim"
    marked = [(series.name, mark) for series in every if (mark := _unsteady(series)) is not None]
    for name, mark in marked[:_NAMED]:
        yield f"{name}: {mark}", "yellow"
    if len(marked) > _NAMED:
        yield f"and {len(marked) - _NAMED} more are not steady", "yellow"
    if any(series.sample is not None and series.count > SAMPLE for series in every):
        yield f"median and p95 of more than {SAMPLE:,} values are of a random choice of so many", "dim"


def _unsteady(series: Series) -> str | None:
    """Return why a series of one run is not steady. Of several runs each would have to be looked at by itself."""
    if series.runs > 1 or not series.count:
        return None
    found = unsteady(series.trend.points, tolerance=series.tolerance)
    return found.sentence if found is not None else None


def name_text(series: Series, width: int, *, unicode: bool = True) -> str:
    """Return a metric's name in about `width` columns, with the sign of its direction."""
    return shortened(plain_text(series.name), width, unicode=unicode) + direction(series, unicode=unicode)


def _style(name: str, series: Series) -> str:
    best = {Better.LOWER: "min", Better.HIGHER: "max"}.get(series.better) if series.better else None
    if series.count and name == best:
        return "green"
    return {"metric": "bold", "last": "bold", "trend": "cyan", "units": "dim", "count": "dim"}.get(name, "")
