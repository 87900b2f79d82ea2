"""The machine that a job runs on: who it is, and when it is ready.

An instance answers before all of it is there: drivers come up, the fabric between GPUs is trained, and the AMI's own
services mount the local disks. A benchmark that starts before them fails, or measures something else.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bai_agent.benchmark.children import kill
from bai_agent.errors import BaiError
from bai_agent.run.clock import CLOCK, Clock

log = logging.getLogger(__name__)

GPU_SECONDS = 300.0
"""Within these the GPUs must answer: a p5's fabric takes two or three minutes."""
DISK_SECONDS = 60.0
"""Within these the AMI mounts the local disks, if it does."""

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""The PCI class of display controllers: an NVSwitch or an audio function is none."""
_LOCAL_DISK = "Amazon EC2 NVMe Instance Storage"
_DLAMI_DISK = "/opt/dlami/nvme"
"""Where the Deep Learning AMIs mount local disks, as one volume:
https://docs.aws.amazon.com/dlami/latest/devguide/important-changes.html"""
_SMI = "nvidia-smi"
_SMI_SECONDS = 60.0
_LOOK_EVERY = 2.0
_TRAINING = ("In Progress", "Not Started")


@dataclass(frozen=True, kw_only=True)
class Node:
    """Which of a job's machines this is."""

    rank: int = 0
    instance_id: str | None = None
    """Of the EC2 instance; unset on any other machine."""


class NotReadyError(BaiError):
    """The machine is not as the benchmark needs it, and time is up."""


def wait_for_machine(stopping: Callable[[], bool], clock: Clock) -> list[str]:
    """Wait for this machine's GPUs and local disks; return warnings. Raises NotReadyError."""
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
    """Return when every NVIDIA GPU of this machine answers and the fabric between them is up; or when `stopping()`.

    Returns warnings: GPUs without a driver do not keep a benchmark that needs none from running.
    Raises NotReadyError after `seconds`.
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
            return [f"This machine has {expected} NVIDIA GPUs, but no {_SMI}: the image brings no driver."]
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
    """Return when the local disks are mounted, where the image is one that mounts them; or when `stopping()`.

    Returns a warning where they are not after `seconds`.
    """
    disks = local_disks(root)
    # Other images leave it to the user.
    if not disks or not (root / "opt/dlami").is_dir():
        return []
    deadline = clock.monotonic() + seconds
    while _DLAMI_DISK not in _mounted(root):
        if stopping():
            return []
        if clock.monotonic() >= deadline:
            return [
                f"This machine has {len(disks)} local disks, but nothing was mounted at {_DLAMI_DISK} within {seconds:.0f} s."
            ]
        clock.sleep(look_every)
    return []


def count_gpus(root: Path = Path("/")) -> int:
    """Return how many NVIDIA GPUs are on the PCI bus, whether a driver knows them or not."""
    return sum(
        _text(device / "vendor") == _NVIDIA and _text(device / "class").startswith(_DISPLAY)
        for device in (root / "sys/bus/pci/devices").glob("*")
    )


def local_disks(root: Path = Path("/")) -> list[str]:
    """Return the names of the instance-store disks."""
    return sorted(
        disk.name
        for disk in (root / "sys/block").glob("nvme*")
        if _text(disk / "device/model").startswith(_LOCAL_DISK)
    )


def _training(smi: Sequence[str]) -> list[str]:
    try:
        return [state for state in _ask(smi, "fabric.state") if state in _TRAINING]
    except subprocess.CalledProcessError:
        # A driver that does not know the question knows no fabric.
        return []


def _ask(smi: Sequence[str], field: str) -> list[str]:
    # Not subprocess.run: after its timeout it waits without one, and where a driver hangs even SIGKILL does.
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


def _mounted(root: Path) -> set[str]:
    try:
        lines = (root / "proc/mounts").read_bytes().splitlines()  # a mount point's name need not be UTF-8
    except OSError as error:
        log.warning("cannot see what is mounted: %s", error)
        return set()
    return {os.fsdecode(fields[1]) for line in lines if len(fields := line.split()) > 1}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        # A device may go while we look, and has then no say.
        return ""
