"""Values that options put in place of a file's: read from `--set KEY=VALUE`, given by a program, and kept in the job's record.

What is wrong with one whatever the file holds is a UsageError; `override_places.py` finds what is wrong with it in a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import Any

from bai_agent.aws.secrets import KINDS
from bai_agent.job.source_schemes import grants_access
from bai_agent.job.toml import read_toml_text
from executor.descriptor.key_path import KeyPath, read_key_path
from executor.descriptor.secret_values import looks_secret
from executor.descriptor.toml_text import key_text, toml_value
from executor.descriptor.values import shown
from executor.errors import UsageError

_EXAMPLE = "write for example --set limits.max_runtime=2h"
REDACTED = "***"
"""What stands in a record for a value that looks like a secret."""


@dataclass(frozen=True, kw_only=True)
class Override:
    """A value for one key, in place of what the file says."""

    option: str
    """Where it was given: "--set ml.args"."""
    key: str
    """The key as it was written."""
    path: KeyPath
    value: Any
    """As TOML has it; where it was `typed`, the text."""
    typed: bool = True
    """Whether `value` is what somebody typed, to be read as the type that the key wants."""
    must_count: bool = False
    """Whether it is an error, and not only a warning, that the value is not used."""


def read_overrides(texts: Iterable[str]) -> tuple[Override, ...]:
    """Return what `--set KEY=VALUE` sets, each of `texts` one of them. Raises UsageError."""
    return tuple(map(_read_override, texts))


def _read_override(text: str) -> Override:
    written_key, equals, _ = text.partition("=")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"--set {written_key!a}: it is not UTF-8, and a job descriptor holds text only"
        ) from None
    if not equals:
        raise UsageError(f"--set {shown(text)}: there is no = in it; {_EXAMPLE}")
    path, rest = _key_path(text, where=f"--set {shown(written_key)}")
    if not rest:
        raise UsageError(f"--set {shown(text)}: there is no = behind the key; {_EXAMPLE}")
    key = text[: len(text) - len(rest)].strip()
    return Override(option=f"--set {key}", key=key, path=path, value=rest[1:])


def key_override(option: str, path: tuple[str, ...], value: Any) -> Override:
    """Return what an option sets that stands for the key at `path`; whoever gives it wants it to count."""
    return Override(option=option, key=key_text(path), path=path, value=value, typed=False, must_count=True)


def overrides_of_program(values: Mapping[str, Any]) -> tuple[Override, ...]:
    """Return what a program sets: keys as in `--set`, values as Python has them. Raises UsageError."""
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise UsageError('set: write a dict of keys and values, for example {"limits.max_runtime": "2h"}')
    found = []
    for key, value in values.items():
        option = f"set[{toml_value(key)}]"
        path, rest = _key_path(key, where=option)
        if rest:
            raise UsageError(f"{option}: only the key belongs there; remove {shown(rest)}")
        found.append(
            Override(option=option, key=key.strip(), path=path, value=_plain(value, option), typed=False)
        )
    return tuple(found)


def _key_path(text: str, *, where: str) -> tuple[KeyPath, str]:
    try:
        return read_key_path(text)
    except ValueError as error:
        raise UsageError(f"{where}: this is not a dotted key: {error}; {_EXAMPLE}") from None


def _plain(value: Any, option: str) -> Any:
    """Return `value` as TOML has it; a path as its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each, option) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, option) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UsageError(f"{option}: an integer must fit into 64 bits")
    if not isinstance(value, (str, int, float, date, time)):
        raise UsageError(
            f"{option}: {type(value).__name__} is not a type of TOML; give a text, a number, a bool, a list or a dict"
        )
    return value


def check_overlaps(overrides: Sequence[Override]) -> None:
    """Raise UsageError where two of `overrides` set the same key, or one a part of what another one sets."""
    for index, override in enumerate(overrides):
        for other in overrides[:index]:
            if override.path == other.path and override.option == other.option:
                raise UsageError(f"{override.option} is given twice; keep one of them")
            if overlap(override.path, other.path):
                both = f"{other.option} and {override.option}"
                raise UsageError(
                    f"{both} set the same key, {_shorter(other, override).key}; keep one of the two"
                )


def overlap(one: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether one of two ways to a key leads to the other key, or past it."""
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def _shorter(one: Override, other: Override) -> Override:
    return min(one, other, key=lambda each: len(each.path))


def read_value(text: str) -> Any:
    """Return the one value of TOML that `text` is. Raises ValueError."""
    alone = read_toml_text(f"value = {text}")
    # A comment would hide what follows it, and another key would be set beside this one.
    inline = read_toml_text(f"table = {{ value = {text} }}")
    if list(alone) != ["value"] or list(inline) != ["table"] or list(inline["table"]) != ["value"]:
        raise ValueError("is more than one value")
    return alone["value"]


def recorded(overrides: Sequence[Override]) -> dict[str, str]:
    """Return keys and values as a job's record keeps them: what looks like a secret is left out of it."""
    return {each.key: _recorded(each) for each in overrides}


def _recorded(override: Override) -> str:
    value = override.value
    parsed = value
    if override.typed:
        try:
            parsed = read_value(value)
        except ValueError:
            parsed = value
        if not isinstance(parsed, (dict, list)):
            parsed = value
    names = [step for step in override.path if isinstance(step, str)]
    if _holds_secret(names[-1], parsed):
        return REDACTED
    return value if isinstance(value, str) else toml_value(value)


def _holds_secret(name: str, value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_secret(key, each) for key, each in value.items())
    if isinstance(value, list):
        return any(_holds_secret(name, each) for each in value)
    if not isinstance(value, str) or re.match(rf"({'|'.join(KINDS)}):", value):
        return False
    return looks_secret(name, value) is not None or grants_access(value)
