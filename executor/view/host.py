"""The machine's own numbers in one short line."""

from __future__ import annotations

from collections.abc import Mapping

from executor.statistics import Series
from executor.view.text import size


def host_line(host: Mapping[str, Series], *, separator: str = " · ") -> str:
    """Return what the last samples say of CPU, memory and GPU; empty before there are any."""
    last = {name.removeprefix("bai_host_"): series.last for name, series in host.items() if series.count}
    parts = []
    if "cpu_percent" in last:
        parts.append(f"cpu {last['cpu_percent']:.0f} %")
    if "memory_used_bytes" in last:
        parts.append(f"mem {size(last['memory_used_bytes'])}")
    return separator.join(parts)
