"""Network file systems: the command, every refusal, and real mounts by a program that stands in for `mount`.

The kernels of test machines have no NFS client, so that the stand-in mounts a tmpfs; all but the file system's kind is real.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from bai_agent.errors import SetupError
from bai_agent.job.descriptor.source_tables import Mount, MountType
from bai_agent.machine import network_mounts
from bai_agent.machine.host_facts import mounts
from bai_agent.machine.network_mounts import is_mounted, mount_all, mount_arguments, unmount_all

OPTIONS = "soft,timeo=150,retrans=2,nosuid,nodev"
STAND_IN = """#!/bin/sh
echo "$*" >>"{calls}"
exec /bin/mount -t tmpfs stand-in "$6"
"""


def nfs(target: Path | str, server: str = "127.0.0.1") -> Mount:
    return Mount(type=MountType.NFS, src=f"{server}:/export", target=str(target))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the stand-ins, first on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("mount.nfs", "mount.efs"):
        (folder / name).touch(mode=0o755)
    write_mount(folder, STAND_IN.format(calls=tmp_path / "calls"))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def write_mount(folder: Path, text: str) -> None:
    (folder / "mount").write_text(text)
    (folder / "mount").chmod(0o755)


@pytest.fixture
def port() -> Iterator[int]:
    """Port of a server that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Port whose packets are dropped: its server's queue of connections is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        number = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", number)):
            yield number


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Path]:
    """The file of the targets. At the end nothing is left mounted below the test's folder."""
    (tmp_path / "run").mkdir()
    yield tmp_path / "run/mounts"
    for fields in mounts(Path("/")):
        if fields[1].startswith(f"{tmp_path}/"):
            subprocess.run(["/bin/umount", "-l", fields[1]], check=True, timeout=60)


def go_on() -> bool:
    return False


def refusal(mount: Mount, record: Path, *, port: int, seconds: float = 60.0) -> str:
    with pytest.raises(SetupError) as error:
        mount_all([mount], record, stopping=go_on, port=port, seconds=seconds)
    return str(error.value)


@pytest.mark.parametrize(
    ("mount", "command"),
    [
        (nfs("/data", "10.0.0.5"), ["nfs", "-o", f"vers=4,{OPTIONS}", "10.0.0.5:/export", "/data"]),
        (
            Mount(type=MountType.EFS, src="fs-0123456789abcdef0:/a", target="/efs"),
            ["efs", "-o", f"tls,{OPTIONS}", "fs-0123456789abcdef0:/a", "/efs"],
        ),
        (
            Mount(type=MountType.EFS, src="fs-0123456789abcdef0:/", target="/efs", iam=True),
            ["efs", "-o", f"tls,iam,{OPTIONS}", "fs-0123456789abcdef0:/", "/efs"],
        ),
    ],
)
def test_the_mount_command_is_soft_and_its_arguments_are_unchanged(mount: Mount, command: list[str]) -> None:
    assert mount_arguments(mount) == ["mount", "-t", *command]


@pytest.mark.root
def test_file_systems_are_mounted_once_and_unmounted_lazily(
    tmp_path: Path, programs: Path, record: Path, port: int
) -> None:
    first, second = tmp_path / "new/folder", tmp_path / "empty"
    second.mkdir()
    wanted = [nfs(first), nfs(second)]

    mount_all(wanted, record, stopping=go_on, port=port)
    mount_all(wanted, record, stopping=go_on, port=port)  # an agent that was started again

    assert is_mounted(str(first))
    assert is_mounted(str(second))
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"-t nfs -o vers=4,{OPTIONS} 127.0.0.1:/export {each}" for each in (first, second)
    ]
    with (first / "open").open("w") as file:
        unmount_all(record)
        assert not is_mounted(str(first))
        file.write("still writable")
    assert not is_mounted(str(second))
    assert not record.exists()
    unmount_all(record)


def test_a_mount_that_cannot_be_unmounted_stays_listed_for_the_guardian(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.write_text("/efs\n")
    monkeypatch.setattr(network_mounts, "is_mounted", lambda _: True)
    monkeypatch.setattr(network_mounts, "_detach", lambda _: "Operation not permitted")

    unmount_all(record)

    assert record.read_text() == "/efs\n"


@pytest.mark.root
def test_two_concurrent_jobs_cannot_mount_at_the_same_folder(
    tmp_path: Path, programs: Path, record: Path, port: int
) -> None:
    # Given a job whose mount takes a while
    target, calls, go = tmp_path / "efs", tmp_path / "calls", tmp_path / "go"
    wait = f'while [ ! -e "{go}" ]; do sleep 0.05; done\nexec'
    write_mount(programs, STAND_IN.format(calls=calls).replace("exec", wait))
    first = Thread(
        target=mount_all, args=([nfs(target)], record), kwargs={"stopping": go_on, "port": port}, daemon=True
    )
    first.start()
    try:
        deadline = time.monotonic() + 60
        while not calls.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)

        # When another one wants to mount there, during that mount and after it
        (tmp_path / "other").mkdir()
        other = tmp_path / "other/mounts"
        early = refusal(nfs(target), other, port=port)
    finally:
        go.touch()
        first.join(60)
    late = refusal(nfs(target), other, port=port)

    # Then it is refused, and unmounts nothing
    assert early.endswith("cannot be mounted: another job is mounting a file system at this target.")
    assert late.endswith("cannot be mounted: another file system is mounted at this target.")
    unmount_all(other)
    assert is_mounted(str(target))


@pytest.mark.root
def test_a_folder_on_a_file_system_without_locks_can_be_a_mount_target(
    tmp_path: Path, programs: Path, record: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)

    mount_all([nfs(tmp_path / "efs")], record, stopping=go_on, port=port)

    assert is_mounted(str(tmp_path / "efs"))


@pytest.mark.root
def test_a_listed_mount_that_is_missing_after_a_reboot_is_mounted_again(
    tmp_path: Path, programs: Path, record: Path, port: int
) -> None:
    target = tmp_path / "efs"
    record.write_text(f"{target}\n")

    mount_all([nfs(target)], record, stopping=go_on, port=port)

    assert is_mounted(str(target))
    assert record.read_text() == f"{target}\n"


@pytest.mark.root
def test_a_mount_completed_after_its_agent_was_killed_is_unmounted(
    tmp_path: Path, programs: Path, record: Path, port: int
) -> None:
    # Given an agent that was killed while `mount` ran, and one that did not see that mount yet
    target = tmp_path / "efs"
    mount_all([nfs(target)], record, stopping=go_on, port=port)
    subprocess.run(["/bin/mount", "-t", "tmpfs", "late", target], check=True, timeout=60)

    unmount_all(record)

    assert not is_mounted(str(target))


@pytest.mark.root
def test_a_mount_left_by_a_killed_agent_is_used(
    tmp_path: Path, programs: Path, record: Path, port: int
) -> None:
    target = tmp_path / "efs"
    busy = "echo 'mount.nfs: /efs is busy or already mounted' >&2; exit 32"
    write_mount(programs, f'#!/bin/sh\n/bin/mount -t tmpfs first "$6"\n{busy}\n')
    record.write_text(f"{target}\n")

    mount_all([nfs(target)], record, stopping=go_on, port=port)

    assert is_mounted(str(target))


@pytest.mark.root
def test_a_file_system_mounted_by_another_program_is_left_alone(
    tmp_path: Path, programs: Path, record: Path, port: int
) -> None:
    target = tmp_path / "efs"
    target.mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "other", target], check=True, timeout=60)

    assert "another file system is mounted at this target" in refusal(nfs(target), record, port=port)

    unmount_all(record)
    assert is_mounted(str(target))


@pytest.mark.root
def test_targets_that_are_not_new_or_empty_folders_are_refused(
    tmp_path: Path, programs: Path, record: Path, port: int
) -> None:
    full, link, file = tmp_path / "full", tmp_path / "link", tmp_path / "file"
    (full / "kept").mkdir(parents=True)
    link.symlink_to(tmp_path)
    file.touch()

    def said(target: Path) -> str:
        return refusal(nfs(target), record, port=port).replace(str(tmp_path), "T")

    start = '[[mounts]] "127.0.0.1:/export" at '
    assert (
        said(full)
        == f"{start}T/full cannot be mounted: the folder is not empty. Name a new or an empty folder."
    )
    assert said(link / "new") == f"{start}T/link/new cannot be mounted: T/link is a link."
    assert said(file) == f"{start}T/file cannot be mounted: T/file is not a folder."
    mine = tmp_path / "mine"
    mine.mkdir()
    os.chown(mine, 65534, 65534)
    theirs = f"{start}T/mine/efs cannot be mounted: another user could replace folders in T/mine. Name"
    assert said(mine / "efs").startswith(theirs)
    os.chown(mine, 0, 0)
    mine.chmod(0o777)
    assert said(mine / "efs").startswith(theirs)
    for_all = tmp_path / "for all"
    (for_all / "theirs").mkdir(parents=True)
    for_all.chmod(0o1777)
    os.chown(for_all / "theirs", 65534, 65534)
    assert said(for_all / "theirs").startswith(
        f"{start}T/for all/theirs cannot be mounted: another user could replace folders in T/for all."
    )
    own = f"{start}T{{}} cannot be mounted: the folder is above or inside the run directory T/run."
    assert said(tmp_path) == own.format("")
    assert said(tmp_path / "run/in") == own.format("/run/in")
    assert not record.exists()
    assert list(tmp_path.glob("calls")) == []


@pytest.mark.root
def test_a_server_that_does_not_answer_is_named_with_its_port(
    tmp_path: Path, programs: Path, record: Path, silent_port: int
) -> None:
    said = refusal(nfs(tmp_path / "efs"), record, port=silent_port, seconds=0.5)

    assert "its server did not answer within 0 s." in said
    assert "security group, or its firewall, must let this machine reach TCP port 2049." in said


@pytest.mark.root
def test_a_server_that_refuses_or_has_no_address_is_named(
    tmp_path: Path, programs: Path, record: Path, port: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()[1]

    said = refusal(nfs(tmp_path / "efs"), record, port=closed)
    assert f"127.0.0.1 refuses connections to port {closed} (Connection refused)." in said

    said = refusal(nfs(tmp_path / "efs", "no-such-server.invalid"), record, port=port)
    assert 'the server "no-such-server.invalid" has no address' in said


@pytest.mark.root
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "echo 'mount.nfs: access denied by server' >&2; exit 32",
            "cannot be mounted: mount.nfs: access denied by server",
        ),
        ("exit 32", "cannot be mounted: mount ended with 32"),
        ("echo 'mount.nfs: Connection timed out'; exit 32", "TCP port 2049."),
        ("exec sleep 1000", "TCP port 2049."),
    ],
)
def test_the_error_contains_the_message_of_mount(
    tmp_path: Path, programs: Path, record: Path, port: int, text: str, expected: str
) -> None:
    write_mount(programs, f"#!/bin/sh\n{text}\n")

    seconds = 0.5 if "sleep" in text else 60.0
    assert refusal(nfs(tmp_path / "efs"), record, port=port, seconds=seconds).endswith(expected)


@pytest.mark.root
def test_a_missing_program_is_named_with_its_package(
    tmp_path: Path, record: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("bai_agent.job.descriptor.source_tables._HELPER_FOLDERS", ())
    efs = Mount(type=MountType.EFS, src="fs-0123456789abcdef0:/", target=str(tmp_path / "efs"))

    assert "there is no mount.nfs on this machine. Install the package nfs-common" in refusal(
        nfs(tmp_path / "efs"), record, port=port
    )
    said = refusal(efs, record, port=port)
    assert (
        "there is no mount.efs on this machine. Install the package amazon-efs-utils, or write type" in said
    )


def test_a_user_other_than_root_is_refused(
    tmp_path: Path, programs: Path, record: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    said = refusal(nfs(tmp_path / "efs"), record, port=port)

    assert said.endswith("only root may mount, and the agent runs as user 1000.")
    assert not (tmp_path / "efs").exists()


@pytest.mark.root
def test_a_stop_ends_the_wait_for_a_server_or_a_mount(
    tmp_path: Path, programs: Path, record: Path, port: int, silent_port: int
) -> None:
    write_mount(programs, "#!/bin/sh\nexec sleep 1000\n")
    for number in (silent_port, port):
        mount_all([nfs(tmp_path / "efs")], record, stopping=lambda: True, port=number, seconds=1000)
    assert not is_mounted(str(tmp_path / "efs"))
