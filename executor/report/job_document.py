"""Converts a report to a document: the content of an HTML page, or of a Markdown comment on a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from bai_agent.job.descriptor.metric_tables import Better, OverRanks
from bai_agent.job.job_headlines import over_ranks_of
from bai_agent.job.record_types import OwnUsage, RepeatOutcome
from executor.documents.comparison_document import pair_blocks
from executor.documents.document import (
    Block,
    Code,
    Column,
    Fact,
    Facts,
    Heading,
    Machines,
    MeasuredMetric,
    Metrics,
    Notes,
    OutcomeLine,
    PageOnly,
    Paragraph,
    Phrase,
    SeriesFigures,
    Table,
    Tile,
    Tiles,
    Timeline,
    TimelineBar,
    quantity_phrase,
)
from executor.documents.machines import PROGRAMS, peak_words, usage_sentence, usage_share, usage_words
from executor.documents.metrics import over_runs_table, unseen_notes
from executor.documents.summary import generations_table, members_words, result_outcome
from executor.documents.text import colourless, safe_line
from executor.quantities import clock, percent, quantity, seconds
from executor.report.contents import MetricPart, Report
from executor.report.lines import Line
from executor.report.plots import Plot, Plots
from executor.report.provenance import environment_blocks, repeat_blocks
from executor.report.timeline import ALL_PHASES, Bar, Lane
from executor.report.words import (
    FIGURES,
    cost_of,
    cost_sentence,
    counts,
    floors_of,
    headlines_of,
    row_of,
    share,
    warmup_words,
    why_no_headline,
)

_ROWS = 64
"""Maximum number of rows in a table, and of lanes in the timeline; JSON and CSV contain all rows."""
_TILES = 8
_WARNINGS = 20
_NAMED = 6
_RUNS = 500
_SKETCH_HEIGHT = 34
_STARTS = 200


def job_head(report: Report) -> Iterator[Block]:
    """Yield the job's outcome and headlines."""
    if report.result is None:
        yield OutcomeLine("The job has no result yet; this is how far it has come.", "soft")
    else:
        yield result_outcome(report.result)
    yield Facts([Fact(*each) for each in _head_facts(report)], brief=True)
    yield Notes([Phrase(each) for each in report.warnings[:_WARNINGS]], warnings=True)
    yield Tiles([tile for part in report.metrics for tile in _tiles(part, report)][:_TILES])


def _head_facts(report: Report) -> Iterator[tuple[str, str]]:
    result = report.result
    started = result.started if result is not None else None
    yield "job", report.job.job.id
    yield "started", clock(report.origin if started is None else started)
    if result is not None and result.duration is not None:
        yield "from start to end", seconds(result.duration)
    nodes = f"{report.nodes} nodes, {report.job.strategy.name}" if report.nodes > 1 else "one node"
    yield "on", " · ".join(filter(None, (report.instance_type, nodes)))
    yield from [each for each in report.job.job.labels.items() if each[0] != "task_name"][:_NAMED]


def job_body(report: Report, plots: Plots) -> Iterator[Block]:
    """Yield the sections of the report."""
    if report.compared:
        yield Heading("Comparison", "comparison")
    for pair in report.compared:
        yield from pair_blocks(pair)
    yield PageOnly([Heading("Timeline", "timeline"), *_timeline(report)])
    yield Heading("Metrics", "metrics")
    yield from _metrics(report, plots)
    yield from _generations(report)
    yield from _runs(report)
    yield Heading("Time and cost", "cost")
    yield from _cost(report)
    yield Heading("What it ran on", "environment", folded=True)
    yield from environment_blocks(report)
    yield Heading("To repeat it", "repeat", folded=True)
    yield from repeat_blocks(report)
    yield Heading("What was counted", "counts", folded=True)
    rows = [[Phrase(name), Phrase(f"{count:,}"), Phrase(why)] for name, count, why in counts(report)]
    yield Table([Column("what"), Column("count"), Column("", number=False)], rows)
    yield PageOnly([Heading("End of the log", "log"), *_log(report)])


def _tiles(part: MetricPart, report: Report) -> Iterator[Tile]:
    """Yield a tile for each headline of a metric."""
    better = part.better
    found = headlines_of(part, report.failed)
    if not found:
        why = why_no_headline(part, report.failed)
        yield Tile(Phrase(part.name, better=better), Phrase("–"), why, _points(part.lines[0].sketch))
    for each in found:
        runs = list(each.headline.runs.values())
        sketch = runs if len(runs) > 2 else each.lines[0].sketch
        value = quantity_phrase(each.headline.value, part.units, floor=part.floor)
        yield Tile(Phrase(each.headline.labelled, better=better), value, each.of, _points(sketch))


def _points(values: Sequence[float]) -> str:
    """Return the points of a small plot without axes, in a box of 100 by `_SKETCH_HEIGHT`; empty if there are
    too few values."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    wide, height = high - low, _SKETCH_HEIGHT
    return " ".join(
        f"{100 * i / (len(values) - 1):.1f},{height - 2 - (height - 4) * ((each - low) / wide if wide else 0.5):.1f}"
        for i, each in enumerate(values)
    )


def _timeline(report: Report) -> Iterator[Block]:
    lanes = [lane for lane in report.lanes if lane.bars]
    if not lanes:
        yield Paragraph("No agent of this job has written an event.", "soft")
        return
    start = min(lane.bars[0].start for lane in lanes)
    whole = max(1, max(bar.end for lane in lanes for bar in lane.bars) - start)
    begun = {bar.phase for bar in chain.from_iterable(lane.bars for lane in lanes)}
    present = [phase for phase in ALL_PHASES if phase in begun]
    shown = lanes[:_ROWS]
    generations = _generation_bars(report, start, whole)
    yield Timeline(
        phases=present,
        lanes=[
            *([("generations", generations)] if generations else []),
            *(_lane(lane, start, whole) for lane in shown),
        ],
        marks=[round(100 * (each - start) / whole, 3) for each in _starts(report)[1:]],
        ticks=[seconds(whole * i / 4000) for i in range(5)],
    )
    if len(lanes) > _ROWS:
        yield Paragraph(f"The first {_ROWS} of {len(lanes)} nodes.", "soft")
    if report.nodes > 1 or any(lane.restarts for lane in lanes):
        columns = [*map(Column, ("node", *present))]
        yield Table(columns, [_phase_row(lane, present) for lane in shown], "How long each phase took")


def _generation_bars(report: Report, start: int, whole: int) -> list[TimelineBar]:
    """Return bars for the timeline of the generations and of the gaps between them; empty if the job has only
    one generation."""
    found = [each for each in report.generations[:_STARTS] if each.started is not None]
    bars, before = [], None
    for each in found if len(report.generations) > 1 else ():
        assert each.started is not None
        if before is not None and before < each.started:
            gap = Bar(phase="gap", start=before, end=each.started)
            bars.append(_bar(gap, start, whole, text=f"nothing ran for {seconds(gap.seconds)}"))
        end = each.ended if each.ended is not None else start + whole
        bar = Bar(phase="generation", start=each.started, end=max(end, each.started))
        nodes = f", nodes {members_words(each.members)}" if len(each.members) > 1 else ""
        bars.append(_bar(bar, start, whole, text=f"{each.generation}: {seconds(bar.seconds)}{nodes}"))
        before = each.ended
    return bars


def _lane(lane: Lane, start: int, whole: int) -> tuple[str, list[TimelineBar]]:
    return f"node {lane.rank}", [_bar(bar, start, whole) for bar in lane.bars]


def _starts(report: Report) -> list[int]:
    """Return the starts of the first runs or generations (ms UTC)."""
    parts = report.repeats or report.generations
    return [each.started for each in parts if each.started is not None][:_STARTS]


def _bar(bar: Bar, start: int, whole: int, *, text: str = "") -> TimelineBar:
    at, width = 100 * (bar.start - start) / whole, max(0.25, 100 * (bar.end - bar.start) / whole)
    text = text or f"{bar.phase} {seconds(bar.seconds)}{', goes on' if bar.goes_on else ''}"
    return TimelineBar(bar.phase, round(min(at, 100 - width), 3), round(width, 3), text)


def _phase_row(lane: Lane, present: Sequence[str]) -> list[Phrase]:
    took = {bar.phase: seconds(bar.seconds) for bar in lane.bars}
    again = f" (agent restarted {lane.restarts} ×)" if lane.restarts else ""
    return [Phrase(f"node {lane.rank}{again}"), *(Phrase(took.get(phase, "–")) for phase in present)]


def _metrics(report: Report, plots: Plots) -> Iterator[Block]:
    if not report.metrics:
        yield Paragraph("The job has no value of any metric.", "soft")
    axes = [("time", "time")]
    axes += [("aligned", "time of each run")] if plots.aligned else []
    axes += [("step", "step")] if plots.steps else []
    if plots.plots:
        parts = [_measured(plot, report) for plot in plots.plots if not plot.host]
        yield Metrics(("n", *FIGURES, "trend"), parts, axes)
    yield unseen_notes(report.unseen, report.result, most=_ROWS)
    yield from _machines([plot for plot in plots.plots if plot.host])


def _machines(plots: Sequence[Plot]) -> Iterator[Block]:
    """Yield the plots of the machines' samples."""
    if plots:
        every = [
            (
                each.primary,
                MeasuredMetric(Phrase(each.title, units=each.part.units), each.number, each.part.count),
            )
            for each in plots
        ]
        shown, more = ([part for primary, part in every if primary is wanted] for wanted in (True, False))
        yield PageOnly([Heading("What the machines did", "machines"), Machines(shown, more)])


def _measured(plot: Plot, report: Report) -> MeasuredMetric:
    part, drawing = plot.part, []
    drawn = sum(len(line.points) for line in plot.lines)
    if plot.drawn < drawn:
        drawing.append(
            f"{plot.drawn:,} of {drawn:,} points are drawn, including the extremes; the figures are computed from all points."
        )
    if len(plot.lines) < len(part.lines):
        drawing.append(f"The first {len(plot.lines)} of {len(part.lines):,} series are drawn.")
    headlines = {id(each.lines[0]): each for each in headlines_of(part, report.failed)}
    why = why_no_headline(part, report.failed) if not headlines else ""
    series = []
    for line in part.lines:
        headline, what = ("–", why) if why and line is part.lines[0] else ("", "")
        if (found := headlines.get(id(line))) is not None:
            headline, what = _figure(found.headline.value, part), found.of
        series.append(SeriesFigures(line.label, headline, what, _figures(line, part), line.unsteady))
    name = Phrase(part.name, units=part.units, better=part.better)
    return MeasuredMetric(name, plot.number, part.count, drawing, warmup_words(part), series)


def _figures(line: Line, part: MetricPart) -> list[Phrase]:
    """Return the cells of a series: the number of values, their figures, and the change from the first half
    of the values to the second. The change is about zero for a steady metric."""
    if line.figures is None:
        return [Phrase("0"), *[Phrase("–")] * (len(FIGURES) + 1)]
    values = zip(row_of(line.figures, part), floors_of(part), strict=True)
    shown = [
        Phrase("–" if value is None else quantity(value, part.units, floor=floor)[0])
        for value, floor in values
    ]
    return [Phrase(f"{line.figures.count:,}"), *shown, _trend(line, part)]


def _trend(line: Line, part: MetricPart) -> Phrase:
    if line.change is None:
        return Phrase("–")
    text = percent(line.change, "+.1f").replace("-", "−")
    if part.better is None or abs(line.change) < 0.0005:
        return Phrase(text)
    return Phrase(text, "good" if (line.change < 0) == (part.better is Better.LOWER) else "bad")


def _figure(value: float, part: MetricPart) -> str:
    return quantity(value, part.units, floor=part.floor)[0]


def _generations(report: Report) -> Iterator[Block]:
    """Yield a table of the generations, if the job has several generations: members, times, headlines, and
    the reason why each generation ended."""
    if len(report.generations) < 2:
        return
    yield Heading("Generations", "generations")
    floors = {part.name: part.floor for part in report.metrics if part.floor is not None}
    yield generations_table(report.generations, metrics=_NAMED, most=_RUNS, floors=floors)


def _runs(report: Report) -> Iterator[Block]:
    repeats = report.repeats
    if not repeats:
        return
    yield Heading("Runs", "runs")
    if report.over_runs:
        yield over_runs_table(report.over_runs)
    arms = any(each.arm is not None for each in repeats)
    named = [part for part in report.metrics if part.is_repeated][:_NAMED]
    heads = [Column("run"), *([Column("arm", number=False)] if arms else []), Column("outcome", number=False)]
    heads += map(Column, ("wall", "CPU", "peak memory (largest process)", *(part.name for part in named)))
    rows = [_run_row(each, report, named, arms=arms) for each in repeats[:_RUNS]]
    caption = f"{len(repeats):,} runs of the benchmark, one after the other"
    yield PageOnly([Table(heads, rows, caption)])


def _run_row(each: RepeatOutcome, report: Report, named: Sequence[MetricPart], *, arms: bool) -> list[Phrase]:
    times = [time for time in (each.user_seconds, each.system_seconds) if time is not None]
    row = [f"repeat {each.repeat}", *([each.arm or ""] if arms else []), each.outcome]
    row.append(seconds(each.wall_seconds) if each.wall_seconds is not None else "")
    row.append(seconds(sum(times)) if times else "")
    row.append(peak_words(each.peak_memory_bytes, report.own_usage) if each.peak_memory_bytes else "")
    row += [_of_part(part, each.repeat) for part in named]
    return [Phrase(text or "–") for text in row]


def _of_part(part: MetricPart, number: int) -> str:
    """Return the headline of a metric in one run or generation."""
    lines = [line for line in part.lines if line.points.key.part == number]
    found = [line.headline for line in lines if line.headline is not None]
    if not found:
        return ""
    if len({line.points.key.labels for line in part.lines}) == 1:
        how = part.described.over_ranks if part.described is not None else OverRanks.EACH
        return _figure(over_ranks_of(found, how), part)
    return " – ".join(_figure(each, part) for each in sorted({min(found), max(found)}))


def _cost(report: Report) -> Iterator[Block]:
    if sum(report.phases.values()):
        yield _phase_costs(report)
    if nodes := report.own_usage:
        programs = (Column(name, number=False) for name in PROGRAMS)
        usage = [_usage_row(node) for node in nodes[:_ROWS]]
        sentence = usage_sentence(nodes, one_machine=report.one_machine)
        yield Table([Column("bai itself"), *programs, Column("share")], usage, sentence)
    if len(nodes) > _ROWS:
        yield Paragraph(f"The first {_ROWS} of {len(nodes):,} nodes.", "soft")


def _phase_costs(report: Report) -> Table:
    """Return the duration of each phase, and the phase's cost if the price is known."""
    costs, total = cost_of(report), sum(report.phases.values())
    columns = ["phase", "time", "share", *(["USD"] if costs is not None else [])]
    rows = []
    for phase in ALL_PHASES:
        if (took := report.phases.get(phase)) is not None:
            row = [phase, seconds(took), share(took, total)]
            if costs is not None:
                row.append(f"{costs[phase]:,.4f}" if phase in costs else "–")
            rows.append([Phrase(text) for text in row])
    return Table([*map(Column, columns)], rows, cost_sentence(report))


def _usage_row(node: OwnUsage) -> list[Phrase]:
    texts = [f"node {node.rank}", *(text for _, text in usage_words(node)), usage_share(node)]
    return [Phrase(text) for text in texts]


def _log(report: Report) -> Iterator[Block]:
    tail = report.tail
    if tail is None:
        yield Paragraph("The benchmark has printed nothing.", "soft")
        return
    of = f" of node {tail.rank}" if report.nodes > 1 else ""
    what = f"All {len(tail.lines):,} lines" if tail.all_of_it else f"The last {len(tail.lines):,} lines"
    yield Paragraph(f"{what}{of}.", "soft")
    yield Code("\n".join(colourless(safe_line(line)) for line in tail.lines), log=True)
