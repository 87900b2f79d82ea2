from __future__ import annotations

from pathlib import Path

import pytest

from bai_agent.machine.probe import instance_warnings
from bai_agent.machine.throttling import counters, throttling_warnings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine of two processors."""
    (tmp_path / "proc").mkdir()
    ticks(tmp_path, used=1000, steal=0)
    for number in range(2):
        heat = tmp_path / f"sys/devices/system/cpu/cpu{number}/thermal_throttle"
        heat.mkdir(parents=True)
        (heat / "core_throttle_count").write_text("3\n")
        (heat / "package_throttle_count").write_text("5\n")
        policy = tmp_path / f"sys/devices/system/cpu/cpufreq/policy{number}"
        policy.mkdir(parents=True)
        (policy / "scaling_max_freq").write_text("3500000\n")
    return tmp_path


def ticks(root: Path, *, used: int, steal: int) -> None:
    (root / "proc/stat").write_text(f"cpu  {used} 0 0 500 0 0 0 {steal} 0 0\ncpu0 1 1 1 1\n")


def test_an_unchanged_machine_gives_no_warning(root: Path) -> None:
    before = counters(root)
    assert before == {"heat": 16, "used": 1000, "steal": 0, "max_khz": 3500000}
    ticks(root, used=900_000, steal=150)
    assert throttling_warnings(before, counters(root)) == []


def test_thermal_throttling_during_a_run_is_reported_with_its_count(root: Path) -> None:
    before = counters(root)
    (root / "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count").write_text("7\n")
    (sentence,) = throttling_warnings(before, counters(root))
    assert "slowed down by heat" in sentence
    assert "4 times" in sentence


def test_steal_time_is_reported_as_a_share_of_the_wanted_time(root: Path) -> None:
    before = counters(root)
    ticks(root, used=1000 + 3000, steal=1000)
    (sentence,) = throttling_warnings(before, counters(root))
    assert "25% of the processor time" in sentence
    assert "10 s of steal time" in sentence


def test_a_lowered_frequency_limit_is_reported(root: Path) -> None:
    before = counters(root)
    (root / "sys/devices/system/cpu/cpufreq/policy1/scaling_max_freq").write_text("1200000\n")
    (sentence,) = throttling_warnings(before, counters(root))
    assert "fell from 3500 to 1200 MHz" in sentence


def test_gpus_are_reported_by_number() -> None:
    before = {"gpu_heat_ns": {"0": 10, "1": 0}}
    after = {"gpu_heat_ns": {"0": 10, "1": 2_500_000_000}}
    (sentence,) = throttling_warnings(before, after)
    assert sentence.startswith("GPU 1 was slowed down by heat for 2.5 s")


def test_unknown_or_forged_counters_give_no_warning(root: Path) -> None:
    forged = {"heat": "many", "used": None, "steal": [1], "max_khz": True, "gpu_heat_ns": {"0": "x"}}
    assert throttling_warnings(forged, counters(root, gpus={"0": 5})) == []
    assert throttling_warnings(counters(root), {}) == []
    assert counters(root / "nothing") == {}


@pytest.mark.parametrize(
    ("kind", "bursts"),
    [("t3.micro", True), ("t4g.large", True), ("m7i.large", False), ("trn1.2xlarge", False)],
)
def test_instance_types_with_credits_are_warned_of(kind: str, bursts: bool) -> None:
    assert bool(instance_warnings({"type": kind})) is bursts
