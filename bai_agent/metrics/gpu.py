"""NVIDIA GPUs through NVML, where there are any and `nvidia-ml-py` is installed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

DRIVER = Path("/dev/nvidiactl")
"""There where an NVIDIA driver is loaded."""


class Gpus:
    """Samples every GPU. A driver that is missing or a GPU that is lost is left out, with one warning."""

    def __init__(self, *, driver: Path = DRIVER) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._unreadable: set[tuple[int, str]] = set()
        if driver.exists():
            self._open()

    def sample(self) -> list[tuple[str, float, str]]:
        """Return (name, value, units) for each GPU: utilisation, memory, temperature and power, as far as it tells."""
        samples = []
        nvml = self._nvml
        for number, handle in enumerate(self._handles):
            for name, units, read in _figures(nvml, handle):
                if (number, name) in self._unreadable:
                    continue
                try:
                    samples.append((f"gpu{number}_{name}", float(read()), units))
                except nvml.NVMLError as error:
                    # Some figures do not exist on some GPUs; and a GPU that fell off the bus answers nothing ever again.
                    self._unreadable.add((number, name))
                    log.warning(
                        "host metrics: GPU %d does not tell its %s (%s); left out", number, name, error
                    )
        return samples

    def _open(self) -> None:
        try:
            import pynvml
        except ImportError:
            log.warning(
                "host metrics: there is a GPU, but nvidia-ml-py is not installed; its figures are left out"
            )
            return
        try:
            pynvml.nvmlInit()
            self._handles = [
                pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
            ]
        except pynvml.NVMLError as error:
            log.warning("host metrics: the GPUs cannot be read (%s); left out", error)
            return
        self._nvml = pynvml


def _figures(nvml: Any, handle: Any) -> list[tuple[str, str, Callable[[], float]]]:
    return [
        ("utilization_percent", "%", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        ("memory_used_bytes", "B", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
        (
            "temperature_celsius",
            "°C",
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        ),
        ("power_watts", "W", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
    ]
