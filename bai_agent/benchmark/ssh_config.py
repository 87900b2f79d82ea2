"""What ssh and sshd of one job are told: texts of files that all lie in one folder. Nothing of the machine's own is read or changed.

Sources: sshd_config(5), ssh_config(5), sshd(8) for known_hosts and authorized_keys.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bai_agent.job.peers import Peer
from bai_agent.strategy.launch import SshFrom

KEY = "key"
"""This node's: what it logs in with, or its sshd's host key. `key.pub` is its public part."""
SSHD_CONFIG = "sshd_config"
CLIENTS = "bin"
"""A folder for PATH: the `ssh` in it uses the configuration below."""
_ENTER = "enter"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def server_files(
    folder: Path, server: SshFrom, *, account: str, use_pam: bool, env: Mapping[str, str], cwd: Path
) -> dict[str, str]:
    """Return the files of an sshd that only the holder of one key gets through, as `account`: name → text.

    Each command starts in `cwd`, with `env`, of which names that no shell takes are left out.
    use_pam: where the account is locked, sshd without PAM lets nobody in.
    """
    address = f"[{server.address}]" if ":" in server.address else server.address
    config = {
        "ListenAddress": f"{address}:{server.port}",
        "HostKey": folder / KEY,
        "AuthorizedKeysFile": folder / "authorized_keys",
        # It asks whose the folders above are: a job store may lie where others may write. This folder is the account's alone.
        "StrictModes": "no",
        "UsePAM": "yes" if use_pam else "no",
        "AllowUsers": account,
        "PermitRootLogin": "prohibit-password",
        "AuthenticationMethods": "publickey",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "DisableForwarding": "yes",
        "PermitTTY": "no",
        "PermitUserRC": "no",
        "PidFile": "none",
        "UseDNS": "no",
        "PrintMotd": "no",
        "LogLevel": "ERROR",
        "ForceCommand": folder / _ENTER,
    }
    assigned = [shlex.quote(f"{name}={value}") for name, value in env.items() if _VARIABLE.fullmatch(name)]
    enter = [
        "#!/bin/sh",
        f"cd -- {shlex.quote(str(cwd))} || exit",
        # Not by `export`: names that a shell keeps for itself, such as bash its UID, would end this script.
        " ".join(["exec /usr/bin/env", *assigned, '/bin/sh -c "$SSH_ORIGINAL_COMMAND"']),
    ]
    return {
        SSHD_CONFIG: _lines(f"{name} {value}" for name, value in config.items()),
        "authorized_keys": _lines([server.public_key]),
        _ENTER: _lines(enter),
    }


def client_files(folder: Path, hosts: Sequence[Peer], *, ssh: Path) -> dict[str, str]:
    """Return the files of an `ssh` (`ssh` is the machine's) that logs in to `hosts` and trusts their published keys alone: name → text.

    Any other host is reached as if they were not there.
    """
    addresses = [peer.address for peer in hosts]
    config = []
    for peer in hosts:
        config += [f"Host {peer.address}", f"    Port {peer.port}"]
    known_hosts = folder / "known_hosts"
    config += [
        f"Host {' '.join(addresses)}",
        f"    IdentityFile {folder / KEY}",
        "    IdentitiesOnly yes",
        "    IdentityAgent none",
        f"    UserKnownHostsFile {known_hosts}",
        "    GlobalKnownHostsFile none",
        "    StrictHostKeyChecking yes",
        "    UpdateHostKeys no",
        "    BatchMode yes",
        "    ConnectTimeout 20",
        "    LogLevel ERROR",
        f"Host * {' '.join(f'!{each}' for each in addresses)}",
        "    Include ~/.ssh/config",
        "    Include /etc/ssh/ssh_config",
    ]
    config_file = folder / "ssh_config"
    return {
        config_file.name: _lines(config),
        known_hosts.name: _lines(f"[{peer.address}]:{peer.port} {peer.public_key}" for peer in hosts),
        f"{CLIENTS}/ssh": _lines(["#!/bin/sh", f'exec {ssh} -F {config_file} "$@"']),
    }


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
