"""A comparison as one HTML file without scripts: what differs, a table, and every run as a mark.

It needs no network. Sides are told apart by shape, not by colour alone, and dark screens and paper are thought of.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from executor.analysis.baseline import METHOD as BAND_METHOD
from executor.analysis.baseline import AgainstHistory, BandedMetric
from executor.analysis.compared_metric import Incomparable, MetricComparison
from executor.analysis.comparison import METHOD, Comparison
from executor.analysis.differences import Difference
from executor.quantities import quantity
from executor.view.comparison_cells import Cells, band_cells, band_text, comparison_cells
from executor.view.text import plain_text

_WIDTH, _HEIGHT, _LEFT, _RIGHT = 640, 76, 24, 16
_BAND_HEIGHT = 160
_ROWS = (24, 44)
"""Heights of the two sides' marks."""

_STYLE = """
:root { color-scheme: light dark; --a: #0b62a4; --b: #b34a00; --line: #8886; --better: #0a6b2d; --worse: #b00020; }
@media (prefers-color-scheme: dark) { :root { --a: #6db6ee; --b: #ffa05c; --better: #6fd28f; --worse: #ff8a95; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 1rem auto; padding: 0 1rem; overflow-wrap: anywhere }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 1.5rem 0 .3rem }
table { border-collapse: collapse; font-size: .9rem } td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
svg { width: 100%; height: auto; max-width: 42rem; display: block }
.better { color: var(--better); font-weight: 600 } .worse { color: var(--worse); font-weight: 600 }
.a { fill: var(--a) } .b { fill: var(--b) } .mean { stroke: currentColor; stroke-width: 2 } .axis { stroke: var(--line) }
.band { fill: var(--a); fill-opacity: .15 }
text { fill: currentColor; font-size: 12px } .note, .method { font-size: .9rem }
@media (max-width: 640px) {
  table, tbody, tr, td { display: block } tr:first-child { display: none }
  tr { padding: .4rem 0; border-bottom: 1px solid var(--line) } td { padding: 0 } td.name { font-weight: 600 }
  td.number { text-align: left; white-space: normal }
  td[data-name]::before { content: attr(data-name) ": "; opacity: .7 }
}
@media print { body { max-width: none } h2, svg { break-inside: avoid; break-after: avoid } }
"""


def comparison_page(pairs: Sequence[tuple[str, str, Comparison, Sequence[Difference]]]) -> str:
    """Return the page of comparisons: each the names of its sides A and B, what was found, and what else differs."""
    return _page("".join(_pair(*pair) for pair in pairs), title="Comparison of runs", method=METHOD)


def band_page(banded: AgainstHistory, *, name: str, history: str, differences: Sequence[Difference]) -> str:
    """Return the page of a run, or the runs of a job, seen against the history of its kind."""
    parts = [f"<h1>Run: {_text(name)}<br>History: {_text(history)}</h1>"]
    if not banded.every:
        parts.append("<p>The run and the history have no metric in common.</p>")
    parts += _differing(differences, "history", "run")
    rows = [(_name(each), band_cells(each)) for each in banded.every]
    parts.append(_table(("history", "run", "change", "band"), rows))
    for each in banded.metrics:
        notes = "".join(f'<p class="note">{_text(note)}</p>' for note in each.notes)
        parts.append(f"<h2>{_name(each)}</h2>{_band_plot(each)}{notes}")
    parts += map(_bare, banded.incomparable)
    return _page("".join(parts), title="A run against its history", method=BAND_METHOD)


def _page(body: str, *, title: str, method: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title>"
        f"<style>{_STYLE}</style></head><body><main>{body}"
        f'<p class="method">{_text(method)}</p></main></body></html>\n'
    )


def _pair(a: str, b: str, comparison: Comparison, differences: Sequence[Difference]) -> str:
    notes = (f"<p>{_text(note)}</p>" for note in comparison.notes)
    parts = [f"<h1>A: {_text(a)}<br>B: {_text(b)}</h1>", *notes]
    if not comparison.every:
        # It explains all that follows.
        parts.append("<p>The two sides have no metric in common.</p>")
    parts += _differing(differences, "A", "B")
    rows = [(_name(each), comparison_cells(each)) for each in comparison.every]
    parts.append(_table(("A", "B", "change", "95 % interval"), rows))
    parts += map(_metric, comparison.metrics)
    parts += map(_bare, comparison.incomparable)
    for letter, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        if only:
            parts.append(f"<p>Only in {letter}: {_text(', '.join(only))}</p>")
    return "".join(parts)


def _differing(differences: Sequence[Difference], a: str, b: str) -> list[str]:
    if not differences:
        return []
    rows = "".join(
        f'<tr><td class="name">{_text(each.what)}</td>'
        f'<td data-name="{a}">{_text(each.a)}</td><td data-name="{b}">{_text(each.b)}</td></tr>'
        for each in differences
    )
    heads = f"<tr><th></th><th>{a}</th><th>{b}</th></tr>"
    return [f'<h2>What else differs</h2><table class="differs">{heads}{rows}</table>']


def _bare(each: Incomparable) -> str:
    return f'<h2>{_name(each)}</h2><p class="note">{_text(each.note)}</p>'


def _table(headings: Sequence[str], rows: Sequence[tuple[str, Cells]]) -> str:
    """Return the table of the metrics, each with its name for the page. On a narrow screen each cell names its column."""
    if not rows:
        return ""
    heads = "".join(f'<th class="number">{each}</th>' for each in headings)
    body = "".join(_row(headings, name, cells) for name, cells in rows)
    return f'<h2>Metrics</h2><table class="metrics"><tr><th>metric</th>{heads}<th></th></tr>{body}</table>'


def _row(headings: Sequence[str], name: str, row: Cells) -> str:
    numbers = zip(headings, (*row.with_units, row.change, row.interval), strict=True)
    cells = "".join(
        f'<td class="number" data-name="{heading}">{_text(number)}</td>' for heading, number in numbers
    )
    kind = row.verdict if row.verdict in ("better", "worse") else ""
    return f'<tr><td class="name">{name}</td>{cells}<td class="verdict {kind}">{_text(row.verdict)}</td></tr>'


def _name(each: MetricComparison | BandedMetric | Incomparable) -> str:
    direction = {"lower": " (lower is better)", "higher": " (higher is better)"}
    return _text(each.name) + (direction[each.better.value] if each.better is not None else "")


def _metric(each: MetricComparison) -> str:
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in each.notes)
    return f"<h2>{_name(each)}</h2>{_plot(each)}{notes}"


def _plot(each: MetricComparison) -> str:
    """Return a picture of all runs: a round mark for each of A, a square one for each of B, and a bar at each side's centre."""
    low, high = min(*each.a, *each.b), max(*each.a, *each.b)
    # Halved: the distance between two finite numbers need not be finite.
    span = high / 2 - low / 2

    def x(value: float) -> float:
        share = (value / 2 - low / 2) / span if span else 0.5
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def words(value: float) -> str:
        return _text(_words(value, each.units))

    marks = [
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{row}" y2="{row}"/>' for row in _ROWS
    ]
    marks += [f'<text x="2" y="{row + 4}">{letter}</text>' for letter, row in zip("AB", _ROWS, strict=True)]
    marks += [
        f'<circle class="a" cx="{x(value)}" cy="{_ROWS[0]}" r="5" fill-opacity=".65"><title>A: {words(value)}</title></circle>'
        for value in each.a
    ]
    marks += [
        f'<rect class="b" x="{x(value) - 4.5}" y="{_ROWS[1] - 4.5}" width="9" height="9" fill-opacity=".65"><title>B: {words(value)}</title></rect>'
        for value in each.b
    ]
    marks += [
        f'<line class="mean" x1="{x(middle)}" x2="{x(middle)}" y1="{row - 9}" y2="{row + 9}"/>'
        for middle, row in zip((each.centre_a, each.centre_b), _ROWS, strict=True)
    ]
    marks.append(f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{words(low)}</text>')
    if span:
        marks.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">{words(high)}</text>')
    label = f"{len(each.a)} runs of A and {len(each.b)} of B, from {words(low)} to {words(high)}"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(marks)}</svg>'


def _band_plot(each: BandedMetric) -> str:
    """Return a picture of all runs in order of time: round marks for the history, square ones for the newest, and the band behind them."""
    values = (*each.history, *each.newest)
    ends = (*values, *(end for end in (each.low, each.high) if end is not None))
    low, high = min(ends), max(ends)
    # Halved: the distance between two finite numbers need not be finite.
    span = high / 2 - low / 2
    top, bottom = 18, _BAND_HEIGHT - 24

    def y(value: float) -> float:
        share = (value / 2 - low / 2) / span if span else 0.5
        return round(bottom - share * (bottom - top), 1)

    def x(index: int) -> float:
        share = (index + 0.5) / len(values)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    left, right = f'x1="{_LEFT}"', f'x2="{_WIDTH - _RIGHT}"'
    marks = []
    if each.low is not None and each.high is not None:
        # Where all runs gave the same number, it is a line.
        height = max(1.0, round(y(each.low) - y(each.high), 1))
        marks.append(
            f'<rect class="band" x="{_LEFT}" y="{y(each.high)}" width="{_WIDTH - _LEFT - _RIGHT}" height="{height}">'
            f"<title>band: {_text(band_text(each))}</title></rect>"
        )
    marks.append(f'<line class="axis" {left} {right} y1="{y(each.centre_a)}" y2="{y(each.centre_a)}"/>')
    for index, value in enumerate(values):
        words = _text(_words(value, each.units))
        if index < len(each.history):
            marks.append(
                f'<circle class="a" cx="{x(index)}" cy="{y(value)}" r="4"><title>history: {words}</title></circle>'
            )
        else:
            marks.append(
                f'<rect class="b" x="{x(index) - 4.5}" y="{y(value) - 4.5}" width="9" height="9"><title>run: {words}</title></rect>'
            )
    for value in dict.fromkeys((low, high)):
        marks.append(f'<text x="{_LEFT}" y="{y(value) - 4}">{_text(_words(value, each.units))}</text>')
    marks.append(f'<text x="{_LEFT}" y="{_BAND_HEIGHT - 4}">earlier</text>')
    marks.append(f'<text x="{_WIDTH - _RIGHT}" y="{_BAND_HEIGHT - 4}" text-anchor="end">now</text>')
    label = (
        f"{len(each.history)} runs of the history and {len(each.newest)} of now, "
        f"from {_words(min(values), each.units)} to {_words(max(values), each.units)}; band {band_text(each)}"
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_BAND_HEIGHT}" role="img" aria-label="{_text(label)}">{"".join(marks)}</svg>'


def _words(value: float, units: str) -> str:
    return " ".join(filter(None, quantity(value, units)))


def _text(text: str) -> str:
    return escape(plain_text(text))
