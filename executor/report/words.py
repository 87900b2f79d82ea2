"""Makes texts that all formats of a report share: headlines, warm-up, cost and counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bai_agent.job.descriptor.metric_tables import Headline
from bai_agent.job.figures import LIMIT
from bai_agent.job.job_headlines import (
    JobHeadline,
    SeriesNumber,
    job_headlines,
    labelled_name,
    mean_or,
    with_arm,
)
from bai_agent.job.record_types import ExtractionSummary, GenerationOutcome, JobResult
from bai_agent.light_dataclass import dataclass
from executor.documents.metrics import headline_words
from executor.quantities import percent, quantity, seconds, size
from executor.records.figures import Figures
from executor.report.contents import MetricPart, Report
from executor.report.lines import Line

FIGURES = ("mean", "median", "st. dev.", "p5", "p95", "min", "max", "last")
"""Column titles of a table with a row for each series; `row_of` returns the values of a row."""


def row_of(found: Figures, part: MetricPart) -> tuple[float | None, ...]:
    """Return the values for the columns `FIGURES`. If values are only bounds, there is no deviation."""
    exact = part.floor is None or found.minimum > part.floor
    ends = (found.p5, found.p95, found.minimum, found.maximum)
    return (found.mean, found.median, found.stdev if exact else None, *ends, found.last)


def floors_of(part: MetricPart) -> tuple[float | None, ...]:
    """Return the smallest measurable value for each column of `FIGURES`; None for the standard deviation,
    which is a difference of values."""
    return tuple(part.floor if name != "st. dev." else None for name in FIGURES)


@dataclass(frozen=True, kw_only=True)
class ReportedHeadline:
    """The headline of a metric for one set of labels and arm, as text."""

    headline: JobHeadline
    of: str
    lines: list[Line]
    """Series from which the headline was computed."""


def headlines_of(part: MetricPart, failed: Collection[int]) -> list[ReportedHeadline]:
    """Return the headlines of a metric, one for each set of labels and arm. failed: numbers of the failed
    runs, whose values are in no headline."""
    lines: dict[str, list[Line]] = {}
    numbers = []
    for line in part.lines:
        key = line.points.key
        if line.headline is None or line.superseded or (key.repeat is not None and key.repeat in failed):
            continue
        number = SeriesNumber(
            name=key.name,
            labels=key.labels,
            arm=key.arm,
            repeat=key.repeat,
            generation=key.generation,
            value=line.headline,
            units=part.units,
        )
        numbers.append(number)
        lines.setdefault(labelled_name(key.name, with_arm(key.labels, key.arm)), []).append(line)
    metrics = {part.name: part.described} if part.described is not None else {}
    how = part.described.headline if part.described is not None else Headline.LAST
    return [
        ReportedHeadline(
            headline=each,
            of=_words_of(each, how, lines[each.labelled], part.floor),
            lines=lines[each.labelled],
        )
        for each in job_headlines(numbers, metrics)
    ]


def _words_of(headline: JobHeadline, how: Headline, lines: Sequence[Line], floor: float | None) -> str:
    runs = list(headline.runs.values())
    ranks = f"{mean_or(headline.over_ranks).value} of {headline.ranks} ranks" if headline.ranks > 1 else ""
    if len(runs) > 1:
        words = headline_words(how, 0, len(runs), ranks=f", {ranks}" if ranks else "")
        return f"{words}, {_range(runs, headline.units, floor)}"
    if ranks:
        found = [line.headline for line in lines if line.headline is not None]
        return f"{ranks} ({how.value}), {_range(found, headline.units, floor)}"
    count = lines[0].figures.count if lines[0].figures is not None else 0
    return headline_words(how, count) or "one value"


def why_no_headline(part: MetricPart, failed: Collection[int]) -> str:
    """Return why a metric with values has no headline."""
    counted = any(line.points.key.repeat not in failed for line in part.lines)
    return "all values are warm-up" if counted else "all its runs failed"


def _range(values: Sequence[float], units: str, floor: float | None) -> str:
    least, greatest = (quantity(each, units, floor=floor)[0] for each in (min(values), max(values)))
    return least if floor is not None and max(values) <= floor else f"{least} to {greatest}"


def warmup_words(part: MetricPart) -> str:
    """Return a sentence about the warm-up that is left out of the figures; empty if there is no warm-up."""
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
    return percent(part / whole) if whole > 0 else "–"


def cost_of(report: Report) -> dict[str, float] | None:
    """Return the cost of each phase in USD, over all nodes; None if no price is known."""
    if report.hourly is None:
        return None
    found: dict[str, float] = {}
    for lane in report.lanes:
        for bar in lane.bars:
            # A machine is charged from the time at which EC2 accepts its launch.
            if bar.phase != "launch":
                found[bar.phase] = found.get(bar.phase, 0.0) + bar.seconds / 3600 * report.hourly
    return found


def cost_sentence(report: Report) -> str:
    """Return a sentence about the benchmark's share of the time, and about the cost of the job if the cost is
    known."""
    phases = report.phases
    total = sum(phases.values())
    run = phases.get("run", 0.0)
    known = _benchmark_seconds(report.result) if report.result is not None else None
    wall = known if known is not None else run
    sentence = f"{share(min(wall, total), total)} of the time was the benchmark itself."
    costs = cost_of(report)
    if costs is not None and report.hourly is not None:
        word = " at most, because the job ran on spot capacity" if report.spot else ""
        sentence += (
            f" {sum(costs.values()):,.4f} USD for {report.nodes} × {report.instance_type} at {report.hourly:,.4f} USD an hour, "
            f"from the configuration{word}; volumes and traffic are not in it."
        )
    elif report.instance_type is not None:
        sentence += f" The price of {report.instance_type} is unknown: write the price under [prices] in the configuration."
    return sentence


def _benchmark_seconds(result: JobResult) -> float | None:
    """Return the total duration of the benchmark (seconds), over all generations if the job has several
    generations. None if unknown."""
    if not result.generations:
        return result.benchmark.wall_seconds if result.benchmark is not None else None
    return sum(map(_generation_seconds, result.generations))


def _generation_seconds(each: GenerationOutcome) -> float:
    if each.wall_seconds is not None:
        return each.wall_seconds
    return (each.ended - each.started) / 1000 if each.ended is not None and each.started is not None else 0.0


def counts(report: Report) -> list[tuple[str, int, str]]:
    """Return counts of records and lines, each with name, number and note."""
    kafka = report.result.kafka if report.result is not None else None
    points = report.points
    found = [("metric records", points.records, "")]
    if report.extracted is not None:
        found += _extracted_counts(report.extracted)
    found += [
        ("late", points.late, "read after a restart; the recorded time is the time of reading"),
        (f"beyond {LIMIT:g}", points.beyond, "values that are recorded, but not counted in any figure"),
        ("malformed", points.malformed.count, "lines of the record that are not metric records"),
    ]
    if kafka is not None:
        found += [
            ("messages delivered to Kafka", kafka.delivered or 0, ""),
            ("messages not delivered", kafka.undelivered or 0, kafka.error or ""),
        ]
    return found


def _extracted_counts(extracted: ExtractionSummary) -> list[tuple[str, int, str]]:
    rejected = {name: count for name, count in extracted.not_numbers.items() if count}
    what = ", ".join(f"{name} {count:,}" for name, count in list(rejected.items())[:8])
    return [
        ("lines of output", extracted.lines, size(extracted.log_bytes)),
        ("rejected", sum(rejected.values()), f"matched, but not a finite number{': ' if what else ''}{what}"),
        ("emitted lines that were not valid values", extracted.emit_bad_lines, ""),
        ("bytes lost", extracted.lost_bytes, "the benchmark truncated its output before bai read them"),
        (
            "bytes not searched",
            extracted.remaining_bytes,
            "the time for the search was up; `bai extract` searches these bytes",
        ),
    ]
