"""One instance as a real machine: its disk, its cable, its boots, and what a test may ask of it or do to it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from sandbox.fake_aws.iam.identities import Credentials
from sandbox.fake_aws.machine import roots
from sandbox.fake_aws.machine.cgroups import MachineGroup
from sandbox.fake_aws.machine.console import MachineConsole
from sandbox.fake_aws.machine.disk import Disk
from sandbox.fake_aws.machine.facts import Facts
from sandbox.fake_aws.machine.forward import Forwarder
from sandbox.fake_aws.machine.inside import Inside
from sandbox.fake_aws.machine.network import Network
from sandbox.fake_aws.machine.nspawn import POWER_OFF, REBOOT, RESTART, MachineBoot
from sandbox.fake_aws.machine.shape import MachineShape


class Machine:
    """Runs on a thread of its own from launch to `close`; a stopped or terminated one keeps its disk until then."""

    def __init__(
        self,
        *,
        facts: Facts,
        shape: MachineShape,
        variant: str,
        folder: Path,
        network: Network,
        credentials: Credentials,
        forwards: dict[int, int],
        on_boot: Callable[[Machine], None],
        on_off: Callable[[Machine], None],
    ) -> None:
        self.facts, self.shape, self.credentials = facts, shape, credentials
        self.instance_id = facts.instance_id
        self.boots = 0
        """How often it was started: 1 after launch, 2 after a reboot."""
        self.exit_codes: list[int] = []
        """What each boot ended with: 0 power-off, 133 reboot, negative: the power was taken away."""
        self.metadata: dict[str, str | None] = {}
        """Overrides of the metadata tree, read at each request; None: not there. Path below `latest/`."""
        self.metadata_requests: list[tuple[float, str, str, int]] = []
        """(monotonic time, method, path, status)"""
        self.error: str | None = None
        """Why the sandbox itself could not run this machine."""
        folder.mkdir(parents=True)
        self.terminal = MachineConsole(folder / "console")
        self._folder, self._variant = folder, variant
        self._network, self._forwards = network, forwards
        self._on_boot, self._on_off = on_boot, on_off
        self._launched = time.monotonic()
        self._marks: dict[str, float] = {}
        self._changed = threading.Condition()
        self._wanted_on, self._closing, self._power_cut = True, False, False
        self._off, self._halted = False, False
        self._boot: MachineBoot | None = None
        self._disk_made: Disk | None = None
        self._group: MachineGroup | None = None
        self._port: str | None = None
        self._forwarders: dict[int, Forwarder] = {}
        self._thread = threading.Thread(target=self._live, name=facts.instance_id, daemon=True)

    def launch(self) -> None:
        self._thread.start()

    # What a test asks.

    def console(self) -> str:
        """Return all that the machine has said so far, over all its boots."""
        return str(self.terminal)

    def wait_for(self, text: str, *, seconds: float = 300) -> None:
        """Wait until the console has said `text`."""
        if not self.terminal.wait_for(text, seconds=seconds):
            raise TimeoutError(self._complaint(f"did not say {text!r} within {seconds:.0f} s"))

    def wait_off(self, *, seconds: float = 300) -> None:
        """Wait until the machine is off and EC2 knows it."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._off or self.error is not None, seconds):
                raise TimeoutError(self._complaint(f"was not off within {seconds:.0f} s"))
        if self.error is not None:
            raise OSError(self._complaint(self.error))

    @property
    def timings(self) -> dict[str, float]:
        """Seconds from the launch to: boot, token, user_data, off, and of reboots `boot2`, `off2` …"""
        marks = dict(self._marks)
        for when, _, path, status in list(self.metadata_requests):
            if status == 200:
                name = {"/latest/api/token": "token"}.get(path, "user_data" if "user-data" in path else "")
                marks.setdefault(name, when)
        marks.pop("", None)
        return {name: round(at - self._launched, 3) for name, at in sorted(marks.items(), key=lambda m: m[1])}

    def said_after(self, text: str) -> float | None:
        """Return how many seconds after the launch the console first said `text`; None: it has not."""
        when = self.terminal.time_of(text)
        return None if when is None else when - self._launched

    @property
    def inside(self) -> Inside:
        """The running machine's processes, and programs run beside them."""
        boot, group = self._boot, self._group
        pid = boot.first_process() if boot else None
        if pid is None or group is None:
            raise OSError(self._complaint("is not on"))
        return Inside(pid, group)

    def run(self, argv: Sequence[str], *, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a program in the machine, as its root; its exit code is not checked."""
        return self.inside.run(argv, seconds=seconds)

    def kill(self, pid: int, signal: int = 9) -> None:
        """Send a signal to the process that the machine knows as `pid`."""
        self.inside.kill(pid, signal)

    def read(self, path: str) -> bytes:
        """Return a file of the machine's disk; one that is off can still be read."""
        return self._disk.read(path)

    def write(self, path: str, content: str | bytes) -> None:
        """Write a file to the machine's disk, on or off."""
        self._disk.write(path, content)

    # What a test does to it.

    def hang(self, hung: bool = True) -> None:
        """Let the whole machine stand still, deaf to everything but loss of power; or go on."""
        assert self._group is not None
        self._group.freeze(hung)

    def plug(self, connected: bool) -> None:
        """Put its network cable in, or pull it."""
        assert self._port is not None
        self._network.plug(self._port, connected=connected)

    def set_clock(self, time: datetime) -> None:
        """Set the services' clock of a machine whose shape says that it is wrong; `now` makes it right."""
        self._disk.set_clock(time)

    def forward(self, port: int, target: int | None) -> None:
        """Let the machine's 127.0.0.1:`port` lead to the host's 127.0.0.1:`target`; None: nobody listens there."""
        previous = self._forwarders.pop(port, None)
        if previous is not None:
            previous.close()
        if target is not None:
            listener = self._disk.holder.listen(("127.0.0.1", port))
            self._forwarders[port] = Forwarder(listener, ("127.0.0.1", target))

    # What the hypervisor does.

    def start(self) -> None:
        """Switch on a machine that is off: same disk, same identity."""
        with self._changed:
            self._wanted_on, self._power_cut, self._off = True, False, False
            self._changed.notify_all()

    def ask_to_restart(self) -> None:
        if self._boot:
            self._boot.signal_first(RESTART)

    def shut_down(self, *, grace: float) -> None:
        """Press the power button, and take the power away `grace` seconds later; returns at once."""

        def press() -> None:
            deadline = time.monotonic() + grace
            while not self._off and not self._halted and time.monotonic() < deadline:
                # Again and again: early in its boot the machine is deaf to the button.
                if self._boot:
                    self._boot.signal_first(POWER_OFF)
                with self._changed:
                    self._changed.wait_for(lambda: self._off, min(1.0, grace))
            self.cut_power()

        threading.Thread(target=press, name=f"{self.instance_id}-off", daemon=True).start()

    def cut_power(self) -> None:
        """Take the power away; fine where it is off."""
        with self._changed:
            self._wanted_on, self._power_cut = False, True
            self._changed.notify_all()
            if self._boot:
                self._boot.kill()

    def close(self) -> None:
        """Take the machine down with all that it had. Nothing of it is left on the host but its console."""
        with self._changed:
            self._closing = True
        self.cut_power()
        if self._thread.ident is not None:
            self._thread.join(60)
            if self._thread.is_alive():
                raise OSError(self._complaint("could not be taken down within 60 s"))
        self.terminal.close()

    # Its life, on its own thread.

    def _live(self) -> None:
        try:
            self._prepare()
            while self._wait_for_switch():
                while not self._power_cut and self._boot_once() == REBOOT:
                    pass
                if not self._power_cut and self._disk.take_halt_mark():
                    with self._changed:
                        self._halted = True
                        self._changed.wait_for(lambda: self._power_cut)
                        self._halted = False
                self._switched_off()
        except (OSError, roots.RootError, subprocess.SubprocessError) as error:
            self.error = f"could not be run: {error}"
            self._switched_off()
        finally:
            try:
                self._tear_down()
            except (OSError, subprocess.SubprocessError) as error:
                self.error = f"could not be taken down: {error}"

    def _prepare(self) -> None:
        self._disk_made = Disk(self._folder / "disk", variant=self._variant, shape=self.shape)
        self._disk.apply(self.shape, instance_type=self.facts.instance_type)
        self._group = MachineGroup(self.facts.instance_id)
        self._port = self._network.attach(
            self._disk.holder, mac=self.facts.mac, address=self.facts.address, name=self.facts.host_name
        )
        for port, target in self._forwards.items():
            self.forward(port, target)

    def _wait_for_switch(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted_on or self._closing)
            return not self._closing

    def _boot_once(self) -> int:
        assert self._group is not None
        if self.shape.clock is not None:
            self.set_clock(self.shape.clock)
        if self.shape.network_after:
            self.plug(False)
        laid_over = {**roots.mounts(), **self.shape.mounts}
        mounts = [f"{host}:{inside}" for inside, host in laid_over.items()]
        with self._changed:
            if self._power_cut:
                return -9
            self._boot = MachineBoot(
                disk=self._disk, name=self.facts.host_name, group=self._group, mounts=mounts
            )
            self.boots += 1
        plugged = threading.Timer(self.shape.network_after.total_seconds(), self.plug, [True])
        plugged.start()
        self._mark("boot")
        self._on_boot(self)
        while data := self._boot.read():
            self.terminal.feed(data)
        plugged.cancel()
        plugged.join()
        with self._changed:
            code = self._boot.wait()
            self._boot = None
        self.exit_codes.append(code)
        self._mark("off")
        if code not in (0, REBOOT) and not self._power_cut:
            raise OSError(f"systemd-nspawn ended with {code}")
        return code

    def _switched_off(self) -> None:
        self._on_off(self)
        with self._changed:
            self._wanted_on, self._off = False, True
            self._changed.notify_all()

    def _tear_down(self) -> None:
        for forwarder in self._forwarders.values():
            forwarder.close()
        if self._port is not None:
            self._network.detach(self._port)
        if self._disk_made is not None:
            self._disk_made.close()
        if self._group is not None:
            self._group.remove()

    @property
    def _disk(self) -> Disk:
        if self._disk_made is None:
            raise OSError(self._complaint("has no disk yet"))
        return self._disk_made

    def _mark(self, name: str) -> None:
        self._marks[name if self.boots < 2 else f"{name}{self.boots}"] = time.monotonic()

    def _complaint(self, what: str) -> str:
        console = self.console()[-3000:]
        return (
            f"{self.instance_id} {what}; its console ends with:\n{console}\n"
            f"its DHCP server says:\n{self._network.dhcp_log()}\n"
            f"its network:\n{self._network_state()}"
        )

    def _network_state(self) -> str:
        """Return what its card has seen, and who listens to it: whether an answer was lost before the machine or in it."""
        questions = (("ip", "-statistics", "address", "show", "eth0"), ("ss", "--packet", "--processes"))
        try:
            return "".join(self._disk.holder.run(*question) for question in questions)
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
