"""Pulls that are killed, run concurrently, or run out of disk space."""

from __future__ import annotations

import hashlib
import itertools
import os
import pwd
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import wait_until
from s3_gate import Gate

from bai_agent.errors import NoSpaceError, PullError
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.pull import pull

MIB = 1 << 20
PART = 16 * MIB

CHILD = """
import os, sys, time
from pathlib import Path
from bai_agent.job.descriptor.source_tables import Source, SourceKind, Unpack
from bai_agent.pull import pull
from bai_agent.benchmark.environment import find_user
src, path, sha256, unpack, manifest, *user = sys.argv[1:]
source = Source(src=src, path=path, sha256=sha256 or None, unpack=Unpack(unpack))
pull([source], folders={SourceKind.DATA: Path("/")}, manifest=Path(manifest), deadline=time.monotonic() + 60,
     report=lambda progress: None, stopping=lambda: False, user=find_user(user[0]) if any(user) else None)
os._exit(0)  # as the agent ends: no thread of a transfer meets an interpreter that is going down
"""


def start(
    src: str, path: Path, *, manifest: Path, sha256: str = "", unpack: str = "no"
) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, src, str(path), sha256, unpack, str(manifest)])


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(60)


def test_a_killed_pull_does_not_fetch_complete_parts_again(tmp_path: Path, gate: Gate) -> None:
    # given a large object, of which the last parts do not come, and a pull that is killed when the others are there
    content = os.urandom(4 * PART + 5)
    gate.s3.put_object(Bucket="bucket", Key="large", Body=content)
    withheld = {f"bytes={3 * PART}-{4 * PART - 1}", f"bytes={4 * PART}-{4 * PART + 4}"}
    gate.hold = lambda wanted: wanted in withheld
    target = tmp_path / "x"
    sums = hashlib.sha256(content).hexdigest()
    child = start("s3://bucket/large", target, manifest=tmp_path / "job.json", sha256=sums)
    journal = tmp_path / ".x.bai-pulled"
    wait_until(lambda: journal.exists() and journal.read_text().count('"part"') == 3)
    kill(child)
    assert not target.exists()
    gate.requests.clear()
    gate.hold = lambda _wanted: False
    gate.release.set()
    # when the job starts again
    child = start("s3://bucket/large", target, manifest=tmp_path / "job.json", sha256=sums)
    assert child.wait(60) == 0
    # then only what was missing is asked for
    assert {wanted for _, wanted in gate.gets()} == withheld
    assert target.read_bytes() == content
    assert not list(tmp_path.glob("*.part"))
    assert not list(tmp_path.glob(".*.part"))


def test_a_killed_pull_does_not_fetch_complete_objects_again(tmp_path: Path, gate: Gate) -> None:
    for number in range(30):
        gate.s3.put_object(Bucket="bucket", Key=f"p/{number}", Body=b"%d" % number * 10)
    gate.refuse = lambda method, path: (503, b"") if path == "/bucket/p/7" and gate.drops == 0 else None
    target = tmp_path / "x"
    child = start("s3://bucket/p/", target, manifest=tmp_path / "job.json")
    wait_until(
        lambda: target.is_dir() and len([path for path in target.iterdir() if path.name.isdigit()]) == 29
    )
    kill(child)
    gate.requests.clear()
    gate.refuse = lambda _method, _path: None
    child = start("s3://bucket/p/", target, manifest=tmp_path / "job.json")
    assert child.wait(60) == 0
    assert [path for path, _ in gate.gets()] == ["/bucket/p/7"]
    assert (target / "7").read_bytes() == b"7" * 10


def archive_with_links(folder: Path) -> Path:
    """Return an archive with files, a link and a second name."""
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/a").write_text("a")
    (folder / "b").write_text("b")
    os.link(folder / "b", folder / "hard")
    (folder / "link").symlink_to("sub/a")
    archive = folder / "x.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("sub", "b", "hard", "link"):
            tar.add(folder / name, arcname=name)
    return archive


def owners(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return owner, group and type of all that is below a folder, and of itself."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_uid, status.st_gid, stat.S_IFMT(status.st_mode))
    return found


@pytest.mark.parametrize("user", ["", pytest.param("nobody", marks=pytest.mark.root)])
@pytest.mark.parametrize(
    ("call", "least"),
    [
        ("rename", 2),
        ("rename:error=EIO", 2),
        ("write", 2),
        ("unlink", 2),
        ("mkdir", 2),
        ("link,linkat", 1),
        ("symlink,symlinkat", 1),
    ],
)
def test_a_pull_killed_at_any_step_succeeds_when_repeated(
    folder: Path, call: str, least: int, user: str
) -> None:
    # given an archive, and a pull that is killed at its 1st, 2nd, … call of a kind:
    # when it has just been done, or (with an error injected) just before
    archive = archive_with_links(folder / "source")
    owner = (pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid) if user else (os.geteuid(), os.getegid())
    for step in itertools.count(1):
        job = folder / f"{call}-{step}"
        work = job / "work"
        work.mkdir(parents=True)
        os.chown(work, *owner)
        arguments = [f"file://{archive}", f"{work}/x", "", "into", f"{job}/job.json", user]
        command = [sys.executable, "-c", CHILD, *arguments]
        inject = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={call}:signal=SIGKILL:when={step}"]
        killed = subprocess.run([*inject, *command], timeout=60, check=False).returncode
        # when the job starts again
        subprocess.run(command, timeout=60, check=True)
        # then all is there, once, and nothing else, and belongs to whom it should
        files, folders, links = ((*owner, kind) for kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK))
        assert owners(work) == {
            ".": folders,
            "x": folders,
            "x/.bai-pulled": files,
            "x/b": files,
            "x/hard": files,
            "x/link": links,
            "x/sub": folders,
            "x/sub/a": files,
        }
        left = {path.name for path in job.iterdir() if not path.name.startswith(".job.json")}
        assert left == {"job.json", "work"}
        assert (work / "x/link").read_text() == "a"
        assert (work / "x/hard").samefile(work / "x/b")
        assert {path.name for path in folder.iterdir()} == {"source"} | {
            f"{call}-{each}" for each in range(1, step + 1)
        }
        if killed == 0:
            assert step > least, f"no call of {call} was ever met"
            return
        assert killed == -signal.SIGKILL


def test_two_jobs_that_pull_to_one_path_fetch_it_once(tmp_path: Path, gate: Gate) -> None:
    content = os.urandom(MIB)
    gate.s3.put_object(Bucket="bucket", Key="k", Body=content)
    gate.hold = lambda _wanted: True
    target = tmp_path / "x"
    # given one job in the middle of the transfer, and another that has found the object as well
    first = start("s3://bucket/k", target, manifest=tmp_path / "one.json")
    wait_until(lambda: len(gate.gets()) == 1)
    second = start("s3://bucket/k", target, manifest=tmp_path / "two.json")
    wait_until(
        lambda: [method for method, path, _ in gate.requests if path == "/bucket/k"].count("HEAD") == 2
    )
    # when the server goes on
    gate.hold = lambda _wanted: False
    gate.release.set()
    # then both are content, and nothing was asked for from its start twice
    assert (first.wait(60), second.wait(60)) == (0, 0)
    assert [wanted for _, wanted in gate.gets()].count(None) == 1
    assert target.read_bytes() == content


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], check=True, timeout=60)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=60)


def bring(source: Source, manifest: Path) -> None:
    pull(
        [source],
        folders={SourceKind.DATA: Path("/")},
        manifest=manifest,
        deadline=time.monotonic() + 60,
        report=lambda _: None,
        stopping=lambda: False,
    )


@pytest.mark.root
def test_a_pull_without_enough_disk_space_does_not_begin(tmp_path: Path, gate: Gate, tiny_disk: Path) -> None:
    gate.s3.put_object(Bucket="bucket", Key="k", Body=os.urandom(25 * MIB))
    with pytest.raises(NoSpaceError, match=r"s3://bucket/k: needs 26,214,400 bytes") as refusal:
        bring(Source(src="s3://bucket/k", path=str(tiny_disk / "x")), tmp_path / "job.json")
    assert str(tiny_disk) in str(refusal.value)
    assert gate.gets() == []


@pytest.mark.root
@pytest.mark.parametrize("size", [5 * MIB, PART + MIB])
def test_a_disk_that_fills_during_a_pull_is_named_and_complete_files_are_kept(
    tmp_path: Path, gate: Gate, tiny_disk: Path, size: int
) -> None:
    # given room at the start that somebody else takes before the object has arrived
    content = os.urandom(size)
    gate.s3.put_object(Bucket="bucket", Key="k", Body=content)
    hog = tiny_disk / "hog"

    def take_room(method: str, _path: str) -> None:
        if method == "GET" and not hog.exists():
            hog.write_bytes(b"x" * 20 * MIB)

    gate.refuse = take_room
    source = Source(src="s3://bucket/k", path=str(tiny_disk / "x"))
    with pytest.raises(NoSpaceError, match=r"s3://bucket/k: the file system .* ran full"):
        bring(source, tmp_path / "job.json")
    # when there is room again, then it works
    gate.refuse = lambda _method, _path: None
    hog.unlink()
    bring(source, tmp_path / "job.json")
    assert (tiny_disk / "x").read_bytes() == content


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.write_text("x")
    with pytest.raises(PullError, match=r"^/.*origin: /proc"):
        bring(Source(src=f"file://{origin}", path="/proc/bai/x"), tmp_path / "job.json")
