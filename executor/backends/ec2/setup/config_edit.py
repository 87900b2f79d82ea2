"""Changes keys of a user's configuration file. All other content stays unchanged, including comments and
order."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bai_agent.job.run_directory import write_atomic
from bai_agent.job.toml import read_toml_text
from bai_agent.light_dataclass import dataclass
from executor.descriptor.toml_text import toml_value
from executor.errors import UsageError

_TABLE = re.compile(r"\s*\[")


@dataclass(frozen=True)
class ConfigEdit:
    """A configuration file before and after a change."""

    path: Path
    before: str
    after: str

    @property
    def diff(self) -> list[str]:
        """Return the changed lines with their context as a diff; empty if nothing changed."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), str(self.path), str(self.path), lineterm=""
        )
        return list(lines)

    def write(self) -> None:
        """Replace or create the file. Raises UsageError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # If the file is a symbolic link, as in a collection of configuration files, the link stays and
            # its target is replaced.
            write_atomic(self.path.resolve(), self.after.encode())
        except OSError as error:
            raise UsageError(
                f"the configuration file {self.path} cannot be written: {error.strerror or error}"
            ) from error


def edit_config(path: Path, values: Mapping[str, Any]) -> ConfigEdit:
    """Return the configuration file with its top-level keys set to `values`. A value of None removes the key.
    Raises UsageError.

    If the file cannot be changed line by line, UsageError is raised and the file stays unchanged.
    """
    before, wanted = _read(path)
    after = before
    for key, value in values.items():
        if wanted.get(key) == value:
            continue
        after = _with_key(after, key, value)
        wanted.pop(key, None)
        if value is not None:
            wanted[key] = value
    try:
        done = read_toml_text(after) == wanted
    except ValueError:
        done = False
    if not done:
        lines = "; ".join(
            f"{key} = {toml_value(value)}" if value is not None else f"no {key}"
            for key, value in values.items()
        )
        raise UsageError(f"bai cannot edit the configuration file {path}; change the file by hand: {lines}")
    return ConfigEdit(path, before, after)


def configured(path: Path) -> dict[str, Any]:
    """Return the values that the configuration file itself sets, without other sources; empty if there is no
    file. Raises UsageError."""
    return _read(path)[1]


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text("utf-8") if path.exists() else ""
        return text, read_toml_text(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"the configuration file {path} cannot be read: {error}") from error


def _with_key(text: str, key: str, value: Any) -> str:
    lines = text.splitlines(keepends=True)
    first_table = next((at for at, line in enumerate(lines) if _TABLE.match(line)), len(lines))
    new = [f"{key} = {toml_value(value)}\n"] if value is not None else []
    assignment = re.compile(rf'\s*"?{re.escape(key)}"?\s*=')
    for at, line in enumerate(lines[:first_table]):
        if assignment.match(line):
            return "".join([*lines[:at], *new, *lines[at + 1 :]])
    if new and first_table == len(lines) and lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    while new and first_table > 0 and not lines[first_table - 1].strip():
        first_table -= 1
    return "".join([*lines[:first_table], *new, *lines[first_table:]])
