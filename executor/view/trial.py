"""What the patterns of a descriptor take from a log, for a person who writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from bai_agent.job.job_result import never_a_number
from bai_agent.metrics.reading import Doubt
from bai_agent.metrics.tally import doubt_warning, not_a_number_warning
from executor.jobs.metrics_trial import MetricsTrial
from executor.quantities import size
from executor.view.listing import screen_width, show
from executor.view.metrics import metric_notes, metric_table
from executor.view.text import plain_text, safe_line, speaks_unicode


def print_trial(trial: MetricsTrial) -> None:
    """Print the statistics of each metric, then what went wrong or nearly right."""
    unicode = speaks_unicode()
    count = len(trial.metrics)
    heading = (
        f"{plain_text(str(trial.log))}: {trial.lines:,} lines, {size(trial.bytes)}; searched for {count:,} "
    )
    heading += f"metric{'' if count == 1 else 's'}"
    if trial.seconds:
        heading += f" at {trial.lines_per_second:,.0f} lines/s"
    show(Text(heading))
    width = screen_width()
    every = [row for each in trial.metrics for row in each.rows]
    show(metric_table(every, width=width, rows=len(every), summary=True, unicode=unicode))
    for text, style in metric_notes(every):
        show(Text(plain_text(text), style=style))
    timed = [each.metric.name for each in trial.metrics if each.metric.warmup is not None]
    if timed:
        names = plain_text(", ".join(timed))
        show(
            Text(f"with the warm-up of {names}: a log does not say when its lines were printed", style="dim")
        )
    bar = "│" if unicode else "|"
    for each in trial.metrics:
        name = safe_line(each.metric.name)
        if each.not_numbers and each.count:
            show(
                Text(
                    safe_line(
                        not_a_number_warning(
                            each.metric.name, each.not_numbers, each.not_number, metric=each.metric
                        )
                    )
                )
            )
        elif each.not_numbers:
            show(Text(f"{name}: {safe_line(never_a_number(each.not_numbers, each.not_number))}"))
        for doubt, times in each.doubts.items():
            show(Text(safe_line(doubt_warning(each.metric, Doubt(doubt), times, each.doubt_examples[doubt]))))
        if each.near and not each.matched:
            show(Text(f"{name}: never found; these lines come near"))
        elif each.near:
            show(Text(f"{name}: not found in these lines, which come near"))
        elif not each.matched:
            show(Text(f"{name}: never found, and no line comes near"))
        for line in each.near:
            show(Text(f"  {bar} {safe_line(line)}", style="dim"))
        if each.missing:
            show(Text(f"{name}: is required; a run without it fails", style="yellow"))


def print_examples(taken: Sequence[Mapping[str, Any]]) -> None:
    """Print what each metric takes from its example."""
    for each in taken:
        values = "; ".join(_value_text(value, each["units"]) for value in each["values"])
        show(Text(plain_text(f"  {each['name']}: {values}")))


def _value_text(value: Mapping[str, Any], units: str) -> str:
    text = f"{value['value']} {units}".strip()
    if "step" in value:
        text += f", step {value['step']}"
    labels = value.get("labels") or {}
    return text + "".join(f", {name}={label}" for name, label in labels.items())
