"""The generated SSH configuration of the other nodes, read by OpenSSH itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bai_agent.benchmark.openssh import KEY, client_files
from bai_agent.job.peers import Peer

PUBLIC = "ssh-ed25519 " + "A" * 68
HOSTS = [
    Peer(rank=rank, address=f"10.0.0.{rank}", port=4000 + rank, public_key=PUBLIC.replace("A", str(rank)))
    for rank in (1, 2)
]


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def test_ssh_finds_each_hosts_port_and_trusts_its_key_alone(tmp_path: Path) -> None:
    written(tmp_path, client_files(tmp_path, HOSTS, ssh=Path("/usr/bin/ssh")))

    def option(host: str, name: str) -> list[str]:
        shown = subprocess.run(
            ["ssh", "-G", "-F", tmp_path / "ssh_config", host],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return [line.partition(" ")[2] for line in shown.stdout.splitlines() if line.startswith(f"{name} ")]

    for peer in HOSTS:
        assert option(peer.address, "port") == [str(peer.port)]
        assert option(peer.address, "identityfile") == [str(tmp_path / KEY)]
        assert option(peer.address, "userknownhostsfile") == [str(tmp_path / "known_hosts")]
        assert option(peer.address, "stricthostkeychecking") == ["true"]
        found = subprocess.run(
            ["ssh-keygen", "-F", f"[{peer.address}]:{peer.port}", "-f", tmp_path / "known_hosts"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert str(peer.public_key) in found.stdout
    # Other hosts are as they were
    assert option("example.org", "port") == ["22"]
    assert str(tmp_path / KEY) not in option("example.org", "identityfile")
