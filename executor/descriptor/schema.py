"""The JSON Schema of a benchmark descriptor, generated from `model.py`. Editors use the schema to complete and check
TOML files."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from bai_agent.job.descriptor.source_tables import Unpack
from bai_agent.job.schema.declared import DeclaredTable
from bai_agent.job.schema.durations import format_duration
from executor.descriptor.model import Descriptor
from executor.descriptor.values import DescriptorTable, NodeRange

Schema = dict[str, Any]


def json_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a benchmark descriptor for Taplo and Even Better TOML."""
    schema: Schema = _plain(Descriptor.model_json_schema(schema_generator=_Generator))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Benchmark descriptor",
    }


class _Generator(GenerateJsonSchema):
    """Writes defaults in the user's notation, and describes each key with the docstring of its field."""

    def encode_default(self, dft: Any) -> Any:
        if dft is Unpack.NO:
            return False
        if isinstance(dft, NodeRange):
            return dft.most
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)

    def model_schema(self, schema: Any) -> Schema:
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> Schema:
        return _described(super().dataclass_schema(schema), schema["cls"])


def _described(schema: Schema, table: type) -> Schema:
    for name, text in _field_texts(table).items():
        key = name.removesuffix("_")  # a key that is a Python keyword has another name in the class
        if key in schema["properties"]:
            schema["properties"][key]["description"] = text
    return schema


def _field_texts(table: type) -> dict[str, str]:
    """Return the docstrings of the fields of a class and of its base classes. pydantic's own reader of field
    docstrings (use_attribute_docstrings) runs at each import, and takes a third of the import's time.
    """
    found: dict[str, str] = {}
    for each in reversed(table.__mro__):
        if not issubclass(each, (DescriptorTable, DeclaredTable)):
            continue
        for field, below in pairwise(_definitions(inspect.getfile(each))[each.__name__].body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found


@cache
def _definitions(file: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a module by name. `inspect.getsource` parses the whole module again for each class."""
    module = ast.parse(Path(file).read_text(encoding="utf-8"))
    return {each.name: each for each in module.body if isinstance(each, ast.ClassDef)}


@cache
def _known() -> Schema:
    return json_schema()


def schema_at(path: Sequence[str | int]) -> Schema | None:
    """Return the schema at `path`, for example ("output", "metrics", 0, "name"); None if there is no such
    key."""
    node: Schema | None = resolved(_known())
    for step in path:
        if node is None:
            return None
        found = node.get("items") if isinstance(step, int) else _property(node, step)
        node = resolved(found) if isinstance(found, dict) else None
    return node


def tables_with(key: str) -> list[str]:
    """Return the headers of the tables with a key of this name, for example ["[limits]"]."""
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
    """Return the schema of each table with its header, for example ("[[output.metrics]]", …). The table
    at the top of the file has the header ""."""
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
    """Return `node` with its `$ref` resolved. Keys next to the reference take precedence."""
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
    """Return `node` without null, which TOML does not have, and without titles that only repeat key names."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    cleaned = {
        key: {name: _plain(each) for name, each in value.items()}
        if key in ("properties", "$defs")
        else _plain(value)
        for key, value in node.items()
        if not _is_superfluous(key, value)
    }
    if isinstance(description := cleaned.get("description"), str):
        cleaned["description"] = " ".join(description.split())
    return _without_null(cleaned)


def _without_null(schema: Schema) -> Schema:
    """Return the schema of a value that is left out if it is null, because TOML has no null."""
    choices = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if len(choices) != 1:
        return schema
    return {**choices[0], **{key: each for key, each in schema.items() if key != "anyOf"}}


def _is_superfluous(key: str, value: Any) -> bool:
    """Return whether a part of a schema is redundant, such as a title that repeats a key's name, or the
    default of an absent table or list."""
    if key == "default":
        return value in (None, []) or isinstance(value, dict)
    return key == "title" and isinstance(value, str)
