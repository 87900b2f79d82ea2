"""Converts the matches of one metric to values. A reader is created once per pattern, so that each match only
takes the steps that its metric needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from enum import Enum
from operator import add
from typing import Protocol

from bai_agent.job.descriptor.metric_tables import Metric, NumberForm
from bai_agent.job.schema.pattern_groups import Groups
from bai_agent.metrics.search.number import (
    begins_within_span,
    clock_seconds,
    fast_number,
    form_end,
    form_number,
    goes_on,
    json_number,
    needs_look,
    rest_end,
    rest_start,
    scaled,
    span_end,
)
from bai_agent.metrics.search.units import (
    SAME,
    Conversion,
    contradicts,
    conversion,
    is_measured,
    is_prefix,
    is_time,
)

LABEL_LIMIT = 256
"""Longest value of a label (characters). Longer values are truncated."""
_CACHED = 4096
_SHOWN = 400
_UNIT = re.compile("( ?)((?:[A-Za-zµμ]+|[%‰])(?:/[A-Za-z]+)?)").match
_PER = re.compile("/[A-Za-z]+").match
_UNIT_REACH = 64
"""Number of characters after a number in which a unit is searched."""
STEP = ',"step":'
LABELS = ',"labels":'

Extra = Callable[[re.Match[str]], str]
"""Function that returns the further members of a match's record, as JSON, each beginning with a comma; "" if
the record has none."""


class Doubt(str, Enum):
    """Reason why a value may not be the intended value."""

    CUT = "cut"
    """The pattern took a number without its exponent; the whole number was recorded."""
    GOES_ON = "goes_on"
    """The number in the log is longer than the text that the pattern took. The taken text was recorded."""
    OTHER_UNIT = "other_unit"
    """A unit other than the metric's follows the value."""


class MatchFindings(Protocol):
    """Receives findings about a pattern that are reported to the user."""

    def not_a_number(self, index: int, text: str) -> None:
        """The metric matched, but its value `text` is not a finite number, or its unit cannot be converted."""

    def doubtful(self, index: int, doubt: Doubt, taken: str, whole: str, line: str) -> None:
        """The metric's pattern took only `taken` of the text `whole`. line: a part of the line with this
        text."""


class Reader:
    """Reads the values of one metric that are not plain JSON numbers, or that are followed by more text."""

    def __init__(self, index: int, metric: Metric, groups: Groups, *, decodes: bool, open_end: bool) -> None:
        self._index = index
        self._form = metric.number
        self._units = metric.units
        self._group, self._unit = groups.value, groups.unit
        self._decodes = decodes
        self._open_end = open_end
        # A unit from another line also applies to "1:30", so with such a unit the text "1:30" is not a
        # number.
        has_own_unit = not metric.context_has_unit
        self._second = conversion("s", metric.units) if has_own_unit and is_time(metric.units) else None
        self._measured = has_own_unit and is_measured(metric.units)
        self._doubts: dict[tuple[str, bool], Doubt | None] = {}

    @property
    def fast_number(self) -> str | None:
        """Expression of a number that can be recorded unchanged. None if each value must be parsed by
        `read`."""
        if self._unit:
            return None
        return fast_number(
            self._spelled, open_end=self._open_end, with_units=self._measured, decodes=self._decodes
        )

    @property
    def needs_look(self) -> str:
        """Expression that, directly after a JSON number, prevents a match of `fast_number`."""
        return needs_look(self._spelled, open_end=self._open_end, with_units=self._measured)

    @property
    def _spelled(self) -> str:
        return self._units if self._decodes else self._units.encode().decode("latin-1")

    def read(self, text: str, match: re.Match[str], findings: MatchFindings) -> tuple[str | None, int]:
        """Return the value of a match as JSON (None if the match has no value), and the value's end in
        `text`."""
        start, end = match.span(self._group)
        if start < 0:
            findings.not_a_number(self._index, "")
            return None, end
        unit = self._unit_of(text, match) if self._unit else ""
        if unit and self._second is not None:
            return self._read_time(text, match, unit, findings)
        return self._read(text, start, end, unit, findings)

    def _read_time(
        self, text: str, match: re.Match[str], unit: str, findings: MatchFindings
    ) -> tuple[str | None, int]:
        """Read a time with its unit, or a duration of several parts."""
        start, end = match.span(self._group)
        behind = match.end(self._unit)
        if behind >= end:
            reach = span_end(text, start, end)
            if reach >= behind and (seconds := clock_seconds(text[start:reach])) is not None:
                return scaled(seconds, self._second or SAME), reach
            if text[behind : behind + 1].isdigit():
                self._tell(findings, Doubt.GOES_ON, text, start, behind, rest_end(text, behind))
            elif begins_within_span(text, start):
                whole = rest_start(text, start)
                self._tell(findings, Doubt.GOES_ON, text, start, behind, behind, begin=whole)
        return self._read(text, start, end, unit, findings)

    def _read(
        self, text: str, start: int, end: int, unit: str, findings: MatchFindings
    ) -> tuple[str | None, int]:
        reach = form_end(text, start, end, self._form) if end > start and not unit else end
        value = text[start:reach]
        if reach > end and self._form is NumberForm.PLAIN:
            self._tell(findings, Doubt.CUT, text, start, end, reach)
        factor: Conversion | None = SAME
        if self._unit:
            factor = conversion(unit, self._units) if len(unit) <= _UNIT_REACH else None
        if self._unit and not unit:
            # A counter may print both "15.4k" and "900", so a count without a prefix is converted as a plain
            # count. Other values without a unit are in the metric's units.
            factor = conversion("", self._units) or SAME
        number = self._number(value, factor)
        if number is None:
            between = "" if text.startswith(unit, reach) else " "
            findings.not_a_number(self._index, f"{self._text(value)}{between}{unit}")
        elif not unit:
            doubt = self._doubt(text, start, reach)
            if doubt is not None:
                self._tell(findings, doubt, text, start, reach, rest_end(text, reach))
        return number, reach

    def _unit_of(self, text: str, match: re.Match[str]) -> str:
        unit = self._text(match[self._unit] or "").strip()
        if unit and "/" in self._units and "/" not in unit and (per := _PER(text, match.end(self._unit))):
            unit += per[0]
        return unit

    def _number(self, value: str, factor: Conversion | None) -> str | None:
        if factor is None:
            return None
        number = form_number(value, self._form)
        if number is not None:
            return number if factor is SAME or factor == SAME else scaled(number, factor)
        if self._second is not None and (seconds := clock_seconds(value.strip())) is not None:
            return scaled(seconds, self._second)
        return None

    def _doubt(self, text: str, start: int, end: int) -> Doubt | None:
        if self._open_end and goes_on(text, start, end):
            return Doubt.GOES_ON
        if self._unit or not (self._open_end or self._measured):
            return None
        found = _UNIT(self._shown(text[end : end + _UNIT_REACH]))
        if found is None:
            return None
        key = found[2], bool(found[1])
        if key not in self._doubts:
            if len(self._doubts) >= _CACHED:
                self._doubts.clear()
            self._doubts[key] = self._doubt_of_unit(*key)
        return self._doubts[key]

    def _doubt_of_unit(self, unit: str, apart: bool) -> Doubt | None:
        if is_prefix(unit) and not (self._second and conversion(unit, self._units)):
            known = conversion(unit, self._units) == SAME or self._units.startswith(unit)
            if apart or known or not self._open_end or self._form_reads_prefixes:
                return None
            return Doubt.GOES_ON
        return Doubt.OTHER_UNIT if contradicts(unit, self._units, apart=apart) else None

    @property
    def _form_reads_prefixes(self) -> bool:
        return self._form in (NumberForm.SI, NumberForm.AUTO)

    def _tell(
        self,
        findings: MatchFindings,
        doubt: Doubt,
        text: str,
        start: int,
        end: int,
        reach: int,
        *,
        begin: int | None = None,
    ) -> None:
        findings.doubtful(
            self._index,
            doubt,
            self._shown(text[start:end]),
            self._shown(text[start if begin is None else begin : reach]),
            # The whole line is passed, because redaction could not recognise a part of a secret.
            self._text(text),
        )

    def _shown(self, text: str) -> str:
        """Decode a part of a line whose bytes were decoded as Latin-1 for the search."""
        return self._text(text[:_SHOWN])

    def _text(self, text: str) -> str:
        return text if self._decodes or text.isascii() else text.encode("latin-1").decode("utf-8", "replace")


class Extras:
    """Reads the further members of a metric's records."""

    def __init__(self, groups: Groups, *, decodes: bool) -> None:
        self._step = groups.step
        self._names = [name for name, _ in groups.labels]
        self._numbers = [number for _, number in groups.labels]
        self._decodes = decodes
        self._known: dict[tuple[str | None, ...], str] = {}

    def __bool__(self) -> bool:
        return bool(self._step or self._names)

    def of_match(self, match: re.Match[str]) -> str:
        """Return the step and the labels of one match."""
        step = _step(match[self._step]) if self._step else ""
        if not self._names:
            return step
        return step + self._labels(tuple(match[number] for number in self._numbers))

    def of_columns(self, columns: Sequence[Sequence[str]]) -> list[str] | None:
        """Return the step and the labels of many matches; None if one of these matches may lack a label.
        columns: the texts of each group, from group 1 on."""
        labels = [columns[number - 1] for number in self._numbers]
        if any("" in texts for texts in labels):
            return None
        found = list(map(self._labels, zip(*labels, strict=True)))
        if not self._step:
            return found
        steps = list(map(_step, columns[self._step - 1]))
        return list(map(add, steps, found)) if found else steps

    def _labels(self, values: tuple[str | None, ...]) -> str:
        found = self._known.get(values)
        if found is None:
            found = _label_members(self._names, values, decodes=self._decodes)
            if len(self._known) >= _CACHED:
                self._known.clear()
            if len(found) <= LABEL_LIMIT:
                self._known[values] = found
        return found


def _step(text: str | None) -> str:
    number = json_number(text or "")
    return f"{STEP}{number}" if number else ""


def _label_members(names: list[str], values: tuple[str | None, ...], *, decodes: bool) -> str:
    pairs = zip(names, values, strict=True)
    labels = {name: label_text(value, decodes=decodes) for name, value in pairs if value is not None}
    return f"{LABELS}{json.dumps(labels)}" if labels else ""


def label_text(value: str, *, decodes: bool) -> str:
    """Return the text of a pattern's group as a label's value. decodes: whether the line was searched as
    characters instead of bytes."""
    text = value if decodes or value.isascii() else value.encode("latin-1").decode("utf-8", "replace")
    return text.strip()[:LABEL_LIMIT]
