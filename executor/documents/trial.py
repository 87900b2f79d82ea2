"""Texts about presets, and about the values that a descriptor's patterns find in a log or in the patterns'
examples."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bai_agent.job.job_result import never_a_number
from bai_agent.metrics.search.reading import Doubt
from bai_agent.metrics.tally import doubt_warning, not_a_number_warning
from executor.descriptor.presets import Preset, PresetUse
from executor.documents.document import Block, Code, Notes, Paragraph, Phrase
from executor.documents.metrics import metric_notes, metric_table
from executor.documents.screen import screen_width
from executor.quantities import counted, size
from executor.trial.metrics_trial import MetricsTrial, PatternResult


def trial_blocks(trial: MetricsTrial) -> Iterator[Block]:
    """Yield the statistics of each metric, followed by the metric's errors and the lines that almost
    match."""
    pace = f" at {trial.lines_per_second:,.0f} lines/s" if trial.seconds else ""
    searched = f"searched for {counted(len(trial.metrics), 'metric')}{pace}"
    yield Paragraph(f"{trial.log}: {counted(trial.lines, 'line')}, {size(trial.bytes)}; {searched}")
    every = [row for each in trial.metrics for row in each.rows]
    yield metric_table(every, final=True)
    yield metric_notes(every)
    if timed := [each.metric.name for each in trial.metrics if each.metric.warmup is not None]:
        text = f"the figures include the warm-up of {', '.join(timed)}: a log does not say when its lines were printed"
        yield Notes([Phrase(text, "soft")])
    for each in trial.metrics:
        yield Notes(list(_remarks(each)))
        yield Code("\n".join(each.near), log=True)
        if each.missing:
            yield Notes([Phrase(f"{each.metric.name}: is required; a run without it fails", "caution")])


def _remarks(result: PatternResult) -> Iterator[Phrase]:
    """Yield what looks wrong with the values that a pattern found, or lines that almost match the pattern."""
    name = result.metric.name
    if result.not_numbers and result.count:
        yield Phrase(not_a_number_warning(name, result.not_numbers, result.not_number, metric=result.metric))
    elif result.not_numbers:
        yield Phrase(f"{name}: {never_a_number(result.not_numbers, result.not_number)}")
    for doubt, times in result.doubts.items():
        yield Phrase(doubt_warning(result.metric, Doubt(doubt), times, result.doubt_examples[doubt]))
    if result.near:
        found = "not found in these lines, which" if result.matched else "never found; these lines"
        yield Phrase(f"{name}: {found} almost match")
    elif not result.matched:
        yield Phrase(f"{name}: never found, and no line almost matches")


def example_notes(taken: Sequence[Mapping[str, Any]]) -> Notes:
    """Return the values that each metric finds in its example."""
    return Notes(
        [
            Phrase(
                f"{each['name']}: {'; '.join(_value_text(value, each['units']) for value in each['values'])}"
            )
            for each in taken
        ]
    )


def _value_text(value: Mapping[str, Any], units: str) -> str:
    text = f"{value['value']} {units}".strip()
    if "step" in value:
        text += f", step {value['step']}"
    labels = value.get("labels") or {}
    return text + "".join(f", {name}={label}" for name, label in labels.items())


def preset_lines(presets: Iterable[Preset]) -> str:
    """Return a paragraph for each preset, with the preset's name and metrics."""
    presets = list(presets)
    column = max((len(each.name) for each in presets), default=0) + 2
    width = max(40, min(screen_width(), 120))
    return "".join(
        textwrap.fill(
            ", ".join(metric.name for metric in each.metrics),
            width,
            initial_indent=each.name.ljust(column),
            subsequent_indent=" " * column,
            break_on_hyphens=False,
        )
        + "\n"
        for each in presets
    )


def use_text(use: PresetUse) -> str:
    """Return one line of text that lists the metrics which a preset adds to a descriptor."""
    taken = [name for name in use.metrics if name not in use.replaced]
    text = f"preset {use.name}: {', '.join(taken) or 'nothing'}"
    return text + (f"; the descriptor itself defines {', '.join(use.replaced)}" if use.replaced else "")
