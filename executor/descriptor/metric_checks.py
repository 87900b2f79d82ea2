"""Checks of the metrics that look at more than one key."""

from __future__ import annotations

from collections.abc import Iterator

from bai_agent.job import why_no_pattern
from executor.descriptor.pattern_trial import Trial, try_patterns
from executor.descriptor.raw_table import ERROR, Raw, Told, Where, items, text_of


def metric_names(table: Raw) -> Iterator[Told]:
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


def examples(table: Raw) -> Iterator[Told]:
    tried: list[tuple[Where, str, str]] = []
    for keys in (("output", "metrics"), ("server", "output", "metrics")):
        for where, metric in items(table, *keys):
            pattern, example = text_of(metric, "pattern"), metric.get("example")
            if pattern and isinstance(example, str) and why_no_pattern(pattern) is None:
                tried.append(((*where, "example"), pattern, example))
    trials = try_patterns([(pattern, example) for _, pattern, example in tried])
    for (where, pattern, example), trial in zip(tried, trials, strict=True):
        told = _disappointment(trial, pattern=pattern, example=example)
        if told:
            yield where, *told, ERROR


def _disappointment(trial: Trial, *, pattern: str, example: str) -> tuple[str, str] | None:
    shown = example if len(example) <= 80 else example[:79] + "…"
    if trial.too_slow:
        fix = "make it simpler: no + or * inside a group that has one itself, as in (a+)+"
        return f"the pattern takes more than a second on this line: '{pattern[:80]}'", fix
    if trial.numbers:
        return None
    if not trial.others:
        fix = "correct the pattern, or the line as it is really printed"
        return f"the pattern '{pattern}' does not match \"{shown}\"", fix
    if not trial.others[0]:
        fix = "name the group that always does: (?P<value>…)"
        return f"the pattern '{pattern}' matches \"{shown}\", but the group of its value took no part", fix
    fix = "put ( ) around the number alone, or call that group value: (?P<value>…)"
    return f"the pattern '{pattern}' takes \"{trial.others[0][:80]}\" from it, which is no finite number", fix
