"""The machine's own numbers in one short line."""

from __future__ import annotations

import re
from collections.abc import Mapping

from executor.quantities import size
from executor.records.statistics import Series

_GPU = re.compile(r"gpu\d+_utilization_percent")


def host_line(host: Mapping[str, Series], *, separator: str = " · ") -> str:
    """Return what the last samples say of CPU, memory and GPU; empty before there are any."""
    last = {name.removeprefix("bai_host_"): series.last for name, series in host.items() if series.count}
    parts = []
    if "cpu_percent" in last:
        parts.append(f"cpu {last['cpu_percent']:.0f} %")
    if "memory_used_bytes" in last:
        parts.append(f"mem {size(last['memory_used_bytes'])}")
    gpus = [value for name, value in last.items() if _GPU.fullmatch(name)]
    if gpus:
        parts.append(f"gpu {sum(gpus) / len(gpus):.0f} %" + (f" of {len(gpus)}" if len(gpus) > 1 else ""))
    return separator.join(parts)
