"""Access to a raw descriptor, whose keys may be missing or have wrong types. The module also defines the findings
that checks report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from executor.descriptor.findings import Severity

Where = tuple[str | int, ...]
Raw = Mapping[str, Any]
RawFinding = tuple[Where, str, str, Severity]
"""Place, problem, fix and severity of a finding."""


def error(where: Where, problem: str, fix: str) -> RawFinding:
    """Return a finding that makes the descriptor invalid."""
    return where, problem, fix, Severity.ERROR


def warning(where: Where, problem: str, fix: str) -> RawFinding:
    """Return a finding that does not prevent a run."""
    return where, problem, fix, Severity.WARNING


def at(table: Raw, *keys: str) -> Raw:
    """Return the table at `keys`, or an empty table if `keys` lead to no table."""
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


def text_at(table: Raw, key: str) -> str:
    """Return the text at `key`; "" if the value is not a text or is missing."""
    value = table.get(key)
    return value if isinstance(value, str) else ""


def written_engine(table: Raw) -> str:
    """Return `info.execution_engine`, or its default."""
    return text_at(at(table, "info"), "execution_engine") or "default"


def written_strategy(table: Raw) -> str:
    """Return `hardware.strategy`, or its default."""
    return text_at(at(table, "hardware"), "strategy") or "single_node"
