"""Adds labels, steps or units that earlier lines of the log define for later values (`context` of a metric).

The position in the log is saved together with the last match of each pattern. A restarted extractor continues with the saved
matches.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.job.schema.pattern_groups import STEP as STEP_GROUP
from bai_agent.job.schema.pattern_groups import UNIT
from bai_agent.metrics.search.extract import Guard
from bai_agent.metrics.search.literal import read_shape
from bai_agent.metrics.search.number import json_number, scaled
from bai_agent.metrics.search.patterns import Found
from bai_agent.metrics.search.reading import LABELS, STEP, MatchFindings, label_text
from bai_agent.metrics.search.units import conversion
from bai_agent.metrics.sections import LineMarkers

Said = tuple[Mapping[str, str], ...]
"""Groups of a pattern in the last line that matched the pattern, for each match in the line. If the pattern
matched once, all values of a later line get the groups of this match. If the pattern matched several times,
the n-th value of a later line gets the groups of the n-th match."""
State = Mapping[int, Said]
"""Pattern's number → groups of the pattern in the last line that matched the pattern."""

_MOST_MATCHES = 64
"""Maximum number of matches that are saved, per pattern and line."""
_CACHED = 4096


class ContextChange(NamedTuple):
    """A context that applies to values from an offset of the log on."""

    offset: int
    state: State


class ContextMarkers:
    """The lines that define labels, steps or units for the values of some metrics. Metrics with the same
    `context` pattern share the lines that match the pattern."""

    def __init__(self, metrics: Sequence[Metric], *, guard: Guard, fast: bool) -> None:
        users: dict[str, list[int]] = {}
        for index, metric in enumerate(metrics):
            for pattern in metric.context:
                users.setdefault(pattern, []).append(index)
        self._metrics = metrics
        self._patterns = list(users)
        numbers = {pattern: number for number, pattern in enumerate(self._patterns)}
        self._of_metric = {
            index: [numbers[pattern] for pattern in metric.context]
            for index, metric in enumerate(metrics)
            if metric.context
        }
        self._with_unit = {index for index, metric in enumerate(metrics) if metric.context_has_unit}
        shapes = [read_shape(pattern) for pattern in self._patterns]
        self._compiled = [
            re.compile(pattern, 0 if shape.beyond_ascii else re.ASCII)
            for pattern, shape in zip(self._patterns, shapes, strict=True)
        ]
        self._lines = LineMarkers(self._patterns, list(users.values()), guard=guard, fast=fast)
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def read(self, data: bytes, offset: int, state: State, *, without: frozenset[int]) -> list[ContextChange]:
        """Return the contexts that apply in `data`. data: complete lines, from `offset` of the file on.
        state: the context before `data`."""
        changes = [ContextChange(offset, state)]
        guard = self._lines.guard(without)
        for line in self._lines.matching(data, offset, without=without):
            guard.lines()
            known = dict(changes[-1].state)
            for number, text in line.matched:
                if guard.careful:
                    guard.search(number, line.offset)
                matches = islice(self._compiled[number].finditer(text), _MOST_MATCHES)
                decodes = not self._compiled[number].flags & re.ASCII
                known[number] = tuple(_groups(match, decodes=decodes) for match in matches)
            guard.rest()
            changes.append(ContextChange(line.offset, known))
        return changes

    def apply(
        self, found: Sequence[Found], changes: Sequence[ContextChange], findings: MatchFindings
    ) -> list[Found]:
        """Return the values `found` with the context of each value. Values whose unit is unknown or cannot be
        converted are left out."""
        offsets = [each.offset for each in changes]
        applied = []
        for each in found:
            offset, index, k, number, extra = each
            patterns = self._of_metric.get(index)
            if patterns is None:
                applied.append(each)
                continue
            state = changes[bisect_right(offsets, offset) - 1].state
            groups: dict[str, str] = {}
            for pattern in patterns:
                said = state.get(pattern, ())
                # Several matches in one line are column heads. Each column head belongs to one value of a
                # later line.
                groups.update(said[0] if len(said) == 1 else said[k] if k < len(said) else {})
            unit = groups.pop(UNIT, None)
            if index in self._with_unit:
                converted = self._converted(index, number, unit)
                if converted is None:
                    findings.not_a_number(index, f"{number} {unit or '(unit not known)'}")
                    continue
                number = converted
            applied.append((offset, index, k, number, self._extra(extra, groups)))
        return applied

    def _converted(self, index: int, number: str, unit: str | None) -> str | None:
        if unit is None:
            return None
        factor = conversion(unit, self._metrics[index].units)
        if factor is None:
            return None
        return number if factor.factor == 1 and not factor.inverse else scaled(number, factor)

    def _extra(self, own: str, groups: Mapping[str, str]) -> str:
        """Return the JSON members of a record: the record's own members and the members from the context."""
        if not groups:
            return own
        key = own, tuple(groups.items())
        merged = self._known.get(key)
        if merged is None:
            if len(self._known) >= _CACHED:
                self._known.clear()
            merged = self._known[key] = _merged(own, groups)
        return merged


class LogContext:
    """The context in one log at the position up to which it was read."""

    def __init__(self, markers: ContextMarkers, state: State | None = None) -> None:
        """state: the context at the position where reading continues; None at the beginning of the log."""
        self._markers = markers
        self.state: State = state or {}

    def reset(self) -> None:
        """Forget the context, as at the beginning of a log."""
        self.state = {}

    def read(self, data: bytes, offset: int, *, without: frozenset[int] = frozenset()) -> list[ContextChange]:
        """Return the contexts that apply in `data`, which are the log's next complete lines."""
        changes = self._markers.read(data, offset, self.state, without=without)
        self.state = changes[-1].state
        return changes

    def apply(
        self, found: Sequence[Found], changes: Sequence[ContextChange], findings: MatchFindings
    ) -> list[Found]:
        """Return the values `found`, each with its context."""
        return self._markers.apply(found, changes, findings)


def _groups(match: re.Match[str], *, decodes: bool) -> dict[str, str]:
    found = match.groupdict().items()
    return {name: label_text(value, decodes=decodes) for name, value in found if value is not None}


def _merged(own: str, groups: Mapping[str, str]) -> str:
    members = json.loads(f"{{{own[1:]}}}") if own else {}
    step = json_number(groups.get(STEP_GROUP, ""))
    labels = {name: text for name, text in groups.items() if name != STEP_GROUP} | members.get("labels", {})
    own_step = own.partition(LABELS)[0]
    return (own_step or (f"{STEP}{step}" if step else "")) + (
        f"{LABELS}{json.dumps(labels)}" if labels else ""
    )
