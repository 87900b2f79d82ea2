"""Outputs of other people's benchmark programs as they were printed, each with what a person reads off it.

`tests/recorded/NAME.log` is the output, byte for byte, and `NAME.json` the values in the order in which they stand, read off by eye;
what takes them is the preset NAME. `NAME-2.log` and so on are other forms: of another version, in another unit, of several jobs. The key "left out"
of a JSON file has the metrics whose values cannot be read rightly, of which a run warns. `docs/patterns.md` is made of them: `.venv/bin/python tests/records/recorded_logs.py >docs/patterns.md`.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.descriptor.presets import Preset, read_preset

FOLDER = Path(__file__).parents[1] / "recorded"
PAGE = Path(__file__).parents[2] / "docs" / "patterns.md"
_SHOWN = 6
"""Values of a metric that the page shows."""

_HEAD = """\
# Patterns for programs that people run

`bai` includes patterns for the metrics of these programs. A preset adds these patterns to your file:

```toml
[output]
preset = "fio"                  # or several: ["iperf3", "stress-ng"]
```

- `bai presets` lists the presets, and `bai presets fio` prints one to copy from. `bai validate` and `bai plan` show the metrics of a preset; the job's record has their
  full definitions.
- A metric of your own with the same name replaces that of the preset completely. To read `bandwidth` differently, or to give it a `tolerance`, copy its table and
  change it. Two presets with a metric of the same name are refused, unless your file has a metric of that name.
- `[output] warmup` also applies to metrics of presets.

Each preset was tried on real output of its program, in at least two forms, such as several jobs in one output or another unit. `tests/recorded/` holds that
output, and a test compares the recorded values with values that a person read from it. If a preset matches nothing in a successful run, the result has a
warning. Try presets on your own log with `bai metrics-test benchmark.toml run.log`. [extraction.md](extraction.md) explains groups named `step`, `unit` and others,
and the keys `number` and `repaint`.
"""


@dataclass(frozen=True)
class RecordedLog:
    """One program's output."""

    name: str

    @property
    def log(self) -> Path:
        return FOLDER / f"{self.name}.log"

    @property
    def preset(self) -> Preset:
        return read_preset(re.sub(r"-\d+$", "", self.name))

    @property
    def values(self) -> dict[str, list[dict[str, Any]]]:
        """By metric, in order: value, and step and labels where there are any."""
        return {name: values for name, values in self._content.items() if name != "left out"}

    @property
    def left_out(self) -> list[str]:
        """The metrics of which a run warns: their values cannot be read rightly."""
        names: list[str] = self._content.get("left out", [])
        return names

    @property
    def _content(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((FOLDER / f"{self.name}.json").read_text())
        return found


def recorded_logs() -> list[RecordedLog]:
    return [RecordedLog(path.stem) for path in sorted(FOLDER.glob("*.log"))]


def page() -> str:
    """Return the text of docs/patterns.md."""
    parts = [_HEAD]
    for each in recorded_logs():
        preset = each.preset
        if each.name != preset.name:
            continue
        others = ", ".join(f"`{command}`" for command in preset.also)
        note = f"\n\n{preset.note}" if preset.note else ""
        parts.append(
            f'## {preset.title}\n\n`preset = "{preset.name}"`, tried on `{preset.recorded}`, and on {others}{note}\n\n'
            f"```toml\n{preset.text.rstrip()}\n```\n\n"
            f"| metric | recorded |\n|---|---|\n"
            + "\n".join(
                f"| `{name}` | {_shown(values, _units(preset, name))} |"
                for name, values in each.values.items()
            )
            + "\n"
        )
    return "\n".join(parts)


def _units(preset: Preset, name: str) -> str:
    return next(each.units for each in preset.metrics if each.name == name)


def _shown(values: list[dict[str, Any]], units: str) -> str:
    shown = []
    for each in values[:_SHOWN]:
        about = [f"{key}={value}" for key, value in each.get("labels", {}).items()]
        about += [f"step {each['step']}"] if "step" in each else []
        shown.append(f"{each['value']}" + (f" ({', '.join(about)})" if about else ""))
    return ", ".join(shown) + (", …" if len(values) > _SHOWN else "") + f" {units}"


if __name__ == "__main__":
    sys.stdout.write(page())
