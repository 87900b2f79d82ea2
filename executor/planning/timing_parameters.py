"""The parameters of `bai time`: lists and ranges of values that stand for `{NAME}` in commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from executor.errors import UsageError
from executor.planning.timing import LABEL

_MOST_VALUES = 1000
_SEVERAL = {"-L": 1, "--parameter-list": 1, "-P": 2, "--parameter-scan": 2}
"""Options that take a name and so many words more, as hyperfine's do."""


def joined_words(args: Sequence[str]) -> list[str]:
    """Return a command line in which what such options take is one word each."""
    found: list[str] = []
    left = list(args)
    while left:
        word = left.pop(0)
        found.append(word)
        if word == "--":
            return found + left
        count = _SEVERAL.get(word, 0)
        if count and len(left) > count and "=" not in left[0]:
            name, *values = (left.pop(0) for _ in range(count + 1))
            found.append(f"{name}={','.join(values)}")
    return found


def parameter_lists(given: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each `-L NAME=1,2,4`. Raises UsageError."""
    found: dict[str, list[str]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f'-L "{text}" has no values; write for example -L threads 1,2,4')
        if not LABEL.fullmatch(name):
            raise UsageError(f'-L "{name}" is not a name; write for example -L threads 1,2,4')
        if name in found:
            raise UsageError(f"-L {name} is given twice; write its values in one list")
        found[name] = [value.replace("\\,", ",") for value in re.split(r"(?<!\\),", values)]
        if not all(found[name]):
            raise UsageError(f'-L {name}: "{values}" has an empty value; write for example 1,2,4')
    return found


def parameter_scans(given: Sequence[str], step: str | None) -> dict[str, list[str]]:
    """Return the numbers of each `-P NAME=MIN,MAX[,STEP]`. Raises UsageError."""
    if step is not None and not given:
        raise UsageError("--parameter-step-size is for --parameter-scan, which is not there")
    found = {}
    for text in given:
        name, _, rest = text.partition("=")
        try:
            low, high, by = (Decimal(each) for each in [*rest.split(","), step or "1"][:3])
            if not all(each.is_finite() for each in (low, high, by)) or by <= 0 or low > high:
                raise ValueError
        except (InvalidOperation, ValueError):
            raise UsageError(f'-P "{text}" is no range; write for example -P threads 1 8') from None
        if (high - low) / by > _MOST_VALUES:
            raise UsageError(f"-P {name}: more than {_MOST_VALUES} numbers")
        found[name] = [format(low + i * by, "f") for i in range(int((high - low) / by) + 1)]
    return found
