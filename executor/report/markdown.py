"""Writes documents as Markdown, for example for a comment on a change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from executor.documents.document import (
    Block,
    Code,
    Column,
    Facts,
    Heading,
    Metrics,
    Notes,
    OutcomeLine,
    Paragraph,
    Phrase,
    Renderer,
    Table,
    Title,
)
from executor.documents.text import as_utf8, plain_text
from executor.report.contents import Report
from executor.report.job_document import job_body, job_head
from executor.report.plots import plot_data

_ROWS = 100
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@:])")
_LINES = 20
_MARKS = {"good": "✅ ", "bad": "❌ "}


def markdown_report(report: Report) -> str:
    """Return a report as Markdown."""
    blocks = chain(job_head(report), job_body(report, plot_data(report)))
    return markdown_page(report.job.job.name or report.job.job.id, blocks)


def markdown_page(title: str, blocks: Iterable[Block]) -> str:
    """Return a document as Markdown. Text from other programs is shown unchanged, even if it looks like
    markup."""
    return "\n".join(Markdown().render(chain([Title(title)], blocks))) + "\n"


class Markdown(Renderer[str]):
    """Renders blocks as lines of Markdown."""

    def __init__(self) -> None:
        self._folded = False

    def render(self, blocks: Iterable[Block]) -> Iterator[str]:
        yield from super().render(blocks)
        yield from self._unfold()

    def _unfold(self) -> Iterator[str]:
        if self._folded:
            yield "</details>"
            yield ""
        self._folded = False

    def title(self, block: Title) -> Iterator[str]:
        status = f": {_text(block.status.text)}" if block.status is not None else ""
        yield f"### {_text(block.text)}{status}"
        yield ""

    def heading(self, block: Heading) -> Iterator[str]:
        yield from self._unfold()
        self._folded = block.folded
        text = _text(block.text)
        yield f"<details><summary>{text}</summary>" if block.folded else f"#### {text}"
        yield ""

    def outcome(self, block: OutcomeLine) -> Iterator[str]:
        yield f"{_MARKS.get(block.tone, '')}{_text(' '.join(filter(None, (block.sentence, block.detail))))}"
        yield ""

    def paragraph(self, block: Paragraph) -> Iterator[str]:
        yield _text(block.text)
        yield ""

    def facts(self, block: Facts) -> Iterator[str]:
        if block.brief:
            yield _text(" · ".join(f"{each.label} {each.text}" for each in block.rows))
        if block.caption:
            yield f"{_text(block.caption)}:"
            yield ""
        rows = () if block.brief else block.rows[: _LINES if block.more else None]
        yield from (f"- {_text(each.label)}: {_text(each.text)}" for each in rows)
        yield from _rest(len(block.rows) - _LINES, block.more)
        yield ""

    def notes(self, block: Notes) -> Iterator[str]:
        mark = "⚠️ " if block.warnings else ""
        yield from (f"- {mark}{_text(each.text)}" for each in block.rows)
        yield ""

    def code(self, block: Code) -> Iterator[str]:
        yield from map(_code, block.text.splitlines())
        yield ""

    def table(self, block: Table) -> Iterator[str]:
        if block.caption:
            yield _text(block.caption)
            yield ""
        yield from _table(block.columns, block.rows)
        yield from _rest(len(block.rows) - _ROWS, block.more)
        yield ""

    def metrics(self, block: Metrics) -> Iterator[str]:
        columns = [
            Column("metric"),
            Column("headline"),
            Column("", number=False),
            *map(Column, block.columns),
        ]
        rows, notes = [], []
        for part in block.parts:
            units = f" ({part.name.units})" if part.name.units else ""
            notes += [f"{part.name.text}: {part.warmup}"] if part.warmup else []
            for series in part.series:
                label = f" {series.label}" if len(part.series) > 1 else ""
                named = (f"{part.name.text}{units}{label}", series.headline, series.what)
                rows.append([*map(Phrase, named), *series.figures])
                notes += [f"{part.name.text}{label}: {series.unsteady}"] if series.unsteady else []
        yield from _table(columns, rows)
        if len(rows) > _ROWS:
            notes.insert(0, f"the first {_ROWS} of {len(rows):,} series")
        yield from self.notes(Notes([Phrase(each) for each in notes]))


def _rest(count: int, more: str) -> Iterator[str]:
    if count > 0 and more:
        yield f"- and {count:,} more: {_code(more)}"


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Phrase]]) -> Iterator[str]:
    if rows:
        yield f"| {' | '.join(_text(each.name) for each in columns)} |"
        yield f"|{'|'.join('---:' if i and each.number else '---' for i, each in enumerate(columns))}|"
    for row in rows[:_ROWS]:
        yield f"| {' | '.join(_text(' '.join(filter(None, (each.text, each.units)))) for each in row)} |"
    yield ""


def _text(text: str) -> str:
    """Return `text` in a form that Markdown shows unchanged, without markup, links, mentions and control
    sequences."""
    escaped = _SPECIAL.sub(r"\\\1", as_utf8(plain_text(text)))
    # GitHub also links addresses and mentions in plain text. An entity looks the same, but is not linked.
    return (
        escaped.replace("\\@", "&#64;")
        .replace("\\:", "&#58;")
        .replace("\\<", "&lt;")
        .replace("\\>", "&gt;")
        .replace("\\&", "&amp;")
    )


def _code(text: str) -> str:
    plain = plain_text(text)
    fence = "`" * (max((len(each) for each in re.findall("`+", plain)), default=0) + 1)
    return f"{fence}{plain}{fence}"
