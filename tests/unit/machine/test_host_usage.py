from __future__ import annotations

import logging
import math
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from bai_agent.machine.gpu import DRIVER, Gpus, describe_gpus
from bai_agent.machine.host_usage import HostSampler

ALWAYS = {
    "bai_host_load_1m",
    "bai_host_memory_used_bytes",
    "bai_host_memory_available_bytes",
    "bai_host_memory_percent",
    "bai_host_swap_used_bytes",
    "bai_host_disk_free_bytes",
}


def figures(sampler: HostSampler) -> dict[str, float]:
    return {name: value for name, value, _ in sampler.sample()}


def test_the_first_sample_has_no_rates(tmp_path: Path) -> None:
    first = figures(HostSampler(tmp_path))

    assert set(first) >= ALWAYS
    assert not [name for name in first if name.endswith("_per_second") or name == "bai_host_cpu_percent"]


def test_every_figure_is_a_finite_number_that_is_not_negative(tmp_path: Path) -> None:
    sampler = HostSampler(tmp_path)
    sampler.sample()

    for name, value, units in sampler.sample():
        assert name.startswith("bai_host_")
        assert type(value) is float
        assert math.isfinite(value)
        assert value >= 0, name
        assert units


def test_memory_and_disk_are_this_machine_s(tmp_path: Path) -> None:
    now = figures(HostSampler(tmp_path))

    assert 0 < now["bai_host_memory_used_bytes"] < psutil.virtual_memory().total
    assert 0 < now["bai_host_disk_free_bytes"] < psutil.disk_usage(str(tmp_path)).total


def test_a_busy_processor_raises_the_cpu_percentage(tmp_path: Path) -> None:
    sampler = HostSampler(tmp_path)
    sampler.sample()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline = time.monotonic() + 60
        while psutil.Process(busy.pid).cpu_times().user < 0.5:
            assert time.monotonic() < deadline, "the child got no processor time"
            time.sleep(0.01)
        load = figures(sampler)["bai_host_cpu_percent"]
    finally:
        busy.kill()
        busy.wait(timeout=60)

    assert 1 < load <= 100


def test_a_rate_is_the_counters_difference_over_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10.0, 12.0])
    reads = iter(
        [SimpleNamespace(read_bytes=100, write_bytes=1000), SimpleNamespace(read_bytes=500, write_bytes=1000)]
    )
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: next(reads))
    sampler = HostSampler(tmp_path, clock=lambda: next(times))
    sampler.sample()

    second = figures(sampler)

    assert second["bai_host_disk_read_bytes_per_second"] == 200
    assert second["bai_host_disk_write_bytes_per_second"] == 0


def test_a_counter_that_wrapped_gives_no_rate_for_that_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = iter([2**32 - 10, 5, 25])
    monkeypatch.setattr(
        psutil, "disk_io_counters", lambda **_: SimpleNamespace(read_bytes=next(reads), write_bytes=0)
    )
    sampler = HostSampler(tmp_path)
    sampler.sample()

    assert "bai_host_disk_read_bytes_per_second" not in figures(sampler)
    assert figures(sampler)["bai_host_disk_read_bytes_per_second"] > 0


def test_without_disk_counters_the_other_figures_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(**_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/proc/diskstats")

    monkeypatch.setattr(psutil, "disk_io_counters", missing)
    sampler = HostSampler(tmp_path)
    samples = [figures(sampler) for _ in range(3)]

    assert all(set(sample) >= ALWAYS for sample in samples)
    assert "bai_host_disk_read_bytes_per_second" not in samples[-1]
    assert len(caplog.records) == 1


def test_without_processor_counters_the_other_figures_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(**_: object) -> float:
        raise FileNotFoundError("/proc/stat")

    monkeypatch.setattr(psutil, "cpu_percent", missing)
    sampler = HostSampler(tmp_path)
    sampler.sample()

    assert "bai_host_memory_used_bytes" in figures(sampler)
    assert sum("processor" in message for message in caplog.messages) == 1


def test_a_missing_folder_only_omits_its_own_figure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sampler = HostSampler(tmp_path / "gone")

    samples = [figures(sampler) for _ in range(3)]

    assert set(samples[-1]) >= ALWAYS - {"bai_host_disk_free_bytes"}
    assert "bai_host_disk_free_bytes" not in samples[-1]
    assert len(caplog.records) == 1


def test_sampling_leaks_no_file_descriptors_or_threads(tmp_path: Path) -> None:
    sampler = HostSampler(tmp_path)
    sampler.sample()
    before = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    for _ in range(50):
        sampler.sample()

    assert (len(list(Path("/proc/self/fd").iterdir())), threading.active_count()) == before


def test_without_a_gpu_driver_no_gpu_is_sampled_and_nothing_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = Gpus(driver=tmp_path / "nvidiactl")
    assert (gpus.sample(), gpus.count) == ([], None)
    assert not caplog.records


def test_a_driver_that_does_not_answer_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "nvidiactl"
    driver.touch()

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    # A machine with a GPU has a driver that answers.
    monkeypatch.setattr(pynvml, "nvmlInit", refuse)

    with caplog.at_level(logging.WARNING):
        gpus = Gpus(driver=driver)

    assert gpus.sample() == gpus.sample() == []
    assert "cannot be read" in caplog.text
    assert len(caplog.records) == 1


def test_a_gpu_without_its_python_package_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "nvidiactl"
    driver.touch()
    monkeypatch.setitem(sys.modules, "pynvml", None)

    with caplog.at_level(logging.WARNING):
        gpus = Gpus(driver=driver)

    assert gpus.sample() == gpus.sample() == []
    assert "nvidia-ml-py" in caplog.text
    assert len(caplog.records) == 1


RESERVED, IN_USE = 644_939_776, 791_478_272
"""Bytes of an H200 that its driver reserves, and that its programs use."""


@pytest.fixture
def one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver with one GPU, which tells its memory and the processes on it. Nothing else can be read."""

    def refuse(*_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def memory(_: str, version: int | None = None) -> SimpleNamespace:
        # As libnvidia-ml answers: the first version counts the reserved bytes as used.
        return SimpleNamespace(total=150_754_820_096, used=IN_USE + (0 if version else RESERVED))

    for name in dir(pynvml):
        if name.startswith(("nvmlDeviceGet", "nvmlSystemGet")):
            monkeypatch.setattr(pynvml, name, refuse)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 1)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", str)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda _: ["one"])
    driver = tmp_path / "nvidiactl"
    driver.touch()
    return driver


def test_the_memory_in_use_leaves_out_what_the_driver_reserves(one_gpu: Path) -> None:
    assert Gpus(driver=one_gpu).sample() == [("gpu0_memory_used_bytes", float(IN_USE), "B")]


def test_a_driver_that_cannot_tell_reserved_memory_apart_counts_it_as_used(
    one_gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = pynvml.nvmlDeviceGetMemoryInfo

    def older(handle: str, version: int | None = None) -> Any:
        if version:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return newest(handle)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", older)

    assert Gpus(driver=one_gpu).sample() == [("gpu0_memory_used_bytes", float(IN_USE + RESERVED), "B")]


def test_settings_of_a_gpu_that_cannot_be_read_are_left_out(one_gpu: Path) -> None:
    assert describe_gpus(driver=one_gpu) == {
        "devices": [{"memory_bytes": 150_754_820_096, "memory_used_bytes": IN_USE, "processes": 1}]
    }


@pytest.mark.gpu
@pytest.mark.skipif(not DRIVER.exists(), reason="needs an NVIDIA GPU")
def test_a_gpu_reports_its_figures() -> None:
    gpus = Gpus()
    figures = {name: value for name, value, _ in gpus.sample()}

    assert gpus.count == len([name for name in figures if name.endswith("_temperature_celsius")])

    assert 0 <= figures["gpu0_utilization_percent"] <= 100
    # An idle GPU of a machine without a screen uses no memory.
    assert 0 <= figures["gpu0_memory_used_bytes"] < describe_gpus()["devices"][0]["memory_bytes"]
    assert 0 < figures["gpu0_temperature_celsius"] < 120
    assert figures["gpu0_power_watts"] > 0
