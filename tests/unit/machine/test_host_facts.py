"""What a machine says of itself, read from kernel folders made by hand; some say nothing, or nonsense."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bai_agent.machine import host_facts, software
from bai_agent.machine.probe import gpu_warnings

READERS: dict[str, Callable[[Path], Any]] = {
    **host_facts.READERS,
    "load": host_facts.load_average,
    "runnable": host_facts.runnable,
    "processes": host_facts.processor_times,
    "libraries": software.libraries,
    "mount": lambda root: host_facts.mount_of(Path("/data"), root),
}
FILES = (
    "etc/os-release",
    "etc/image-id",
    "etc/cloud/build.info",
    "etc/passwd",
    "opt/amazon/efa_installed_packages",
    "proc/cmdline",
    "proc/cpuinfo",
    "proc/loadavg",
    "proc/meminfo",
    "proc/self/mounts",
    "proc/sys/kernel/osrelease",
    "proc/1/stat",
    "sys/block/nvme0n1/device/model",
    "sys/block/nvme0n1/queue/scheduler",
    "sys/block/nvme0n1/size",
    "sys/class/net/ens5/device/vendor",
    "sys/class/net/ens5/speed",
    "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/online",
    "usr/local/cuda/version.json",
)


def put(root: Path, name: str, content: bytes | str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def stat(pid: int, name: str, *, parent: int, ticks: int) -> str:
    return f"{pid} ({name}) R {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 77 1 1\n"


def test_processors_of_a_virtual_machine_are_read_from_kernel_files(tmp_path: Path) -> None:
    put(
        tmp_path,
        "proc/cpuinfo",
        "model name\t: AMD EPYC 7R13\ncpu MHz\t: 2649.998\nflags\t: fpu hypervisor\n\n",
    )
    put(tmp_path, "sys/devices/system/cpu/online", "0-3,6\n")
    put(tmp_path, "sys/devices/system/node/online", "0-1\n")

    assert host_facts.cpu(tmp_path) == {
        "model": "AMD EPYC 7R13",
        "count": 5,
        "numa_nodes": 2,
        "virtualised": True,
        "mhz": 2650,
    }


def test_the_image_and_known_boot_parameters_are_recorded_and_no_password(tmp_path: Path) -> None:
    put(tmp_path, "etc/os-release", 'NAME="Amazon Linux"\nPRETTY_NAME="Amazon Linux 2023"\n')
    put(tmp_path, "etc/image-id", 'image_name="al2023-ami"\nimage_version="2023.6"\n')
    put(
        tmp_path, "proc/cmdline", "root=/dev/xvda1 mitigations=off ds=nocloud;password=hunter2 isolcpus=2,3\n"
    )

    system = host_facts.system(tmp_path)
    assert (system["distribution"], system["image_name"]) == ("Amazon Linux 2023", "al2023-ami 2023.6")
    assert system["boot_parameters"] == ["mitigations=off", "isolcpus=2,3"]


def test_a_powersave_governor_and_used_swap_cause_warnings(tmp_path: Path) -> None:
    for number, governor in enumerate(("powersave", "performance")):
        put(tmp_path, f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor", governor)
    put(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "800000\n")
    put(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "4700000\n")
    put(tmp_path, "proc/meminfo", "MemTotal: 16000000 kB\nSwapTotal: 2000000 kB\nSwapFree: 1000000 kB\n")

    facts = {"cpu": host_facts.cpu(tmp_path), "memory": host_facts.memory(tmp_path)}

    assert (facts["cpu"]["mhz"], facts["cpu"]["max_mhz"]) == (800, 4700)
    governor, swap = host_facts.host_warnings(facts, load_before=[], runnable_now=0)
    assert '"powersave", not "performance"' in governor
    assert "977 MiB of swap" in swap


def test_an_idle_well_configured_machine_has_no_warnings(tmp_path: Path) -> None:
    put(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    put(tmp_path, "proc/meminfo", "MemTotal: 16000000 kB\nSwapTotal: 2000000 kB\nSwapFree: 1999000 kB\n")
    facts = {
        "cpu": {**host_facts.cpu(tmp_path), "count": 8},
        "memory": host_facts.memory(tmp_path),
        "load": {
            "average": [7.5, 1.0, 1.0],
            "busiest": [{"name": "bai", "user": "ann", "cores": 0.9, "cpu_seconds": 0.7}],
        },
    }

    # The load is that of a boot, or a pull, that is over.
    assert host_facts.host_warnings(facts, load_before=[0.5], runnable_now=6) == {}
    assert host_facts.host_warnings(facts, load_before=[7.5], runnable_now=0) == {}


def test_a_loaded_machine_is_warned_of() -> None:
    facts = {"cpu": {"count": 8}, "load": {"average": [7.5, 1.0, 1.0], "busiest": []}}

    (warning,) = host_facts.host_warnings(facts, load_before=[6.0], runnable_now=5)

    assert "7.5 just before the benchmark, with 8 processors" in warning


def test_warnings_about_an_intel_pstate_governor_and_light_load_are_minor() -> None:
    facts: dict[str, Any] = {
        "cpu": {"governors": ["performance", "powersave"], "scaling_driver": "intel_pstate", "count": 8},
        "load": {"busiest": [{"name": "firefox", "user": "me", "cores": 0.6, "cpu_seconds": 90.0}]},
        "memory": {"total_bytes": 10**9, "swap_used_bytes": 9 * 10**8},
    }

    assert list(host_facts.host_warnings(facts, load_before=[], runnable_now=0).values()) == [
        True,
        True,
        False,
    ]

    facts["cpu"] = {"governors": ["powersave"], "count": 2}
    assert list(host_facts.host_warnings(facts, load_before=[], runnable_now=0).values()) == [
        False,
        False,
        False,
    ]


def test_busy_processes_of_others_are_named(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    names = {1: ("init", 0), 10: ("our parent", 1), 11: ("agent", 10), 12: ("pip", 11), 20: ("x (y) z", 1)}
    for pid, (name, parent) in names.items():
        put(tmp_path, f"proc/{pid}/stat", stat(pid, name, parent=parent, ticks=10 * ticks))
    before = host_facts.processor_times(tmp_path)
    for pid, (name, parent) in names.items():
        put(tmp_path, f"proc/{pid}/stat", stat(pid, name, parent=parent, ticks=12 * ticks))
    put(tmp_path, "proc/30/stat", stat(30, "new", parent=1, ticks=99 * ticks))
    put(tmp_path, "etc/passwd", f"ann:x:{os.getuid()}:1::/:/bin/sh\n")

    found = host_facts.busiest(
        before, host_facts.processor_times(tmp_path), elapsed_s=2.0, ours=11, root=tmp_path
    )

    assert found == [{"name": "x (y) z", "user": "ann", "cores": 1.0, "cpu_seconds": 12.0}]
    (warning,) = host_facts.host_warnings({"load": {"busiest": found}}, load_before=[], runnable_now=0)
    assert "x (y) z (ann) 1." in warning


def test_a_gpu_machine_shows_its_libraries_and_disks(tmp_path: Path) -> None:
    for name in ("libnccl.so.2", "libnccl.so.2.18.5", "libnccl.so.bak", "libnccl.so"):
        put(tmp_path, f"usr/lib/x86_64-linux-gnu/{name}", "")
    put(tmp_path, "opt/amazon/efa_installed_packages", "# EFA installer version: 1.30.0\nlibfabric\n")
    put(tmp_path, "usr/local/cuda/version.json", json.dumps({"cuda": {"version": "12.4.1"}}))
    put(tmp_path, "sys/block/nvme1n1/size", "2048\n")
    put(tmp_path, "sys/block/nvme1n1/device/model", "Amazon EC2 NVMe Instance Storage   \n")
    put(tmp_path, "sys/block/nvme1n1/queue/scheduler", "[none] mq-deadline\n")
    put(tmp_path, "sys/block/loop0/size", "2048\n")
    put(tmp_path, "sys/class/net/ens5/device/vendor", "0x1d0f")
    put(tmp_path, "sys/class/net/ens5/speed", "100000\n")
    put(tmp_path, "sys/class/net/lo/speed", "1\n")

    assert software.libraries(tmp_path) == {
        "nccl": "2.18.5",
        "efa_installer": "1.30.0",
        "cuda_toolkit": "12.4.1",
    }
    (disk,) = host_facts.disks(tmp_path)
    assert (disk["model"], disk["bytes"]) == ("Amazon EC2 NVMe Instance Storage", 2**20)
    (interface,) = host_facts.network(tmp_path)
    assert (interface["name"], interface["mbit_per_second"]) == ("ens5", 100000)


def test_gpus_with_persistence_mode_off_or_in_use_are_named() -> None:
    devices = [
        {"persistence": True, "processes": 0, "memory_used_bytes": 0},
        {"persistence": False, "processes": 2, "memory_used_bytes": 137 * 2**30},
        {"persistence": True, "processes": 1},
    ]

    persistence, used = gpu_warnings({"devices": devices})

    assert "off on GPU 1," in persistence
    assert used == "Other processes used GPU 1 (137.0 GiB of memory), 2 just before the benchmark."


def test_the_mount_of_a_folder_shows_no_credentials(tmp_path: Path) -> None:
    put(
        tmp_path,
        "proc/self/mounts",
        "/dev/root / ext4 rw 0 0\n//server/data /da\\040ta cifs rw,noatime,username=ann,password=hunter2 0 0\n",
    )

    mount = host_facts.mount_of(Path("/da ta/set/of/mine"), tmp_path)

    assert (mount["point"], mount["device"]) == ("/da ta", "//server/data")
    assert mount["options"] == ["rw", "noatime"]
    assert host_facts.mount_of(Path("/da"), tmp_path)["point"] == "/"


def test_the_cuda_toolkit_without_a_version_file_is_named_by_its_folder(tmp_path: Path) -> None:
    put(tmp_path, "usr/local/cuda-13.0/bin/nvcc", "")
    (tmp_path / "usr/local/cuda").symlink_to("cuda-13.0")

    assert software.libraries(tmp_path) == {"cuda_toolkit": "13.0"}


@pytest.mark.parametrize("target", ["cuda", "cuda-13.0;rm", "absent"])
def test_a_strange_folder_of_the_cuda_toolkit_is_left_out(tmp_path: Path, target: str) -> None:
    (tmp_path / "usr/local").mkdir(parents=True)
    (tmp_path / "usr/local/cuda").symlink_to(target)

    assert software.libraries(tmp_path) == {}


@pytest.mark.parametrize("name", READERS)
def test_missing_kernel_files_cause_no_error(tmp_path: Path, name: str) -> None:
    assert not READERS[name](tmp_path) or set(READERS[name](tmp_path)) == {"architecture"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\xff\xfe" * 100,
        b"9" * 5000,
        b"a: b\n" * 50_000,
        b"1 (x) " + b"9" * 400,
        b'{"cuda": 3}',
        b"[" * 60_000,
    ],
    ids=["empty", "binary", "digits", "long", "stat", "other JSON", "deep"],
)
def test_garbage_in_kernel_files_causes_no_error_and_no_large_record(tmp_path: Path, content: bytes) -> None:
    for name in FILES:
        put(tmp_path, name, content)

    for name, read in READERS.items():
        if name != "processes":
            assert len(json.dumps(read(tmp_path))) < 20_000, name
        else:
            read(tmp_path)


def test_fifos_and_folders_in_place_of_files_do_not_block(tmp_path: Path) -> None:
    for number, name in enumerate(FILES):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 2:
            path.mkdir(exist_ok=True)
        elif not path.exists():
            os.mkfifo(path)

    for read in READERS.values():
        read(tmp_path)


@settings(max_examples=40)
@given(st.text(), st.text())
def test_any_kernel_list_is_counted_or_unknown(
    tmp_path_factory: pytest.TempPathFactory, a: str, b: str
) -> None:
    root = tmp_path_factory.mktemp("root")
    put(root, "sys/devices/system/cpu/online", a.encode(errors="replace"))
    put(root, "proc/loadavg", b.encode(errors="replace"))

    assert host_facts.cpu(root).get("count", 0) >= 0
    assert len(host_facts.load_average(root)) in (0, 3)


@pytest.mark.parametrize(
    ("interpreter", "package", "said"),
    [
        # the program itself is not asked where its Python says it
        (sys.executable, 'def version_string(): return "24.1.3-0ubuntu1"', "24.1.3-0ubuntu1"),
        (sys.executable, 'raise ImportError("nothing of the kind")', "22.2.2"),
        (f"{sys.executable} -s", "def another(): ...", "22.2.2"),
        ("/bin/sh", 'def version_string(): return "24.1.3"', "22.2.2"),
    ],
)
def test_the_version_of_cloud_init_is_its_packages_or_its_programs(
    interpreter: str, package: str, said: str, tmp_path: Path
) -> None:
    # given a cloud-init whose program tells another version than its package
    (tmp_path / "cloudinit").mkdir()
    (tmp_path / "cloudinit/__init__.py").touch()
    (tmp_path / "cloudinit/version.py").write_text(package + "\n")
    program = tmp_path / "cloud-init"
    tells = "echo cloud-init 22.2.2" if interpreter == "/bin/sh" else "print('cloud-init 22.2.2')"
    program.write_text(f"#!{interpreter}\n{tells}\n")
    program.chmod(0o755)

    env = {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    assert software.cloud_init_version(env=env) == said
