"""Presets for a person: which there are, and what came of those that a descriptor names."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from executor.descriptor.presets import Preset, PresetUse
from executor.view.listing import screen_width


def preset_lines(presets: Iterable[Preset]) -> str:
    """Return a paragraph for each preset: its name and metrics."""
    presets = list(presets)
    column = max((len(each.name) for each in presets), default=0) + 2
    width = max(40, min(screen_width(), 120))
    return "".join(
        textwrap.fill(
            ", ".join(metric.name for metric in each.metrics),
            width,
            initial_indent=each.name.ljust(column),
            subsequent_indent=" " * column,
            break_on_hyphens=False,
        )
        + "\n"
        for each in presets
    )


def use_text(use: PresetUse) -> str:
    """Return what a preset gives to a descriptor, as a line."""
    taken = [name for name in use.metrics if name not in use.replaced]
    text = f"preset {use.name}: {', '.join(taken) or 'nothing'}"
    return text + (f"; the descriptor's own count for {', '.join(use.replaced)}" if use.replaced else "")
