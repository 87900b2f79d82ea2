"""Checks of what presets bring against what else stands in a descriptor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bai_agent.job.descriptor import compile_pattern
from bai_agent.job.pattern_groups import STEP, UNIT, read_groups
from executor.descriptor.metric_checks import given_labels
from executor.descriptor.presets import preset_names, read_preset
from executor.descriptor.raw_table import ERROR, Raw, RawFinding, at, items, text_of
from executor.descriptor.service_tables import MetricTable


def presets(table: Raw) -> Iterator[RawFinding]:
    """Check that the metrics of presets have names and labels of their own."""
    names = _written(table)
    known = _known(names)
    place = ("output", "preset")
    if len(known) < sum(name in known for name in names):
        yield place, "names a preset twice", "keep one of the two", ERROR
    own = {text_of(metric, "name") for _, metric in items(table, "output", "metrics")}
    labels = given_labels(table)
    first: dict[str, str] = {}
    for name in known:
        for metric in read_preset(name).metrics:
            if metric.name in own:
                continue
            if metric.name in first:
                fix = "keep one of the two, or write a metric of this name yourself, which then counts"
                yield (
                    place,
                    f'"{first[metric.name]}" and "{name}" both have a metric {metric.name}',
                    fix,
                    ERROR,
                )
            first.setdefault(metric.name, name)
            groups = read_groups(compile_pattern(metric.pattern)).labels if metric.pattern else ()
            context = {name for each in metric.context for name in compile_pattern(each).groupindex}
            for label in sorted({name for name, _ in groups} | context - {STEP, UNIT}):
                if label in labels:
                    problem = f'the metric {metric.name} of "{name}" has a label {label}, and so has {labels[label]}'
                    fix = f"rename the label in {labels[label]}, or write a metric {metric.name} yourself"
                    yield place, problem, fix, ERROR


def preset_metrics(table: Raw) -> list[MetricTable]:
    """Return the metrics that the presets of `table` give to it, as far as their names are right."""
    own = {text_of(metric, "name") for _, metric in items(table, "output", "metrics")}
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
