"""A machine that does not boot: this host's programs with their own disk, network, processes and console.

The scripts under test run unchanged, with the paths that they have on an instance. A program that would end
the machine is replaced by a recorder, and the rights to end the machine are removed too.
"""

from __future__ import annotations

import email
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from instance_services import Services
from sandbox.fake_aws.machine.namespaces import Holder

from cloud_init.user_data import Boot, readable

METADATA = "169.254.169.254"
ENDERS = ("shutdown", "poweroff", "halt", "reboot")

_DISK = """
mkdir -p "$1"
mount -t tmpfs -o size=256m tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t tmpfs tmpfs dev
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
for device in null:3 zero:5 random:8 urandom:9; do mknod -m 666 "dev/${device%:*}" c 1 "${device#*:}"; done
rm -rf var/lib/bai var/log/bai-guardian.log usr/bin/systemctl usr/bin/snap usr/local/bin/python*
: >dev/console
mkdir -p over/sys/kernel
: >over/sysrq-trigger
: >over/sys/kernel/sysrq
echo 0 >over/sys/kernel/panic
echo 0 >over/sys/kernel/hung_task_panic
: >dev/calls
mv usr/bin/sleep usr/bin/sleep.real
ip link set lo up
ip address add 169.254.169.254/32 dev lo
"""
_BOOT = """
mount -t proc proc "$1/proc"
# What is not laid over here stays as this host has it.
mount --bind "$1/proc/sys" "$1/proc/sys"
mount -o remount,bind,ro "$1/proc/sys"
for file in sysrq-trigger sys/kernel/sysrq sys/kernel/panic sys/kernel/hung_task_panic uptime; do
    # Some kernels have no such key.
    [ ! -e "$1/over/$file" ] || [ ! -e "$1/proc/$file" ] || mount --bind "$1/over/$file" "$1/proc/$file"
done
exec setpriv --bounding-set=-sys_boot,-sys_time,-sys_module chroot "$1" /usr/bin/sleep.real infinity
"""
_IN_PYTHON = """
import os, time

with open("/proc/self/cmdline") as file:
    deadman = 'pop("deadman")' in file.read()
if deadman:
    sleep, now, open_file = time.sleep, time.time, os.open

    def nap(seconds):
        with open("/dev/calls", "a") as file:
            file.write(f"sleep {seconds:g}\\n")
        sleep(0.02)

    def told():
        try:
            with open("/clock") as file:
                return float(file.read())
        except FileNotFoundError:
            return now()

    def laid_over(path, *more):
        return open_file("/over/sysrq-trigger" if path == "/proc/sysrq-trigger" else path, *more)

    time.sleep, time.time, os.open = nap, told, laid_over
"""
"""Does for the deadman what the programs of `_DISK` do for the scripts. It cannot reach this host's key."""
_SLEEP = """#!/bin/dash
echo "sleep $1" >>/dev/calls
# Between looks at a heartbeat: only a test of these has one that is looked at so often.
[ "$1" != 20 ] || [ -e /quick_looks ] || exec /usr/bin/sleep.real "$1"
exec /usr/bin/sleep.real 0.02
"""
_ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
"""Smallest environment of an instance, without HOME."""


class GuardianJail:
    """The machine, as a context. When the context ends, everything in the machine is gone."""

    def __init__(self, folder: Path, *, shell: str = "dash") -> None:
        self._disk = folder / "disk"
        self._shell = shell
        self.services = Services()
        self._machine: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> GuardianJail:
        self._holder = Holder(_DISK, str(self._disk))
        self.root = self._holder.path(self._disk / "root")
        for name in ENDERS:
            self.program(f"usr/sbin/{name}", f'#!/bin/dash\necho "{name} $*" >>/dev/calls\n')
        # No test waits for real: the sleeps of scripts are recorded and short.
        self.program("usr/bin/sleep", _SLEEP)
        self.program("usr/bin/cloud-init", "#!/usr/bin/python3\n")
        packages = self.root / "usr/lib/python3/dist-packages"
        (packages / "jail_programs.py").write_text(_IN_PYTHON)
        (packages / "jail_programs.pth").write_text("import jail_programs\n")
        (self.root / "usr/bin/sh").unlink()
        (self.root / "usr/bin/sh").symlink_to(self._shell)
        self._server = self.services.serve(self._holder.listen((METADATA, 80)))
        self.switch_on()
        return self

    def __exit__(self, *_: object) -> None:
        self.switch_off()
        self._server.shutdown()
        self._server.server_close()
        self._holder.close()

    def program(self, path: str, text: str) -> None:
        """Put a program into the machine. It replaces a program at this path."""
        target = self.root / path
        target.unlink(missing_ok=True)
        target.write_text(text)
        target.chmod(0o755)

    def switch_on(self) -> None:
        enter = ["nsenter", f"--target={self._holder.pid}", "--net", "--mount"]
        apart = ["unshare", "--pid", "--mount", "--propagation=private", "--fork", "--kill-child=KILL"]
        script = ["sh", "-euc", _BOOT, "sh", str(self._disk / "root")]
        self._machine = subprocess.Popen([*enter, *apart, *script], stdin=subprocess.DEVNULL)
        self.wait(lambda: self._first() is not None)

    def switch_off(self) -> None:
        """Take the machine's power away, so that all of its processes are gone at once."""
        if self._machine is not None:
            first = self._first()
            ended = os.pidfd_open(first) if first is not None else None
            self._machine.kill()
            self._machine.wait(60)
            self._machine = None
            if ended is not None:
                # The first process of a PID namespace ends after all others. The process that we waited for
                # is outside.
                assert select.select([ended], [], [], 60)[0], "the machine is still on"
                os.close(ended)
        for process in self._started:
            process.wait(60)
        self._started.clear()

    def cloud_init(self, boot: Boot, *, hook: bool = True, writes: bool = True, start: bool = True) -> None:
        """Run user data as cloud-init does: the boothook on every boot, and the rest on the first boot."""
        message = email.message_from_string(readable(boot))
        boothook, config = (str(part.get_payload()) for part in message.walk() if not part.is_multipart())
        if hook:
            self.program("boothook", boothook)
            self.run("/boothook", INSTANCE_ID=self.services.instance_id)
        if not writes:
            return
        wanted: dict[str, Any] = yaml.safe_load(config)
        for file in wanted["write_files"]:
            path = self.root / file["path"].lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file["content"])
        if start:
            self.run(*wanted["runcmd"][0])

    def run(self, *command: str, **environment: str) -> str:
        """Run a program in the machine; return its output as soon as no process holds the output open."""
        done = subprocess.run(
            self._entering(command, environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stdout

    def start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a program in the machine."""
        process = subprocess.Popen(self._entering(command, environment), stdin=subprocess.DEVNULL)
        self._started.append(process)
        return process

    def processes(self, text: str) -> list[int]:
        """Return this host's pids of the machine's processes whose command line contains `text`."""
        first = self._first()
        space = None if first is None else Path(f"/proc/{first}/ns/pid").readlink()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                same = (path / "ns/pid").readlink() == space
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if same and text in line:
                found.append(int(path.name))
        return found

    def kill(self, text: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the machine's processes whose command line contains `text`."""
        for pid in self.processes(text):
            os.kill(pid, number)

    def set_clock(self, seconds: int) -> None:
        """Stop the deadman's clock at `seconds` after 1970."""
        (self.root / "clock").write_text(str(seconds))

    @contextmanager
    def no_process_left(self) -> Iterator[None]:
        """Make each fork in the machine fail, as if a benchmark had used up all processes."""
        hierarchy = Path("/sys/fs/cgroup/pids")
        group = (hierarchy if hierarchy.is_dir() else hierarchy.parent) / f"bai-guardian_jail-{os.getpid()}"
        group.mkdir()
        try:
            (group / "pids.max").write_text("0")
            for pid in self.processes(""):
                (group / "cgroup.procs").write_text(str(pid))
            yield
        finally:
            for left in (group / "cgroup.procs").read_text().split():
                (group.parent / "cgroup.procs").write_text(left)
            group.rmdir()

    def console(self) -> str:
        # Each of our lines begins with a carriage return, because the console may be in the middle of another
        # line.
        return (self.root / "dev/console").read_bytes().decode().replace("\r", "")

    def last_words(self, *, seconds: float = 120) -> str:
        """Wait for the reason that the machine gives for its end."""
        self.wait(lambda: "BAI-END" in self.console(), seconds=seconds)
        return self.console().partition("BAI-END ")[2].splitlines()[0]

    def calls(self, program: str) -> list[str]:
        """Return the arguments of each call of a recorder: shutdown, poweroff, halt, reboot, sleep."""
        lines = [line.partition(" ") for line in (self.root / "dev/calls").read_text().splitlines()]
        return [arguments for name, _, arguments in lines if name == program]

    def wait(self, condition: Callable[[], object], *, seconds: float = 120) -> None:
        """Wait until `condition` holds. If it never does, fail with the machine's console and log."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                log = self.root / "var/log/bai-guardian.log"
                said = log.read_text(errors="replace") if log.exists() else ""
                raise TimeoutError(f"not within {seconds} s; console:\n{self.console()}\nlog:\n{said}")
            time.sleep(0.02)

    def _entering(self, command: tuple[str, ...], environment: Mapping[str, str]) -> list[str]:
        variables = [f"{name}={value}" for name, value in {**_ENVIRONMENT, **environment}.items()]
        rights = ["/usr/bin/setpriv", "--bounding-set=-sys_boot,-sys_time,-sys_module"]
        enter = ["nsenter", f"--target={self._first()}", "--net", "--mount", "--pid", "--root", "--wd"]
        return [*enter, *rights, "/usr/bin/env", "-i", *variables, *command]

    def _first(self) -> int | None:
        """Return this host's pid of the machine's first process, or None until it is the one that stays."""
        assert self._machine is not None
        try:
            children = (
                Path(f"/proc/{self._machine.pid}/task/{self._machine.pid}/children").read_text().split()
            )
            line = Path(f"/proc/{children[0]}/cmdline").read_bytes() if children else b""
        except (FileNotFoundError, ProcessLookupError):
            return None
        return int(children[0]) if line.startswith(b"/usr/bin/sleep.real") else None
