"""Writes the tables of `docs/benchmark-descriptor.md` from the JSON Schema.

python -m executor.descriptor.reference
"""

from __future__ import annotations

from executor.descriptor.schema import Schema, resolved, tables
from executor.descriptor.toml_text import toml_value


def reference() -> str:
    """Return a Markdown section for each table of a benchmark descriptor."""
    return "\n".join(_section(header, table) for header, table in tables())


def _section(header: str, table: Schema) -> str:
    required = table.get("required", [])
    lines = [f"### {f'`{header}`' if header else 'At the top of the file'}", "", table["description"], ""]
    rows = [
        _row(key, resolved(value), required=key in required)
        for key, value in table["properties"].items()
        if not _is_table(resolved(value))
    ]
    if rows:
        lines += ["| key | type | default | example | meaning |", "|---|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _is_table(schema: Schema) -> bool:
    return "properties" in schema or "properties" in resolved(schema.get("items", {}))


def _row(key: str, schema: Schema, *, required: bool) -> str:
    default = (
        "**required**"
        if required
        else f"`{toml_value(schema['default'])}`"
        if "default" in schema
        else "unset"
    )
    examples = schema.get("examples", [])
    example = f"`{key} = {toml_value(examples[0])}`" if examples else ""
    cells = (f"`{key}`", _type(schema), default, example, schema.get("description", ""))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(schema: Schema) -> str:
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{toml_value(each)}`" for each in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        return " or ".join(_type({"type": each}) for each in kind)
    if kind == "array":
        kind, comma, bounds = _type(schema["items"]).partition(",")
        return f"list of {kind}s{comma}{bounds}"
    return _table_type(schema) if kind == "object" else _plain_type(schema, kind)


def _table_type(schema: Schema) -> str:
    inner = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    return f"table of {_type(inner[0])}s" if isinstance(inner[0], dict) else "table"


def _plain_type(schema: Schema, kind: str) -> str:
    if "ms|d|h|m|s" in schema.get("pattern", ""):
        return "duration"
    names = {"string": "text", "integer": "integer", "boolean": "true or false", "number": "number"}
    return names[kind] + _bounds(schema)


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None:
        return ""
    return f", {low} to {high}" if high is not None else f", at least {low}"


if __name__ == "__main__":
    print(reference())
