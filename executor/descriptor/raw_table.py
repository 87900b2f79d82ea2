"""Access to a raw descriptor, in which any key may be missing or of a wrong type, and the form in which checks speak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from executor.descriptor.findings import Severity

Where = tuple[str | int, ...]
Raw = Mapping[str, Any]
RawFinding = tuple[Where, str, str, Severity]
"""Where, problem, fix, severity."""
ERROR, WARNING = Severity.ERROR, Severity.WARNING


def at(table: Raw, *keys: str) -> Raw:
    """Return the table at `keys`, or an empty one where there is none."""
    node: Any = table
    for key in keys:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}


def items(table: Raw, *keys: str) -> Iterator[tuple[Where, Raw]]:
    """Yield the tables of the list of tables at `keys`, each with its place."""
    items = at(table, *keys[:-1]).get(keys[-1])
    for index, item in enumerate(items if isinstance(items, list) else []):
        if isinstance(item, Mapping):
            yield (*keys, index), item


def text_of(table: Raw, key: str) -> str:
    value = table.get(key)
    return value if isinstance(value, str) else ""
