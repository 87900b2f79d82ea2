"""Reports what slowed this machine down during a benchmark. The causes are found in counters of the kernel
and of GPUs, which are read before and after the benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from bai_agent.machine.host_facts import Facts, present, read_text, whole

_STAT_BYTES = 4096
_STEAL_SHARE = 0.05
_STEAL_SECONDS = 2.0
"""Smallest steal time (share and seconds) that is reported. Steal time below these limits does not affect a
benchmark's numbers."""
_TICKS = 100
"""Ticks per second in /proc/stat: proc_stat(5), USER_HZ."""
_LIMIT_SHARE = 0.02
_MOST_PROCESSORS = 1024


def counters(root: Path, *, gpus: Mapping[str, Any] | None = None) -> Facts:
    """Return the counters of slowed processors and GPUs, and the limit of the processors' frequency.

    gpus: time for which heat has slowed down each GPU (ns).
    """
    return present({"heat": _heat(root), **_ticks(root), "max_khz": _max_khz(root), "gpu_heat_ns": gpus})


def throttling_warnings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a warning for each cause that slowed the machine down between two calls of `counters`."""
    warnings = []
    if (events := _increase(before, after, "heat")) > 0:
        warnings.append(
            f"The processors were slowed down by heat while the benchmark ran: the kernel counted {events:g} times."
        )
    lost, used = _increase(before, after, "steal"), _increase(before, after, "used")
    if lost >= _STEAL_SECONDS * _TICKS and lost >= _STEAL_SHARE * (lost + used):
        warnings.append(
            f"The hypervisor withheld {lost / (lost + used):.0%} of the processor time that this machine wanted while the "
            f"benchmark ran ({lost / _TICKS:.0f} s of steal time): other machines on the host, or spent CPU credits."
        )
    limit, now = before.get("max_khz"), after.get("max_khz")
    if _is_count(limit) and _is_count(now) and now < limit * (1 - _LIMIT_SHARE):
        warnings.append(
            f"The limit of the processors' frequency fell from {limit / 1000:.0f} to {now / 1000:.0f} MHz while the benchmark ran."
        )
    heat_before, heat_after = before.get("gpu_heat_ns"), after.get("gpu_heat_ns")
    if isinstance(heat_before, Mapping) and isinstance(heat_after, Mapping):
        for number in heat_after:
            if (held := _increase(heat_before, heat_after, number)) > 0:
                warnings.append(
                    f"GPU {number} was slowed down by heat for {held / 1e9:.1f} s while the benchmark ran."
                )
    return warnings


def _heat(root: Path) -> int | None:
    """Return how often heat slowed down cores and packages since boot; None if the kernel does not count
    these slowdowns."""
    total = None
    folder = root / "sys/devices/system/cpu"
    for number in range(_MOST_PROCESSORS):
        own = folder / f"cpu{number}"
        if not own.exists():
            break
        for name in ("core_throttle_count", "package_throttle_count"):
            if (count := whole(read_text(own / "thermal_throttle" / name, 64))) is not None:
                total = (total or 0) + count
    return total


def _ticks(root: Path) -> dict[str, int]:
    """Return the processor time used, and the time that the hypervisor withheld (hundredths of a second): proc_stat(5)."""
    fields = read_text(root / "proc/stat", _STAT_BYTES).partition("\n")[0].split()
    if (
        len(fields) < 9
        or fields[0] != "cpu"
        or not all(each.isascii() and each.isdecimal() for each in fields[1:9])
    ):
        return {}
    user, nice, system, _, _, irq, softirq, steal = (int(each) for each in fields[1:9])
    return {"used": user + nice + system + irq + softirq, "steal": steal}


def _max_khz(root: Path) -> int | None:
    """Return the lowest frequency limit of any processor."""
    found = [
        khz
        for each in sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*"))[:_MOST_PROCESSORS]
        if (khz := whole(read_text(each / "scaling_max_freq", 64))) is not None
    ]
    return min(found, default=None)


def _increase(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> int:
    """Return the increase of a counter between two readings; 0 if the counter is unknown or was reset."""
    first, last = before.get(name), after.get(name)
    return max(0, last - first) if _is_count(first) and _is_count(last) else 0


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0
