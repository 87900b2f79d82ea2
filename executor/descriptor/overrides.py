"""Values that override the values of a file. The values are read from `--set KEY=VALUE` or given by a program, and
saved in the job's record. This module raises UsageError for mistakes that do not depend on the file.
`override_places.py` finds the mistakes that depend on the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time
from typing import Any

from bai_agent.aws.secrets import KINDS
from bai_agent.job.schema.field_types import shown
from bai_agent.job.schema.source_schemes import grants_access
from bai_agent.job.toml import read_toml_text
from bai_agent.light_dataclass import dataclass
from executor.descriptor.checks.secret_values import looks_secret
from executor.descriptor.toml_text import KeyPath, key_text, read_key_path, toml_value
from executor.errors import UsageError

_EXAMPLE = "write for example --set limits.max_runtime=2h"
REDACTED = "***"
"""Text that replaces a value that looks like a secret in a record."""


@dataclass(frozen=True, kw_only=True)
class Override:
    """A value for one key that overrides the file's value."""

    option: str
    """Option that set the value, for example "--set ml.args"."""
    key: str
    """Key as the user wrote it."""
    path: KeyPath
    value: Any
    """Value in TOML's types; the typed text if `typed` is true."""
    typed: bool = True
    """Whether `value` is a text that the user typed, which must be converted to the key's type."""
    must_count: bool = False
    """Whether an unused value is an error instead of a warning."""


def read_overrides(texts: Iterable[str]) -> tuple[Override, ...]:
    """Return the overrides for the texts `KEY=VALUE` of `--set`. Raises UsageError."""
    return tuple(map(_read_override, texts))


def _read_override(text: str) -> Override:
    written_key = text.partition("=")[0]
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"--set {written_key!a}: it is not UTF-8, and a job descriptor holds text only"
        ) from None
    if "=" not in text:
        raise UsageError(f"--set {shown(text)}: there is no = in it; {_EXAMPLE}")
    path, rest = _key_path(text, where=f"--set {shown(written_key)}")
    key = text[: len(text) - len(rest)].strip()
    return Override(option=f"--set {key}", key=key, path=path, value=rest[1:])


def key_override(option: str, path: tuple[str, ...], value: Any) -> Override:
    """Return the override for an option that sets the key at `path`. An unused value is an error."""
    return Override(option=option, key=key_text(path), path=path, value=value, typed=False, must_count=True)


def program_overrides(values: Mapping[str, Any]) -> tuple[Override, ...]:
    """Return the overrides that a program gives, with keys as in `--set` and Python values. Raises
    UsageError."""
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise UsageError('set: write a dict of keys and values, for example {"limits.max_runtime": "2h"}')
    found = []
    for key, value in values.items():
        option = f"set[{toml_value(key)}]"
        path, rest = _key_path(key, where=option)
        if rest:
            raise UsageError(f"{option}: must be a key without a value; remove {shown(rest)}")
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
    """Return a Python value in the types of TOML. A path becomes text."""
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
            f"{option}: {type(value).__name__} is not a type of TOML; use a text, a number, a bool, a list or a dict"
        )
    return value


def read_value(text: str) -> Any:
    """Return the single TOML value in `text`. Raises ValueError."""
    alone = read_toml_text(f"value = {text}")
    # A comment would hide the rest of the text, and a second key would be set, too.
    inline = read_toml_text(f"table = {{ value = {text} }}")
    if list(alone) != ["value"] or list(inline) != ["table"] or list(inline["table"]) != ["value"]:
        raise ValueError("contains more than one value")
    return alone["value"]


def recorded(overrides: Sequence[Override]) -> dict[str, str]:
    """Return keys and values for a job's record, without values that look like secrets."""
    return {each.key: _recorded(each) for each in overrides}


def _recorded(override: Override) -> str:
    value = override.value
    parsed = value
    if override.typed and isinstance(found := parsed_text(value), (dict, list)):
        parsed = found
    names = [step for step in override.path if isinstance(step, str)]
    if _holds_secret(names[-1], parsed):
        return REDACTED
    if not isinstance(value, str):
        return toml_value(value)
    # The text is quoted again, because `--set` would remove its quotes.
    return toml_value(value) if not override.typed and isinstance(parsed_text(value), str) else value


def parsed_text(text: str) -> Any:
    """Return the TOML value in `text`; None if there is none."""
    try:
        return read_value(text)
    except ValueError:
        return None


def _holds_secret(name: str, value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_secret(key, each) for key, each in value.items())
    if isinstance(value, list):
        return any(_holds_secret(name, each) for each in value)
    if not isinstance(value, str) or re.match(rf"({'|'.join(KINDS)}):", value):
        return False
    return looks_secret(name, value) is not None or grants_access(value)
