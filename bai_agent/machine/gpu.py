"""NVIDIA GPUs through NVML, if there are any and `nvidia-ml-py` is installed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bai_agent.machine.host_facts import present

log = logging.getLogger(__name__)

DRIVER = Path("/dev/nvidiactl")
"""Exists if an NVIDIA driver is loaded."""


class Gpus:
    """Samples every GPU. A figure that cannot be read is left out, with one warning.

    If there is no driver, there are no samples.
    """

    def __init__(self, *, driver: Path = DRIVER) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._unreadable: set[tuple[int, str]] = set()
        if driver.exists():
            self._open()

    @property
    def nvml(self) -> Any:
        """The initialised NVML library. None if the GPUs cannot be read."""
        return self._nvml

    @property
    def count(self) -> int | None:
        """Number of GPUs. None if it is unknown."""
        return None if self._nvml is None else len(self._handles)

    @property
    def handles(self) -> list[Any]:
        return self._handles

    def sample(self) -> list[tuple[str, float, str]]:
        """Return (name, value, units) for each GPU: utilisation, memory, temperature and power, as far as available."""
        samples = []
        nvml = self._nvml
        for number, handle in enumerate(self._handles):
            for name, units, read in _figures(nvml, handle):
                if (number, name) in self._unreadable:
                    continue
                try:
                    samples.append((f"gpu{number}_{name}", float(read()), units))
                except nvml.NVMLError as error:
                    # Some figures do not exist on some GPUs, and a lost GPU never answers again.
                    self._unreadable.add((number, name))
                    log.warning(
                        "host metrics: GPU %d does not tell its %s (%s); left out", number, name, error
                    )
        return samples

    def _open(self) -> None:
        try:
            # Optional, because a machine without GPUs may lack the package.
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


def describe_gpus(*, driver: Path = DRIVER) -> dict[str, Any]:
    """Return the settings of each GPU, and the versions of driver and CUDA; {} if NVML cannot be opened.

    May hang if the driver hangs.
    """
    gpus = Gpus(driver=driver)
    nvml = gpus.nvml
    if nvml is None:
        return {}

    def ask(read: Callable[[], Any]) -> Any:
        try:
            found = read()
        except (nvml.NVMLError, UnicodeDecodeError):
            return None
        return found.decode(errors="replace") if isinstance(found, bytes) else found

    cuda = ask(nvml.nvmlSystemGetCudaDriverVersion)
    about = {
        "driver": ask(nvml.nvmlSystemGetDriverVersion),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
    }
    devices = []
    for handle in gpus.handles:
        devices.append(present({name: ask(read) for name, read in _settings(nvml, handle).items()}))
    return {**present(about), "devices": devices}


def heat_slowdowns(*, driver: Path = DRIVER) -> dict[str, int]:
    """Return how long (ns) heat has slowed down each GPU since its driver started.

    Omits GPUs that do not report it. May hang if the driver hangs.
    """
    gpus = Gpus(driver=driver)
    nvml, found = gpus.nvml, {}
    for number, handle in enumerate(gpus.handles):
        try:
            status = nvml.nvmlDeviceGetViolationStatus(handle, nvml.NVML_PERF_POLICY_THERMAL)
        except nvml.NVMLError:
            continue
        found[str(number)] = int(status.violationTime)
    return found


def _settings(nvml: Any, handle: Any) -> dict[str, Callable[[], Any]]:
    def watts(read: Callable[[], int]) -> Callable[[], float]:
        return lambda: read() / 1000

    return {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "max_sm_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
        "power_limit_watts": watts(lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle)),
        "default_power_limit_watts": watts(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)),
        "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0]),
        "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
        "processes": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    }
