"""What our own programs took of a job's machines, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bai_agent.job.record_types import OwnUsage, ProcessUsage
from executor.quantities import quantity, seconds, size
from executor.records.memory_floor import memory_floor

PROGRAMS = ("agent", "extractor", "shim")


def usage_sentence(nodes: Sequence[OwnUsage], *, one_machine: bool = False) -> str:
    """Say how much processor time that was on all of these nodes, one or more, and which share of what they had.

    one_machine: the nodes are on one machine, and share its CPUs.
    """
    least = "at least " if any(_is_partial(node) for node in nodes) else ""
    where = f" on {len(nodes):,} nodes" if len(nodes) > 1 else ""
    sentence = f"bai itself took {least}{_cpu(sum(map(_taken, nodes)))} of processor time{where}"
    if (share := _share(nodes, one_machine=one_machine)) is None:
        return f"{sentence}."
    every = [node.cpus or 0 for node in nodes]
    cpus = max(every) if one_machine else sum(every)
    whose = "their" if len(nodes) > 1 and not one_machine else "the machine's"
    how_long = f" for {seconds(nodes[0].benchmark_seconds or 0)}" if len(nodes) == 1 else ""
    return (
        f"{sentence}: {least}{share} of what {whose} {cpus:,} CPU{'' if cpus == 1 else 's'} had while the "
        f"benchmark ran{how_long}; its own start and end are counted in."
    )


def usage_words(node: OwnUsage) -> Iterator[tuple[str, str]]:
    """Yield of each of our programs its name, and its processor time and peak memory on this node; "–" where those are not known."""
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
    """Return which share of its machine's processor time that was while the benchmark ran; "–" where that says nothing."""
    least = "at least " if _is_partial(node) else ""
    share = _share([node])
    return "–" if share is None else f"{least}{share}"


def _taken(node: OwnUsage) -> float:
    return sum(usage.cpu_seconds for usage in (node.agent, node.extractor, node.shim) if usage is not None)


def _is_partial(node: OwnUsage) -> bool:
    """Return whether some of it is not known. Where neither is known that the benchmark needs, it did not run."""
    around = [node.extractor, node.shim]
    known = [usage for usage in (node.agent, *around) if usage is not None]
    return any(usage.at_least for usage in known) or (None in around and around != [None, None])


def _share(nodes: Sequence[OwnUsage], *, one_machine: bool = False) -> str | None:
    """Return which share it was; None where that is not known, or the benchmark was over in less than our start and end take."""
    of_nodes = [(node.cpus or 0) * (node.benchmark_seconds or 0) for node in nodes]
    there = max(of_nodes) if one_machine else sum(of_nodes)
    if not all(node.cpus and node.benchmark_seconds for node in nodes):
        return None
    share = sum(map(_taken, nodes)) / there
    if share > 1:
        return None
    return "less than 0.1 %" if share < 0.001 else f"{share:,.1%}".replace("%", " %")


def _cpu(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else seconds(value)


def peak_words(peak: int, usage: Sequence[OwnUsage]) -> str:
    """Return a process's peak memory; only a bound if it cannot be told from that of the shim, from which it was forked."""
    return quantity(peak, "bytes", floor=memory_floor(usage))[0]
