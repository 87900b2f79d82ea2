"""From a file to a descriptor, or to every mistake that is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from executor.descriptor.checks import check
from executor.descriptor.explain import explain
from executor.descriptor.findings import Finding, has_errors
from executor.descriptor.model import Descriptor
from executor.descriptor.toml_file import read_toml


def load(path: Path, *, script: Path | None = None) -> tuple[Descriptor | None, list[Finding]]:
    """Return the descriptor in the file `path`, and all findings: warnings only where there is a descriptor.

    `script` is what `--script` brings along in place of `[ml.script] path`.
    """
    table, findings = read_toml(path)
    if table is None:
        return None, findings
    return load_table(table, file=str(path), folder=path.absolute().parent, script=script)


def load_table(
    table: Mapping[str, Any], *, file: str, folder: Path | None, script: Path | None = None
) -> tuple[Descriptor | None, list[Finding]]:
    """Return the descriptor that `table` holds, and all findings, in the order of the table.

    `file` starts every finding. `folder` is where the descriptor lies; None where it did not come from this disk.
    """
    strange = _something_else(table, file=file)
    if strange:
        return None, [strange]
    descriptor, findings = None, []
    try:
        descriptor = Descriptor.model_validate(dict(table))
    except ValidationError as error:
        findings = explain(error, file=file)
    told = {finding.path for finding in findings}
    findings += [
        each for each in check(table, file=file, folder=folder, script=script) if each.path not in told
    ]
    findings = [replace(finding, item=_item(table, finding.path)) for finding in findings]
    findings.sort(key=lambda finding: _position(table, finding.path))
    return (None if has_errors(findings) else descriptor), findings


def _something_else(table: Mapping[str, Any], *, file: str) -> Finding | None:
    """Return the one finding about a file that is no benchmark descriptor at all."""
    if not table:
        return Finding(file=file, problem="is empty", fix="`bai init` prints a descriptor to start from")
    if "spec_version" not in table and "version" in table and "job" in table:
        return Finding(
            file=file,
            problem="is a job descriptor, which an agent reads; a benchmark descriptor is expected",
            fix="run it with `bai-agent run`",
        )
    return None


def _item(table: Mapping[str, Any], path: Sequence[str | int]) -> str:
    """Return what the user calls the item of a list that `path` goes through."""
    node: Any = table
    for step in path:
        if isinstance(node, Mapping):
            node = node.get(step)
        elif (
            isinstance(node, list)
            and isinstance(step, int)
            and step < len(node)
            and isinstance(node[step], Mapping)
        ):
            name = node[step].get("name", node[step].get("src"))
            return name if isinstance(name, str) else ""
        else:
            break
    return ""


def _position(table: Mapping[str, Any], path: Sequence[str | int]) -> tuple[int, ...]:
    """Return where `path` stands in the file, for sorting; what is missing comes at the end of its table."""
    found: list[int] = []
    node: Any = table
    for step in path:
        if isinstance(node, Mapping):
            keys = list(node)
            found.append(keys.index(step) if step in node else len(keys))
            node = node.get(step)
        elif isinstance(node, list) and isinstance(step, int):
            found.append(step)
            node = node[step] if step < len(node) else None
        else:
            break
    return tuple(found)
