"""A fact about the machine has a reader, a row in `machine_facts.py` and a line in the docs, and these agree."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bai_agent.machine import gpu, host_facts, probe, software
from executor.records.machine_facts import FACTS, LINES, TABLES

FILES = {
    "etc/os-release": 'PRETTY_NAME="Ubuntu 24.04"\n',
    "etc/image-id": 'image_name="ours"\n',
    "etc/passwd": "",
    "opt/amazon/efa_installed_packages": "# EFA installer version: 1.30.0\n",
    "opt/amazon/openmpi/bin/mpirun": "#!/bin/sh\necho mpirun 4.1.6\n",
    "proc/1/stat": f"1 (x) R 0 1 1 0 -1 0 0 0 0 0 {10**6} 0 0 0 20 0 1 0 77 1 1\n",
    "proc/cmdline": "mitigations=off\n",
    "proc/cpuinfo": "model name : Xeon\ncpu MHz : 2650.0\nflags : hypervisor\n",
    "proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 9 kB\nSwapTotal: 9 kB\nSwapFree: 8 kB\n",
    "proc/self/mounts": "/dev/root / ext4 rw 0 0\n",
    "proc/sys/kernel/osrelease": "6.1.0",
    "sys/block/sda/device/model": "disk",
    "sys/block/sda/queue/scheduler": "[none]",
    "sys/block/sda/size": "2048",
    "sys/class/net/ens5/device/driver/x": "",
    "sys/class/net/ens5/mtu": "9001",
    "sys/class/net/ens5/operstate": "up",
    "sys/class/net/ens5/speed": "100000",
    "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "4700000",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "intel_pstate",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0-1",
    "sys/devices/system/cpu/online": "0-3",
    "sys/devices/system/node/online": "0",
    "sys/kernel/mm/transparent_hugepage/enabled": "[madvise]",
    "sys/module/efa/version": "2.1",
    "usr/lib/libcudnn.so.9": "",
    "usr/lib/libfabric.so.1": "",
    "usr/lib/libnccl.so.2": "",
    "usr/local/cuda/version.json": '{"cuda": {"version": "12.4"}}',
}


class Driver:
    """An NVIDIA driver that answers each question."""

    NVMLError = OSError

    def __getattr__(self, name: str) -> Any:
        return lambda *_: [12040]

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 12040


def paths(found: Any, path: str = "") -> set[str]:
    """Return the path of each value, as rows of the table have it."""
    if isinstance(found, dict):
        named = "*" if path == "mounts" else None
        return {
            each for key, value in found.items() for each in paths(value, f"{path}.{named or key}".strip("."))
        }
    if isinstance(found, list) and found and isinstance(found[0], dict):
        return {each for value in found for each in paths(value, f"{path}[]")}
    return {path}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All that readers say of a machine that has everything."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "opt/amazon/openmpi/bin/mpirun").chmod(0o755)

    def opened(self: Any) -> None:
        self.nvml, self.handles = Driver(), ["one"]

    monkeypatch.setattr(gpu.Gpus, "_open", opened)
    monkeypatch.setattr(
        gpu, "_settings", lambda nvml, handle: dict.fromkeys(settings(nvml, handle), lambda: "x")
    )
    now = {1: (0, 77, 10**6, "x")}
    busiest = host_facts.busiest({1: (0, 77, 0, "x")}, now, elapsed_s=1, ours=2, root=tmp_path)
    env = {"PATH": "/nonexistent"}
    python = software.python_facts(sys.executable, env=os.environ, user=None)
    return {
        **{name: read(tmp_path) for name, read in host_facts.READERS.items()},
        "instance": dict.fromkeys(["id", *probe.METADATA], "x"),
        "mounts": {"data": host_facts.mount_of(tmp_path, tmp_path)},
        "gpus": gpu.describe_gpus(driver=tmp_path),
        "python": {name: value for name, value in python.items() if not isinstance(value, dict)},
        "software": {
            **software.libraries(tmp_path),
            "open_mpi": software.open_mpi(env=env, user=None, root=tmp_path),
        },
        "load": {"average": [0.1], "busiest": busiest},
    }


settings = gpu._settings
ELSEWHERE = {"agent.version", "container.image", "cpu.usable", "system.cloud_init"}
"""Facts of the agent's own machine, of a program of it, or of the run."""


def test_every_fact_that_is_read_has_a_row_in_machine_facts(machine: dict[str, Any]) -> None:
    assert paths(machine) == {fact.path for fact in FACTS} - ELSEWHERE


def test_the_docs_list_the_facts() -> None:
    text = (Path(__file__).parents[3] / "docs/run-directory.md").read_text()
    section = text.split("## `environment.json`")[1].split("\n## ")[0]
    documented = {}
    for key, holds in re.findall(r"(?m)^\| `(\w+)` \| (.*) \|$", section):
        documented[key] = set(re.findall(r"`(\w+)`", holds))
    for key in {fact.path.partition(".")[0].removesuffix("[]") for fact in FACTS}:
        names = {
            name.removesuffix("[]")
            for fact in FACTS
            if fact.path.startswith((f"{key}.", f"{key}[]."))
            for name in fact.path.split(".")[1:]
        } - {"*"}
        more = {"python": {"packages", "distributions"}, "mounts": {"run_directory", "data"}}
        assert documented[key] == names | more.get(key, set()), key


def test_each_fact_has_one_row_and_each_shown_line_has_a_label() -> None:
    assert len(FACTS) == sum(len(facts) for facts in TABLES.values())
    for fact in FACTS:
        assert not fact.words or (fact.line or fact.path.partition(".")[0].removesuffix("[]")) in LINES
