"""The parts of a page, in their order."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from bai_agent.job.descriptor import Better, OverRanks
from bai_agent.job.job_headlines import over_ranks_of
from bai_agent.job.job_result import never_a_number
from bai_agent.job.outcome import ExitCode
from executor.analysis.runs import OverRuns
from executor.quantities import clock, seconds
from executor.report.comparison import comparison_section
from executor.report.contents import MetricPart, Report
from executor.report.lines import Line
from executor.report.markup import Cell, escaped, escaped_lines, figure, sparkline, table, with_units
from executor.report.plots import Plot, Plots
from executor.report.provenance import environment_section, repeat_section
from executor.report.timeline import ALL_PHASES, Bar, Lane
from executor.report.words import (
    FIGURES,
    better_words,
    cost_rows,
    counts,
    floors_of,
    headlines_of,
    row_of,
    warmup_words,
    why_no_headline,
)
from executor.view.own_usage import PROGRAMS, peak_words, usage_sentence, usage_share, usage_words
from executor.view.text import colourless, safe_line

_ROWS = 64
"""Rows of a table, and lanes of the timeline; the other formats have all."""
_TILES = 8


def page_body(report: Report, plots: Plots) -> Iterator[str]:
    """Yield the page from its heading to its last line."""
    yield from _header(report)
    yield "<main>"
    yield from comparison_section(report.compared)
    yield from _timeline(report)
    yield from _metrics(report, plots)
    yield from _host(report, plots)
    yield from _repeats(report)
    yield from environment_section(report)
    yield from repeat_section(report)
    yield from _cost(report)
    yield from _log(report)
    yield "</main>"
    yield (
        f"<footer>Made by bai {escaped(report.version)} on {escaped(clock(report.created))}. "
        "This page is one file and asks nothing of any network.</footer>"
    )


def _header(report: Report) -> Iterator[str]:
    job, result = report.job, report.result
    yield f'<header><p class="over">benchmark report</p><h1>{escaped(job.job.name or job.job.id)}</h1>'
    if result is None:
        yield '<p class="outcome soft"><span class="mark" aria-hidden="true">…</span>The job has no result yet; this is how far it has come.</p>'
    else:
        succeeded = result.exit_code == ExitCode.SUCCEEDED
        kind, mark = ("good", "✓") if succeeded else ("bad", "✗")
        code = (
            ""
            if succeeded
            else f' <span class="note">({escaped(result.outcome)}, exit code {result.exit_code})</span>'
        )
        yield f'<p class="outcome {kind}"><span class="mark" aria-hidden="true">{mark}</span><span>{escaped(result.sentence)}{code}</span></p>'
    facts = [("job", job.job.id), ("started", clock(_started(report)))]
    if result is not None and result.started is not None and result.ended is not None:
        facts.append(("from start to end", seconds(max(0, result.ended - result.started) / 1000)))
    several = f"{report.nodes} nodes, {job.strategy.name}" if report.nodes > 1 else "one node"
    facts.append(("on", " · ".join(filter(None, (report.instance_type or "", several)))))
    facts += [(name, value) for name, value in job.job.labels.items() if name != "task_name"][:6]
    yield (
        '<dl class="facts">'
        + "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(text)}</dd></div>" for name, text in facts)
        + "</dl>"
    )
    if report.warnings:
        yield (
            '<ul class="cautions" aria-label="warnings">'
            + "".join(f"<li>{escaped(each)}</li>" for each in report.warnings[:20])
            + "</ul>"
        )
    tiles = [tile for part in report.metrics for tile in _tiles(part, report.failed)][:_TILES]
    if tiles:
        yield f'<ul class="tiles" aria-label="headline figures">{"".join(tiles)}</ul>'
    yield "</header>"


def _started(report: Report) -> int:
    result = report.result
    return result.started if result is not None and result.started is not None else report.origin


def _tiles(part: MetricPart, failed: Collection[int]) -> Iterator[str]:
    """Yield a card for each headline of a metric."""
    found = headlines_of(part, failed)
    if not found:
        yield _tile(part, part.name, None, why_no_headline(part, failed), part.lines[0].sketch)
    for each in found:
        runs = list(each.headline.runs.values())
        sketch = runs if len(runs) > 2 else each.lines[0].sketch
        yield _tile(part, each.headline.labelled, each.headline.value, each.of, sketch)


def _tile(part: MetricPart, name: str, value: float | None, of: str, sketch: Sequence[float]) -> str:
    return (
        f'<li><span class="name">{escaped(name)} {better_words(part, short=True)}</span>'
        f'<span class="value">{with_units(value, part.units, floor=part.floor)}</span><span class="of">{escaped(of)}</span>{sparkline(sketch)}</li>'
    )


# ---- timeline ----------------------------------------------------------------------------------------------------


def _timeline(report: Report) -> Iterator[str]:
    lanes = [lane for lane in report.lanes if lane.bars]
    yield '<h2 id="timeline">Timeline</h2>'
    if not lanes:
        yield '<p class="soft">No agent of this job has written an event.</p>'
        return
    start, end = (
        min(lane.bars[0].start for lane in lanes),
        max(bar.end for lane in lanes for bar in lane.bars),
    )
    whole = max(1, end - start)
    present = [
        phase for phase in ALL_PHASES if any(bar.phase == phase for lane in lanes for bar in lane.bars)
    ]
    yield (
        '<ul class="key">'
        + "".join(f'<li><i class="ph-{phase}"></i>{phase}</li>' for phase in present)
        + "</ul>"
    )
    yield '<div class="lanes" aria-hidden="true">'
    for lane in lanes[:_ROWS]:
        yield f"<span>node {lane.rank}</span>{_lane(lane, start, whole, _repeat_starts(report))}"
    yield f"<span></span>{_ticks(whole)}</div>"
    if len(lanes) > _ROWS:
        yield f'<p class="note">The first {_ROWS} of {len(lanes)} nodes.</p>'
    if report.nodes > 1 or any(lane.restarts for lane in lanes):
        yield from _phase_table(lanes, present)


def _repeat_starts(report: Report) -> list[int]:
    repeats = report.result.repeats if report.result is not None else None
    return [each.started for each in repeats or () if each.started is not None][:200]


def _lane(lane: Lane, start: int, whole: int, repeats: Sequence[int]) -> str:
    parts = [
        '<svg class="lane" height="24" focusable="false"><rect class="base" width="100%" height="24" rx="3"/>'
    ]
    for bar in lane.bars:
        at, wide = 100 * (bar.start - start) / whole, max(0.25, 100 * (bar.end - bar.start) / whole)
        parts.append(
            f'<rect class="ph-{bar.phase}" x="{min(at, 100 - wide):.3f}%" width="{wide:.3f}%" height="24"><title>{_bar_words(bar)}</title></rect>'
        )
        if wide > 12:
            parts.append(f'<text class="in-{bar.phase}" x="{at + 0.8:.3f}%" y="16">{_bar_words(bar)}</text>')
    parts += [
        f'<line class="repeat-line" x1="{100 * (each - start) / whole:.3f}%" x2="{100 * (each - start) / whole:.3f}%" y1="0" y2="24"/>'
        for each in repeats[1:]
    ]
    return "".join([*parts, "</svg>"])


def _bar_words(bar: Bar) -> str:
    return f"{bar.phase} {seconds(bar.seconds)}{', goes on' if bar.goes_on else ''}"


def _ticks(whole: int) -> str:
    anchors = ("start", "middle", "middle", "middle", "end")
    marks = "".join(
        f'<text x="{25 * i}%" y="13" text-anchor="{anchor}">{seconds(whole * i / 4000)}</text>'
        for i, anchor in enumerate(anchors)
    )
    return f'<svg class="ticks" height="18" focusable="false">{marks}</svg>'


def _phase_table(lanes: Sequence[Lane], present: Sequence[str]) -> list[str]:
    rows = []
    for lane in lanes[:_ROWS]:
        took = {bar.phase: bar.seconds for bar in lane.bars}
        again = f" (agent restarted {lane.restarts} ×)" if lane.restarts else ""
        cells: list[Cell] = [("", f"node {lane.rank}{again}")]
        rows.append([*cells, *(("n", seconds(took[phase]) if phase in took else "–") for phase in present)])
    heads: list[Cell] = [("", "node"), *(("n", phase) for phase in present)]
    return table("How long each phase took", heads, rows)


# ---- metrics -----------------------------------------------------------------------------------------------------


def _metrics(report: Report, plots: Plots) -> Iterator[str]:
    yield '<h2 id="metrics">Metrics</h2>'
    if not report.metrics:
        yield '<p class="soft">The job has no value of any metric.</p>'
    if report.metrics or report.host:
        yield '<noscript><p class="note">The plots need JavaScript; the figures below do not.</p></noscript>'
        yield from _controls(plots)
    for plot in plots.plots:
        if plot.host:
            continue
        yield '<div class="measured">'
        yield from _figure(plot, notes=_notes(plot))
        yield from _statistics(plot.part)
        yield "</div>"
    if report.metrics:
        yield '<p class="note">Trend: by how much the mean of the second half of the values differs from that of the first.</p>'
    if report.unseen:
        extracted = report.result.metrics if report.result is not None else None
        matched = (extracted.never_numbers if extracted is not None else None) or {}
        for name in report.unseen[:_ROWS]:
            why = (
                never_a_number(matched[name].count, matched[name].first)
                if name in matched
                else "never seen in the output"
            )
            yield f'<p class="note"><strong>{escaped(name)}</strong>: {escaped(why)}</p>'


def _controls(plots: Plots) -> Iterator[str]:
    modes = [("time", "time")]
    if plots.aligned:
        modes.append(("aligned", "time of each run"))
    if plots.steps:
        modes.append(("step", "step"))
    yield '<div class="bar" role="toolbar" aria-label="plots">'
    if len(modes) > 1:
        buttons = (
            f'<button type="button" data-mode="{mode}" aria-pressed="{"true" if mode == "time" else "false"}">{words}</button>'
            for mode, words in modes
        )
        yield f'<span class="choice" role="group" aria-label="horizontal axis">{"".join(buttons)}</span>'
    yield (
        '<button type="button" id="reset" disabled>whole run</button>'
        '<span class="quiet" id="spoken" aria-live="polite"></span></div>'
        '<p class="note hint">Drag to zoom, double-click to go back; a name below a plot hides its line. '
        "With the keyboard: arrows move, + and - zoom, Escape goes back.</p>"
    )


def _figure(plot: Plot, *, notes: Sequence[str]) -> Iterator[str]:
    part = plot.part
    units = f' <span class="units">{escaped(part.units)}</span>' if part.units else ""
    described = f"{escaped(plot.title)}: {part.count:,} values"
    yield f'<figure class="plot"><figcaption><h3>{escaped(plot.title)}{units} {better_words(part)}</h3>'
    if notes:
        yield f'<p class="note">{" ".join(notes)}</p>'
    yield "</figcaption>"
    yield f'<div class="chart" id="chart-{plot.number}" tabindex="0" role="img" aria-label="{described}; arrow keys read them out"></div></figure>'


def _notes(plot: Plot) -> list[str]:
    part, notes = plot.part, []
    drawn = sum(len(line.points) for line in plot.lines)
    if plot.drawn < drawn:
        notes.append(f"{plot.drawn:,} of {drawn:,} points are drawn, extremes kept; the figures are of all.")
    if len(plot.lines) < len(part.lines):
        notes.append(f"The first {len(plot.lines)} of {len(part.lines):,} series are drawn.")
    if words := warmup_words(part):
        notes.append(escaped(words))
    return notes


_FIGURES = ("n", *FIGURES, "trend")


def _statistics(part: MetricPart) -> list[str]:
    several = len(part.lines) > 1
    heads: list[Cell] = [("", "series" if several else "metric"), *(("n", name) for name in _FIGURES)]
    rows = [_figure_row(line, part) for line in part.lines[:_ROWS]]
    found = table(f'<span class="quiet">Figures of {escaped(part.name)}</span>', heads, rows)
    for line in [each for each in part.lines[:_ROWS] if each.unsteady is not None]:
        of = f"{line.label}: " if several else ""
        found.append(f'<p class="note unsteady">{escaped(of + (line.unsteady or ""))}</p>')
    if len(part.lines) > _ROWS:
        found.append(
            f'<p class="note">The first {_ROWS} of {len(part.lines):,} series; <code>--format csv</code> has all values.</p>'
        )
    return found


def _figure_row(line: Line, part: MetricPart) -> list[Cell]:
    found = line.figures
    cells: list[Cell] = [("", escaped(line.label or part.name))]
    if found is None:
        return [*cells, ("n", "0"), *[("n", "–")] * (len(_FIGURES) - 1)]
    cells.append(("n", f"{found.count:,}"))
    cells += [
        ("n", figure(value, part.units, floor=floor))
        for value, floor in zip(row_of(found, part), floors_of(part), strict=True)
    ]
    return [*cells, ("n", _trend(line, part))]


def _trend(line: Line, part: MetricPart) -> str:
    """Return by how much the second half differs from the first: what has settled does so by nothing."""
    if line.change is None:
        return "–"
    better = part.described.better if part.described is not None else None
    text = f"{line.change:+.1%}".replace("%", " %").replace("-", "−")
    if better is None or abs(line.change) < 0.0005:
        return text
    good = (line.change < 0) == (better is Better.LOWER)
    return f'<span class="{"good" if good else "bad"}">{text}</span>'


def _host(report: Report, plots: Plots) -> Iterator[str]:
    shown = [plot for plot in plots.plots if plot.host]
    if not shown:
        return
    yield '<h2 id="machines">What the machines did</h2><p class="soft">On the same time axis as the metrics; the cursor is at the same moment in all of them.</p><div class="host">'
    for plot in shown:
        if plot.primary:
            yield from _figure(plot, notes=[])
    more = [plot for plot in shown if not plot.primary]
    if more:
        yield f"<details><summary>{len(more)} more</summary>"
        for plot in more:
            yield from _figure(plot, notes=[])
        yield "</details>"
    yield "</div>"


def _repeats(report: Report) -> Iterator[str]:
    repeats = report.result.repeats if report.result is not None else None
    if not repeats:
        return
    arms = any(each.arm is not None for each in repeats)
    named = [
        part for part in report.metrics if any(line.points.key.repeat is not None for line in part.lines)
    ][:6]
    heads: list[Cell] = [
        ("", "run"),
        *([("text", "arm")] if arms else []),
        ("text", "outcome"),
        ("n", "wall"),
        ("n", "CPU"),
        ("n", "peak memory (largest process)"),
    ]
    heads += [("n", escaped(part.name)) for part in named]
    usage = (report.result.own_usage if report.result is not None else None) or []
    rows = []
    for each in repeats[:500]:
        cpu = (
            None
            if each.user_seconds is None and each.system_seconds is None
            else (each.user_seconds or 0) + (each.system_seconds or 0)
        )
        row: list[Cell] = [("", f"repeat {each.repeat}")]
        row += [("text", escaped(each.arm or "–"))] if arms else []
        row += [
            ("text", escaped(each.outcome)),
            ("n", seconds(each.wall_seconds) if each.wall_seconds is not None else "–"),
            ("n", seconds(cpu) if cpu is not None else "–"),
            ("n", peak_words(each.peak_memory_bytes, usage) if each.peak_memory_bytes else "–"),
        ]
        row += [("n", _of_repeat(part, each.repeat)) for part in named]
        rows.append(row)
    yield '<h2 id="runs">Runs</h2>'
    if report.over_runs:
        yield from table(
            "Over the runs that ended well",
            [("", "metric"), ("n", "runs"), ("n", "mean"), ("n", "± 95 %")],
            [
                [
                    ("", escaped(each.name)),
                    ("n", f"{len(each.values):,}"),
                    ("n", figure(each.mean, each.units, floor=each.below)),
                    ("n", _reach(each)),
                ]
                for each in report.over_runs[:_ROWS]
            ],
        )
    yield from table(f"{len(repeats):,} runs of the benchmark, one after the other", heads, rows)


def _reach(each: OverRuns) -> str:
    """Return how far the interval of a mean reaches."""
    half = each.half_width
    if math.isinf(half):
        return "–"
    return figure(half, each.units) + (f" ({half / abs(each.mean):.1%})" if each.mean else "")


def _of_repeat(part: MetricPart, repeat: int) -> str:
    found = [
        line.headline for line in part.lines if line.points.key.repeat == repeat and line.headline is not None
    ]
    if not found:
        return "–"
    if len({line.points.key.labels for line in part.lines}) == 1:
        how = part.described.over_ranks if part.described is not None else OverRanks.EACH
        return figure(over_ranks_of(found, how), part.units, floor=part.floor)
    return (
        figure(found[0], part.units, floor=part.floor)
        if len(found) == 1
        else f"{figure(min(found), part.units, floor=part.floor)} – {figure(max(found), part.units, floor=part.floor)}"
    )


# ---- the rest ----------------------------------------------------------------------------------------------------


def _cost(report: Report) -> Iterator[str]:
    yield '<h2 id="cost">Time, cost and counts</h2>'
    rows, sentence = cost_rows(report)
    if rows:
        heads: list[Cell] = [
            ("", "phase"),
            ("n", "time"),
            ("n", "share"),
            *([("n", "USD")] if report.hourly is not None else []),
        ]
        yield from table(escaped(sentence), heads, rows)
    yield from _own_usage(report)
    heads = [("", "what"), ("n", "count"), ("text", "")]
    yield from table(
        "What was counted",
        heads,
        [[("", name), ("n", f"{count:,}"), ("text", escaped(why))] for name, count, why in counts(report)],
    )


def _own_usage(report: Report) -> Iterator[str]:
    nodes = (report.result.own_usage if report.result is not None else None) or []
    if not nodes:
        return
    rows: list[list[Cell]] = [
        [
            ("", f"node {node.rank}"),
            *(("text", escaped(words)) for _, words in usage_words(node)),
            ("n", escaped(usage_share(node))),
        ]
        for node in nodes[:_ROWS]
    ]
    heads: list[Cell] = [("", "bai itself"), *(("text", name) for name in PROGRAMS), ("n", "share")]
    yield from table(escaped(usage_sentence(nodes, one_machine=report.one_machine)), heads, rows)
    if len(nodes) > _ROWS:
        yield f'<p class="note">The first {_ROWS} of {len(nodes):,} nodes.</p>'


def _log(report: Report) -> Iterator[str]:
    yield '<h2 id="log">End of the log</h2>'
    tail = report.tail
    if tail is None:
        yield '<p class="soft">The benchmark has printed nothing.</p>'
        return
    of = f" of node {tail.rank}" if report.nodes > 1 else ""
    what = f"All {len(tail.lines):,} lines" if tail.all_of_it else f"The last {len(tail.lines):,} lines"
    yield f'<p class="note">{what}{of}.</p>'
    text = "\n".join(colourless(safe_line(line)) for line in tail.lines)
    yield f'<pre class="log" tabindex="0">{escaped_lines(text)}</pre>'
