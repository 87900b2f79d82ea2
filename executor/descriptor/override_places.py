"""Puts overrides into a file's table: each where its key is, as the type that the key wants.

What is wrong with one in this file is a finding, whose place is the option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from bai_agent.job.toml import TomlBoundsError
from executor.descriptor.findings import Finding, Severity
from executor.descriptor.key_path import ItemName
from executor.descriptor.overrides import Override, overlap, read_value
from executor.descriptor.schema import Schema, schema_at
from executor.descriptor.toml_text import key_text, toml_value
from executor.descriptor.values import shown

_KINDS = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
"""Types of TOML, as a JSON Schema calls them."""

Place = tuple[str | int, ...]
Origins = Mapping[Place, Override]
"""The places in a table that options have set, or made to set what is below them."""


class _OverrideError(Exception):
    """A value cannot be put into this file: problem and fix."""


def put_overrides(
    table: dict[str, Any], overrides: Sequence[Override], *, file: str
) -> tuple[Origins, list[Finding]]:
    """Put the values of `overrides` into `table`; return where they are now, and what could not be put there."""
    origins: dict[Place, Override] = {}
    findings: list[Finding] = []
    done: dict[Place, Override] = {}
    for override in overrides:
        try:
            place = _put(table, override, origins)
            for before, other in done.items():
                if overlap(before, place):
                    raise _OverrideError(f"is set by {other.option} as well", "keep one of the two")
            done[place] = override
        except _OverrideError as error:
            problem, fix = error.args
            findings.append(Finding(file=file, problem=problem, fix=fix, option=override.option))
    return origins, findings


def _put(table: dict[str, Any], override: Override, origins: dict[Place, Override]) -> Place:
    """Put a value into `table`, in new tables where those on the way are missing; return where it is."""
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
        value = {}  # below a key that nobody knows, which is what there is to say
    else:
        raise _OverrideError(
            f"{key_text(place)} is not in this file, so that it has no items",
            f"set the whole list: {key_text(place)}=[…]",
        )
    for name in reversed(new):
        value = {name: value}
    node[at] = value
    origins.update({place[:length]: override for length in range(depth, len(place) + 1)})
    return place


def _step_in(node: Any, step: str | int | ItemName, place: Place) -> str | int:
    """Return which key or position of `node`, which is at `place`, a step means."""
    if isinstance(step, str):
        if isinstance(node, list):
            raise _OverrideError(
                f"{key_text(place)} is a list, and no item of it is named",
                f"write {key_text(place)}[0] for the first one" + _named_items(node, place),
            )
        if not isinstance(node, dict):
            raise _OverrideError(
                f"{key_text(place)} is not a table in this file, and has no key {step}", "correct the key"
            )
        return step
    if not isinstance(node, list):
        what = "the descriptor" if not place else key_text(place)
        raise _OverrideError(f"{what} is not a list in this file", "leave the brackets out")
    count = f"{len(node)} item{'' if len(node) == 1 else 's'}"
    if isinstance(step, int):
        if step < len(node):
            return step
        fix = f"items are counted from [0] to [{len(node) - 1}]" if node else "write the item into the file"
        raise _OverrideError(f"{key_text(place)} has {count} in this file", fix + _named_items(node, place))
    found = [index for index, item in enumerate(node) if step.name in _names(item)]
    if len(found) == 1:
        return found[0]
    if found:
        which = " or ".join(f"[{index}]" for index in found)
        raise _OverrideError(f"{len(found)} items of {key_text(place)} are named so", f"write {which}")
    raise _OverrideError(
        f"no item of {key_text(place)} in this file is named {shown(step.name)}",
        f"it has {count}, counted from [0]" + _named_items(node, place),
    )


def _names(item: Any) -> list[str]:
    values = [item.get("name"), item.get("id")] if isinstance(item, dict) else []
    return [each for each in values if isinstance(each, str)]


def _named_items(node: list[Any], place: Place) -> str:
    """Return the rest of a sentence that names some items of a list."""
    names = [name for item in node for name in _names(item)[:1]][:5]
    return "".join(f", or {key_text(place)}[{toml_value(name)}]" for name in names)


def _value(override: Override, schema: Schema | None) -> Any:
    """Return what the key of this schema gets: a value of TOML where the key wants one, else the text as it stands."""
    if not override.typed:
        return override.value
    text: str = override.value
    wanted = _types(schema) if schema is not None else set()
    try:
        value = read_value(text)
    except ValueError as error:
        if wanted and wanted <= {"array", "object"} and text.lstrip().startswith(("[", "{")):
            # A line and column in it would be those of a line that nobody has written.
            reason = str(error).partition(" (at ")[0]
            problem = reason if isinstance(error, TomlBoundsError) else f"is not valid TOML: {reason}"
            raise _OverrideError(problem, 'texts in it need quotes, for example \'["a", "b"]\'') from None
        return text
    kind = _KINDS.get(type(value))
    # An integer has several texts, and where a text is possible what was typed is meant: OMP_NUM_THREADS=010.
    if not wanted or "string" not in wanted or kind == "string" or (kind in wanted and kind != "integer"):
        return value
    return text


def _types(schema: Schema) -> set[str]:
    """Return the types that a schema allows; none where it allows any."""
    if "anyOf" in schema:
        return {kind for each in schema["anyOf"] for kind in _types(each)}
    if "enum" in schema or "const" in schema:
        return {_KINDS[type(each)] for each in schema.get("enum", [schema.get("const")])}
    named = schema.get("type", [])
    return {named} if isinstance(named, str) else set(named)


def name_option(finding: Finding, origins: Origins) -> Finding:
    """Return `finding` with the option that its value came from, if it did."""
    for length in range(len(finding.path), 0, -1):
        override = origins.get(finding.path[:length])
        if override is not None:
            unused = override.must_count and length == len(finding.path)
            severity = Severity.ERROR if unused else finding.severity
            return replace(finding, option=override.option, severity=severity)
    return finding


def origins_of(overrides: Sequence[Override]) -> Origins:
    """Return where `overrides` set values, as far as that can be known without the file."""
    return {
        tuple(step for step in each.path if not isinstance(step, ItemName)): each
        for each in overrides
        if not any(isinstance(step, ItemName) for step in each.path)
    }
