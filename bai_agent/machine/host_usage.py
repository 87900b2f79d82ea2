"""Samples of the benchmark's machine: processors, memory, disks, network, GPUs.

Rates are means since the previous sample. Values that are not available on a machine or in a container are
left out.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from bai_agent.machine.gpu import Gpus

log = logging.getLogger(__name__)

PREFIX = "bai_host_"

Sample = tuple[str, float, str]
"""Name, value, units."""

_UNREADABLE = (OSError, RuntimeError, NotImplementedError, ValueError, psutil.Error)
"""Errors that psutil raises if a machine or a container does not offer a value. RuntimeError and ValueError
mean that psutil cannot parse /proc.
"""


class HostSampler:
    """Takes samples. A value that cannot be read is left out, with one warning for each kind of value."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._gpus = Gpus()
        self._warned: set[str] = set()
        self._last: dict[str, float] = {}
        self._last_time: float | None = None
        try:
            # The first call of psutil only begins the interval that the next call measures.
            psutil.cpu_percent(interval=None)
        except _UNREADABLE as error:
            self._warn("processor", error)

    def sample(self) -> list[Sample]:
        """Return the current figures. The first sample has neither rates nor `cpu_percent`."""
        samples: list[Sample] = []
        for kind, read in (
            ("processor", self._processor),
            ("memory", self._memory),
            ("disk space", self._disk_space),
            ("throughput", self._throughput),
        ):
            try:
                samples += read()
            except _UNREADABLE as error:
                self._warn(kind, error)
        return [(PREFIX + name, float(value), units) for name, value, units in samples + self._gpus.sample()]

    def _processor(self) -> list[Sample]:
        samples: list[Sample] = []
        if self._last_time is not None:
            samples.append(("cpu_percent", psutil.cpu_percent(interval=None), "%"))
        return [*samples, ("load_1m", os.getloadavg()[0], "processes")]

    def _memory(self) -> list[Sample]:
        memory = psutil.virtual_memory()
        swap = psutil.swap_memory()
        return [
            ("memory_used_bytes", memory.used, "B"),
            ("memory_available_bytes", memory.available, "B"),
            ("memory_percent", memory.percent, "%"),
            ("swap_used_bytes", swap.used, "B"),
        ]

    def _disk_space(self) -> list[Sample]:
        usage = psutil.disk_usage(str(self._folder))
        return [("disk_free_bytes", usage.free, "B")]

    def _throughput(self) -> list[Sample]:
        now = self._clock()
        counters = self._counters()
        samples: list[Sample] = []
        if self._last_time is not None and now > self._last_time:
            for name, value in counters.items():
                # If a counter decreased, the counter has wrapped or its device was replaced, so the rate of
                # this interval is unknown.
                if name in self._last and value >= self._last[name]:
                    samples.append((name, (value - self._last[name]) / (now - self._last_time), "B/s"))
        self._last, self._last_time = counters, now
        return samples

    def _counters(self) -> dict[str, float]:
        counters: dict[str, float] = {}
        disk = self._disk_bytes()
        if disk is not None:
            counters["disk_read_bytes_per_second"], counters["disk_write_bytes_per_second"] = disk
        interfaces = {
            name: interface
            for name, interface in psutil.net_io_counters(pernic=True, nowrap=False).items()
            # The loopback interface is left out, because its traffic does not leave the machine.
            if name != "lo"
        }
        if interfaces:
            counters["network_receive_bytes_per_second"] = sum(
                each.bytes_recv for each in interfaces.values()
            )
            counters["network_send_bytes_per_second"] = sum(each.bytes_sent for each in interfaces.values())
        return counters

    def _disk_bytes(self) -> tuple[float, float] | None:
        """Return the numbers of bytes read and written since boot; None if the kernel does not show the
        numbers, as in some containers."""
        try:
            disk = psutil.disk_io_counters(nowrap=False)
        except _UNREADABLE as error:
            self._warn("disk throughput", error)
            return None
        return None if disk is None else (disk.read_bytes, disk.write_bytes)

    def _warn(self, kind: str, error: Exception) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("host metrics: the %s of this machine cannot be read (%s); left out", kind, error)
