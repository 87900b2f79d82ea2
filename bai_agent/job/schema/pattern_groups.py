"""Finds the purpose of each group of a metric's pattern. A group matches the value, the step, the unit, or a label of
the record."""

from __future__ import annotations

import re
from collections.abc import Collection

from bai_agent.light_dataclass import dataclass

VALUE, STEP, UNIT = "value", "step", "unit"
RESERVED = frozenset(
    {
        *("rank", "run", "attempt", "process_rank", "repeat"),
        *("action_id", "client_id", "parent_action_id"),
    }
)
"""Names of labels that records get automatically. Labels of the benchmark service, such as `action-id`, are listed
with `_`, because the name of a group cannot contain `-`."""
_SIMILAR = 0.8
_SHORT_FORMS = {"val": VALUE, "v": VALUE, "values": VALUE, "stp": STEP, "steps": STEP, "units": UNIT}


@dataclass(frozen=True)
class Groups:
    """Numbers of a pattern's groups, by purpose. If `value` is 0, the whole match is the value. If `step` or `unit` is
    0, the pattern has no group for it."""

    value: int
    step: int
    unit: int
    labels: tuple[tuple[str, int], ...]
    """Name and number of each group that becomes a label, in the pattern's order."""


def read_groups(pattern: re.Pattern[str]) -> Groups:
    """Return the groups of `pattern`, by purpose.

    The group of the value is the group `value`, or else the first unnamed group, or else the only named group other
    than `step` and `unit`. If none of these groups exists, the whole match is the value. All other named groups are
    labels.
    """
    names = pattern.groupindex
    others = {name: number for name, number in names.items() if name not in (VALUE, STEP, UNIT)}
    unnamed = set(range(1, pattern.groups + 1)).difference(names.values())
    value = names.get(VALUE, 0)
    if not value:
        if unnamed:
            value = min(unnamed)
        elif len(others) == 1:
            value = others.popitem()[1]
    labels = tuple((name, number) for name, number in others.items() if number != value)
    return Groups(value, names.get(STEP, 0), names.get(UNIT, 0), labels)


def taken_names(groups: Groups, taken: Collection[str] = RESERVED) -> list[str]:
    """Return the names of `groups` that are reserved for labels of records or of the job."""
    return [name for name, _ in groups.labels if name in taken]


def misspelled_names(pattern: re.Pattern[str]) -> dict[str, str]:
    """Return the names of groups that look misspelled, each with the name that was probably meant."""
    import difflib  # not loaded when an agent starts

    meant = {}
    for name in pattern.groupindex:
        if name in (VALUE, STEP, UNIT):
            continue
        folded = name.lower()
        close = difflib.get_close_matches(folded, (VALUE, STEP, UNIT), n=1, cutoff=_SIMILAR)
        if found := _SHORT_FORMS.get(folded) or next(iter(close), None):
            meant[name] = found
    return meant
