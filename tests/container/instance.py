"""The container, as an EC2 instance: launched with user data, booted by its own cloud-init, and powered off in the end."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

from container.account import REGION, ContainerAccount
from sandbox.fake_aws.machine.facts import Facts

ROLE = "bai-instance"
_STAGES = (["init", "--local"], ["init"], ["modules", "--mode=config"], ["modules", "--mode=final"])
"""What systemd's units run: https://docs.cloud-init.io/en/latest/explanation/boot.html"""
_STAGE_SECONDS = 120
_WRITTEN = ("/var/lib/cloud", "/run/cloud-init", "/var/lib/bai", "/var/log/bai-guardian.log")
_CONSOLE = Path("/dev/console")
_POWER_OFF = Path("/run/power-off")
"""Where the programs of `guest/usr/sbin` write down that they were called: uptime, name, arguments."""


class ContainerInstance:
    """Has no state but the container's own: there is one at a time."""

    def __init__(self, account: ContainerAccount) -> None:
        number = time.monotonic_ns() & 0xFFFF_FFFF_FFFF
        self.instance_id = f"i-0{number:016x}"
        self.credentials = account.identities.of_instance(self.instance_id)
        self.metadata: dict[str, str | None] = {}
        self.metadata_requests: list[tuple[float, str, str, int]] = []
        self.facts = _facts(self.instance_id, None)
        self._account = account
        self._console = b""
        self._fifo: int | None = None
        self._reading = threading.Lock()
        self._off = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="console", daemon=True)

    def boot(self, user_data: bytes) -> None:
        """Launch with `user_data`, and come up to the end of cloud-init's last stage."""
        self.facts = _facts(self.instance_id, user_data)
        self._account.launch(self)
        _wipe()
        os.mkfifo(_CONSOLE)
        # Opened for both directions, so that no end of a writer is the console's end.
        self._fifo = os.open(_CONSOLE, os.O_RDWR | os.O_NONBLOCK)
        self._listener.start()
        for stage in _STAGES:
            # As the first process of a machine would have it: no HOME, and nobody at the streams.
            done = subprocess.run(
                ["cloud-init", *stage],
                env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_STAGE_SECONDS,
                check=False,
            )
            if done.returncode != 0:
                raise OSError(
                    f"cloud-init {' '.join(stage)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
                )

    @property
    def console(self) -> str:
        """What the console has shown so far: all that was written before this is asked."""
        self._read_console()
        return self._console.decode(errors="replace")

    @property
    def power_offs(self) -> list[tuple[float, str]]:
        """Return when (seconds since the machine's start) and with which command the power-off was asked for."""
        if not _POWER_OFF.exists():
            return []
        lines = [line.split(" ", 1) for line in _POWER_OFF.read_text().splitlines()]
        return [(float(uptime), command.strip()) for uptime, command in lines]

    def wait_off(self, *, seconds: float = 120) -> str:
        """Wait until the machine is asked to power off; return the command that asked."""
        deadline = time.monotonic() + seconds
        while not self.power_offs:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no power-off after {seconds:.0f} s; the console:\n{self.console}")
            time.sleep(0.05)
        return self.power_offs[0][1]

    def take_power(self) -> None:
        """End every process but this one, its parents and the first, as a loss of power does."""
        parents = {1, os.getpid(), os.getppid()}
        for each in Path("/proc").iterdir():
            if each.name.isdigit() and int(each.name) not in parents:
                _kill(int(each.name))
        self._off.set()
        if self._listener.is_alive():
            self._listener.join(60)
        self._read_console()
        with self._reading:
            if self._fifo is not None:
                os.close(self._fifo)
                self._fifo = None

    def _listen(self) -> None:
        # Nobody who writes to the console may wait for us.
        while not self._off.wait(0.1):
            self._read_console()

    def _read_console(self) -> None:
        with self._reading:
            while self._fifo is not None:
                try:
                    self._console += os.read(self._fifo, 65536)
                except BlockingIOError:
                    return


def _wipe() -> None:
    for name in _WRITTEN:
        path = Path(name)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for lock in Path("/run").glob("bai-guardian.*"):
        lock.rmdir()
    _POWER_OFF.unlink(missing_ok=True)
    _CONSOLE.unlink(missing_ok=True)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _facts(instance_id: str, user_data: bytes | None) -> Facts:
    return Facts(
        instance_id=instance_id,
        account="210987654321",
        region=REGION,
        zone=f"{REGION}a",
        zone_id="euc1-az2",
        image_id="ami-0deb1200000000001",
        instance_type="t3.small",
        architecture="arm64" if platform.machine() == "aarch64" else "x86_64",
        launch_index=0,
        reservation_id="r-0123456789abcdef0",
        address="172.31.0.10",
        mac="02:00:00:00:00:10",
        subnet_id="subnet-0123456789abcdef0",
        subnet_range="172.31.0.0/20",
        vpc_id="vpc-0123456789abcdef0",
        vpc_range="172.31.0.0/16",
        interface_id="eni-0123456789abcdef0",
        security_groups=(("sg-0123456789abcdef0", "default"),),
        root_device="/dev/xvda",
        profile_arn=f"arn:aws:iam::210987654321:instance-profile/{ROLE}",
        role=ROLE,
        spot=False,
        tokens_required=True,
        user_data=user_data,
    )
