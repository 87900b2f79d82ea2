"""Files that root's threads handle with another user's rights."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from bai_agent.files.user_rights import (
    User,
    folder_owner,
    may_change,
    open_as,
    process_options,
    user_rights,
)
from bai_agent.strategy.process_ends import open_regular, process_logs

pytestmark = pytest.mark.root

STRANGER = User(name="stranger", uid=64321, gid=64322, groups=(64322, 64323), home="/")


@pytest.fixture
def theirs(folder: Path) -> Path:
    """A folder of the stranger's."""
    made = folder / "theirs"
    made.mkdir(mode=0o700)
    os.chown(made, STRANGER.uid, STRANGER.gid)
    return made


@pytest.fixture
def secret(folder: Path) -> Path:
    """A file that only root can read."""
    made = folder / "secret"
    made.write_text("secret")
    made.chmod(0o600)
    return made


def ids() -> tuple[int, int, list[int]]:
    """Return this thread's user and group for files, and its groups."""
    facts = dict(
        line.split(":", 1)
        for line in Path("/proc/thread-self/status").read_text().splitlines()
        if ":" in line
    )
    return int(facts["Uid"].split()[3]), int(facts["Gid"].split()[3]), [*map(int, facts["Groups"].split())]


def test_new_files_belong_to_the_user(theirs: Path) -> None:
    with user_rights(STRANGER):
        (theirs / "folder").mkdir()
        (theirs / "folder" / "file").touch()

    made = (theirs / "folder" / "file").stat()
    assert (made.st_uid, made.st_gid) == (STRANGER.uid, STRANGER.gid)


def test_root_is_refused_everything_that_the_user_cannot_do(folder: Path, secret: Path) -> None:
    with user_rights(STRANGER):
        with pytest.raises(PermissionError):
            secret.read_text()
        with pytest.raises(PermissionError):
            (folder / "new").touch()
        with pytest.raises(PermissionError):
            os.chown(folder, STRANGER.uid, STRANGER.gid)
        with pytest.raises(PermissionError):
            secret.unlink()

    assert secret.read_text() == "secret"


def test_only_the_current_thread_changes_its_ids_and_restores_them() -> None:
    before = ids()
    seen = []
    begin, go = threading.Event(), threading.Event()

    def look() -> None:
        begin.set()
        go.wait(60)
        seen.append(ids())

    other = threading.Thread(target=look)
    other.start()
    begin.wait(60)

    def fail() -> None:
        with user_rights(STRANGER):
            assert ids() == (STRANGER.uid, STRANGER.gid, [*STRANGER.groups])
            go.set()
            other.join(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert seen == [before]
    assert ids() == before


def test_nested_changes_of_rights_are_undone_one_by_one() -> None:
    with user_rights(STRANGER), user_rights(None):
        with user_rights(User(name="x", uid=1, gid=1, groups=(), home="/")):
            assert ids()[0] == 1
        assert ids()[0] == STRANGER.uid


def test_a_file_is_opened_only_if_the_user_can_read_it(theirs: Path, secret: Path) -> None:
    (theirs / "link").symlink_to(secret)
    (theirs / "hard").hardlink_to(secret)

    for name in ("link", "hard"):
        with pytest.raises(PermissionError):
            open_as(STRANGER, theirs / name)
    os.close(open_as(None, theirs / "link"))


def test_a_pipe_is_not_waited_for(theirs: Path) -> None:
    os.mkfifo(theirs / "pipe", 0o666)

    with pytest.raises(OSError, match="not a file"):
        open_as(STRANGER, theirs / "pipe")


def test_a_link_through_proc_does_not_bypass_folder_permissions(
    folder: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_one = folder / "closed" / "open"
    open_one.mkdir(parents=True)
    (folder / "closed").chmod(0o700)
    (open_one / "file").write_text("of root's")
    (open_one / "file").chmod(0o644)
    monkeypatch.chdir(open_one)
    (theirs / "file").symlink_to("/proc/self/cwd/file")
    (theirs / "folder").symlink_to("/proc/self/cwd")

    with pytest.raises(PermissionError):
        open_as(STRANGER, theirs / "file")
    with pytest.raises(PermissionError), process_options(STRANGER, theirs / "folder"):
        pytest.fail("the folder was entered")


def test_the_working_directory_of_a_process_is_entered_with_the_users_rights(
    folder: Path, theirs: Path
) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    (theirs / "out").symlink_to(closed)

    with process_options(STRANGER, theirs) as options:
        done = subprocess.run(
            ["sh", "-c", "pwd; id -u"], capture_output=True, text=True, check=True, **options
        )
    with pytest.raises(PermissionError), process_options(STRANGER, theirs / "out"):
        pytest.fail("the folder was entered")

    assert done.stdout.split() == [str(theirs), str(STRANGER.uid)]


@pytest.mark.parametrize(
    ("path", "changeable"),
    [
        ("/etc", False),
        ("/etc/no/such/folder", False),
        ("/tmp/no-such-name", True),
        ("{theirs}", True),
        ("{theirs}/no/such", True),
        ("{theirs}/../roots/file", True),
        ("{folder}/roots", False),
        ("{folder}/roots/file", False),
        ("{folder}/to-theirs/x", True),
        ("{folder}/to-roots/x", False),
        ("{folder}/round", None),
        ("{folder}/mixed", True),
        ("{folder}/of-a-group", True),
        ("{folder}/of-another-group", False),
    ],
)
def test_paths_that_the_user_could_replace_are_detected(
    folder: Path, theirs: Path, path: str, changeable: bool | None
) -> None:
    (folder / "roots").mkdir(mode=0o755)
    (folder / "roots" / "file").touch()
    (folder / "to-theirs").symlink_to("theirs")
    (folder / "to-roots").symlink_to(folder / "roots")
    (folder / "round").symlink_to("round")
    (folder / "mixed" / "in" / "deep").mkdir(parents=True)
    os.chown(folder / "mixed" / "in" / "deep", STRANGER.uid, -1)
    for name, group in (("of-a-group", STRANGER.groups[1]), ("of-another-group", 1)):
        (folder / name).mkdir()
        (folder / name).chmod(0o770)
        os.chown(folder / name, 0, group)
    asked = Path(path.format(folder=folder, theirs=theirs))

    if changeable is None:
        with pytest.raises(OSError, match="symbolic links"):
            may_change(STRANGER, asked)
    else:
        assert may_change(STRANGER, asked) is changeable


def test_a_user_cannot_replace_roots_file_in_a_sticky_folder() -> None:
    with tempfile.TemporaryDirectory() as name:
        assert stat.S_IMODE(Path(name).parent.stat().st_mode) & stat.S_ISVTX
        assert not may_change(STRANGER, Path(name))


def test_logs_of_processes_are_read_with_their_owners_rights(theirs: Path, secret: Path) -> None:
    (theirs / "0.log").hardlink_to(secret)
    (theirs / "1.log").write_text("own")
    (theirs / "1.log").chmod(0o644)

    logs = process_logs(theirs)

    assert folder_owner(theirs) is not None
    assert [each.rank for each in logs] == [0, 1]
    with pytest.raises(FileNotFoundError):
        open_regular(logs[0].path)
    os.close(open_regular(logs[1].path))
