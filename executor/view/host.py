"""The machine's own numbers in one short line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rich.table import Table
from rich.text import Text

from executor.quantities import size
from executor.records.statistics import Series

_GPU = re.compile(r"gpu\d+_utilization_percent")
_PREFIX = "bai_host_"
_NODES = 16
"""Rows; `bai metrics` has all."""
_RECEIVED, _SENT = "network_receive_bytes_per_second", "network_send_bytes_per_second"


def host_line(host: Mapping[str, Series], *, separator: str = " · ") -> str:
    """Return what the last samples say of CPU, memory and GPU; of several nodes the least and the greatest. Empty before there are any."""
    nodes = by_node(host, lambda series: series.last)
    if len(nodes) > 1:
        return separator.join([f"{len(nodes)} nodes", *_spread(list(nodes.values()))])
    last = next(iter(nodes.values()), {})
    parts = []
    if "cpu_percent" in last:
        parts.append(f"cpu {last['cpu_percent']:.0f} %")
    if "memory_used_bytes" in last:
        parts.append(f"mem {size(last['memory_used_bytes'])}")
    gpus = gpu_loads(last)
    if gpus:
        parts.append(f"gpu {sum(gpus) / len(gpus):.0f} %" + (f" of {len(gpus)}" if len(gpus) > 1 else ""))
    return separator.join(parts)


def node_table(host: Mapping[str, Series]) -> Table | None:
    """Return what each of several nodes did, on the mean; None for a single one."""
    nodes = by_node(host, lambda series: series.mean)
    if len(nodes) < 2:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    for heading in ("node", "cpu", "memory", "gpu", "network in", "network out"):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "node" else "right")
    for rank, means in list(nodes.items())[:_NODES]:
        gpus = gpu_loads(means)
        table.add_row(
            Text(rank, style="bold"),
            f"{means['cpu_percent']:.0f} %" if "cpu_percent" in means else "-",
            size(means["memory_used_bytes"]) if "memory_used_bytes" in means else "-",
            f"{sum(gpus) / len(gpus):.0f} %" if gpus else "-",
            *(f"{size(means[name])}/s" if name in means else "-" for name in (_RECEIVED, _SENT)),
        )
    if len(nodes) > _NODES:
        table.add_row(Text(f"and {len(nodes) - _NODES} more", style="dim"))
    return table


def by_node(host: Mapping[str, Series], figure: Callable[[Series], float]) -> dict[str, dict[str, float]]:
    """Return a figure of each kind of sample, by node; a job of one node has no ranks."""
    found: dict[str, dict[str, float]] = {}
    for series in host.values():
        if series.count:
            name = (series.metric or series.name).removeprefix(_PREFIX)
            found.setdefault(series.labels.get("rank", ""), {})[name] = figure(series)
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))


def _spread(nodes: list[dict[str, float]]) -> list[str]:
    """Return how far several nodes lie apart."""
    parts = []
    for title, name in (("cpu", "cpu_percent"), ("in", _RECEIVED), ("out", _SENT)):
        values = [node[name] for node in nodes if name in node]
        if values and name == "cpu_percent":
            parts.append(f"{title} {min(values):.0f}-{max(values):.0f} %")
        elif values:
            parts.append(f"{title} {size(min(values))}/s-{size(max(values))}/s")
    gpus = [gpu for node in nodes for gpu in gpu_loads(node)]
    if gpus:
        parts.append(f"gpu {min(gpus):.0f}-{max(gpus):.0f} %")
    return parts


def gpu_loads(node: Mapping[str, float]) -> list[float]:
    return [value for name, value in node.items() if _GPU.fullmatch(name)]
