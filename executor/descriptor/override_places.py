"""Puts overrides into a file's table, each at its key and with the key's type. A mistake in an override is a
finding that names the option as its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from bai_agent.job.schema.field_types import shown
from bai_agent.job.toml import TomlBoundsError
from executor.descriptor.findings import Finding, Severity
from executor.descriptor.overrides import Override, read_value
from executor.descriptor.raw_table import at
from executor.descriptor.schema import Schema, schema_at
from executor.descriptor.toml_text import ItemName, key_text, overlap, toml_value

_KINDS = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
"""TOML types → their names in a JSON Schema."""

Place = tuple[str | int, ...]
Origins = Mapping[Place, Override]
"""Overrides by the places in a table that they set or create."""


Flags = Mapping[Place, str]
"""Place of a value in a descriptor made for a script → the option that sets the value."""
_FLAGS: Flags = {
    ("hardware", "instance_type"): "--instance-type TYPE",
    ("hardware", "distributed", "num_instances"): "--nodes N",
    ("output", "metrics"): "--metric NAME=REGEX",
    ("output", "preset"): "--preset NAME",
}
"""Options with a key of their own, by the place of the key. In a descriptor made for a script, `--set` sets every
other key."""


OTHER_SCRIPTS = (("ml", "script", "path"), ("ml", "script", "script"))
"""Keys that name a folder or an archive with the scripts."""
REPOSITORY = tuple(("ml", "script", key) for key in ("git", "ref", "folder"))
"""Keys of `[ml.script]` that name a git repository with the scripts."""


class _OverrideError(Exception):
    """An override's value cannot be put into the file's table. The exception's arguments are problem and fix."""


def names_other_scripts(overrides: Sequence[Override]) -> bool:
    """Return whether options name a folder or an archive with the scripts, which replaces a repository."""
    return any(overlap(each.path, place) for each in overrides for place in OTHER_SCRIPTS)


def put_overrides(
    table: dict[str, Any], overrides: Sequence[Override], *, file: str
) -> tuple[Origins, list[Finding]]:
    """Put the values of `overrides` into `table`; return the places of the values, and a finding for each value
    without a valid place. If an option names scripts, remove the keys of the file's repository.
    """
    if names_other_scripts(overrides):
        script = at(table, "ml", "script")
        for *_, key in REPOSITORY:
            if isinstance(script, dict):
                script.pop(key, None)
    origins: dict[Place, Override] = {}
    findings: list[Finding] = []
    done: dict[Place, Override] = {}
    for override in overrides:
        try:
            place = _put(table, override, origins)
            for before, other in done.items():
                if overlap(before, place):
                    twice = other.option == override.option
                    problem = "is given twice" if twice else f"is set by {other.option} as well"
                    raise _OverrideError(problem, "keep one of the two")
            done[place] = override
        except _OverrideError as error:
            problem, fix = error.args
            findings.append(Finding(file=file, problem=problem, fix=fix, option=override.option))
    return origins, findings


def _put(table: dict[str, Any], override: Override, origins: dict[Place, Override]) -> Place:
    """Put a value into `table`, creating missing tables; return the value's place."""
    node: Any = table
    place: Place = ()
    first, *rest = override.path
    at = _step_in(node, first, place)
    while rest and not (isinstance(node, dict) and at not in node):
        node, place = node[at], (*place, at)
        first, *rest = rest
        at = _step_in(node, first, place)
    new = list(takewhile(lambda step: isinstance(step, str), rest))
    depth = len(place) + 1
    place = (*place, at, *map(str, new))
    if len(new) == len(rest):
        value = _value(override, schema_at(place))
    elif schema_at(place) is None:
        value = {}  # below an unknown key, which is reported elsewhere
    else:
        raise _OverrideError(
            f"{key_text(place)} is not in this file, so no item of it can be set",
            f"set the whole list: {key_text(place)}=[…]",
        )
    for name in reversed(new):
        value = {name: value}
    node[at] = value
    origins.update({place[:length]: override for length in range(depth, len(place) + 1)})
    return place


def _step_in(node: Any, step: str | int | ItemName, place: Place) -> str | int:
    """Return the key or position in `node` that a step of a path means. place: the place of `node`."""
    if isinstance(step, str):
        return _key_in(node, step, place)
    if not isinstance(node, list):
        what = "the descriptor" if not place else key_text(place)
        raise _OverrideError(f"{what} is not a list in this file", "leave the brackets out")
    return _position_in(node, step, place) if isinstance(step, int) else _named_in(node, step, place)


def _key_in(node: Any, key: str, place: Place) -> str:
    if isinstance(node, list):
        raise _OverrideError(
            f"{key_text(place)} is a list, but the key names no item",
            f"write {key_text(place)}[0] for the first item" + _named_items(node, place),
        )
    if not isinstance(node, dict):
        problem = f"{key_text(place)} is not a table in this file, so it cannot have the key {key}"
        raise _OverrideError(problem, "correct the key")
    return key


def _position_in(node: list[Any], position: int, place: Place) -> int:
    if position < len(node):
        return position
    fix = f"items are counted from [0] to [{len(node) - 1}]" if node else "write the item into the file"
    problem = f"{key_text(place)} has {_count(node)} in this file"
    raise _OverrideError(problem, fix + _named_items(node, place))


def _named_in(node: list[Any], item: ItemName, place: Place) -> int:
    found = [index for index, each in enumerate(node) if item.name in _names(each)]
    if len(found) == 1:
        return found[0]
    if found:
        which = " or ".join(f"[{index}]" for index in found)
        raise _OverrideError(f"{len(found)} items of {key_text(place)} have this name", f"write {which}")
    raise _OverrideError(
        f"no item of {key_text(place)} in this file is named {shown(item.name)}",
        f"it has {_count(node)}, counted from [0]" + _named_items(node, place),
    )


def _count(node: list[Any]) -> str:
    return f"{len(node)} item{'' if len(node) == 1 else 's'}"


def _names(item: Any) -> list[str]:
    values = [item.get("name"), item.get("id")] if isinstance(item, dict) else []
    return [each for each in values if isinstance(each, str)]


def _named_items(node: list[Any], place: Place) -> str:
    """Return the end of a sentence, which names some items of a list."""
    names = [name for item in node for name in _names(item)[:1]][:5]
    return "".join(f", or {key_text(place)}[{toml_value(name)}]" for name in names)


def _value(override: Override, schema: Schema | None) -> Any:
    """Return the value for a key with this schema: the text itself if the key is a text, otherwise the TOML
    value of the text."""
    if not override.typed:
        return override.value
    text: str = override.value
    wanted = key_types(schema)
    try:
        value = read_value(text)
    except ValueError as error:
        if wanted and wanted <= {"array", "object"} and text.lstrip().startswith(("[", "{")):
            raise _malformed(error) from None
        return text
    return text if _means_text(value, wanted) else value


def _means_text(value: Any, wanted: set[str]) -> bool:
    """Return whether the typed text is kept as a text for a key of these types, although TOML reads it as
    `value`."""
    kind = _KINDS.get(type(value))
    if "string" not in wanted or kind == "string":
        return False
    # An integer can be written in several ways. If the key also accepts a text, the typed text is kept
    # (OMP_NUM_THREADS=010).
    return kind not in wanted or kind == "integer"


def _malformed(error: ValueError) -> _OverrideError:
    # The error's line and column refer to a line that the user has not written.
    reason = str(error).partition(" (at ")[0]
    problem = reason if isinstance(error, TomlBoundsError) else f"is not valid TOML: {reason}"
    return _OverrideError(problem, 'put texts in quotes, for example \'["a", "b"]\'')


def key_types(schema: Schema | None) -> set[str]:
    """Return the types that a schema allows; empty if it allows any type."""
    if schema is None:
        return set()
    if "anyOf" in schema:
        return {kind for each in schema["anyOf"] for kind in key_types(each)}
    if "enum" in schema or "const" in schema:
        return {_KINDS[type(each)] for each in schema.get("enum", [schema.get("const")])}
    named = schema.get("type", [])
    return {named} if isinstance(named, str) else set(named)


def name_option(finding: Finding, origins: Origins) -> Finding:
    """Return `finding` with the option that set the value. If no option set the value, return `finding`
    unchanged."""
    for length in range(len(finding.path), 0, -1):
        override = origins.get(finding.path[:length])
        if override is not None:
            unused = override.must_count and length == len(finding.path)
            severity = Severity.ERROR if unused else finding.severity
            return replace(finding, option=override.option, severity=severity)
    return finding


def name_flag(finding: Finding, flags: Flags) -> Finding:
    """Return a finding with the option that sets the finding's key, for a descriptor made for a script. flags:
    options that have set values.
    """
    if finding.option or not finding.path:
        return finding
    for length in range(len(finding.path), 0, -1):
        if (option := flags.get(finding.path[:length])) is not None:
            return replace(finding, option=option)
    flag = _FLAGS.get(finding.path, f"--set {finding.key}=VALUE")
    return replace(finding, fix=f"{finding.fix}; on the command line: {flag}")


def expected_origins(overrides: Sequence[Override]) -> Origins:
    """Return the overrides by their places, without the overrides whose places depend on the file."""
    return {
        tuple(step for step in each.path if not isinstance(step, ItemName)): each
        for each in overrides
        if not any(isinstance(step, ItemName) for step in each.path)
    }
