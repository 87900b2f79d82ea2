"""A comparison on a screen: what else differs, then a row for each metric, then what has to be said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bai_agent.job.descriptor import Better
from executor.quantities import aligned
from executor.view.comparison_cells import Cells, band_cells, comparison_cells
from executor.view.text import plain_text

if TYPE_CHECKING:
    from executor.analysis.baseline import AgainstHistory
    from executor.analysis.comparison import Comparison
    from executor.analysis.differences import Difference

_DIFFERENCES = 12
"""That are shown; all of them are in the JSON and on the page."""
_ROWS = 40
_LEAST_NAME = 12
"""Columns of a name that stands in front of its numbers; if there are fewer, names have lines of their own."""
_INDENT = 2
_UNITS = "units"
_NOTHING = "the two sides have no metric in common"
_NO_HISTORY = "the run and the history have no metric in common"
_STYLES = {
    "better": "bold green",
    "worse": "bold red",
    "cannot tell": "yellow",
    "not comparable": "yellow",
    "different": "bold",
}


def comparison_view(
    comparison: Comparison,
    *,
    names: tuple[str, str],
    counts: tuple[int, int],
    differences: Sequence[Difference],
    left_out: Sequence[str],
    method: str,
    width: int,
    unicode: bool = True,
) -> RenderableType:
    """Return a comparison of two sides, at most `width` columns wide. counts: of their runs."""
    parts: list[RenderableType] = [
        _line(letter, f"{name} ({count} run{'' if count == 1 else 's'})", "bold")
        for letter, name, count in zip("AB", names, counts, strict=True)
    ]
    parts += [_line("left out", sentence, "yellow") for sentence in left_out]
    parts += [_line("note", sentence) for sentence in comparison.notes]
    rows = [comparison_cells(each, unicode=unicode) for each in comparison.every]
    if not rows:
        # It explains all that follows.
        parts += [Text(), Text(_NOTHING, style="yellow"), Text()]
    parts += _differences(differences, unicode=unicode)
    parts.append(Text())
    if rows:
        headings = ("A", "B", "change", "95 % interval")
        parts += _rows(rows[:_ROWS], headings, width=width, unicode=unicode)
    if len(rows) > _ROWS:
        parts.append(Text(f"and {len(rows) - _ROWS:,} more: --json", style="dim"))
    notes = {each.name: each.notes for each in comparison.metrics[:_ROWS]}
    parts += _notes(notes | {each.name: [each.note] for each in comparison.incomparable})
    for letter, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        if only:
            more = f" and {len(only) - 6:,} more" if len(only) > 6 else ""
            parts.append(_line(f"only in {letter}", ", ".join(only[:6]) + more))
    parts += [Text(), Text(method, style="dim")]
    return Group(*parts)


def band_view(
    banded: AgainstHistory,
    *,
    name: str,
    history: str,
    differences: Sequence[Difference],
    left_out: Sequence[str],
    method: str,
    width: int,
    unicode: bool = True,
) -> RenderableType:
    """Return how the newest run lies to the history of its kind."""
    parts: list[RenderableType] = [_line("run", name, "bold"), _line("history", history)]
    parts += [_line("left out", sentence, "yellow") for sentence in left_out]
    rows = [band_cells(each, unicode=unicode) for each in banded.every]
    if not rows:
        parts += [Text(), Text(_NO_HISTORY, style="yellow"), Text()]
    parts += _differences(differences, unicode=unicode)
    parts.append(Text())
    if rows:
        headings = ("history", "run", "change", "band")
        parts += _rows(rows[:_ROWS], headings, width=width, unicode=unicode)
    notes = {each.name: each.notes for each in banded.metrics[:_ROWS]}
    parts += _notes(notes | {each.name: [each.note] for each in banded.incomparable})
    parts += [Text(), Text(method, style="dim")]
    return Group(*parts)


def _rows(
    rows: Sequence[Cells], headings: tuple[str, str, str, str], *, width: int, unicode: bool
) -> list[RenderableType]:
    """Return the table of the metrics. On a narrow screen names give way: they are cut, then have lines of their own."""
    a, b = aligned([row.a for row in rows]), aligned([row.b for row in rows])
    columns = {
        headings[0]: a,
        headings[1]: b,
        _UNITS: [row.units for row in rows],
        headings[2]: [row.change for row in rows],
        headings[3]: [row.interval for row in rows],
    }
    names = [(row.name, _direction(row.better, unicode=unicode)) for row in rows]
    longest = max(len(name) + len(sign) for name, sign in names)
    verdicts = max(len(line) for row in rows for line in row.verdict.splitlines())

    def taken() -> int:
        return verdicts + sum(2 + max(len(heading), *map(len, cells)) for heading, cells in columns.items())

    if taken() + min(_LEAST_NAME, longest) + 2 > width:
        del columns[_UNITS]
        # The interval goes first: the verdict says what follows of it.
        for gone in ((headings[3],), headings[:2]):
            if taken() + _INDENT > width:
                columns = {heading: cells for heading, cells in columns.items() if heading not in gone}
        return _stacked(rows, names, columns, width=width, unicode=unicode)
    name_width = min(longest, width - taken() - 2)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    table.add_column("metric", no_wrap=True, width=name_width, style="bold")
    for heading in columns:
        if heading == _UNITS:
            table.add_column("", no_wrap=True, style="dim")
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for index, (row, (name, sign)) in enumerate(zip(rows, names, strict=True)):
        cells = (Text(column[index]) for column in columns.values())
        head = Text(_cut(name, name_width - len(sign), unicode=unicode) + sign)
        table.add_row(head, *cells, _verdict(row))
    return [table]


def _stacked(
    rows: Sequence[Cells],
    names: Sequence[tuple[str, str]],
    columns: Mapping[str, Sequence[str]],
    *,
    width: int,
    unicode: bool,
) -> list[RenderableType]:
    """Return each metric in lines of its own: name and units, then the columns that there is room for."""
    widths = {heading: max(len(heading), *map(len, cells)) for heading, cells in columns.items()}
    indent = " " * _INDENT

    def line(cells: Mapping[str, str]) -> str:
        return indent + "".join(f"{cells[heading]:>{wide}}  " for heading, wide in widths.items())

    found: list[RenderableType] = [
        Text(line({heading: heading for heading in columns}).rstrip(), style="dim")
    ]
    for index, (row, (name, sign)) in enumerate(zip(rows, names, strict=True)):
        units = f" {row.units}" if row.units and len(row.units) < width // 2 else ""
        head = Text(_cut(name, width - len(sign) - len(units), unicode=unicode) + sign, style="bold")
        numbers = line({heading: cells[index] for heading, cells in columns.items()})
        first, *rest = _verdict(row).split("\n")
        found += [head.append(units, style="not bold dim"), Text(numbers).append_text(first)]
        found += [Text(" " * len(numbers)).append_text(each) for each in rest]
    return found


def _verdict(row: Cells) -> Text:
    return Text(row.verdict, style=_STYLES.get(row.verdict.partition("\n")[0], ""))


def _direction(better: Better | None, *, unicode: bool) -> str:
    if better is None:
        return ""
    return (" ↓" if unicode else " v") if better is Better.LOWER else (" ↑" if unicode else " ^")


def _cut(name: str, width: int, *, unicode: bool) -> str:
    """Return a name in at most `width` columns: its beginning and its end."""
    if len(name) <= width:
        return name
    end = max(1, width // 2)
    return name[: max(1, width - end - 1)] + ("…" if unicode else "~") + name[-end:]


def _differences(differences: Sequence[Difference], *, unicode: bool) -> list[RenderableType]:
    arrow = " → " if unicode else " -> "
    lines: list[RenderableType] = [
        _line("differs" if not i else "", f"{each.what}: {each.a}{arrow}{each.b}", "yellow")
        for i, each in enumerate(differences[:_DIFFERENCES])
    ]
    if len(differences) > _DIFFERENCES:
        lines.append(_line("", f"and {len(differences) - _DIFFERENCES:,} more: --json", "yellow"))
    return lines


def _notes(notes: Mapping[str, Sequence[str]]) -> list[RenderableType]:
    """Return what has to be said of metrics; the same sentence once for all of them."""
    of_sentence: dict[str, list[str]] = {}
    for name, sentences in notes.items():
        for sentence in sentences:
            of_sentence.setdefault(sentence, []).append(name)
    lines: list[RenderableType] = [Text()] if of_sentence else []
    for sentence, names in of_sentence.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        lines.append(Padding(Text(plain_text(f"{shown}: {sentence}")), (0, 0, 0, 2)))
    return lines


def _line(label: str, value: str, style: str = "default") -> RenderableType:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=9, style="dim")
    grid.add_column(overflow="fold")
    grid.add_row(label, Text(plain_text(value), style=style))
    return grid
