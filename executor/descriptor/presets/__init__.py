"""Metrics of programs that people run, which `[output] preset` names: a file each in this folder.

They become metrics of the job when it is planned; an agent knows them by their revision alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bai_agent.job.toml import read_toml_text
from executor.descriptor.service_tables import MetricTable

_FOLDER = Path(__file__).parent


class PresetMetric(MetricTable):
    """One number that a preset takes."""

    preset: str
    """The preset's name."""
    revision: int = 1
    """Raised if the metric's numbers change: values of different revisions cannot be compared."""

    @property
    def full_revision(self) -> str:
        """The preset and the revision, as a job descriptor has them."""
        return f"{self.preset}/{self.revision}"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The metrics of one program."""

    name: str
    title: str
    """What people call the program."""
    recorded: str
    """The command whose output the metrics were tried on."""
    also: tuple[str, ...]
    """Commands, or what they are about, of other forms of its output on which they were tried."""
    note: str
    """More about that output; "" for nothing."""
    metrics: tuple[PresetMetric, ...]
    text: str
    """The metrics as they would stand in a benchmark descriptor."""


@dataclass(frozen=True, kw_only=True)
class PresetUse:
    """What one preset gives to a descriptor."""

    name: str
    metrics: tuple[str, ...]
    """The names of its metrics."""
    replaced: tuple[str, ...]
    """Those that the descriptor has metrics of its own for, under the same names."""


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@cache
def read_preset(name: str) -> Preset:
    """Return the preset `name`, one of `preset_names`."""
    text = (_FOLDER / f"{name}.toml").read_text("utf-8")
    table = read_toml_text(text)
    metrics = text[text.index("[[metrics]]") :].replace("[[metrics]]", "[[output.metrics]]")
    metrics = re.sub(r"^revision = \d+\n", "", metrics, flags=re.MULTILINE)
    return Preset(
        name=name,
        title=table["title"],
        recorded=table["recorded"],
        also=tuple(table["also"]),
        note=table.get("note", ""),
        metrics=tuple(PresetMetric.model_validate({**each, "preset": name}) for each in table["metrics"]),
        text=metrics,
    )


def with_presets(own: Sequence[MetricTable], presets: Iterable[str]) -> list[MetricTable]:
    """Return a descriptor's own metrics, then those of `presets` whose names it does not use itself."""
    names = {each.name for each in own}
    return [*own, *(each for name in presets for each in read_preset(name).metrics if each.name not in names)]


def preset_uses(own: Sequence[MetricTable], presets: Iterable[str]) -> list[PresetUse]:
    """Return what each of `presets` gives to a descriptor with metrics of its `own`."""
    names = {each.name for each in own}
    return [
        PresetUse(
            name=name,
            metrics=tuple(each.name for each in read_preset(name).metrics),
            replaced=tuple(each.name for each in read_preset(name).metrics if each.name in names),
        )
        for name in presets
    ]
