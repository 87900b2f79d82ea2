"""`[[mounts]]` in a whole run: what only an agent from its start to its end shows.

The test machines' kernels have no NFS client, so a program that stands in for `mount` mounts a tmpfs.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from agent_runs import begun, environment, python_job, result_of, run_agent, start_agent, wait_until

from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.machine.network_mounts import NFS_PORT, is_mounted
from executor.backends.backend import BackendOptions
from executor.backends.local.local_backend import LocalBackend
from executor.configuration.config import read_settings

pytestmark = pytest.mark.root

STAND_IN = '#!/bin/sh\nexec /bin/mount -t tmpfs stand-in "$6"\n'
SAVES = """
import pathlib, sys, time
shared = pathlib.Path(sys.argv[1])
print("begun with", (shared / "data/words.txt").read_text(), flush=True)
(shared / "checkpoints/step-1").write_text("1")
while not (shared / "go").exists():
    time.sleep(0.05)
pathlib.Path("kept.txt").write_text((shared / "go").read_text())
"""


@pytest.fixture
def server() -> Iterator[str]:
    """Address of a server of this test alone that accepts connections to NFS's port."""
    number = os.getpid()
    address = f"127.{number >> 16 & 127}.{number >> 8 & 255}.{number & 255 or 1}"
    with socket.create_server((address, NFS_PORT)):
        yield address


@pytest.fixture
def shared() -> Iterator[Path]:
    """The target, which may not be in /dev, where temporary folders of tests may be. If the test fails, it is unmounted."""
    with TemporaryDirectory(prefix="bai-mounts-", dir="/var/tmp") as folder:
        yield (target := Path(folder) / "shared")
        if is_mounted(str(target)):
            subprocess.run(["/bin/umount", "-l", target], check=True, timeout=60)


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """Environment whose `mount` is the stand-in."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("mount", "mount.nfs"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    return environment(PATH=f"{folder}:{os.environ['PATH']}")


def test_data_and_checkpoints_on_a_mount_stay_usable_after_the_agent_is_killed(
    tmp_path: Path, server: str, shared: Path, programs: dict[str, str]
) -> None:
    # Given a job whose data and checkpoints are on a network file system
    (tmp_path / "words.txt").write_text("three words here")
    job = python_job(
        tmp_path,
        SAVES,
        arguments=[str(shared)],
        mounts=[{"type": "nfs", "src": f"{server}:/export", "target": str(shared)}],
        sources=[{"src": (tmp_path / "words.txt").as_uri(), "path": f"{shared}/data/words.txt"}],
        checkpoint={"path": f"{shared}/checkpoints"},
        output={"artifacts": ["kept.txt"]},
        store={"url": (tmp_path / "store").as_uri()},
    )
    rundir = tmp_path / "store/job/attempts/0/nodes/0"

    # When its agent is killed while it runs, and started again
    with start_agent(job, rundir, env=programs) as agent:
        try:
            wait_until(begun(rundir))
            wait_until((shared / "checkpoints/step-1").exists)
        finally:
            agent.kill()
    assert is_mounted(str(shared))
    (shared / "go").write_text("went on")
    code = run_agent(job, rundir, env=programs)

    # Then the benchmark has run once, and nothing is mounted any more
    assert code == 0
    assert (rundir / "output.log").read_text() == "begun with three words here\n"
    assert (tmp_path / "store/job/artifacts/kept.txt").read_text() == "went on"
    assert not is_mounted(str(shared))
    assert list(shared.iterdir()) == []
    assert not (rundir / "mounts").exists()


def test_bai_resume_unmounts_what_a_killed_agent_left_after_the_result(
    tmp_path: Path, server: str, shared: Path, programs: dict[str, str]
) -> None:
    # Given a job that has ended, and whose mount is still there
    mount = {"type": "nfs", "src": f"{server}:/export", "target": str(shared)}
    job = python_job(tmp_path, "print(1)", mounts=[mount], store={"url": (tmp_path / "store").as_uri()})
    rundir = tmp_path / "store/job/attempts/0/nodes/0"
    assert run_agent(job, rundir, env=programs) == 0
    (rundir / "mounts").write_text(f"{shared}\n")
    subprocess.run(["/bin/mount", "-t", "tmpfs", "left", shared], check=True, timeout=60)
    record = JobRecord(DirectoryStore(tmp_path / "store"), "job")
    backend = LocalBackend(BackendOptions(store=str(tmp_path / "store"), settings=read_settings))

    said = backend.resume(record)

    assert said.startswith("the job has ended: The benchmark finished successfully")
    assert "before it unmounted" in said
    wait_until(lambda: not is_mounted(str(shared)))
    wait_until(lambda: not (rundir / "mounts").exists())
    wait_until(lambda: not backend.status(record).agent_alive)
    assert "unmounted" not in backend.resume(record)


def test_a_mount_that_fails_ends_the_job_before_its_pull(
    tmp_path: Path, shared: Path, programs: dict[str, str]
) -> None:
    mount = {"type": "nfs", "src": "no-such-server.invalid:/export", "target": str(shared)}
    missing = {"src": (tmp_path / "missing").as_uri(), "path": "missing"}

    code = run_agent(
        python_job(tmp_path, "print(1)", mounts=[mount], sources=[missing]), tmp_path / "run", env=programs
    )

    assert code == 5
    result = result_of(tmp_path / "run")
    assert result["outcome"] == "prepare_failed"
    assert 'the server "no-such-server.invalid" has no address' in result["sentence"]
