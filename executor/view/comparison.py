"""A comparison on a screen: what else differs, then a row for each metric, then what has to be said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bai_agent.job.descriptor import Better
from executor.quantities import aligned, quantity
from executor.view.text import plain_text

if TYPE_CHECKING:
    from executor.analysis.baseline import AgainstHistory, BandedMetric
    from executor.analysis.compared_metric import Incomparable, MetricComparison
    from executor.analysis.comparison import Comparison
    from executor.analysis.differences import Difference

_DIFFERENCES = 12
"""That are shown; all of them are in the JSON and on the page."""
_ROWS = 40
_Cells = tuple[str, Better | None, str, str, str, str, str]
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
    parts += _differences(differences, unicode=unicode)
    parts.append(Text())
    rows = [
        *(_row(each, unicode=unicode) for each in comparison.metrics),
        *map(_bare_row, comparison.incomparable),
    ]
    if rows:
        headings = ("A", "B", "change", "95 % interval")
        parts.append(_rows(rows[:_ROWS], headings, width=width, unicode=unicode))
    else:
        parts.append(Text("the two sides have no metric in common", style="yellow"))
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
    parts += _differences(differences, unicode=unicode)
    parts.append(Text())
    rows = [
        *(_band_row(each, unicode=unicode) for each in banded.metrics),
        *map(_bare_row, banded.incomparable),
    ]
    if rows:
        headings = ("history", "run", "change", "band")
        parts.append(_rows(rows[:_ROWS], headings, width=width, unicode=unicode))
    else:
        parts.append(Text("the run and the history have no metric in common", style="yellow"))
    notes = {each.name: each.notes for each in banded.metrics[:_ROWS]}
    parts += _notes(notes | {each.name: [each.note] for each in banded.incomparable})
    parts += [Text(), Text(method, style="dim")]
    return Group(*parts)


def change_text(change: float, *, relative: bool, units: str = "") -> str:
    """Return a change for reading: "-20.1 %", or with its sign in the metric's units."""
    if not relative:
        text = quantity(abs(change), units)[0]
        return f"{'-' if change < 0 else '+'}{text}"
    if abs(change) >= 10:
        return f"x {change + 1:,.3g}"
    digits = 1 if abs(change) >= 0.0095 else 2
    return f"{change * 100:+.{digits}f} %"


def interval_text(each: MetricComparison, *, unicode: bool = True) -> str:
    """Return the interval of a change for reading, or nothing."""
    low, high = each.effect.low, each.effect.high
    if low is None or high is None:
        return "-"
    ends = [change_text(end, relative=each.effect.relative, units=each.units) for end in (low, high)]
    return _joined(ends, unicode=unicode)


def band_text(each: BandedMetric, *, unicode: bool = True) -> str:
    """Return the ends of a band for reading."""
    if each.low is None or each.high is None:
        return "-"
    return _joined([quantity(end, each.units)[0] for end in (each.low, each.high)], unicode=unicode)


def _joined(ends: Sequence[str], *, unicode: bool) -> str:
    if all(end.endswith(" %") for end in ends):
        ends = [ends[0].removesuffix(" %"), ends[1]]
    return (" … " if unicode else " to ").join(ends)


def _row(each: MetricComparison, *, unicode: bool) -> _Cells:
    return (
        plain_text(each.name),
        each.better,
        quantity(each.centre_a, each.units)[0],
        quantity(each.centre_b, each.units)[0],
        change_text(each.effect.change, relative=each.effect.relative, units=each.units),
        interval_text(each, unicode=unicode),
        each.verdict_text,
    )


def _band_row(each: BandedMetric, *, unicode: bool) -> _Cells:
    return (
        plain_text(each.name),
        each.better,
        quantity(each.centre_a, each.units)[0],
        quantity(each.centre_b, each.units)[0],
        change_text(each.change, relative=each.relative, units=each.units),
        band_text(each, unicode=unicode),
        each.verdict_text,
    )


def _bare_row(each: Incomparable) -> _Cells:
    a, b = (" ".join(filter(None, quantity(*side))) for side in (each.a, each.b))
    return (plain_text(each.name), None, a, b, "-", "-", "not comparable")


def _rows(
    rows: Sequence[_Cells],
    headings: tuple[str, str, str, str],
    *,
    width: int,
    unicode: bool,
) -> Table:
    columns: list[list[str]] = [aligned([row[2] for row in rows]), aligned([row[3] for row in rows])]
    columns += [[row[4] for row in rows], [row[5] for row in rows]]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    # A number is never cut: the name is, and where that does not do, the two sides' numbers go, then the interval.
    kept = [0, 1, 2, 3]
    verdicts = max(len(line) for row in rows for line in row[6].splitlines())

    def taken() -> int:
        return verdicts + sum(2 + max(len(headings[i]), *map(len, columns[i])) for i in kept)

    least = min(12, max(len(row[0]) for row in rows) + 2)
    for gone in ((0, 1), (3,)):
        if taken() + least + 2 > width:
            kept = [i for i in kept if i not in gone]
    name_width = max(least, min(max(len(row[0]) for row in rows) + 2, width - taken() - 2))
    table.add_column("metric", no_wrap=True, width=name_width, overflow="ellipsis", style="bold")
    for i in kept:
        table.add_column(headings[i], justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for index, row in enumerate(rows):
        sign = _direction(row[1], unicode=unicode)
        name = (
            row[0]
            if len(row[0]) + len(sign) <= name_width
            else _cut(row[0], name_width - len(sign), unicode=unicode)
        )
        verdict = Text(row[6], style=_STYLES.get(row[6].partition("\n")[0], ""))
        table.add_row(name + sign, *(columns[i][index] for i in kept), verdict)
    return table


def _direction(better: Better | None, *, unicode: bool) -> str:
    if better is None:
        return ""
    return (" ↓" if unicode else " v") if better is Better.LOWER else (" ↑" if unicode else " ^")


def _cut(name: str, width: int, *, unicode: bool) -> str:
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
