"""The headlines of a job, each with what it is: what a person is told where the other figures have no room."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from bai_agent.job.descriptor import Headline
from executor.quantities import aligned, quantity
from executor.records.over_ranks import over_ranks, spreads
from executor.records.statistics import Measurements, Series
from executor.view.text import plain_text

_ROWS = 40


def headline_rows(measured: Measurements | None) -> list[Series]:
    """Return the rows that have a headline, as the summary and `bai metrics` show them: ranks apart, or over them if that was asked for."""
    if measured is None:
        return []
    every = over_ranks(measured.benchmark.values(), measured.over_ranks)
    return [each for each in every if each.count and each.headline_is is not None]


def headline_table(series: Series) -> dict[str, Any]:
    """Return a row as JSON values."""
    how = series.headline_is or Headline.LAST
    return {
        "value": series.headline,
        "units": series.units,
        "headline_is": how.value,
        "count": series.count,
        "runs": series.runs,
        **({"below": series.floor} if series.is_bound else {}),
    }


def headline_words(series: Series) -> str:
    """Return what a row's headline is: "median of 40", "median of 5 runs, last of each"."""
    how = (series.headline_is or Headline.LAST).value
    if series.runs > 1:
        return f"median of {series.runs:,} runs, {how} of each"
    return f"{how} of {series.count:,}" if series.count > 1 else ""


def headlines_table(measured: Measurements, *, width: int, name_share: int) -> Table | None:
    """Return a row for each headline; None if there is none. name_share: the part of the width that a name leaves to the others."""
    rows, apart = spreads(headline_rows(measured))
    texts = [(each.name, each.headline, each.units, each.floor, headline_words(each)) for each in rows]
    texts += [
        (f"{each.name} (mean of {len(each.ranks)} ranks)", each.headline, each.ranks[0].units, each.floor, "")
        for each in apart
    ]
    if not texts:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, max_width=max(8, width - width // name_share))
    table.add_column(no_wrap=True, justify="right", min_width=8)
    for _ in range(2):
        table.add_column(no_wrap=True)
    quantities = [quantity(value, units, floor=floor) for _, value, units, floor, _ in texts[:_ROWS]]
    numbers = aligned([number for number, _ in quantities])
    for (name, *_, what), number, (_, units) in zip(texts, numbers, quantities, strict=False):
        table.add_row(
            Text(plain_text(name), style="bold"),
            number,
            Text(plain_text(units), style="dim"),
            Text(what, style="dim"),
        )
    return table
