"""A report as Markdown, for a comment on a change: what it came to, and what it ran on."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from bai_agent.job.outcome import ExitCode
from executor.quantities import clock, quantity, seconds
from executor.report.comparison import HEADS, pair_cells, pair_notes, sides_sentence
from executor.report.contents import MetricPart, Report
from executor.report.lines import Line
from executor.report.provenance import again, origin
from executor.report.timeline import ALL_PHASES
from executor.report.words import (
    FIGURES,
    cost_sentence,
    counts,
    floors_of,
    headlines_of,
    row_of,
    warmup_words,
    why_no_headline,
)
from executor.view.environment import environment_lines
from executor.view.own_usage import usage_sentence, usage_words
from executor.view.text import plain_text

_ROWS = 100
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@:])")
_LINES = 20


def markdown_report(report: Report) -> str:
    """Return the report as Markdown; all that others wrote is text in it, whatever it looks like."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    job, result = report.job, report.result
    yield f"### {_text(job.job.name or job.job.id)}"
    yield ""
    if result is None:
        yield "The job has no result yet."
    else:
        mark = "✅" if result.exit_code == ExitCode.SUCCEEDED else "❌"
        yield f"{mark} {_text(result.sentence)}"
    for each in report.warnings:
        yield f"- ⚠️ {_text(each)}"
    # What such a job was run for, in front of the long table of its runs.
    yield from _comparison(report)
    if report.metrics:
        yield ""
        heads = ("metric", "headline", "", "n", *FIGURES)
        rows = [row for part in report.metrics for row in _rows(part, report.failed)]
        yield from _table(heads, rows[:_ROWS], numbers=frozenset(range(1, len(heads))) - {2})
        if len(rows) > _ROWS:
            yield f"The first {_ROWS} of {len(rows):,} series."
        for part in report.metrics:
            if words := warmup_words(part):
                yield f"- {_text(part.name)}: {_text(words)}"
            for line in part.lines:
                if line.unsteady is not None:
                    yield f"- {_text(' '.join(filter(None, (part.name, line.label))))}: {_text(line.unsteady)}"
    if report.over_runs:
        yield ""
        reaches = [each.half_width for each in report.over_runs]
        over = [
            [
                _text(each.name),
                f"{len(each.values):,}",
                " ".join(quantity(each.mean, each.units, floor=each.below)).strip(),
                "–" if math.isinf(half) else " ".join(quantity(half, each.units)).strip(),
            ]
            for each, half in zip(report.over_runs, reaches, strict=True)
        ]
        yield from _table(("over runs", "runs", "mean", "± 95 %"), over[:_ROWS], numbers=frozenset((1, 2, 3)))
    if report.unseen:
        yield f"- never seen: {', '.join(map(_text, report.unseen[:_LINES]))}"
    yield ""
    phases = [(phase, seconds(report.phases[phase])) for phase in ALL_PHASES if phase in report.phases]
    if phases:
        yield from _table([phase for phase, _ in phases], [[took for _, took in phases]], numbers=frozenset())
        yield _text(cost_sentence(report))
    usage = (result.own_usage if result is not None else None) or []
    if usage:
        yield ""
        yield _text(usage_sentence(usage, one_machine=report.one_machine))
    yield ""
    yield "<details><summary>What it ran on, and how to repeat it</summary>"
    yield ""
    for node in report.environments[:_LINES]:
        where = f"node {node.rank}, " if report.nodes > 1 else ""
        for label, text in environment_lines(node):
            yield f"- {where}{_text(label)}: {_text(text)}"
    for node_usage in usage[:_LINES]:
        where = f", node {node_usage.rank}" if report.nodes > 1 else ""
        words = "; ".join(f"{name} {taken}" for name, taken in usage_words(node_usage))
        yield f"- bai itself{where}: {_text(words)}"
    yield f"- job: {_text(job.job.id)}, {clock(report.origin)}"
    for name, text in origin(report):
        yield f"- {_text(name)}: {_text(text)}"
    yield f"- again: {_code(again(report))}"
    yield from (f"- {_text(name)}: {count:,}" for name, count, _ in counts(report) if count)
    yield ""
    yield "</details>"


def _comparison(report: Report) -> Iterator[str]:
    for pair in report.compared:
        yield ""
        yield _text(sides_sentence(pair))
        yield ""
        rows = [
            [_text(each) for each in (row.name, *row.with_units, row.change, row.interval, row.verdict)]
            for row in pair_cells(pair)
        ]
        if rows:
            yield from _table(("compared", *HEADS), rows, numbers=frozenset((1, 2, 3, 4)))
        yield from (f"- {_text(each)}" for each in pair_notes(pair))


def _rows(part: MetricPart, failed: Collection[int]) -> Iterator[list[str]]:
    found = {id(each.lines[0]): each for each in headlines_of(part, failed)}
    name = _text(part.name) + (f" ({_text(part.units)})" if part.units else "")
    why = why_no_headline(part, failed) if not found else ""
    for number, line in enumerate(part.lines):
        own = name if len(part.lines) == 1 else f"{name} {_text(line.label)}"
        first = ["–", _text(why)] if why and not number else ["", ""]
        if (each := found.get(id(line))) is not None:
            first = [_figure(each.headline.value, part, part.floor), _text(each.of)]
        yield [own, *first, *_figures(line, part)]


def _figures(line: Line, part: MetricPart) -> list[str]:
    found = line.figures
    if found is None:
        return ["0", *["–"] * len(FIGURES)]
    figures = zip(row_of(found, part), floors_of(part), strict=True)
    return [f"{found.count:,}", *(_figure(value, part, floor) for value, floor in figures)]


def _figure(value: float | None, part: MetricPart, floor: float | None) -> str:
    return "–" if value is None else quantity(value, part.units, floor=floor)[0]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: frozenset[int]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'|'.join('---:' if column in numbers else '---' for column in range(len(heads)))}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _text(text: str) -> str:
    """Return `text` so that Markdown shows it as it is: no markup, no link, no mention, and no terminal obeys it."""
    escaped = _SPECIAL.sub(r"\\\1", plain_text(text).encode(errors="replace").decode())
    # GitHub links addresses and mentions in plain text, too; an entity is shown alike, and is neither.
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
