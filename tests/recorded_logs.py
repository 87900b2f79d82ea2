"""Outputs of other people's benchmark programs as they were printed, each with a descriptor and what a person reads off it.

`tests/recorded/NAME.log` is the output, byte for byte; `NAME.toml` the descriptor; `NAME.json` the values in the order in
which they stand, read off by eye. `docs/patterns.md` is made of them: `.venv/bin/python tests/recorded_logs.py >docs/patterns.md`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent / "recorded"
PAGE = Path(__file__).parents[1] / "docs" / "patterns.md"
_SHOWN = 6
"""Values of a metric that the page shows."""

_HEAD = """\
# Patterns for programs that people run

Each of these was tried on what the program really printed: `tests/recorded/` holds that output, and a test compares what is recorded
with what a person reads off it. Copy the tables into your descriptor, and try them on your own log: `bai metrics-test benchmark.toml run.log`.
What groups named `step`, `unit` and others mean, and what `number` and `repaint` do, is in [extraction.md](extraction.md).
"""


@dataclass(frozen=True)
class RecordedLog:
    """One program's output."""

    name: str

    @property
    def log(self) -> Path:
        return FOLDER / f"{self.name}.log"

    @property
    def descriptor(self) -> Path:
        return FOLDER / f"{self.name}.toml"

    @property
    def values(self) -> dict[str, list[dict[str, Any]]]:
        """By metric, in order: value, and step and labels where there are any."""
        found: dict[str, list[dict[str, Any]]] = json.loads((FOLDER / f"{self.name}.json").read_text())
        return found


def recorded_logs() -> list[RecordedLog]:
    return [RecordedLog(path.stem) for path in sorted(FOLDER.glob("*.log"))]


def page() -> str:
    """Return the text of docs/patterns.md."""
    parts = [_HEAD]
    for each in recorded_logs():
        text = each.descriptor.read_text()
        table = tomllib.loads(text)
        metrics = text[text.index("[[output.metrics]]") :].rstrip()
        parts.append(
            f"## {table['info']['description']}\n\n`{table['ml']['benchmark_code']}`\n\n```toml\n{metrics}\n```\n\n"
            f"| metric | recorded |\n|---|---|\n"
            + "\n".join(
                f"| `{name}` | {_shown(values, _units(table, name))} |"
                for name, values in each.values.items()
            )
            + "\n"
        )
    return "\n".join(parts)


def _units(table: dict[str, Any], name: str) -> str:
    return next(str(each["units"]) for each in table["output"]["metrics"] if each["name"] == name)


def _shown(values: list[dict[str, Any]], units: str) -> str:
    shown = []
    for each in values[:_SHOWN]:
        about = [f"{key}={value}" for key, value in each.get("labels", {}).items()]
        about += [f"step {each['step']}"] if "step" in each else []
        shown.append(f"{each['value']}" + (f" ({', '.join(about)})" if about else ""))
    return ", ".join(shown) + (", …" if len(values) > _SHOWN else "") + f" {units}"


if __name__ == "__main__":
    sys.stdout.write(page())
