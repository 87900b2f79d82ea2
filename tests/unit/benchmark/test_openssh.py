"""OpenSSH's programs, where they are missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agent_runs import is_alive, wait_until

from bai_agent.benchmark import openssh
from bai_agent.benchmark.children import Stopped
from bai_agent.benchmark.openssh import require_openssh
from bai_agent.errors import SetupError


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose programs are in one folder, where this process is root."""
    monkeypatch.setattr(openssh, "_FOLDERS", ())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    put(tmp_path, "ssh-keygen", "")
    return tmp_path


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_workers_need_sshd_and_the_launcher_needs_ssh(machine: Path) -> None:
    put(machine, "sshd", "")
    require_openssh(serves=True, path=str(machine), may_install=False)

    with pytest.raises(SetupError, match=r"^ssh is not on this machine .*openssh-server"):
        require_openssh(serves=False, path=str(machine), may_install=False)


@pytest.mark.parametrize("manager", ["apt-get", "dnf", "zypper", "yum", "apk"])
def test_missing_programs_are_installed_by_the_package_manager(machine: Path, manager: str) -> None:
    install = f'echo "$@" >> {machine}/asked; case "$*" in *install*|add*) : > {machine}/sshd; chmod +x {machine}/sshd;; esac'
    put(machine, manager, f"PATH=/usr/bin:/bin; {install}")

    require_openssh(serves=True, path=str(machine), may_install=True)

    assert "openssh" in (machine / "asked").read_text()


def test_nothing_is_installed_on_a_shared_machine(machine: Path) -> None:
    put(machine, "apt-get", f": > {machine}/asked")

    with pytest.raises(SetupError, match=r"^sshd is not on this machine"):
        require_openssh(serves=True, path=str(machine), may_install=False)

    assert not (machine / "asked").exists()


def test_a_failed_installation_of_openssh_gives_the_same_advice(machine: Path) -> None:
    put(machine, "apt-get", "echo no network >&2; exit 100")

    said = r"^sshd is not on this machine .*, and could not be installed \(apt-get ended with 100: no network\); install OpenSSH"
    with pytest.raises(SetupError, match=said):
        require_openssh(serves=True, path=str(machine), may_install=True)


def test_all_commands_of_an_installation_share_its_time(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openssh, "_INSTALL_SECONDS", 2.0)
    put(machine, "apt-get", "exec sleep 1.5")

    with pytest.raises(
        SetupError, match=r"could not be installed \(apt-get did not finish within 2 s, and was ended\)"
    ):
        require_openssh(serves=True, path=str(machine), may_install=True)


def test_a_stop_of_the_run_ends_the_installation(machine: Path) -> None:
    child = machine / "pid"
    put(machine, "apt-get", f"sleep 600 & echo $! > {child}.part; mv {child}.part {child}; wait")

    with pytest.raises(Stopped):
        require_openssh(serves=True, path=f"{machine}:/usr/bin:/bin", may_install=True, stopping=child.exists)

    # With what it has started
    wait_until(lambda: not is_alive(int(child.read_text())))
