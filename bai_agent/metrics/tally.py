"""What the extractor has counted so far, and what it says about it in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any

from bai_agent.job import Metric
from bai_agent.metrics.extract import Found
from bai_agent.metrics.follow import LINE_LIMIT, Place

_NAMES = 10_000
"""Names from `emit` that are counted one by one: they come from the benchmark, and memory stays flat."""
_SHOWN = 80
_BETTER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

_index = itemgetter(1)


@dataclass(kw_only=True)
class Tally:
    """Counts since the run's start. They are kept with the checkpoint, so a restart goes on with them."""

    found: list[int]
    """Numbers found, by the metric's index."""
    lines: int = 0
    emitted: dict[str, int] = field(default_factory=dict)
    not_numbers: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    """The first value of a metric that was no number."""
    cut: dict[str, int] = field(default_factory=dict)
    """By the metric's index (as text): how often its pattern took only a part of a number."""
    cut_examples: dict[str, list[str]] = field(default_factory=dict)
    emit_bad_lines: int = 0

    def count_found(self, found: Iterable[Found]) -> None:
        for index, count in Counter(map(_index, found)).items():
            self.found[index] += count

    def count_emitted(self, name: str) -> None:
        if name in self.emitted or len(self.emitted) < _NAMES:
            self.emitted[name] = self.emitted.get(name, 0) + 1

    def count_not_a_number(self, name: str, text: str) -> bool:
        """Count a value of `name` that is no finite number; return whether it is the first."""
        first = name not in self.not_numbers
        if first and len(self.not_numbers) >= _NAMES:
            return False
        self.not_numbers[name] = self.not_numbers.get(name, 0) + 1
        if first:
            self.examples[name] = text[:_SHOWN]
        return first

    def count_cut(self, index: int, text: str, whole: str) -> bool:
        """Count a number of which the metric's pattern took only a part; return whether it is the first."""
        key = str(index)
        self.cut[key] = self.cut.get(key, 0) + 1
        if self.cut[key] == 1:
            self.cut_examples[key] = [text[:_SHOWN], whole[:_SHOWN]]
        return self.cut[key] == 1

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def cut_warning(metric: Metric, count: int, example: Sequence[str]) -> str:
    """Return the sentence that tells of a pattern that cuts numbers in their exponent."""
    part, whole = example
    return (
        f'metric "{metric.name}": its pattern took only "{part}" of "{whole}" ({count} times); the whole number was '
        f"recorded. Write the number in it as {_BETTER}"
    )


def not_a_number_warning(name: str, count: int, example: str) -> str:
    """Return the sentence that tells of values that are no numbers."""
    return (
        f'metric "{name}": {count} values were no finite numbers and were left out, the first was "{example}"'
    )


def summary(
    tally: Tally,
    metrics: Sequence[Metric],
    *,
    records: int,
    log: Place,
    log_bytes: int,
    remaining_bytes: int,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Return the content of `extracted.json`; `docs/run-directory.md` is its reference."""
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
        "not_numbers": tally.not_numbers,
        "required_missing": list(dict.fromkeys(missing)),
        "emit_bad_lines": tally.emit_bad_lines,
        "lost_bytes": log.lost,
        "remaining_bytes": remaining_bytes,
        "warnings": [*warnings, *_warnings(tally, metrics, log)],
    }


def _warnings(tally: Tally, metrics: Sequence[Metric], log: Place) -> list[str]:
    sentences = [
        not_a_number_warning(name, count, tally.examples.get(name, ""))
        for name, count in tally.not_numbers.items()
    ]
    sentences += [
        cut_warning(metrics[int(key)], count, tally.cut_examples[key])
        for key, count in sorted(tally.cut.items())
    ]
    if tally.emit_bad_lines:
        sentences.append(
            f"emit: {tally.emit_bad_lines} lines held something that is no JSON object of names and numbers"
        )
    if log.unsearched:
        sentences.append(
            f"output.log: {log.unsearched} bytes of lines longer than {LINE_LIMIT // 2**20} MiB were not searched"
        )
    if log.generation:
        sentences.append(
            f"output.log was truncated {_times(log.generation)} by the benchmark; {log.lost} bytes were lost before "
            "they were searched"
        )
    return sentences


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
