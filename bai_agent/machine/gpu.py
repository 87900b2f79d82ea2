"""Reads NVIDIA GPUs through NVML, if the machine has such GPUs and `nvidia-ml-py` is installed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bai_agent.machine.host_facts import present

log = logging.getLogger(__name__)

DRIVER = Path("/dev/nvidiactl")
"""Device file that exists if an NVIDIA driver is loaded."""


class Gpus:
    """Samples every GPU. A value that cannot be read is left out, with one warning.

    If there is no driver, there are no samples.
    """

    def __init__(self, *, driver: Path = DRIVER) -> None:
        self.nvml: Any = None
        """The initialised NVML library. None if the GPUs cannot be read."""
        self.handles: list[Any] = []
        self._unreadable: set[tuple[int, str]] = set()
        if driver.exists():
            self._open()

    @property
    def count(self) -> int | None:
        """Number of GPUs. None if the number is unknown."""
        return None if self.nvml is None else len(self.handles)

    def sample(self) -> list[tuple[str, float, str]]:
        """Return (name, value, units) for each GPU: utilisation, memory, temperature and power, as far as available."""
        samples = []
        for number, handle in enumerate(self.handles):
            for name, units, read in _figures(self.nvml, handle):
                if (number, name) in self._unreadable:
                    continue
                try:
                    samples.append((f"gpu{number}_{name}", float(read()), units))
                except self.nvml.NVMLError as error:
                    # Some GPUs do not have all figures, and a lost GPU never answers again.
                    self._unreadable.add((number, name))
                    log.warning("host metrics: GPU %d does not report %s (%s); left out", number, name, error)
        return samples

    def _open(self) -> None:
        try:
            # The package is optional, because a machine without GPUs may lack it.
            import pynvml
        except ImportError:
            log.warning(
                "host metrics: there is a GPU, but nvidia-ml-py is not installed; GPU metrics are left out"
            )
            return
        try:
            pynvml.nvmlInit()
            self.handles = [
                pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
            ]
        except pynvml.NVMLError as error:
            log.warning("host metrics: the GPUs cannot be read (%s); left out", error)
            return
        self.nvml = pynvml


def _figures(nvml: Any, gpu: Any) -> list[tuple[str, str, Callable[[], float]]]:
    return [
        ("utilization_percent", "%", lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
        ("memory_used_bytes", "B", lambda: _memory_used(nvml, gpu)),
        ("temperature_celsius", "°C", lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
        ("power_watts", "W", lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
    ]


def _memory_used(nvml: Any, handle: Any) -> int:
    """Return the memory that programs use (bytes), as nvidia-smi does: without the memory that the driver reserves."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
    except nvml.NVMLError_FunctionNotFound:
        # Drivers before 510 only have the first version, which includes the reserved memory.
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


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
    devices = [{name: ask(read) for name, read in _settings(nvml, each).items()} for each in gpus.handles]
    return {**present(about), "devices": [present(each) for each in devices]}


def heat_slowdowns(*, driver: Path = DRIVER) -> dict[str, int]:
    """Return how long (ns) heat has slowed down each GPU since its driver started.

    GPUs that do not report slowdowns by heat are left out. May hang if the driver hangs.
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
    return {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
        "memory_used_bytes": lambda: _memory_used(nvml, handle),
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "max_sm_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
        "power_limit_watts": lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
        "default_power_limit_watts": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000,
        "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0]),
        "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
        "processes": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    }
