"""Checks of metrics that involve more than one key, and of presets against the descriptor's own metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor.metric_tables import (
    About,
    Metric,
    OfRun,
    WrittenMetric,
    context_problem,
    marker_problem,
)
from bai_agent.job.schema.field_types import compile_pattern
from bai_agent.job.schema.json_path import last_key, read_json_path
from bai_agent.job.schema.pattern_groups import (
    RESERVED,
    STEP,
    UNIT,
    Groups,
    misspelled_names,
    read_groups,
    taken_names,
)
from bai_agent.job.schema.tables import marked_keys, read_table, write_table
from bai_agent.metrics.search.literal import can_match_number
from bai_agent.metrics.search.reading import Doubt
from bai_agent.metrics.search.units import PREFIXES, is_time, split_unit
from bai_agent.metrics.tally import number_advice
from executor.descriptor.checks.pattern_trial import PatternExample, Trial, try_patterns
from executor.descriptor.model import Descriptor
from executor.descriptor.presets import PresetMetric, preset_names, read_preset
from executor.descriptor.raw_table import Raw, RawFinding, Where, at, error, items, text_at, warning

_PRESET = ("output", "preset")
_METRICS = (("output", "metrics"), ("server", "output", "metrics"))
_NUMBER_ALONE = "put ( ) around only the number, or name the number's group value: (?P<value>…)"


def metric_names(table: Raw) -> Iterator[RawFinding]:
    """Check that no two metrics have the same name."""
    for keys in _METRICS:
        first: dict[str, int | str] = {}
        for where, metric in items(table, *keys):
            name = text_at(metric, "name")
            if name and name in first:
                problem = f'"{name}" is already the name of {".".join(keys)}[{first[name]}]'
                yield error((*where, "name"), problem, "rename one metric, or join the two patterns with |")
            first.setdefault(name, where[-1])


def metric_sources(table: Raw) -> Iterator[RawFinding]:
    """Check that each metric has exactly one source of values, and only keys that this source uses."""
    options = given_labels(table)
    for where, metric in _metrics(table):
        if "of_run" in metric:
            yield from _of_run(where, metric)
        elif "json" in metric:
            yield from _of_json(where, metric, options)
        else:
            yield from _of_pattern(where, metric)


def _of_run(where: Where, metric: Raw) -> Iterator[RawFinding]:
    """Check a metric with `of_run`. The metric must not have keys about the output."""
    for key in (*marked_keys(WrittenMetric, About.LINE, About.LINES_ABOVE), "example"):
        if key in metric:
            fix = "keep one of the two; of_run takes nothing from the benchmark's output"
            yield error((*where, key), "cannot be combined with of_run", fix)
    known = {each.value: each.units for each in OfRun}
    measured = known.get(text_at(metric, "of_run"))
    if measured is not None and metric.get("units", measured) != measured:
        problem = f"are not the units of {metric['of_run']}"
        yield error((*where, "units"), problem, f'write units = "{measured}"')


def _of_pattern(where: Where, metric: Raw) -> Iterator[RawFinding]:
    if "pattern" not in metric:
        fix = 'add pattern = \'…\', json = "…" if the benchmark prints JSON objects, or of_run = "wall_time"'
        yield error((*where, "pattern"), "is missing: the metric has no source", fix)
    for key, group in (("json_step", "step"), ("json_labels", "NAME")):
        if key in metric:
            fix = f"write a group (?P<{group}>…) in pattern, or take the value with json"
            yield error((*where, key), "needs json", fix)


def _of_json(where: Where, metric: Raw, options: Mapping[str, str]) -> Iterator[RawFinding]:
    """Check a metric of JSON lines. options: the job's labels, with the keys that set them."""
    if "pattern" in metric:
        yield error((*where, "json"), "cannot be combined with pattern", "keep one of the two")
    if text_at(metric, "number") not in ("", "plain"):
        fix = "remove number; a text in JSON is never a number"
        yield error((*where, "number"), "has no meaning with json, because JSON's numbers have one form", fix)
    paths = metric.get("json_labels")
    for index, path in enumerate(paths if isinstance(paths, list) else ()):
        name = _last_key(path)
        if name in RESERVED or name in options:
            owner = "bai adds to metrics" if name in RESERVED else f"{options[name]} also sets"
            problem = f'"{name}" is the name of a label that {owner}'
            fix = "remove this label, or rename the key that the benchmark prints"
            yield error((*where, "json_labels", index), problem, fix)


def _last_key(path: Any) -> str:
    """Return the name that a JSON path gives to a label; "" for an invalid path, which another check reports."""
    try:
        return last_key(read_json_path(path)) if isinstance(path, str) else ""
    except ValueError:
        return ""


def result_labels(table: Raw) -> Iterator[RawFinding]:
    """Check that labels of result files differ from the job's labels."""
    for where, results in items(table, "output", "results"):
        for name in sorted(at(results, "labels").keys() & at(table, "info", "labels").keys()):
            problem = f'"{name}" is a label of [info.labels] as well'
            yield error((*where, "labels"), problem, "rename one of them")


def metric_units(table: Raw) -> Iterator[RawFinding]:
    """Check that units are set and, if they are known units, that values can be converted to them."""
    for where, metric in _metrics(table):
        units = text_at(metric, "units")
        if "units" not in metric and "of_run" not in metric:
            fix = 'add for example units = "ms", or units = "" for numbers without units'
            yield warning((*where, "units"), "is missing, so the meaning of the numbers is unknown", fix)
        elif (first := split_unit(units)) is not None:
            problem = f'"{units}" is not a unit: values in "{first}" would not be converted'
            yield error((*where, "units"), problem, f'write units = "{first}" if the values are in this unit')


def pattern_groups(table: Raw) -> Iterator[RawFinding]:
    """Check the groups of each pattern."""
    options = given_labels(table)
    for where, metric in _metrics(table):
        text = text_at(metric, "pattern")
        if not text or (pattern := _compiled(text)) is None:
            continue
        place, units = (*where, "pattern"), text_at(metric, "units")
        groups = read_groups(pattern)
        yield from _group_names(place, pattern, groups, options)
        if groups.unit and not units:
            fix = 'add the target unit, for example units = "ms"'
            yield error(place, "the pattern takes a unit, but units does not name the target unit", fix)
        letters = _letters(text_at(metric, "number") or "plain", units)
        if not can_match_number(text, groups.value, letters=letters):
            what = "the value's group" if groups.value else "the value, which is the whole match,"
            yield error(place, f"{what} can never be a number in '{text}'", _NUMBER_ALONE)


def _group_names(
    place: Where, pattern: re.Pattern[str], groups: Groups, options: Mapping[str, str]
) -> Iterator[RawFinding]:
    """Check the names of a pattern's groups. options: the job's labels, with the keys that set them."""
    for name in taken_names(groups):
        problem = f'the group "{name}" has the name of a label that bai adds to metrics'
        yield error(place, problem, f"choose another name: (?P<{name}_>…), or no name: (…)")
    for name in taken_names(groups, options):
        problem = f'the group "{name}" has the name of a label of {options[name]}'
        yield error(place, problem, f"rename the group, or the label in {options[name]}")
    labels = {label for label, _ in groups.labels}
    for name, meant in misspelled_names(pattern).items():
        used = "a label of each record" if name in labels else "the value"
        problem = f'the group "{name}" becomes {used}; did you mean "{meant}"?'
        yield warning(place, problem, f"write (?P<{meant}>…)")


def section_marks(table: Raw) -> Iterator[RawFinding]:
    """Check the patterns of `after` and `until`."""
    for where, metric in _metrics(table):
        for key in ("after", "until"):
            text = text_at(metric, key)
            if text and _compiled(text) is not None and (problem := marker_problem(text)):
                yield error((*where, key), problem, "write some text of the line, such as '^== Latency'")


def metric_context(table: Raw) -> Iterator[RawFinding]:
    """Check the patterns of `context`."""
    options = given_labels(table)
    for where, metric in _metrics(table):
        context = metric.get("context")
        if not isinstance(context, list) or not all(
            isinstance(each, str) and _compiled(each) is not None for each in context
        ):
            continue
        pattern, units = text_at(metric, "pattern"), text_at(metric, "units")
        if problem := context_problem(context, pattern=pattern, units=units, labels=options):
            fix = "name a group of the pattern: '^== (?P<test>\\w+) ==' or 'time in (?P<unit>\\w+)'"
            yield error((*where, "context"), problem, fix)


def _letters(form: str, units: str) -> str:
    """Return the characters that a number of this form may contain, other than digits, sign, point and exponent."""
    letters = ":dhms -" if is_time(units) else ""
    if form in ("thousands", "auto"):
        letters += ",_'"
    if form in ("si", "auto"):
        letters += "".join(PREFIXES)
    return letters


def given_labels(table: Raw) -> dict[str, str]:
    """Return the job's labels, with the keys that set them."""
    options = dict.fromkeys(at(table, "info", "labels"), "[info.labels]")
    if text_at(at(table, "info"), "task_name"):
        options["task_name"] = "[info] task_name"
    if text_at(at(table, "custom_params"), "region"):
        options["region"] = "[custom_params] region"
    return options


def presets(table: Raw) -> Iterator[RawFinding]:
    """Check that no preset is named twice, and that names and labels of their metrics are unique."""
    names = _written_presets(table)
    known = _known_presets(names)
    if len(known) < sum(name in known for name in names):
        yield error(_PRESET, "names a preset twice", "keep one of the two")
    labels = given_labels(table)
    first: dict[str, str] = {}
    for metric in preset_metrics(table):
        if metric.name in first:
            problem = f'"{first[metric.name]}" and "{metric.preset}" both have a metric {metric.name}'
            fix = "remove one of the two presets, or define the metric in [[output.metrics]]"
            yield error(_PRESET, problem, fix)
        first.setdefault(metric.name, metric.preset)
        for label in _preset_labels(metric):
            if label in labels:
                problem = f'the metric {metric.name} of "{metric.preset}" sets the label {label}, which is also set in {labels[label]}'
                fix = f"rename the label in {labels[label]}, or define the metric {metric.name} in [[output.metrics]]"
                yield error(_PRESET, problem, fix)


def _preset_labels(metric: PresetMetric) -> list[str]:
    groups = read_groups(compile_pattern(metric.pattern)).labels if metric.pattern else ()
    context = {name for each in metric.context for name in compile_pattern(each).groupindex}
    return sorted({name for name, _ in groups} | context - {STEP, UNIT})


def preset_metrics(table: Raw) -> list[PresetMetric]:
    """Return the metrics of the known presets of `table`, except those that the table defines itself."""
    own = {text_at(metric, "name") for _, metric in items(table, "output", "metrics")}
    return [
        metric
        for name in _known_presets(_written_presets(table))
        for metric in read_preset(name).metrics
        if metric.name not in own
    ]


def _written_presets(table: Raw) -> list[Any]:
    written = at(table, "output").get("preset")
    return [written] if isinstance(written, str) else written if isinstance(written, list) else []


def _known_presets(names: list[Any]) -> list[str]:
    return list(dict.fromkeys(filter(preset_names().__contains__, names)))


def examples(table: Raw) -> Iterator[RawFinding]:
    """Try each metric on its example."""
    tried = [
        ((*where, "example"), example)
        for where, metric in _metrics(table)
        if (example := _example(metric)) is not None
    ]
    trials = try_patterns([example for _, example in tried])
    for (where, example), trial in zip(tried, trials, strict=True):
        if mistake := _failure(trial, example):
            yield error(where, *mistake)
        for doubt in trial.doubts[:1]:
            yield warning(where, *_doubtful(*doubt, units=example.metric.get("units", "")))


def try_examples(descriptor: Descriptor) -> list[dict[str, Any]]:
    """Return the name and the units of each metric with an example, and the values in the example. Each value has a
    step and labels."""
    server = descriptor.used_server
    of_server = server.output.metrics if server is not None else []
    written = [each for each in (*descriptor.output.every_metric, *of_server) if each.example is not None]
    tried = list(filter(None, map(_example, map(write_table, written))))
    return [
        {
            "name": each.metric["name"],
            "units": each.metric.get("units", ""),
            "values": list(trial.values),
        }
        for each, trial in zip(tried, try_patterns(tried), strict=True)
    ]


def _metrics(table: Raw) -> Iterator[tuple[Where, Raw]]:
    for keys in _METRICS:
        yield from items(table, *keys)


def _example(metric: Raw) -> PatternExample | None:
    """Return a metric's example; None if it has none, or if another check reports it as wrong."""
    line, context = metric.get("example"), metric.get("context")
    if not isinstance(line, str):
        return None
    keys = {"name", "units", *marked_keys(WrittenMetric, About.LINE)}
    if isinstance(context, list) and any("(?P<unit>" in str(each) for each in context):
        keys.remove("units")  # the unit in another line is unknown here, so the number is not converted
    tried = {"name": "", **{key: value for key, value in metric.items() if key in keys}}
    try:
        found = read_table(Metric, tried, where="")
    except DescriptorError:
        return None
    has_one_source = bool(found.pattern) != (found.json is not None)
    usable = has_one_source and _compiled(found.pattern) is not None
    return PatternExample(metric=tried, line=line) if usable else None


def _doubtful(doubt: str, taken: str, whole: str, *, units: str) -> tuple[str, str]:
    if doubt == Doubt.OTHER_UNIT:
        fix = "correct units, or let a group (?P<unit>…) take the unit, so that values are converted"
        return f'the units are "{units}", but the line says "{whole}"', fix
    if doubt == Doubt.CUT:
        return f'the pattern takes only "{taken}" of the number "{whole}"', (
            r"write the number as ([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
        )
    return f'the pattern takes "{taken}", but the line has "{whole}"', number_advice(taken, whole)


def _failure(trial: Trial, example: PatternExample) -> tuple[str, str] | None:
    """Return problem and fix if the trial found no usable value in the example; otherwise None."""
    path, pattern, shown = example.metric.get("json"), example.metric.get("pattern"), _cut(example.line)
    if trial.too_slow:
        fix = "make the pattern simpler: avoid a + or * after a group with a + or *, as in (a+)+"
        return f"the pattern takes more than a second on this line: '{str(pattern)[:80]}'", fix
    if trial.values:
        return None
    other = trial.others[0][:80] if trial.others else None
    if path is not None:
        if other is not None:
            fix = "correct json; the path must lead to a number without quotes"
            return f'{path} leads to "{other}" in the example, which is not a finite number', fix
        fix = "correct json, or write the whole line as the benchmark prints it: one JSON object"
        return f"'{shown}' is not a JSON object with {path}", fix
    if other is None:
        fix = "correct the pattern, or the line as it is really printed"
        return f"the pattern '{pattern}' does not match \"{shown}\"", fix
    if not other:
        fix = "name a group that always matches: (?P<value>…)"
        return f"the pattern '{pattern}' matches \"{shown}\", but the value's group matches nothing", fix
    return f"the pattern '{pattern}' takes \"{other}\", which is not a finite number", _NUMBER_ALONE


def _cut(line: str) -> str:
    return line if len(line) <= 80 else line[:79] + "…"


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return compile_pattern(pattern)
    except ValueError:
        return None
