"""The JSON Schema of a benchmark descriptor, made of the model. Editors complete and check TOML files with it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from bai_agent.job.durations import format_duration
from executor.descriptor.model import Descriptor
from executor.descriptor.values import Table

Schema = dict[str, Any]


def json_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a benchmark descriptor, as Taplo and Even Better TOML read it."""
    schema: Schema = _plain(Descriptor.model_json_schema(schema_generator=_Generator))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Benchmark descriptor",
    }


class _Generator(GenerateJsonSchema):
    """Writes defaults the way a user would write them, and describes each key by the text below its field."""

    def encode_default(self, dft: Any) -> Any:
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)

    def model_schema(self, schema: Any) -> Schema:
        found: Schema = super().model_schema(schema)
        table: type[Table] = schema["cls"]
        for name, text in _field_texts(table).items():
            found["properties"][table.model_fields[name].alias or name]["description"] = text
        return found


def _field_texts(table: type[Table]) -> dict[str, str]:
    """Return the texts below the fields of a class and of those that it is derived from.

    pydantic can read them too (use_attribute_docstrings), but does so whenever the class is imported: a third of the time of that.
    """
    found: dict[str, str] = {}
    for each in reversed(table.__mro__):
        if not issubclass(each, Table):
            continue
        (definition,) = ast.parse(inspect.getsource(each)).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in pairwise(definition.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found


@cache
def _known() -> Schema:
    return json_schema()


def schema_at(path: Sequence[str | int]) -> Schema | None:
    """Return what the schema says at `path` ("output", "metrics", 0, "name"), or None where no such key exists."""
    node: Schema | None = resolved(_known())
    for step in path:
        if node is None:
            return None
        found = node.get("items") if isinstance(step, int) else _property(node, step)
        node = resolved(found) if isinstance(found, dict) else None
    return node


def tables_with(key: str) -> list[str]:
    """Return the headers of the tables that have a key of this name: ["[limits]"]."""
    return [header for header, table in tables() if key in table["properties"]]


def settable_keys() -> list[str]:
    """Return the dotted keys of all tables that are not items of a list."""
    return [
        f"{header.strip('[]')}.{key}" if header else key
        for header, table in tables()
        if not header.startswith("[[")
        for key, value in table["properties"].items()
        if "properties" not in resolved(value)
    ]


def tables() -> list[tuple[str, Schema]]:
    """Return every table with its header, the way it is written: ("[[output.metrics]]", its schema). The root is ("", …)."""
    found: list[tuple[str, Schema]] = []

    def walk(node: Schema, path: tuple[str, ...], *, many: bool) -> None:
        name = ".".join(path)
        found.append((f"[[{name}]]" if many else f"[{name}]" if name else "", node))
        for key, value in node["properties"].items():
            inner = resolved(value)
            items = resolved(inner.get("items", {}))
            if "properties" in inner:
                walk(inner, (*path, key), many=False)
            elif "properties" in items:
                walk(items, (*path, key), many=True)

    walk(resolved(_known()), (), many=False)
    return found


def resolved(node: Schema) -> Schema:
    """Return `node` with its `$ref` followed; what stands beside the reference wins."""
    if "$ref" not in node:
        return node
    target: Schema = _known()["$defs"][node["$ref"].rpartition("/")[2]]
    return {**target, **{key: value for key, value in node.items() if key != "$ref"}}


def _property(node: Schema, name: str) -> Any:
    found = node.get("properties", {}).get(name)
    if found is None:
        found = next(iter(node.get("patternProperties", {}).values()), node.get("additionalProperties"))
    return found


def _plain(node: Any) -> Any:
    """Return `node` without what only Python has: no null (TOML has none), no titles made of key names."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    cleaned = {
        key: {name: _plain(each) for name, each in value.items()}
        if key in ("properties", "$defs")
        else _plain(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
        and not (key == "default" and (value is None or isinstance(value, dict)))
    }
    description = cleaned.get("description")
    if isinstance(description, str):
        cleaned["description"] = " ".join(description.split())
    choices = [each for each in cleaned.get("anyOf", []) if each != {"type": "null"}]
    if len(choices) == 1:
        del cleaned["anyOf"]
        cleaned = {**choices[0], **cleaned}
    return cleaned
