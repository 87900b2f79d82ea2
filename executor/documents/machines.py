"""Texts about a job's machines: their hardware, their usage, and the share of bai's own programs in the
usage."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from bai_agent.job.record_types import OwnUsage, ProcessUsage
from executor.documents.document import Column, Fact, Phrase, Table
from executor.quantities import counted, percent, quantity, seconds, size
from executor.records.counted_values import memory_floor
from executor.records.machine_facts import (
    LINES,
    TABLES,
    MachineFact,
    MachineWarning,
    NodeEnvironment,
    table_in,
    tables_at,
    times,
)
from executor.records.series import Series

_CHARACTERS = 1000
"""Largest length of a line about a node's machine (characters)."""
_WARNINGS = 4
"""Largest number of machine warnings in a summary."""
_LISTED = 12
"""Largest number of items that are shown of a list, such as Python packages."""
_NODES = 16
"""Largest number of rows in the table of nodes. `bai metrics` shows all nodes."""
PROGRAMS = ("agent", "extractor", "shim")
_GPU = re.compile(r"gpu\d+_utilization_percent")
_PREFIX = "bai_host_"
_CPU, _MEMORY = "cpu_percent", "memory_used_bytes"
_RECEIVED, _SENT = "network_receive_bytes_per_second", "network_send_bytes_per_second"
_NAMES = ("cpu", "memory", "gpu", "network in", "network out")
USAGE = [Column(name, drops=index, pointed=False) for index, name in enumerate(_NAMES, 1)]
"""Columns of a table that show the usage of a node."""


def environment_facts(node: NodeEnvironment) -> Iterator[Fact]:
    """Yield the facts about a node's machine. Parts of `environment.json` with an unexpected form are left
    out."""
    if node.environment is None:
        yield Fact("machine", node.trouble or "")
        return
    facts = node.environment
    lines: dict[str, list[str]] = defaultdict(list)
    for path in TABLES:
        for label, text in _said(path, facts):
            lines[label].append(text)
    lines["packages"] = _packages(table_in(facts, "python"))
    for label in LINES:
        if parts := lines[label][:_LISTED]:
            yield Fact(label, ", ".join(parts)[:_CHARACTERS])
    for name, why in list(table_in(facts, "missing").items())[:_LISTED]:
        yield Fact("unknown", f"{name}: {why}"[:_CHARACTERS])
    for each in node.sentences("warnings")[:_LISTED]:
        yield Fact("warning", each[:_CHARACTERS], "caution")


def warning_facts(warnings: Sequence[MachineWarning], *, more: str) -> Iterator[Fact]:
    """Yield the warnings about a job's machines. more: the command that shows all warnings."""
    for each in warnings[:_WARNINGS]:
        yield Fact("machine", each.text[:_CHARACTERS], "caution")
    if len(warnings) > _WARNINGS:
        yield Fact("", f"and {len(warnings) - _WARNINGS} more: {more}", "caution")


def _said(path: str, environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and text of each fact in the tables at a path of `environment.json`. The facts of a device
    are one text, and equal devices are counted."""
    devices = []
    for name, table in tables_at(path, environment):
        said = [
            (fact.line or path.partition(".")[0].removesuffix("[]"), text)
            for fact in TABLES[path]
            if (text := _words(fact, table))
        ]
        if not path.endswith(("[]", "*")):
            yield from said
        elif said:
            place = f"{name.replace('_', ' ')} on " if name else ""
            devices.append((said[0][0], place + " ".join(text for _, text in said)))
    for (label, text), equal in groupby(devices):
        yield label, times(len(list(equal)), text)


def _words(fact: MachineFact, table: Mapping[str, Any]) -> str:
    value = table.get(fact.name)
    if isinstance(value, list):
        text = " / ".join(map(str, value))
    elif fact.name.endswith("bytes"):
        text = size(value) if type(value) is int and 0 <= value < 2**63 else ""
    else:
        text = "" if value is None else str(value)
    words = fact.words if isinstance(fact.words, str) else fact.words(value, table)
    return words.replace("{}", text) if text else ""


def _packages(python: Mapping[str, Any]) -> list[str]:
    found = [f"{name} {version}" for name, version in table_in(python, "packages").items()]
    if every := table_in(python, "distributions"):
        found.insert(_LISTED - 1, f"{len(every)} distributions in all")
    return [*found[: _LISTED - 1], *found[-1:]] if len(found) > _LISTED else found


def host_line(host: Mapping[str, Series]) -> str:
    """Return the latest usage of CPU, memory and GPU as text. For several nodes, the text shows the minimum
    and the maximum. The text is empty before the first sample."""
    nodes = by_node(host, lambda series: series.last)
    if len(nodes) > 1:
        return " · ".join([f"{len(nodes)} nodes", *_spread(list(nodes.values()))])
    last = next(iter(nodes.values()), {})
    parts = []
    if _CPU in last:
        parts.append(f"cpu {last[_CPU]:.0f} %")
    if _MEMORY in last:
        parts.append(f"mem {size(last[_MEMORY])}")
    if gpus := gpu_loads(last):
        parts.append(f"gpu {fmean(gpus):.0f} %" + (f" of {len(gpus)}" if len(gpus) > 1 else ""))
    return " · ".join(parts)


def node_table(host: Mapping[str, Series]) -> Table:
    """Return a table with the mean usage of each node's machine. The table is empty for a job of one node."""
    nodes = by_node(host, lambda series: series.mean)
    rows = [[Phrase(rank), *usage_cells(means, unknown="-")] for rank, means in nodes.items()]
    if len(rows) > _NODES:
        rows[_NODES:] = [[Phrase(f"and {len(rows) - _NODES} more", "soft"), *[Phrase("")] * len(USAGE)]]
    return Table([Column("node"), *USAGE], rows if len(rows) > 1 else [])


def usage_cells(figures: Mapping[str, float], *, unknown: str = "") -> list[Phrase]:
    """Return the cells of a node for the columns `USAGE`."""
    gpus = gpu_loads(figures)
    texts = [f"{figures[_CPU]:.0f} %" if _CPU in figures else unknown]
    texts.append(size(figures[_MEMORY]) if _MEMORY in figures else unknown)
    texts.append(f"{fmean(gpus):.0f} %" if gpus else unknown)
    texts += (f"{size(figures[name])}/s" if name in figures else unknown for name in (_RECEIVED, _SENT))
    return [Phrase(text) for text in texts]


def by_node(host: Mapping[str, Series], figure: Callable[[Series], float]) -> dict[str, dict[str, float]]:
    """Return one figure of each kind of sample, by node and by the sample's name. In a job of one node, the
    node's name is empty."""
    found: dict[str, dict[str, float]] = {}
    for series in host.values():
        if series.count:
            name = (series.metric or series.name).removeprefix(_PREFIX)
            found.setdefault(series.labels.get("rank", ""), {})[name] = figure(series)
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))


def _spread(nodes: list[dict[str, float]]) -> list[str]:
    """Return the smallest and the largest usage among several nodes as texts."""
    parts = []
    for title, name in (("cpu", _CPU), ("in", _RECEIVED), ("out", _SENT)):
        values = [node[name] for node in nodes if name in node]
        if values and name == _CPU:
            parts.append(f"{title} {min(values):.0f}-{max(values):.0f} %")
        elif values:
            parts.append(f"{title} {size(min(values))}/s-{size(max(values))}/s")
    if gpus := [gpu for node in nodes for gpu in gpu_loads(node)]:
        parts.append(f"gpu {min(gpus):.0f}-{max(gpus):.0f} %")
    return parts


def gpu_loads(node: Mapping[str, float]) -> list[float]:
    return [value for name, value in node.items() if _GPU.fullmatch(name)]


def usage_sentence(nodes: Sequence[OwnUsage], *, one_machine: bool = False) -> str:
    """Return a sentence about the processor time that bai's own programs used on these nodes, and its share
    of the nodes' total. one_machine: whether the nodes share the CPUs of one machine.
    """
    least = "at least " if any(map(_is_partial, nodes)) else ""
    several = len(nodes) > 1
    where = f" on {len(nodes):,} nodes" if several else ""
    sentence = f"bai itself took {least}{_cpu(sum(map(_taken, nodes)))} of processor time{where}"
    if (share := _share(nodes, one_machine=one_machine)) is None:
        return f"{sentence}."
    cpus = (max if one_machine else sum)(node.cpus or 0 for node in nodes)
    whose = "their" if several and not one_machine else "the machine's"
    how_long = "" if several else f" for {seconds(nodes[0].benchmark_seconds or 0)}"
    return (
        f"{sentence}: {least}{share} of what {whose} {counted(cpus, 'CPU')} had while the "
        f"benchmark ran{how_long}; the start and end of bai are included."
    )


def usage_facts(nodes: Sequence[OwnUsage], *, one_machine: bool = False) -> Iterator[Fact]:
    """Yield facts about the usage of bai's own programs. one_machine: whether the nodes share one machine."""
    yield Fact("bai", usage_sentence(nodes, one_machine=one_machine))
    for node in nodes:
        which = f"node {node.rank}: " if len(nodes) > 1 else ""
        yield Fact("", which + "; ".join(f"{name} {taken}" for name, taken in usage_words(node)))


def usage_words(node: OwnUsage) -> Iterator[tuple[str, str]]:
    """Yield the name of each of bai's programs, and its processor time and peak memory on this node as text,
    which is "–" if unknown."""
    for name in PROGRAMS:
        usage: ProcessUsage | None = getattr(node, name)
        if usage is None:
            yield name, "–"
            continue
        least = "at least " if usage.at_least else ""
        peak = usage.peak_memory_bytes
        memory = f", {size(peak)}" if peak is not None else ""
        yield name, f"{least}{_cpu(usage.cpu_seconds)}{memory}"


def usage_share(node: OwnUsage) -> str:
    """Return the share of bai's programs in the machine's processor time while the benchmark ran, as text.
    "–" if unknown."""
    least = "at least " if _is_partial(node) else ""
    share = _share([node])
    return "–" if share is None else f"{least}{share}"


def _taken(node: OwnUsage) -> float:
    return sum(usage.cpu_seconds for usage in (node.agent, node.extractor, node.shim) if usage is not None)


def _is_partial(node: OwnUsage) -> bool:
    """Return whether a part of bai's own usage is unknown. If the usage of both extractor and shim is
    missing, the benchmark did not run, and no part is unknown."""
    around = [node.extractor, node.shim]
    known = [usage for usage in (node.agent, *around) if usage is not None]
    return any(usage.at_least for usage in known) or (None in around and around != [None, None])


def _share(nodes: Sequence[OwnUsage], *, one_machine: bool = False) -> str | None:
    """Return the share of bai's programs in the processor time, as text. None if the share is unknown, or
    above 100 % because the benchmark was shorter than bai's own start and end."""
    of_nodes = [(node.cpus or 0) * (node.benchmark_seconds or 0) for node in nodes]
    there = max(of_nodes) if one_machine else sum(of_nodes)
    if not all(node.cpus and node.benchmark_seconds for node in nodes):
        return None
    share = sum(map(_taken, nodes)) / there
    if share > 1:
        return None
    return "less than 0.1 %" if share < 0.001 else percent(share)


def _cpu(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else seconds(value)


def peak_words(peak: int, usage: Sequence[OwnUsage]) -> str:
    """Return the peak memory of a process as text. A peak that is not above that of the shim, from which the
    process was forked, is shown as an upper bound."""
    return quantity(peak, "bytes", floor=memory_floor(usage))[0]
