"""What several formats of a report say in the same words: headlines, warm-up, cost, counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bai_agent.job.descriptor import Better, Headline
from bai_agent.job.job_headlines import (
    JobHeadline,
    SeriesNumber,
    job_headlines,
    labelled_name,
    mean_or,
    with_arm,
)
from executor.analysis.figures import Figures
from executor.quantities import quantity, seconds, size
from executor.report.contents import MetricPart, Report
from executor.report.lines import Line
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


def row_of(found: Figures, part: MetricPart) -> tuple[float | None, ...]:
    """Return the values of `FIGURES`; bounds have no deviation."""
    exact = part.floor is None or found.minimum > part.floor
    ends = (found.p5, found.p95, found.minimum, found.maximum)
    return (found.mean, found.median, found.stdev if exact else None, *ends, found.last)


def floors_of(part: MetricPart) -> tuple[float | None, ...]:
    """Return what each of `FIGURES` is only a bound up to; a deviation is a distance, and a small one is exact."""
    return tuple(part.floor if name != "st. dev." else None for name in FIGURES)


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


@dataclass(frozen=True, kw_only=True)
class ReportedHeadline:
    """The number of one of a metric's sets of labels and arms that stands for the job, and what it is."""

    headline: JobHeadline
    of: str
    lines: list[Line]
    """What it was made of."""


def headlines_of(part: MetricPart, failed: Collection[int]) -> list[ReportedHeadline]:
    """Return the headlines of a metric: of each set of labels and arm its own. failed: runs that count in none."""
    lines: dict[str, list[Line]] = {}
    numbers = []
    for line in part.lines:
        key = line.points.key
        if line.headline is None or (key.repeat is not None and key.repeat in failed):
            continue
        number = SeriesNumber(
            name=key.name,
            labels=key.labels,
            arm=key.arm,
            repeat=key.repeat,
            value=line.headline,
            units=part.units,
        )
        numbers.append(number)
        lines.setdefault(labelled_name(key.name, with_arm(key.labels, key.arm)), []).append(line)
    metrics = {part.name: part.described} if part.described is not None else {}
    how = _WORDS[part.described.headline] if part.described is not None else "last"
    return [
        ReportedHeadline(
            headline=each,
            of=_words_of(each, how, lines[each.labelled], part.floor),
            lines=lines[each.labelled],
        )
        for each in job_headlines(numbers, metrics)
    ]


def _words_of(headline: JobHeadline, how: str, lines: Sequence[Line], floor: float | None) -> str:
    runs = list(headline.runs.values())
    ranks = f", {mean_or(headline.over_ranks).value} of {headline.ranks} ranks" if headline.ranks > 1 else ""
    if len(runs) > 1:
        return f"median of {len(runs):,} runs ({how}{ranks}), {_range(runs, headline.units, floor)}"
    if headline.ranks > 1:
        found = [line.headline for line in lines if line.headline is not None]
        return f"{mean_or(headline.over_ranks).value} of {headline.ranks} ranks ({how}), {_range(found, headline.units, floor)}"
    count = lines[0].figures.count if lines[0].figures is not None else 0
    return f"{how} of {count:,}" if count > 1 else "one value"


def why_no_headline(part: MetricPart, failed: Collection[int]) -> str:
    """Say why a metric with values has no headline."""
    counted = any(line.points.key.repeat not in failed for line in part.lines)
    return "nothing is left without the warm-up" if counted else "all its runs failed"


def _range(values: Sequence[float], units: str, floor: float | None) -> str:
    least, greatest = (quantity(each, units, floor=floor)[0] for each in (min(values), max(values)))
    return least if floor is not None and max(values) <= floor else f"{least} to {greatest}"


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
