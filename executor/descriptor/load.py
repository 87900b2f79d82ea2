"""Reads a file as a descriptor, or finds all mistakes in it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from executor.descriptor.checks.table_checks import check
from executor.descriptor.explain import explain
from executor.descriptor.findings import Finding, has_errors
from executor.descriptor.model import Descriptor
from executor.descriptor.override_places import Origins, name_option, put_overrides
from executor.descriptor.overrides import Override
from executor.descriptor.toml_file import parse_toml, read_toml
from executor.descriptor.variables import Variables, expand_variables


def load(
    path: Path,
    *,
    content: bytes | None = None,
    script: Path | None = None,
    overrides: Sequence[Override] = (),
    scripts: Path | None = None,
    variables: Variables | None = None,
) -> tuple[Descriptor | None, list[Finding]]:
    """Return the descriptor in the file `path`, and all findings. If any finding is an error, return None and all
    findings.

    content: content of the file, if the caller has already read the file.
    script: value of `--script`, which replaces `[ml.script] path`.
    overrides: values that replace values of the file.
    scripts: folder that is checked instead of `[ml.script] path`.
    variables: environment for `${NAME}`. If None, `${NAME}` is not expanded.
    """
    table, findings = read_toml(path) if content is None else parse_toml(content, file=str(path))
    if table is None:
        return None, findings
    return load_table(
        table,
        file=str(path),
        folder=path.absolute().parent,
        script=script,
        overrides=overrides,
        scripts=scripts,
        variables=variables,
    )


def load_table(
    table: Mapping[str, Any],
    *,
    file: str,
    folder: Path | None,
    script: Path | None = None,
    overrides: Sequence[Override] = (),
    scripts: Path | None = None,
    variables: Variables | None = None,
) -> tuple[Descriptor | None, list[Finding]]:
    """Return the descriptor in `table`, and all findings in the order of the table.

    file: name of the file in findings. Findings about `overrides` name the option instead.
    folder: folder of the descriptor; None if the folder is not on this disk.
    scripts: folder that is checked instead of `[ml.script] path`.
    variables: environment for `${NAME}`. If None, `${NAME}` is not expanded.
    """
    strange = _other_file(table, file=file)
    if strange:
        return None, [strange]
    merged = copy.deepcopy(dict(table))
    origins, misplaced = _put_values(merged, overrides, variables, file=file)
    descriptor, findings = None, []
    try:
        descriptor = Descriptor.model_validate(merged)
    except ValidationError as error:
        findings = explain(error, file=file)
    known = {finding.path for finding in findings}
    looked_at = _with_scripts(merged, scripts)
    findings += [
        each for each in check(looked_at, file=file, folder=folder, script=script) if each.path not in known
    ]
    findings = [
        name_option(replace(finding, item=_item(merged, finding.path)), origins) for finding in findings
    ]
    findings.sort(key=lambda finding: _position(merged, finding.path))
    findings = [*misplaced, *_not_at(misplaced, findings)]
    return (None if has_errors(findings) else descriptor), findings


def _put_values(
    table: dict[str, Any], overrides: Sequence[Override], variables: Variables | None, *, file: str
) -> tuple[Origins, list[Finding]]:
    """Put overrides and values of variables into `table`. Return the overrides by their places, and the mistakes."""
    origins, findings = put_overrides(table, overrides, file=file)
    if variables is None:
        return origins, findings
    expanded, mistakes = expand_variables(table, variables, file=file, skip=origins)
    put_overrides(table, expanded, file=file)
    return origins, [*findings, *mistakes]


def _not_at(reported: Sequence[Finding], findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings about keys that have no finding in `reported`. An unreplaced reference to a variable thus
    causes only one finding about its key."""
    paths = {finding.path for finding in reported if finding.path}
    return [finding for finding in findings if finding.path not in paths]


def _with_scripts(table: dict[str, Any], scripts: Path | None) -> dict[str, Any]:
    """Return the table with `scripts` as `[ml.script] path`. A table without this key is returned unchanged."""
    ml = table.get("ml")
    script = ml.get("script") if isinstance(ml, Mapping) else None
    if scripts is None or not isinstance(script, Mapping) or "path" not in script:
        return table
    return {**table, "ml": {**table["ml"], "script": {**script, "path": str(scripts)}}}


def _other_file(table: Mapping[str, Any], *, file: str) -> Finding | None:
    """Return the finding about a file that is not a benchmark descriptor; None for other files."""
    if not table:
        return Finding(file=file, problem="is empty", fix="`bai init` prints a descriptor to start from")
    if "spec_version" not in table and "version" in table and "job" in table:
        return Finding(
            file=file,
            problem="is a job descriptor, which an agent reads; a benchmark descriptor is expected",
            fix="run the job with `bai-agent run`",
        )
    return None


def _item(table: Mapping[str, Any], path: Sequence[str | int]) -> str:
    """Return the user's name of the list item on `path`; "" if there is none."""
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
    """Return the position of `path` in the file, for sorting. A missing key comes after the other keys of its table."""
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
