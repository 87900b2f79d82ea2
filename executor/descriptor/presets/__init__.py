"""Metrics of known programs for `[output] preset`, each in a file of this folder.

A preset's metrics become metrics of the job when the job is planned. The agent knows only the revision of each metric.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from bai_agent.job.toml import read_toml_text
from bai_agent.light_dataclass import dataclass
from executor.descriptor.service_tables import MetricTable

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class PresetMetric(MetricTable):
    """One metric of a preset."""

    preset: str
    """Name of the preset."""
    revision: int = 1
    """Revision of the metric. The revision is increased if the metric's numbers change, because values of different
    revisions cannot be compared."""

    @property
    def full_revision(self) -> str:
        """Preset and revision, in the form that a job descriptor uses."""
        return f"{self.preset}/{self.revision}"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The metrics of one program."""

    name: str
    title: str
    """Name of the program in texts for users."""
    recorded: str
    """Command on whose output the metrics were tested."""
    also: tuple[str, ...]
    """Other commands, or descriptions of other outputs, on which the metrics were tested."""
    note: str
    """A note about the program's output; "" if there is none."""
    metrics: tuple[PresetMetric, ...]
    text: str
    """The metrics in the form of a benchmark descriptor."""


@dataclass(frozen=True, kw_only=True)
class PresetUse:
    """The metrics that one preset adds to a descriptor."""

    name: str
    metrics: tuple[str, ...]
    """Names of the metrics that the preset adds."""
    replaced: tuple[str, ...]
    """Names of the preset's metrics that the descriptor defines itself."""


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
        metrics=tuple(_metrics().validate_python([{**each, "preset": name} for each in table["metrics"]])),
        text=metrics,
    )


@cache
def _metrics() -> TypeAdapter[list[PresetMetric]]:
    return TypeAdapter(list[PresetMetric])


def with_presets(own: Sequence[MetricTable], presets: Iterable[str]) -> list[MetricTable]:
    """Return a descriptor's own metrics, followed by those metrics of `presets` that have other names."""
    names = {each.name for each in own}
    return [*own, *(each for name in presets for each in read_preset(name).metrics if each.name not in names)]


def preset_uses(own: Sequence[MetricTable], presets: Iterable[str]) -> list[PresetUse]:
    """Return the metrics that each of `presets` adds to a descriptor. own: the metrics that the descriptor defines
    itself."""
    names = {each.name for each in own}
    return [
        PresetUse(
            name=name,
            metrics=tuple(each.name for each in read_preset(name).metrics),
            replaced=tuple(each.name for each in read_preset(name).metrics if each.name in names),
        )
        for name in presets
    ]
