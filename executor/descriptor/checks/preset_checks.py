"""Checks of a descriptor's presets: their metrics against its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bai_agent.job.schema.field_types import compile_pattern
from bai_agent.job.schema.pattern_groups import STEP, UNIT, read_groups
from executor.descriptor.checks.metric_checks import given_labels
from executor.descriptor.presets import PresetMetric, preset_names, read_preset
from executor.descriptor.raw_table import Raw, RawFinding, at, error, items, text_at

_PLACE = ("output", "preset")


def presets(table: Raw) -> Iterator[RawFinding]:
    """Check that no preset is named twice, and that names and labels of their metrics are unique."""
    names = _written(table)
    known = _known(names)
    if len(known) < sum(name in known for name in names):
        yield error(_PLACE, "names a preset twice", "keep one of the two")
    labels = given_labels(table)
    first: dict[str, str] = {}
    for metric in preset_metrics(table):
        if metric.name in first:
            problem = f'"{first[metric.name]}" and "{metric.preset}" both have a metric {metric.name}'
            fix = "keep one of the two, or write a metric of this name yourself, which then counts"
            yield error(_PLACE, problem, fix)
        first.setdefault(metric.name, metric.preset)
        for label in _labels(metric):
            if label in labels:
                problem = f'the metric {metric.name} of "{metric.preset}" has a label {label}, and so has {labels[label]}'
                fix = f"rename the label in {labels[label]}, or write a metric {metric.name} yourself"
                yield error(_PLACE, problem, fix)


def _labels(metric: PresetMetric) -> list[str]:
    groups = read_groups(compile_pattern(metric.pattern)).labels if metric.pattern else ()
    context = {name for each in metric.context for name in compile_pattern(each).groupindex}
    return sorted({name for name, _ in groups} | context - {STEP, UNIT})


def preset_metrics(table: Raw) -> list[PresetMetric]:
    """Return the metrics of the known presets of `table`, without those that it defines itself."""
    own = {text_at(metric, "name") for _, metric in items(table, "output", "metrics")}
    return [
        metric
        for name in _known(_written(table))
        for metric in read_preset(name).metrics
        if metric.name not in own
    ]


def _written(table: Raw) -> list[Any]:
    written = at(table, "output").get("preset")
    return [written] if isinstance(written, str) else written if isinstance(written, list) else []


def _known(names: list[Any]) -> list[str]:
    return list(dict.fromkeys(filter(preset_names().__contains__, names)))
