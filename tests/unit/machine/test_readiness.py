"""The agent waits for GPUs and local disks, and not for ever.

The kernel's folders are made by hand and `nvidia-smi` is a script: what a real driver answers is another matter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bai_agent.errors import NotReadyError
from bai_agent.machine.readiness import count_gpus, local_disks, wait_for_disks, wait_for_gpus

GPU = ("0x10de", "0x030200")
NVSWITCH = ("0x10de", "0x068000")
NETWORK = ("0x1d0f", "0x020000")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text("/dev/root / ext4 rw 0 0\n")
    return tmp_path


@pytest.fixture
def pci(root: Path) -> Callable[..., None]:
    def make(*devices: tuple[str, str]) -> None:
        for number, (vendor, kind) in enumerate(devices):
            folder = root / f"sys/bus/pci/devices/0000:00:{number:02x}.0"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{vendor}\n")
            (folder / "class").write_text(f"{kind}\n")

    return make


@pytest.fixture
def smi(tmp_path: Path) -> Callable[[str], tuple[str, ...]]:
    def make(body: str) -> tuple[str, ...]:
        path = tmp_path / "smi"
        path.write_text(f"#!/bin/sh\necho asked >>{tmp_path}/asked\n{body}\n")
        return ("sh", str(path))

    return make


def never() -> bool:
    return False


def test_only_nvidia_display_controllers_count_as_gpus(root: Path, pci: Callable[..., None]) -> None:
    pci(GPU, NETWORK, GPU, NVSWITCH)

    assert count_gpus(root) == 2


def test_a_machine_without_gpus_is_not_waited_for(
    root: Path, pci: Callable[..., None], smi: Callable[[str], tuple[str, ...]]
) -> None:
    pci(NETWORK)

    assert wait_for_gpus(stopping=never, root=root, smi=smi("exit 9")) == []
    assert not (root / "asked").exists()


def test_gpus_and_their_fabric_are_waited_for(
    root: Path, pci: Callable[..., None], smi: Callable[[str], tuple[str, ...]]
) -> None:
    pci(GPU, GPU)
    answers = smi(
        f"""
n=$(wc -l <{root}/asked)
case $1 in
*index)
    [ $n -gt 1 ] || {{ echo "NVIDIA-SMI has failed"; exit 9; }}
    echo 0; [ $n -lt 3 ] || echo 1 ;;
*fabric.state) [ $n -gt 5 ] && echo "Completed" && echo "Completed" || echo "In Progress" ;;
esac"""
    )

    assert wait_for_gpus(stopping=never, root=root, smi=answers, look_every=0) == []
    assert len((root / "asked").read_text().splitlines()) > 5


def test_gpus_whose_driver_does_not_know_the_fabric_are_ready(
    root: Path, pci: Callable[..., None], smi: Callable[[str], tuple[str, ...]]
) -> None:
    pci(GPU)
    answers = smi(
        'case $1 in *index) echo 0 ;; *) echo "Field is not a valid field to query"; exit 2 ;; esac'
    )

    assert wait_for_gpus(stopping=never, root=root, smi=answers, look_every=0) == []


def test_gpus_that_never_answer_are_an_error_with_their_output(
    root: Path, pci: Callable[..., None], smi: Callable[[str], tuple[str, ...]]
) -> None:
    pci(GPU)

    with pytest.raises(NotReadyError, match=r"not ready within 0 s: .* ended with 9: no driver loaded"):
        wait_for_gpus(stopping=never, root=root, smi=smi("echo no driver loaded; exit 9"), seconds=0)


def test_gpus_without_a_driver_are_a_warning(root: Path, pci: Callable[..., None]) -> None:
    pci(GPU)

    (warning,) = wait_for_gpus(stopping=never, root=root, smi=(str(root / "no-smi"),))

    assert "1 NVIDIA GPUs" in warning


def test_a_request_to_stop_ends_the_wait(
    root: Path, pci: Callable[..., None], smi: Callable[[str], tuple[str, ...]]
) -> None:
    pci(GPU)

    assert wait_for_gpus(stopping=lambda: True, root=root, smi=smi("exit 9")) == []


def test_the_agent_waits_for_local_disks_if_the_image_mounts_them(root: Path) -> None:
    disk(root, "nvme0n1", "Amazon Elastic Block Store")
    disk(root, "nvme1n1", "Amazon EC2 NVMe Instance Storage")
    looks = iter([False, False])

    def stopping() -> bool:
        if next(looks, True):
            # Somebody's mount point has a name that is not UTF-8.
            mounts = b"tmpfs /mnt/\xff tmpfs rw 0 0\n/dev/mapper/vg.01 /opt/dlami/nvme ext4 rw 0 0\n"
            (root / "proc/self/mounts").write_bytes(mounts)
        return False

    assert local_disks(root) == ["nvme1n1"]
    assert wait_for_disks(stopping=never, root=root, seconds=0) == []

    (root / "opt/dlami").mkdir(parents=True)
    assert "/opt/dlami/nvme" in wait_for_disks(stopping=never, root=root, seconds=0)[0]
    assert wait_for_disks(stopping=stopping, root=root, look_every=0) == []


def disk(root: Path, name: str, model: str) -> None:
    folder = root / f"sys/block/{name}/device"
    folder.mkdir(parents=True)
    (folder / "model").write_text(f"{model}      \n")
