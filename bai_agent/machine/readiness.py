"""Identifies the machine of a job, and waits until the machine is ready.

An agent can run before its instance is ready, while drivers still start, the fabric between GPUs is
initialised, and the AMI's own services mount the local disks. A benchmark that starts too early fails, or
gives different results.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from bai_agent.benchmark.children import kill
from bai_agent.errors import NotReadyError
from bai_agent.light_dataclass import dataclass
from bai_agent.machine.host_facts import mounts, read_text
from bai_agent.runtime.clock import CLOCK, Clock

log = logging.getLogger(__name__)

GPU_SECONDS = 300.0
"""Time limit for the GPUs to answer (seconds). The GPU fabric of a p5 instance takes two or three minutes to
start."""
DISK_SECONDS = 60.0
"""Time limit for the AMI to mount the local disks (seconds)."""

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""PCI class of display controllers, which distinguishes GPUs from NVSwitches and audio functions."""
_LOCAL_DISK = "Amazon EC2 NVMe Instance Storage"
_DLAMI_DISK = "/opt/dlami/nvme"
"""Folder at which the Deep Learning AMIs mount the local disks as one volume:
https://docs.aws.amazon.com/dlami/latest/devguide/important-changes.html
"""
_SMI = "nvidia-smi"
_SMI_SECONDS = 60.0
_LOOK_EVERY = 2.0
_TRAINING = ("In Progress", "Not Started")


@dataclass(frozen=True, kw_only=True)
class Node:
    """This machine's identity among the machines of a job."""

    rank: int = 0
    instance_id: str | None = None
    """Id of the EC2 instance. None if the machine is not an EC2 instance."""
    launch: int = 0
    """Number of the launch that started this machine. 0 if this machine was launched at the job's start."""


def wait_for_machine(stopping: Callable[[], bool], clock: Clock) -> list[str]:
    """Wait until this machine's GPUs and local disks are ready. Return warnings. Raises NotReadyError."""
    return [*wait_for_gpus(stopping=stopping, clock=clock), *wait_for_disks(stopping=stopping, clock=clock)]


def wait_for_gpus(
    *,
    stopping: Callable[[], bool],
    clock: Clock = CLOCK,
    seconds: float = GPU_SECONDS,
    root: Path = Path("/"),
    smi: Sequence[str] = (_SMI,),
    look_every: float = _LOOK_EVERY,
) -> list[str]:
    """Wait until every NVIDIA GPU of this machine answers and the fabric between them is up, or until `stopping()`.

    Returns only a warning if the GPUs have no driver, because the benchmark may not need GPUs. Raises
    NotReadyError after `seconds`.
    """
    expected = count_gpus(root)
    if expected == 0:
        return []
    deadline = clock.monotonic() + seconds
    while True:
        try:
            found = _ask(smi, "index")
            trouble = None if len(found) >= expected else f"{len(found)} of {expected} GPUs answer"
            if trouble is None and (states := _training(smi)):
                trouble = f"the fabric of {len(states)} GPUs is not up yet ({states[0]})"
        except FileNotFoundError:
            return [f"This machine has {expected} NVIDIA GPUs, but no {_SMI}: the image has no driver."]
        except subprocess.TimeoutExpired:
            trouble = f"{_SMI} did not answer for {_SMI_SECONDS:.0f} s"
        except subprocess.CalledProcessError as error:
            said = " ".join((error.stdout or error.stderr or "").split())
            trouble = f"{_SMI} ended with {error.returncode}: {said[:200]}"
        if trouble is None or stopping():
            return []
        if clock.monotonic() >= deadline:
            raise NotReadyError(
                f"The GPUs of this machine were not ready within {seconds:.0f} s: {trouble}; see the kernel's log."
            )
        log.info("waiting for the GPUs: %s", trouble)
        clock.sleep(look_every)


def wait_for_disks(
    *,
    stopping: Callable[[], bool],
    clock: Clock = CLOCK,
    seconds: float = DISK_SECONDS,
    root: Path = Path("/"),
    look_every: float = _LOOK_EVERY,
) -> list[str]:
    """Wait until the local disks are mounted, if the image mounts them, or until `stopping()`.

    Returns a warning if the disks are not mounted after `seconds`.
    """
    disks = local_disks(root)
    # Images other than the Deep Learning AMIs leave mounting to the user.
    if not disks or not (root / "opt/dlami").is_dir():
        return []
    deadline = clock.monotonic() + seconds
    while _DLAMI_DISK not in {fields[1] for fields in mounts(root)}:
        if stopping():
            return []
        if clock.monotonic() >= deadline:
            return [
                f"This machine has {len(disks)} local disks, but nothing was mounted at {_DLAMI_DISK} within {seconds:.0f} s."
            ]
        clock.sleep(look_every)
    return []


def count_gpus(root: Path = Path("/")) -> int:
    """Return the number of NVIDIA GPUs on the PCI bus, with or without a driver."""
    return sum(
        read_text(device / "vendor") == _NVIDIA and read_text(device / "class").startswith(_DISPLAY)
        for device in (root / "sys/bus/pci/devices").glob("*")
    )


def local_disks(root: Path = Path("/")) -> list[str]:
    """Return the names of the instance-store disks."""
    return sorted(
        disk.name
        for disk in (root / "sys/block").glob("nvme*")
        if read_text(disk / "device/model").startswith(_LOCAL_DISK)
    )


def _training(smi: Sequence[str]) -> list[str]:
    try:
        return [state for state in _ask(smi, "fabric.state") if state in _TRAINING]
    except subprocess.CalledProcessError:
        # If the driver does not know the field, the machine has no fabric.
        return []


def _ask(smi: Sequence[str], field: str) -> list[str]:
    # subprocess.run is not used, because after its timeout it waits without a limit for the child. A child
    # that hangs in the driver survives even SIGKILL.
    child = subprocess.Popen(
        [*smi, f"--query-gpu={field}", "--format=csv,noheader"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        said, complaint = child.communicate(timeout=_SMI_SECONDS)
    except subprocess.TimeoutExpired:
        kill(child)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        raise
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, child.args, said, complaint)
    return [line.strip() for line in said.splitlines() if line.strip()]
