"""Checks of the metrics that look at more than one key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bai_agent.job.descriptor import (
    NumberForm,
    OfRun,
    Repaint,
    compile_pattern,
    context_problem,
    marker_problem,
)
from bai_agent.job.json_path import last_key, read_json_path
from bai_agent.job.pattern_groups import RESERVED, Groups, misspelled_names, read_groups, taken_names
from bai_agent.metrics.literal import can_match_number
from bai_agent.metrics.reading import Doubt
from bai_agent.metrics.tally import number_advice
from bai_agent.metrics.units import PREFIXES, is_time, split_unit
from executor.descriptor.model import Descriptor
from executor.descriptor.pattern_trial import Example, Trial, try_patterns
from executor.descriptor.raw_table import ERROR, WARNING, Raw, RawFinding, Where, at, items, text_of

_OF_LINES = ("pattern", "json", "json_step", "json_labels", "after", "until", "number", "repaint", "example")
"""Keys about what the benchmark prints."""


def metric_names(table: Raw) -> Iterator[RawFinding]:
    for keys in (("output", "metrics"), ("server", "output", "metrics")):
        first: dict[str, int] = {}
        for where, metric in items(table, *keys):
            name, index = text_of(metric, "name"), where[-1]
            if name and name in first:
                fix = "give it another name, or join the two patterns with |"
                yield (
                    (*where, "name"),
                    f'"{name}" is already the name of {".".join(keys)}[{first[name]}]',
                    fix,
                    ERROR,
                )
            elif isinstance(index, int):
                first[name] = index


def metric_sources(table: Raw) -> Iterator[RawFinding]:
    """Check that each metric says in one way what to take, and where labels come from."""
    options = given_labels(table)
    for where, metric in _metrics(table):
        if "of_run" in metric:
            yield from _of_run(where, metric)
            continue
        if "json" not in metric:
            if "pattern" not in metric:
                fix = 'add pattern = \'…\', json = "…" where the benchmark prints JSON objects, or of_run = "wall_time"'
                yield (*where, "pattern"), "is missing: nothing says what to take", fix, ERROR
            for key in ("json_step", "json_labels"):
                if key in metric:
                    group = "step" if key == "json_step" else "NAME"
                    fix = f"in a pattern it is a group, (?P<{group}>…); or take the value with json, too"
                    yield (*where, key), "has a meaning only beside json", fix, ERROR
            continue
        if "pattern" in metric:
            yield (*where, "json"), "stands beside pattern", "keep one of the two", ERROR
        if text_of(metric, "number") not in ("", "plain"):
            fix = "remove number; a text is not a number, however it is written"
            yield (*where, "number"), "has no meaning beside json: JSON's numbers have one form", fix, ERROR
        paths = metric.get("json_labels")
        for index, path in enumerate(paths if isinstance(paths, list) else ()):
            name = _last_key(path)
            taken = "every metric may get by itself" if name in RESERVED else f"{options.get(name)} has, too"
            if name in RESERVED or name in options:
                fix = "leave it out, or rename the key that the benchmark prints"
                yield (
                    (*where, "json_labels", index),
                    f'"{name}" is the name of a label that {taken}',
                    fix,
                    ERROR,
                )


def _of_run(where: Where, metric: Raw) -> Iterator[RawFinding]:
    """Check that a metric of what the run took asks for nothing that the benchmark prints."""
    for key in _OF_LINES:
        if key in metric:
            fix = "keep one of the two; of_run takes nothing from what the benchmark prints"
            yield (*where, key), "stands beside of_run", fix, ERROR
    known = {each.value: each.units for each in OfRun}
    measured = known.get(text_of(metric, "of_run"))
    if measured is not None and metric.get("units", measured) != measured:
        yield (*where, "units"), f"are not those of {metric['of_run']}", f'write units = "{measured}"', ERROR


def _last_key(path: Any) -> str:
    """Return the label's name; "" where what is wrong with the path has been said."""
    try:
        return last_key(read_json_path(path)) if isinstance(path, str) else ""
    except ValueError:
        return ""


def metric_units(table: Raw) -> Iterator[RawFinding]:
    for where, metric in _metrics(table):
        if "units" not in metric and "of_run" not in metric:
            fix = 'add units = "ms" or what they are; units = "" says that there are none'
            yield (*where, "units"), "is missing: nobody can tell what the numbers mean", fix, WARNING
        elif (first := split_unit(units := text_of(metric, "units"))) is not None:
            fix = f'write units = "{first}" if it is that'
            yield (
                (*where, "units"),
                f'"{units}" is no unit: values in "{first}" would not be converted',
                fix,
                ERROR,
            )


def pattern_groups(table: Raw) -> Iterator[RawFinding]:
    """Check what the groups of each pattern are for."""
    options = given_labels(table)
    for where, metric in _metrics(table):
        text = text_of(metric, "pattern")
        if not text or (pattern := _compiled(text)) is None:
            continue
        place = (*where, "pattern")
        groups = read_groups(pattern)
        for name in taken_names(groups):
            fix = f"choose another name: (?P<{name}_>…), or leave it out: (…)"
            yield (
                place,
                f'the group "{name}" has the name of a label that every metric may get by itself',
                fix,
                ERROR,
            )
        for name in taken_names(groups, options):
            fix = f"rename the group, or the label in {options[name]}"
            yield place, f'the group "{name}" has the name of a label of {options[name]}', fix, ERROR
        for name, meant in misspelled_names(pattern).items():
            used = (
                "a label of each record" if any(name == label for label, _ in groups.labels) else "the value"
            )
            yield (
                place,
                f'the group "{name}" is {used}; was "{meant}" meant?',
                f"write (?P<{meant}>…)",
                WARNING,
            )
        if groups.unit and not text_of(metric, "units"):
            fix = 'add units, for example units = "ms": values are converted to them'
            yield place, "the pattern takes a unit, but units does not say what to convert to", fix, ERROR
        form = text_of(metric, "number") or "plain"
        if not can_match_number(text, groups.value, letters=_letters(form, text_of(metric, "units"))):
            yield place, *_no_number(text, groups), ERROR


def section_marks(table: Raw) -> Iterator[RawFinding]:
    for where, metric in _metrics(table):
        for key in ("after", "until"):
            text = text_of(metric, key)
            if text and _compiled(text) is not None and (problem := marker_problem(text)):
                yield (*where, key), problem, "write what stands in the line, such as '^== Latency'", ERROR


def metric_context(table: Raw) -> Iterator[RawFinding]:
    options = given_labels(table)
    for where, metric in _metrics(table):
        context = metric.get("context")
        if not isinstance(context, list) or not all(
            isinstance(each, str) and _compiled(each) is not None for each in context
        ):
            continue
        pattern, units = text_of(metric, "pattern"), text_of(metric, "units")
        if problem := context_problem(context, pattern=pattern, units=units, labels=options):
            fix = "name what the line says: '^== (?P<test>\\w+) ==' or 'time in (?P<unit>\\w+)'"
            yield (*where, "context"), problem, fix, ERROR


def _no_number(pattern: str, groups: Groups) -> tuple[str, str]:
    fix = "put ( ) around the number alone, or call that group value: (?P<value>…)"
    if groups.value:
        return f"the group of the value in '{pattern}' can never be a number", fix
    return f"the value is the whole match of '{pattern}', which can never be a number", fix


def _letters(form: str, units: str) -> str:
    """Return the characters beside digits, sign, point and exponent that a number of this form may have."""
    letters = ":dhms -" if is_time(units) else ""
    if form in ("thousands", "auto"):
        letters += ",_'"
    if form in ("si", "auto"):
        letters += "".join(PREFIXES)
    return letters


def given_labels(table: Raw) -> dict[str, str]:
    """Return the names of the job's labels, with where they come from."""
    options = dict.fromkeys(at(table, "info", "labels"), "[info.labels]")
    if text_of(at(table, "info"), "task_name"):
        options["task_name"] = "[info] task_name"
    if text_of(at(table, "custom_params"), "region"):
        options["region"] = "[custom_params] region"
    return options


def examples(table: Raw) -> Iterator[RawFinding]:
    tried: list[tuple[Where, Example]] = []
    for where, metric in _metrics(table):
        example = _example(metric)
        if example is not None:
            tried.append(((*where, "example"), example))
    trials = try_patterns([example for _, example in tried])
    for (where, example), trial in zip(tried, trials, strict=True):
        problem = (
            _disappointment(trial, pattern=example.pattern, example=example.line)
            if example.json is None
            else _json_disappointment(trial, path=example.json, example=example.line)
        )
        if problem:
            yield where, *problem, ERROR
        for doubt in trial.doubts[:1]:
            yield where, *_doubtful(*doubt, units=example.units), WARNING


def try_examples(descriptor: Descriptor) -> list[dict[str, Any]]:
    """Return what each metric with an example takes from it: name, units and values, of which each has its step and labels."""
    written = [each for each in descriptor.output.every_metric if each.example is not None]
    trials = try_patterns(
        [
            Example(
                pattern=each.pattern or "",
                json=each.json_key,
                json_step=each.json_step,
                json_labels=tuple(each.json_labels),
                line=each.example or "",
                # What another line says of its unit is not known here: the number is shown as it stands.
                units="" if _unit_elsewhere(each.context) else each.units,
                number=each.number,
                repaint=each.repaint,
            )
            for each in written
        ]
    )
    return [
        {
            "name": each.name,
            "units": "" if _unit_elsewhere(each.context) else each.units,
            "values": list(trial.values),
        }
        for each, trial in zip(written, trials, strict=True)
    ]


def _unit_elsewhere(context: object) -> bool:
    """Return whether an earlier line says the unit of the values."""
    return isinstance(context, list) and any("(?P<unit>" in str(each) for each in context)


def _metrics(table: Raw) -> Iterator[tuple[Where, Raw]]:
    for keys in (("output", "metrics"), ("server", "output", "metrics")):
        yield from items(table, *keys)


def _example(metric: Raw) -> Example | None:
    """Return what is to be tried of a metric; None where there is nothing, or what is wrong has been said."""
    pattern, path, line = text_of(metric, "pattern"), text_of(metric, "json"), metric.get("example")
    if not isinstance(line, str):
        return None
    if path:
        if pattern or not _last_key(path):
            return None
        return Example(pattern="", json=path, line=line, units=text_of(metric, "units"))
    if not pattern or _compiled(pattern) is None:
        return None
    number, repaint = text_of(metric, "number"), text_of(metric, "repaint")
    return Example(
        pattern=pattern,
        line=line,
        units="" if _unit_elsewhere(metric.get("context")) else text_of(metric, "units"),
        number=number if number in {form.value for form in NumberForm} else NumberForm.PLAIN.value,
        repaint=repaint if repaint in {each.value for each in Repaint} else Repaint.ALL.value,
    )


def _doubtful(doubt: str, taken: str, whole: str, *, units: str) -> tuple[str, str]:
    if doubt == Doubt.OTHER_UNIT:
        fix = "correct units, or let a group (?P<unit>…) take the unit: values are converted"
        return f'the units are "{units}", but the line says "{whole}"', fix
    if doubt == Doubt.CUT:
        return f'the pattern takes only "{taken}" of "{whole}"; the whole number counts', (
            r"write the number as ([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
        )
    return f'the pattern takes "{taken}" where "{whole}" stands', number_advice(taken, whole)


def _disappointment(trial: Trial, *, pattern: str, example: str) -> tuple[str, str] | None:
    shown = example if len(example) <= 80 else example[:79] + "…"
    if trial.too_slow:
        fix = "make it simpler: no + or * inside a group that has one itself, as in (a+)+"
        return f"the pattern takes more than a second on this line: '{pattern[:80]}'", fix
    if trial.values:
        return None
    if not trial.others:
        fix = "correct the pattern, or the line as it is really printed"
        return f"the pattern '{pattern}' does not match \"{shown}\"", fix
    if not trial.others[0]:
        fix = "name the group that always does: (?P<value>…)"
        return f"the pattern '{pattern}' matches \"{shown}\", but the group of its value took no part", fix
    fix = "put ( ) around the number alone, or call that group value: (?P<value>…)"
    return (
        f"the pattern '{pattern}' takes \"{trial.others[0][:80]}\" from it, which is not a finite number",
        fix,
    )


def _json_disappointment(trial: Trial, *, path: str, example: str) -> tuple[str, str] | None:
    if trial.values:
        return None
    line = example if len(example) <= 80 else example[:79] + "…"
    if trial.others:
        fix = "let json lead to the number alone; a number in quotes is a text"
        return f'{path} leads to "{trial.others[0][:80]}" in it, which is not a finite number', fix
    fix = "correct json, or the line as it is really printed; all of it must be one JSON object"
    return f"'{line}' is not a JSON object with {path}", fix


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return compile_pattern(pattern)
    except ValueError:
        return None
