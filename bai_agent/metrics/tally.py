"""The extractor's counts of values and problems, and the warnings that follow from these counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from bai_agent.job.descriptor.metric_tables import Metric, NumberForm, Results
from bai_agent.job.record_types import HeadlineValue, as_table
from bai_agent.job.schema.pattern_groups import read_groups
from bai_agent.light_dataclass import dataclass, field
from bai_agent.metrics.follow import LINE_LIMIT, LogPosition
from bai_agent.metrics.headlines import NodeHeadlines
from bai_agent.metrics.search.dense import Columns
from bai_agent.metrics.search.number import form_end, form_number
from bai_agent.metrics.search.patterns import Found
from bai_agent.metrics.search.reading import Doubt

_NAMES = 10_000
"""Maximum number of names from `emit` and files that are counted separately. The number is limited to bound
memory, because the names come from the benchmark."""
_SHOWN = 80
_LINE_SHOWN = 200
_BEFORE = 80
"""`_LINE_SHOWN`: number of characters of a line that a warning shows. `_BEFORE`: maximum number of characters
that a warning shows before a number."""
_BETTER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

_OTHER_FORMS = (NumberForm.THOUSANDS, NumberForm.SI, NumberForm.AUTO)

_index = itemgetter(1)


@dataclass(kw_only=True)
class Tally:
    """Counts since the run's start. The counts are saved with the checkpoint, so that a restarted extractor
    continues with these counts."""

    found: list[int]
    """Number of values that were found, by the metric's index."""
    lines: int = 0
    emitted: dict[str, int] = field(default_factory=dict)
    not_numbers: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    """First value that was not a number, by metric."""
    doubts: dict[str, int] = field(default_factory=dict)
    """Number of doubtful values, by `_doubt_key`."""
    doubt_examples: dict[str, list[str]] = field(default_factory=dict)
    """Text that the pattern took, whole text in the log, and line of the first doubtful value, by `_doubt_key`."""
    emit_bad_lines: int = 0

    def count_found(self, found: Iterable[Found]) -> None:
        for index, count in Counter(map(_index, found)).items():
            self.found[index] += count

    def count_columns(self, columns: Columns) -> None:
        for column in columns.columns:
            self.found[column.metric] += len(columns.offsets)

    def count_named(self, name: str) -> None:
        """Count a value with its own name: an emitted value, or a value from a result file."""
        if name in self.emitted or len(self.emitted) < _NAMES:
            self.emitted[name] = self.emitted.get(name, 0) + 1

    def count_not_a_number(self, name: str, text: str) -> bool:
        """Count a value of `name` that is not a finite number; return whether it is the first such value of
        `name`."""
        first = name not in self.not_numbers
        if first and len(self.not_numbers) >= _NAMES:
            return False
        self.not_numbers[name] = self.not_numbers.get(name, 0) + 1
        if first:
            self.examples[name] = text[:_SHOWN]
        return first

    def is_new_doubt(self, index: int, doubt: Doubt) -> bool:
        return _doubt_key(index, doubt) not in self.doubts

    def note_doubt(self, index: int, doubt: Doubt, example: Sequence[str]) -> None:
        """Record the taken text, the whole text and the line of the first doubtful value."""
        self.doubt_examples[_doubt_key(index, doubt)] = [each[:_LINE_SHOWN] for each in example]

    def count_doubt(self, index: int, doubt: Doubt) -> None:
        key = _doubt_key(index, doubt)
        self.doubts[key] = self.doubts.get(key, 0) + 1


def doubt_warning(metric: Metric, doubt: Doubt, count: int, example: Sequence[str]) -> str:
    """Return a warning about values that may be wrong, with a better pattern."""
    taken, whole, line = example
    where = f', first in the line "{line}"' if line else ""
    how_often = f"({count} times)" if count > 1 else "(once)"
    if doubt is Doubt.CUT:
        said = f'its pattern took only "{taken}" of "{whole}" {how_often}; the whole number was recorded'
        return f'metric "{metric.name}": {said}. Write the number in the pattern as {_BETTER}'
    if doubt is Doubt.GOES_ON:
        said = f'its pattern took "{taken}", but the output has "{whole}" {how_often}{where}'
        return f'metric "{metric.name}": {said}. {number_advice(taken, whole)}'
    said = f'its units are "{metric.units}", but after "{taken}" there is another unit {how_often}{where}'
    return f'metric "{metric.name}": {said}. Correct units, or let a group (?P<unit>…) take the unit, so that values are converted'


def line_around(line: str, whole: str) -> str:
    """Return the part of `line` around the text `whole` that a warning shows."""
    place = max(0, line.find(whole))
    return line[max(0, place - _BEFORE) : place + _LINE_SHOWN - _BEFORE].strip()


def number_advice(taken: str, whole: str) -> str:
    """Return advice to take `whole` instead of only its beginning `taken`."""
    reach = {form: form_end(whole, 0, len(taken), form) for form in _OTHER_FORMS}
    best = max(reach, key=lambda form: reach[form])
    if reach[best] > len(taken):
        return f'To read the whole number, write number = "{best.value}"'
    return "Have the pattern take the whole number"


def not_a_number_warning(name: str, count: int, example: str, *, metric: Metric | None = None) -> str:
    """Return a warning about values that are not numbers. metric: the metric, if it has a pattern."""
    values = "1 value was" if count == 1 else f"{count} values were"
    if metric is not None and metric.json is None and read_groups(re.compile(metric.pattern)).unit:
        what = f'no numbers in a unit that can be converted to "{metric.units}"'
    else:
        what = "no finite numbers"
    hint = ""
    if metric is not None and metric.json is None and metric.number is NumberForm.PLAIN:
        readable = (form for form in _OTHER_FORMS if form_number(example, form) is not None)
        hint = next((f'; number = "{form.value}" reads it' for form in readable), "")
    of_preset = f' of preset "{metric.preset}"' if metric is not None and metric.preset is not None else ""
    return f'metric "{name}"{of_preset}: {values} {what} and left out, the first was "{example}"{hint}'


def summary(
    tally: Tally,
    metrics: Sequence[Metric],
    *,
    records: int,
    logs: Mapping[str, LogPosition],
    log_bytes: int,
    remaining_bytes: int,
    headlines: NodeHeadlines,
    empty_results: Sequence[Results],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Return the content of `extracted.json`; `docs/run-directory.md` is its reference. logs: the logs by
    file."""
    per_metric: dict[str, int] = {}
    for metric, count in zip(metrics, tally.found, strict=True):
        per_metric[metric.name] = per_metric.get(metric.name, 0) + count
    for name, count in tally.emitted.items():
        per_metric[name] = per_metric.get(name, 0) + count
    missing = [
        metric.name
        for metric, count in zip(metrics, tally.found, strict=True)
        if metric.required and not count
    ]
    return {
        "records": records,
        "lines": tally.lines,
        "log_bytes": log_bytes,
        "per_metric": per_metric,
        "headlines": _tables(headlines.of_job),
        **_of_generations(headlines),
        "not_numbers": tally.not_numbers,
        "never_numbers": {
            name: {"count": count, "first": tally.examples.get(name, "")}
            for name, count in tally.not_numbers.items()
            if not per_metric.get(name)
        },
        "required_missing": list(dict.fromkeys(missing)),
        "empty_presets": _empty_presets(tally, metrics),
        "results_missing": [each.path for each in empty_results if not each.required],
        "required_results_missing": [each.path for each in empty_results if each.required],
        "emit_bad_lines": tally.emit_bad_lines,
        "lost_bytes": sum(place.lost for place in logs.values()),
        "remaining_bytes": remaining_bytes,
        "warnings": [*warnings, *_warnings(tally, metrics, logs)],
    }


def _of_generations(headlines: NodeHeadlines) -> dict[str, Any]:
    found = {str(number): _tables(each) for number, each in headlines.of_generations.items()}
    return {"generations": found} if found else {}


def _tables(headlines: Mapping[str, HeadlineValue]) -> dict[str, Any]:
    return {name: as_table(each) for name, each in headlines.items()}


def _empty_presets(tally: Tally, metrics: Sequence[Metric]) -> list[str]:
    """Return the presets whose metrics matched no line, not even with a text that is not a number."""
    matched = {metric.preset: False for metric in metrics if metric.preset is not None}
    for metric, count in zip(metrics, tally.found, strict=True):
        if metric.preset is not None and (count or metric.name in tally.not_numbers):
            matched[metric.preset] = True
    return [preset for preset, seen in matched.items() if not seen]


def _warnings(tally: Tally, metrics: Sequence[Metric], logs: Mapping[str, LogPosition]) -> list[str]:
    by_name = {metric.name: metric for metric in metrics}
    sentences = [
        not_a_number_warning(name, count, tally.examples.get(name, ""), metric=by_name.get(name))
        for name, count in tally.not_numbers.items()
    ]
    for key, count in tally.doubts.items():
        index, _, doubt = key.partition(" ")
        sentences.append(doubt_warning(metrics[int(index)], Doubt(doubt), count, tally.doubt_examples[key]))
    if tally.emit_bad_lines:
        sentences.append(
            f"emit: {tally.emit_bad_lines} lines contained something other than a JSON object of names and numbers"
        )
    for file, place in logs.items():
        if place.unsearched:
            sentences.append(
                f"{file}: {place.unsearched} bytes of lines longer than {LINE_LIMIT // 2**20} MiB were not searched"
            )
        if place.truncations:
            sentences.append(
                f"{file} was truncated {_times(place.truncations)} by the benchmark; {place.lost} bytes were lost before "
                "they were searched"
            )
    return sentences


def _doubt_key(index: int, doubt: Doubt) -> str:
    """Return the key of a doubtful value in a JSON object."""
    return f"{index} {doubt.value}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
