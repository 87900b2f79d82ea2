"""A table of what several runs of a benchmark say together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from executor.analysis.repeats import OverRuns
from executor.quantities import quantity
from executor.view.text import plain_text


def runs_table(metrics: Sequence[OverRuns], *, unicode: bool = True) -> Table:
    """Return a row for each metric: of how many runs, their mean, and how far its 95 % confidence interval reaches."""
    sign = "±" if unicode else "+-"
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    table.add_column("over runs", no_wrap=True, overflow="ellipsis", style="bold")
    for heading in ("runs", "mean", f"{sign} 95 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in metrics:
        half, mean = each.half_width, each.mean
        reach = "" if math.isinf(half) else f"{sign}{' '.join(quantity(half, each.units)).strip()}"
        if reach and mean:
            reach += f" ({half / abs(mean):.1%})"
        table.add_row(
            Text(plain_text(each.name)),
            f"{len(each.values):,}",
            plain_text(" ".join(quantity(mean, each.units)).strip()),
            plain_text(reach),
        )
    return table
