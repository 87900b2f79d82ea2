"""The arms of a job compared, as `bai compare JOB` says it: a part of the page, and of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from executor.analysis.comparison import METHOD
from executor.jobs.compared_pair import ComparedPair
from executor.report.markup import Cell, escaped, table
from executor.view.comparison_cells import Cells, comparison_cells

HEADS = ("A", "B", "change", "95 % interval", "verdict")
_ROWS = 64
"""Metrics of a pair; JSON has all."""
_DIFFERENCES = 20
_STYLES = {"better": "good", "worse": "bad"}


def comparison_section(pairs: Sequence[ComparedPair]) -> Iterator[str]:
    """Yield the section of the page; nothing for a job without arms."""
    if not pairs:
        return
    yield '<h2 id="comparison">Comparison</h2>'
    heads: list[Cell] = [("", "metric"), *(("n", each) for each in HEADS[:-1]), ("text", HEADS[-1])]
    for pair in pairs:
        if rows := pair_cells(pair):
            yield from table(escaped(sides_sentence(pair)), heads, [_row(each) for each in rows])
        else:
            yield f"<p>{escaped(sides_sentence(pair))}</p>"
        notes = "".join(f"<li>{escaped(each)}</li>" for each in pair_notes(pair))
        if notes:
            yield f'<ul class="note">{notes}</ul>'
    yield f'<p class="note">{escaped(METHOD)}</p>'


def sides_sentence(pair: ComparedPair) -> str:
    """Return the names of the sides, and how many runs each has."""
    sides = (
        f"{letter}: {name} ({count} run{'' if count == 1 else 's'})"
        for letter, name, count in zip("AB", pair.names, pair.counts, strict=True)
    )
    return ", ".join(sides)


def pair_cells(pair: ComparedPair) -> list[Cells]:
    """Return the rows of the table of a pair."""
    return [comparison_cells(each) for each in pair.comparison.every[:_ROWS]]


def pair_notes(pair: ComparedPair) -> list[str]:
    """Return what is to be said of a pair, a sentence each: in the order of `bai compare`."""
    found = pair.comparison
    notes = [] if found.every else ["the two sides have no metric in common"]
    notes += [f"left out: {each}" for each in pair.left_out]
    notes += found.notes
    notes += [f"differs: {each.what}: {each.a} → {each.b}" for each in pair.differences[:_DIFFERENCES]]
    if (more := len(pair.differences) - _DIFFERENCES) > 0:
        notes.append(f"and {more:,} more differences: bai compare --json")
    notes += [f"{each.name}: {note}" for each in found.metrics[:_ROWS] for note in each.notes]
    notes += [f"{each.name}: {each.note}" for each in found.incomparable[:_ROWS]]
    if (more := len(found.every) - _ROWS) > 0:
        notes.append(f"and {more:,} more metrics: bai compare --json")
    for letter, only in (("A", found.only_a), ("B", found.only_b)):
        if only:
            notes.append(f"only in {letter}: {', '.join(only[:_DIFFERENCES])}")
    return notes


def _row(each: Cells) -> list[Cell]:
    numbers = (*each.with_units, each.change, each.interval)
    style = _STYLES.get(each.verdict.partition("\n")[0], "")
    better = f' <small class="better">{each.better.value} is better</small>' if each.better else ""
    return [
        ("", escaped(each.name) + better),
        *(("n", escaped(number)) for number in numbers),
        ("text", f'<span class="{style}">{escaped(each.verdict)}</span>'),
    ]
