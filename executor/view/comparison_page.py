"""A comparison as one HTML file without scripts: what differs, a table, and every run as a mark.

It needs no network. Sides are told apart by shape, not by colour alone, and dark screens and paper are thought of.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from executor.analysis.comparison import METHOD, Comparison, MetricComparison
from executor.analysis.differences import Difference
from executor.quantities import quantity
from executor.view.comparison import change_text, interval_text
from executor.view.text import plain_text

_WIDTH, _HEIGHT, _LEFT, _RIGHT = 640, 76, 24, 16
_ROWS = (24, 44)
"""Heights of the two sides' marks."""

_STYLE = """
:root { color-scheme: light dark; --a: #0b62a4; --b: #b34a00; --line: #8886; --better: #0a6b2d; --worse: #b00020; }
@media (prefers-color-scheme: dark) { :root { --a: #6db6ee; --b: #ffa05c; --better: #6fd28f; --worse: #ff8a95; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 1rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 1.5rem 0 .3rem }
table { border-collapse: collapse; font-size: .9rem } td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top }
td { overflow-wrap: anywhere } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.scroll { overflow-x: auto } svg { width: 100%; height: auto; max-width: 42rem; display: block }
.better { color: var(--better); font-weight: 600 } .worse { color: var(--worse); font-weight: 600 }
.a { fill: var(--a) } .b { fill: var(--b) } .mean { stroke: currentColor; stroke-width: 2 } .axis { stroke: var(--line) }
text { fill: currentColor; font-size: 12px } .note, .method { font-size: .9rem }
@media print { body { max-width: none } h2, svg { break-inside: avoid; break-after: avoid } }
"""


def comparison_page(pairs: Sequence[tuple[str, str, Comparison, Sequence[Difference]]]) -> str:
    """Return the page of comparisons: each the names of its sides A and B, what was found, and what else differs."""
    body = "".join(_pair(*pair) for pair in pairs)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<title>Comparison of runs</title>"
        f"<style>{_STYLE}</style></head><body><main>{body}"
        f'<p class="method">{_text(METHOD)}</p></main></body></html>\n'
    )


def _pair(a: str, b: str, comparison: Comparison, differences: Sequence[Difference]) -> str:
    parts = [f"<h1>A: {_text(a)}<br>B: {_text(b)}</h1>"]
    if differences:
        rows = "".join(
            f"<tr><td>{_text(each.what)}</td><td>{_text(each.a)}</td><td>{_text(each.b)}</td></tr>"
            for each in differences
        )
        parts.append(
            f'<h2>What else differs</h2><div class="scroll"><table><tr><th></th><th>A</th><th>B</th></tr>{rows}</table></div>'
        )
    headings = "".join(f'<th class="number">{each}</th>' for each in ("A", "B", "change", "95 % interval"))
    rows = "".join(map(_row, comparison.metrics))
    parts.append(
        f'<h2>Metrics</h2><div class="scroll"><table><tr><th>metric</th>{headings}<th></th></tr>{rows}</table></div>'
    )
    parts += map(_metric, comparison.metrics)
    for letter, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        if only:
            parts.append(f"<p>Only in {letter}: {_text(', '.join(only))}</p>")
    return "".join(parts)


def _row(each: MetricComparison) -> str:
    numbers = (
        " ".join(filter(None, quantity(each.centre_a, each.units))),
        " ".join(filter(None, quantity(each.centre_b, each.units))),
        change_text(each.effect.change, relative=each.effect.relative, units=each.units),
        interval_text(each),
    )
    cells = "".join(f'<td class="number">{_text(number)}</td>' for number in numbers)
    kind = each.verdict.value if each.verdict.value in ("better", "worse") else ""
    return f'<tr><td>{_name(each)}</td>{cells}<td class="{kind}">{_text(each.verdict.value)}</td></tr>'


def _name(each: MetricComparison) -> str:
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
        return _text(" ".join(filter(None, quantity(value, each.units))))

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


def _text(text: str) -> str:
    return escape(plain_text(text))
