"""The hypervisor's network: one bridge, DHCP from dnsmasq, and the metadata address. It has no way out."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from pathlib import Path

from sandbox.fake_aws.machine.namespaces import Holder, bound_to_caller

GATEWAY = "172.31.0.1"
"""In the default VPC's range, where AWS has the VPC's router too."""
METADATA = "169.254.169.254"

_SET_UP = f"""
ip link set lo up
# A bridge without an address of its own takes that of a port, and another one when the port goes: for seconds machines reach nothing.
ip link add br0 address 0e:00:00:00:00:01 type bridge
ip addr add {GATEWAY}/16 dev br0
ip addr add {METADATA}/32 dev br0
ip link set br0 up
"""
_LOG_LINES = 8


class Network:
    """Machines get the addresses that EC2's answers name."""

    def __init__(self, folder: Path) -> None:
        self._hosts = folder / "dhcp-hosts"
        self._hosts.mkdir(parents=True)
        self._log = folder / "dnsmasq.log"
        self.holder = Holder(_SET_UP)
        self._ports = 0
        self._dnsmasq = self._start_dnsmasq(folder)

    def attach(self, machine: Holder, *, mac: str, address: str, name: str) -> str:
        """Give the machine an `eth0` on the bridge, unplugged; return the name of the bridge's port."""
        self._ports += 1
        port = f"port{self._ports}"
        (self._hosts / name).write_text(f"{mac},{address},{name},infinite\n")
        peer = ["peer", "name", "eth0", "address", mac, "netns", str(machine.pid)]
        self.holder.run("ip", "link", "add", port, "type", "veth", *peer)
        self.holder.run("ip", "link", "set", port, "master", "br0")
        return port

    def plug(self, port: str, *, connected: bool) -> None:
        """Put the cable in, or pull it."""
        self.holder.run("ip", "link", "set", port, "up" if connected else "down")

    def detach(self, port: str) -> None:
        """Take the port away; fine where the machine's namespace has gone with it."""
        with contextlib.suppress(OSError):
            self.holder.run("ip", "link", "delete", port)

    def dhcp_log(self) -> str:
        """Return the last lines of the DHCP server's log: whom it heard, and what it answered."""
        state = self._dnsmasq.poll()
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join([*lines, f"it ended with {state}" if state is not None else "it runs"])

    def listen_for_metadata(self) -> socket.socket:
        return self.holder.listen((METADATA, 80))

    def close(self) -> None:
        self._dnsmasq.kill()
        self._dnsmasq.wait(60)
        self.holder.close()

    def _start_dnsmasq(self, folder: Path) -> subprocess.Popen[bytes]:
        options = [
            "--no-daemon",
            "--conf-file=/dev/null",
            "--user=root",
            "--port=0",  # no name server
            "--interface=br0",
            "--bind-interfaces",
            "--dhcp-authoritative",
            # To the one address that a client without an address surely hears: an offer sent to its future one may be lost.
            "--dhcp-broadcast",
            "--dhcp-range=172.31.0.0,static,255.255.0.0",
            f"--dhcp-hostsdir={self._hosts}",
            f"--dhcp-option=3,{GATEWAY}",
            "--dhcp-option=6,127.0.0.1",
            f"--dhcp-leasefile={folder / 'dhcp-leases'}",
            "--pid-file=",
            "--no-ping",
        ]
        enter = ["nsenter", "-t", str(self.holder.pid), "--net"]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                bound_to_caller([*enter, "dnsmasq", *options]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
