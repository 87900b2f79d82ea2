"""HTML out of values: escaping, tables, small pictures."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from executor.quantities import quantity
from executor.view.text import plain_text

Cell = tuple[str, str]
"""A cell's class ("n": a number, "text", "") and its markup."""


def escaped(text: str) -> str:
    """Return `text`, which may hold anything, as part of a page: one line, no markup, nothing that hides or turns its direction."""
    return html.escape(plain_text(text).encode(errors="replace").decode())


def escaped_lines(text: str) -> str:
    """Return a text of several lines as part of a page."""
    return "\n".join(escaped(line) for line in text.splitlines())


def figure(value: float | None, units: str, *, floor: float | None = None) -> str:
    """Return a value for reading, with its units where they are part of it: sizes. floor: as of `quantity`."""
    return "–" if value is None else escaped(quantity(value, units, floor=floor)[0])


def with_units(value: float | None, units: str, *, floor: float | None = None) -> str:
    """Return a value with its units. floor: as of `quantity`."""
    if value is None:
        return "–"
    text, rest = quantity(value, units, floor=floor)
    return escaped(text) + (f' <small class="units">{escaped(rest)}</small>' if rest else "")


def table(
    caption: str, heads: Sequence[Cell], rows: Iterable[Sequence[Cell]], *, kind: str = "wide"
) -> list[str]:
    """Return a table whose first column heads its rows. On a narrow screen each cell names its column."""
    found = [f'<table class="{kind}"><caption>{caption}</caption><thead><tr>']
    found += [f'<th scope="col" class="{kind_}">{text}</th>' for kind_, text in heads]
    found.append("</tr></thead><tbody>")
    for row in rows:
        (_, first), *rest = row
        cells = "".join(
            f'<td class="{kind_}" data-name="{name}">{text}</td>'
            for (kind_, text), (_, name) in zip(rest, heads[1:], strict=True)
        )
        found.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    return [*found, "</tbody></table>"]


def pairs(caption: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return a table of labels and what there is to say; nothing where there are no rows."""
    found = [f'<tr><th scope="row">{label}</th><td>{text}</td></tr>' for label, text in rows]
    return (
        [f'<table class="pairs"><caption>{caption}</caption><tbody>', *found, "</tbody></table>"]
        if found
        else []
    )


def sparkline(values: Sequence[float], *, height: int = 34) -> str:
    """Return values as a small line without axes; it stretches to the width that it is given."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    # Halved first: the distance between two finite numbers need not be finite.
    wide = high / 2 - low / 2
    places = (
        f"{100 * i / (len(values) - 1):.1f},{height - 2 - (height - 4) * ((each / 2 - low / 2) / wide if wide else 0.5):.1f}"
        for i, each in enumerate(values)
    )
    return (
        f'<svg viewBox="0 0 100 {height}" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        f'<polyline points="{" ".join(places)}"/></svg>'
    )
