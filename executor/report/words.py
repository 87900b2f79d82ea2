"""What several formats of a report say in the same words: headlines, warm-up, cost, counts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from bai_agent.job.descriptor import Better, Headline, OverRanks
from bai_agent.job.interval import median_of
from executor.analysis.figures import Figures
from executor.quantities import quantity, seconds, size
from executor.records.over_ranks import figure
from executor.report.contents import MetricPart, Report
from executor.report.markup import Cell
from executor.report.timeline import ALL_PHASES
from executor.view.text import plain_text

_WORDS = {
    Headline.LAST: "last",
    Headline.MIN: "least",
    Headline.MAX: "greatest",
    Headline.MEAN: "mean",
    Headline.MEDIAN: "median",
}
FIGURES = ("mean", "median", "st. dev.", "p5", "p95", "min", "max", "last")
"""What a table has of each series; `row_of` has their values."""


def row_of(found: Figures) -> tuple[float | None, ...]:
    """Return the values of `FIGURES`."""
    ends = (found.p5, found.p95, found.minimum, found.maximum)
    return (found.mean, found.median, found.stdev, *ends, found.last)


def better_words(part: MetricPart, *, short: bool = False) -> str:
    """Return which direction is an improvement, as markup; empty where the descriptor does not say."""
    better = part.described.better if part.described is not None else None
    if better is None:
        return ""
    arrow = "↓" if better is Better.LOWER else "↑"
    words = f"{better.value} is better"
    if short:
        return f'<span class="better"><span aria-hidden="true">{arrow}</span><span class="quiet">{words}</span></span>'
    return f'<span class="better">{arrow} {words}</span>'


def headline_of(part: MetricPart) -> tuple[float | None, str]:
    """Return the number that stands for the job, and what it is: of several runs their median, of several ranks what the descriptor asks for."""
    lines = [line for line in part.lines if line.headline is not None]
    if not lines:
        return None, "nothing is left without the warm-up"
    how = _WORDS[part.described.headline] if part.described is not None else "last"
    runs = []
    for _, of_run in groupby(sorted(lines, key=_repeat), key=_repeat):
        runs.append(_over_ranks(part, [line.headline for line in of_run if line.headline is not None]))
    if len(runs) > 1:
        return median_of(runs), f"median of {len(runs):,} runs ({how}), {_range(runs, part.units)}"
    if len(lines) > 1:
        over = part.described.over_ranks if part.described is not None else OverRanks.EACH
        headlines = [line.headline for line in lines if line.headline is not None]
        word = "median" if over is OverRanks.EACH else over.value
        return runs[0], f"{word} of {len(lines):,} series ({how}), {_range(headlines, part.units)}"
    count = lines[0].figures.count if lines[0].figures is not None else 0
    return runs[0], f"{how} of {count:,}" if count > 1 else "one value"


def _repeat(line: object) -> int:
    repeat = line.points.key.repeat  # type: ignore[attr-defined]
    return -1 if repeat is None else int(repeat)


def _over_ranks(part: MetricPart, values: Sequence[float]) -> float:
    over = part.described.over_ranks if part.described is not None else OverRanks.EACH
    return median_of(values) if over is OverRanks.EACH else figure(values, over)


def _range(values: Sequence[float], units: str) -> str:
    return f"{quantity(min(values), units)[0]} to {quantity(max(values), units)[0]}"


def warmup_words(part: MetricPart) -> str:
    """Return what of a metric is left out of its figures; empty where nothing is."""
    metric = part.described
    if metric is None or (metric.warmup is None and not metric.warmup_values):
        return ""
    left_out = sum(line.left_out for line in part.lines)
    if metric.warmup is not None:
        of = f"the first {seconds(metric.warmup.total_seconds())} of each run"
    else:
        of = f"the first {metric.warmup_values:,} values of each series"
    return f"Warm-up: {of} ({left_out:,} of {part.count:,} values) are drawn, and left out of the figures."


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}".replace("%", " %") if whole > 0 else "–"


def cost_of(report: Report) -> dict[str, float] | None:
    """Return what each phase cost in USD, over all nodes; None where no price is known."""
    if report.hourly is None:
        return None
    found: dict[str, float] = {}
    for lane in report.lanes:
        for bar in lane.bars:
            # A machine is paid for from the moment that EC2 has it.
            if bar.phase != "launch":
                found[bar.phase] = found.get(bar.phase, 0.0) + bar.seconds / 3600 * report.hourly
    return found


def cost_rows(report: Report) -> tuple[list[list[Cell]], str]:
    """Return the rows of the phases, and a sentence about time and money."""
    phases = {phase: took for phase in ALL_PHASES if (took := report.phases.get(phase)) is not None}
    total = sum(phases.values())
    if not total:
        return [], ""
    costs = cost_of(report)
    rows: list[list[Cell]] = []
    for phase, took in phases.items():
        row: list[Cell] = [("", phase), ("n", seconds(took)), ("n", share(took, total))]
        if costs is not None:
            row.append(("n", f"{costs[phase]:,.4f}" if phase in costs else "–"))
        rows.append(row)
    return rows, cost_sentence(report)


def cost_sentence(report: Report) -> str:
    """Say which share of the time was the benchmark, and what all of it cost as far as that is known."""
    phases = report.phases
    total = sum(phases.values())
    run = phases.get("run", 0.0)
    benchmark = report.result.benchmark if report.result is not None else None
    wall = benchmark.wall_seconds if benchmark is not None and benchmark.wall_seconds is not None else run
    sentence = f"{share(min(wall, total), total)} of the time was the benchmark itself."
    costs = cost_of(report)
    if costs is not None and report.hourly is not None:
        word = " at most, as it ran on spot capacity" if report.spot else ""
        sentence += (
            f" {sum(costs.values()):,.4f} USD for {report.nodes} × {report.instance_type} at {report.hourly:,.4f} USD an hour, "
            f"from the configuration{word}; volumes and traffic are not in it."
        )
    elif report.instance_type is not None:
        sentence += f" The price of {report.instance_type} is not known here: it can be written under [prices] in the configuration."
    return sentence


def counts(report: Report) -> list[tuple[str, int, str]]:
    """Return what was counted of records and lines: a name, a number, and what to know about it."""
    found: list[tuple[str, int, str]] = [("metric records", report.records, "")]
    extracted = report.result.metrics if report.result is not None else None
    if extracted is not None:
        found.append(("lines of output", extracted.lines, f"{size(extracted.log_bytes)}"))
        rejected = {name: count for name, count in extracted.not_numbers.items() if count}
        what = ", ".join(f"{plain_text(name)} {count:,}" for name, count in list(rejected.items())[:8])
        found.append(
            ("rejected", sum(rejected.values()), f"matched, and no finite number{': ' if what else ''}{what}")
        )
        found.append(("emitted lines that were no values", extracted.emit_bad_lines, ""))
        found.append(
            ("bytes lost", extracted.lost_bytes, "the benchmark truncated its output before they were read")
        )
        found.append(
            (
                "bytes not searched",
                extracted.remaining_bytes,
                "the time for that was up; `bai extract` makes up for it",
            )
        )
    found.append(("late", report.late, "read after a restart, so that their times are those of the reading"))
    found.append(("malformed", report.malformed.count, "lines of the record that are no metric records"))
    kafka = report.result.kafka if report.result is not None else None
    if kafka is not None:
        found.append(("messages delivered to Kafka", kafka.delivered or 0, ""))
        found.append(("messages not delivered", kafka.undelivered or 0, plain_text(kafka.error or "")))
    return found
