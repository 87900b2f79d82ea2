"""A pull as its caller sees it, with files of this machine as sources."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bai_agent.errors import PullError, PullStopped
from bai_agent.job.descriptor.source_tables import Source, SourceKind, Unpack
from bai_agent.job.schema.source_schemes import source_name
from bai_agent.pull import PullProgress, pull, sources

Puller = Callable[..., list[PullProgress]]


@pytest.fixture
def bring(tmp_path: Path) -> Puller:
    """Pull sources into tmp_path/work and tmp_path/scripts; `job` tells the manifests of several jobs apart."""

    def run(
        *sources: Source,
        job: str = "job",
        stopping: Callable[[], bool] = lambda: False,
        seconds: float = 30.0,
    ) -> list[PullProgress]:
        reports: list[PullProgress] = []
        pull(
            sources,
            folders={SourceKind.DATA: tmp_path / "work", SourceKind.SCRIPTS: tmp_path / "scripts"},
            manifest=tmp_path / f"{job}.json",
            deadline=time.monotonic() + seconds,
            report=reports.append,
            stopping=stopping,
        )
        return reports

    return run


def original(tmp_path: Path, content: bytes = b"content", name: str = "origin.bin") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def url(path: Path, end: str = "") -> str:
    return f"file://{path}{end}"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def names(folder: Path) -> Sequence[str]:
    """All files below `folder` but our own records."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if ".bai-pulled" not in path.name and not path.is_dir()
    )


def test_a_file_is_placed_at_its_path_with_mode_and_checksum(tmp_path: Path, bring: Puller) -> None:
    path = original(tmp_path)
    reports = bring(
        Source(
            src=url(path),
            path="a b/x",
            sha256=sha256(b"content").upper(),
            md5=hashlib.md5(b"content").hexdigest(),
            mode="0640",
        )
    )
    target = tmp_path / "work/a b/x"
    assert target.read_bytes() == b"content"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert reports[-1] == PullProgress(str(path), str(target), 7, 7, 1, 1, done=True)


def test_a_target_path_that_ends_with_a_slash_keeps_the_file_name(tmp_path: Path, bring: Puller) -> None:
    bring(Source(src=url(original(tmp_path)), path="in/"))
    assert names(tmp_path / "work") == ["in/origin.bin"]


def test_a_folder_is_copied_with_dotfiles_modes_and_links(tmp_path: Path, bring: Puller) -> None:
    folder = tmp_path / "project, v1: ü#%41"
    (folder / ".deep/er").mkdir(parents=True)
    (folder / ".deep/er/x").write_text("1")
    (folder / "run.sh").write_text("#!/bin/sh")
    (folder / "run.sh").chmod(0o755)
    (folder / "inside").symlink_to("run.sh")
    outside = original(tmp_path, b"outside")
    (folder / "outside").symlink_to(outside)
    bring(Source(src=url(folder, "/").replace("%41", "%2541"), path=".", kind=SourceKind.SCRIPTS))
    scripts = tmp_path / "scripts"
    assert names(scripts) == [".deep/er/x", "inside", "outside", "run.sh"]
    assert os.access(scripts / "run.sh", os.X_OK)
    assert (scripts / "inside").is_symlink()
    assert not (scripts / "outside").is_symlink()
    assert (scripts / "outside").read_bytes() == b"outside"


def test_a_file_that_cannot_be_copied_is_named(tmp_path: Path, bring: Puller) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder/pipe")
    with pytest.raises(PullError, match="pipe"):
        bring(Source(src=url(tmp_path / "folder", "/"), path="x"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sha256": "0" * 64}, "sha256"),
        ({"md5": "0" * 32}, "md5"),
        ({"size": 8}, "7 bytes instead of the 8"),
    ],
)
def test_a_file_with_a_wrong_checksum_is_not_stored(
    tmp_path: Path, bring: Puller, changes: dict[str, object], words: str
) -> None:
    source = Source(src=url(original(tmp_path)), path="x", **changes)  # type: ignore[arg-type]
    with pytest.raises(PullError, match=words) as refusal:
        bring(source)
    assert source_name(source.src) in str(refusal.value)
    assert names(tmp_path / "work") == []


@pytest.mark.parametrize("src", ["file:///not/there", "file://relative", "gopher://x/y"])
def test_an_impossible_source_is_refused_by_name(bring: Puller, src: str) -> None:
    with pytest.raises(PullError, match=re.escape(source_name(src))):
        bring(Source(src=src, path="x"))


def test_two_sources_with_the_same_target_are_refused(tmp_path: Path, bring: Puller) -> None:
    one, two = original(tmp_path, name="one"), original(tmp_path, name="two")
    with pytest.raises(PullError, match="both"):
        bring(Source(src=url(one), path="x"), Source(src=url(two), path="./x"))


def test_a_folder_that_is_its_own_target_is_not_changed(tmp_path: Path, bring: Puller) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "run.sh").write_text("true")

    for _ in range(2):
        (report,) = bring(Source(src=url(scripts, "/"), path=".", kind=SourceKind.SCRIPTS, directory=True))
        (scripts / "made-by-the-benchmark").touch()

    assert (report.done, report.objects) == (True, 2)
    assert sorted(each.name for each in scripts.iterdir()) == ["made-by-the-benchmark", "run.sh"]


def test_a_path_may_not_lead_out_of_its_folder(tmp_path: Path, bring: Puller) -> None:
    with pytest.raises(PullError, match=r"\.\."):
        bring(Source(src=url(original(tmp_path)), path="../x"))


def test_a_users_file_is_never_overwritten(tmp_path: Path, bring: Puller) -> None:
    mine = tmp_path / "work/x"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(PullError, match=str(mine)):
        bring(Source(src=url(original(tmp_path)), path="x"))
    assert mine.read_text() == "mine"


def test_another_job_reuses_unchanged_files(tmp_path: Path, bring: Puller) -> None:
    source = Source(src=url(original(tmp_path)), path="x")
    bring(source, job="one")
    inode = (tmp_path / "work/x").stat().st_ino
    reports = bring(source, job="two")
    assert (tmp_path / "work/x").stat().st_ino == inode
    assert reports[-1].done


def test_another_job_replaces_files_with_a_new_version(tmp_path: Path, bring: Puller) -> None:
    path = original(tmp_path)
    bring(Source(src=url(path), path="x"), job="one")
    path.write_bytes(b"newer content")
    bring(Source(src=url(path), path="x"), job="two")
    assert (tmp_path / "work/x").read_bytes() == b"newer content"


def test_files_pulled_earlier_may_be_replaced_from_another_source(tmp_path: Path, bring: Puller) -> None:
    bring(Source(src=url(original(tmp_path, b"one", "one")), path="x"), job="one")
    bring(Source(src=url(original(tmp_path, b"two", "two")), path="x"), job="two")
    assert (tmp_path / "work/x").read_bytes() == b"two"


def test_pulled_files_that_the_user_changed_are_not_replaced(tmp_path: Path, bring: Puller) -> None:
    source = Source(src=url(original(tmp_path)), path="x")
    bring(source, job="one")
    (tmp_path / "work/x").write_bytes(b"edited!")
    with pytest.raises(PullError, match="move the file away"):
        bring(source, job="two")
    assert (tmp_path / "work/x").read_bytes() == b"edited!"


def test_a_checksum_is_checked_on_reuse_too(tmp_path: Path, bring: Puller) -> None:
    path = original(tmp_path)
    bring(Source(src=url(path), path="x"), job="one")
    bring(Source(src=url(path), path="x", sha256=sha256(b"content")), job="two")
    with pytest.raises(PullError, match="md5"):
        bring(Source(src=url(path), path="x", md5="0" * 32), job="three")


def forged(src: str, target: Path, wanted: bytes, *, unpack: str = "no") -> bytes:
    """A record that says that `target` came from `src` with the checksum of `wanted`."""
    status = target.lstat()
    sums = {"sha256": sha256(wanted)}
    lines = [
        {"put": target.name, "src": src, "size": status.st_size, "mtime_ns": status.st_mtime_ns, **sums},
        {"done": src, "tag": "t", "md5": None, **sums, "unpack": unpack, "files": 1, "bytes": status.st_size},
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@pytest.mark.parametrize("folder", ["", "deep/er/"])
def test_a_forged_record_in_an_archive_is_ignored(tmp_path: Path, bring: Puller, folder: str) -> None:
    wanted = original(tmp_path, b"content")
    evil = tmp_path / "evil" / folder
    evil.mkdir(parents=True)
    os.utime(original(evil, b"evil!!!", "x"), (1e9, 1e9))
    (evil / ".x.bai-pulled").write_bytes(forged(str(wanted), evil / "x", b"content"))
    (evil / ".bai-pulled").write_bytes(forged(str(wanted), evil / "x", b"content"))
    (evil / ".x.bai-pulled.part").write_bytes(b"a beginning")
    with tarfile.open(tmp_path / "evil.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(tmp_path / "evil", arcname=".")
    bring(Source(src=url(tmp_path / "evil.tar"), path="in", unpack=Unpack.INTO), job="one")
    assert names(tmp_path / "work/in") == [f"{folder}x"]
    records = [path.name for path in (tmp_path / "work/in").rglob(".*bai-pulled*")]
    assert records == [".bai-pulled"]
    with pytest.raises(PullError, match="exists, but is not"):
        bring(Source(src=url(wanted), path=f"in/{folder}x", sha256=sha256(b"content")), job="two")


@pytest.mark.parametrize("folder", ["", "deep/"])
def test_a_forged_record_in_a_folder_is_ignored(tmp_path: Path, bring: Puller, folder: str) -> None:
    evil = tmp_path / "evil" / folder
    evil.mkdir(parents=True)
    for name in ("x", ".x.bai-pulled", ".bai-pulled", ".bai-pulled.x.part"):
        original(evil, b"evil!!!", name)
    (evil / ".y.bai-pulled").symlink_to("x")
    bring(Source(src=url(tmp_path / "evil", "/"), path="in"))
    assert names(tmp_path / "work/in") == [f"{folder}x"]
    assert len(list((tmp_path / "work/in").rglob(".*bai-pulled*"))) == 1


def test_a_target_with_the_name_of_a_record_file_is_refused(tmp_path: Path, bring: Puller) -> None:
    with pytest.raises(PullError, match="choose another path"):
        bring(Source(src=url(original(tmp_path)), path="in/.x.bai-pulled"))


def test_a_forged_record_does_not_replace_the_checksum(tmp_path: Path, bring: Puller) -> None:
    wanted = original(tmp_path, b"content")
    target = tmp_path / "work/x"
    target.parent.mkdir()
    target.write_bytes(b"evil!!!")
    status = wanted.stat()
    tag = f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"
    line = json.loads(forged(str(wanted), target, b"content").splitlines()[0]) | {"tag": tag}
    (tmp_path / "work/.x.bai-pulled").write_text(json.dumps(line) + "\n")
    bring(Source(src=url(wanted), path="x", sha256=sha256(b"content")))
    assert target.read_bytes() == b"content"


def test_a_record_that_other_users_can_write_does_not_replace_the_checksum(
    tmp_path: Path, bring: Puller
) -> None:
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(original(tmp_path, b"content"), arcname="x")
    source = Source(src=url(archive), path="in", unpack=Unpack.INTO, sha256=sha256(archive.read_bytes()))
    bring(source, job="one")
    record, target = tmp_path / "work/in/.bai-pulled", tmp_path / "work/in/x"
    status = target.stat()
    target.write_bytes(b"evil!!!")
    os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
    bring(source, job="two")
    assert target.read_bytes() == b"evil!!!"  # a record that only this user can write is believed
    record.chmod(0o666)
    bring(source, job="three")
    assert target.read_bytes() == b"content"


def test_a_forged_record_cannot_remove_files_outside_the_folder(tmp_path: Path, bring: Puller) -> None:
    victim = original(tmp_path, b"precious", "victim")
    folder = tmp_path / "work/in"
    folder.mkdir(parents=True)
    (tmp_path / "src").mkdir()
    original(tmp_path / "src", b"1", "a")
    line = json.loads(forged(str(tmp_path / "src") + "/", victim, b"").splitlines()[0])
    (folder / ".bai-pulled").write_text(json.dumps(line | {"put": "../../victim"}) + "\n")
    with pytest.raises(PullError, match="damaged"):
        bring(Source(src=url(tmp_path / "src", "/"), path="in"))
    assert victim.exists()


def test_a_repeated_pull_fetches_nothing_again(tmp_path: Path, bring: Puller) -> None:
    path = original(tmp_path)
    bring(Source(src=url(path), path="x"))
    path.unlink()
    reports = bring(Source(src=url(path), path="x"))
    assert reports == [PullProgress(str(path), str(tmp_path / "work/x"), 7, 7, 1, 1, done=True)]


def test_a_repeated_pull_restores_removed_files(tmp_path: Path, bring: Puller) -> None:
    source = Source(src=url(original(tmp_path)), path="x")
    bring(source)
    (tmp_path / "work/x").unlink()
    bring(source)
    assert (tmp_path / "work/x").read_bytes() == b"content"


def test_syncing_a_folder_removes_no_files_of_the_user(tmp_path: Path, bring: Puller) -> None:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c", "edited"):
        (folder / name).write_text(name)
    source = Source(src=url(folder, "/"), path="x")
    bring(source, job="one")
    (tmp_path / "work/x/mine").write_text("mine")
    (tmp_path / "work/x/edited").write_text("edited by the user")
    (folder / "b").unlink()
    (folder / "edited").unlink()
    bring(source, job="two")
    assert names(tmp_path / "work/x") == ["a", "edited", "mine", "sub/c"]


def make_tar(path: Path, **members: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            member = path.with_name("member")
            member.write_text(text)
            tar.add(member, arcname=name)
    return path


@pytest.mark.parametrize(
    ("unpack", "path", "lands"),
    [
        (Unpack.INTO, "deep/folder", ["deep/folder/a", "deep/folder/b"]),
        (Unpack.IN_PLACE, "deep/archive.tgz", ["deep/a", "deep/b"]),
        (Unpack.IN_PLACE, "archive.tgz", ["a", "b"]),
        (Unpack.IN_PLACE, "deep/", ["deep/a", "deep/b"]),
        (Unpack.NO, "deep/archive.tgz", ["deep/archive.tgz"]),
    ],
)
def test_an_archive_is_unpacked_at_its_path(
    tmp_path: Path, bring: Puller, unpack: Unpack, path: str, lands: list[str]
) -> None:
    archive = make_tar(tmp_path / "x.tgz", a="1", b="2")
    bring(Source(src=url(archive), path=path, unpack=unpack))
    assert names(tmp_path / "work") == lands
    assert not list((tmp_path / "work").rglob("*.part"))


def test_an_unpacked_archive_is_reused_until_its_version_changes(tmp_path: Path, bring: Puller) -> None:
    archive = make_tar(tmp_path / "x.tgz", a="1", b="2")
    source = Source(src=url(archive), path="x", unpack=Unpack.INTO)
    bring(source, job="one")
    inode = (tmp_path / "work/x/a").stat().st_ino
    bring(source, job="two")
    assert (tmp_path / "work/x/a").stat().st_ino == inode
    make_tar(archive, a="new", c="3")
    bring(source, job="three")
    assert names(tmp_path / "work/x") == ["a", "c"]
    assert (tmp_path / "work/x/a").read_text() == "new"


def test_two_archives_share_a_folder(tmp_path: Path, bring: Puller) -> None:
    one, two = make_tar(tmp_path / "one.tgz", a="1"), make_tar(tmp_path / "two.tgz", b="2")
    sources = [
        Source(src=url(path), path=path.name, kind=SourceKind.SCRIPTS, unpack=Unpack.IN_PLACE)
        for path in (one, two)
    ]
    bring(*sources, job="one")
    bring(*sources, job="two")
    assert names(tmp_path / "scripts") == ["a", "b"]


def test_a_wrong_archive_leaves_no_files(tmp_path: Path, bring: Puller) -> None:
    archive = make_tar(tmp_path / "x.tgz", a="1")
    with pytest.raises(PullError, match="sha256"):
        bring(Source(src=url(archive), path="x", unpack=Unpack.INTO, sha256="0" * 64))
    assert names(tmp_path / "work") == []


def test_a_kill_between_record_and_rename_leaves_no_file_of_unknown_origin(
    tmp_path: Path, bring: Puller
) -> None:
    # given a record that announces a file which did not get its name, as a kill in between leaves it
    source = Source(src=url(original(tmp_path)), path="x")
    bring(source)
    journal = tmp_path / "work/.x.bai-pulled"
    lines = journal.read_text().splitlines(keepends=True)
    announced = next(index for index, line in enumerate(lines) if "put" in json.loads(line))
    journal.write_text("".join(lines[: announced + 1]) + '{"put": "x", "si')
    (tmp_path / "job.json").unlink()
    (tmp_path / "work/x").rename(tmp_path / "work/elsewhere")
    # when the job starts again, then it ends as it should
    bring(source)
    assert (tmp_path / "work/x").read_bytes() == b"content"
    # and so it does where the rename had happened
    journal.write_text("".join(lines[: announced + 1]))
    (tmp_path / "job.json").unlink()
    (tmp_path / "work/elsewhere").rename(tmp_path / "work/x")
    bring(source)
    assert (tmp_path / "work/x").read_bytes() == b"content"


def test_drafts_of_a_killed_attempt_at_an_older_version_are_removed(tmp_path: Path, bring: Puller) -> None:
    archive = make_tar(tmp_path / "x.tgz", a="1")
    (tmp_path / "work/x").mkdir(parents=True)
    (tmp_path / "work/x/.bai-pulled.0123456789abcdef01234567.part").write_text("half of a member")
    bring(Source(src=url(archive), path="x", unpack=Unpack.INTO))
    assert sorted(path.name for path in (tmp_path / "work/x").iterdir()) == [".bai-pulled", "a"]


def test_a_file_with_the_longest_possible_name_is_stored(tmp_path: Path, bring: Puller) -> None:
    bring(Source(src=url(original(tmp_path)), path="n" * 255))
    assert names(tmp_path / "work") == ["n" * 255]


def test_a_damaged_record_is_named(tmp_path: Path, bring: Puller) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/.x.bai-pulled").write_text("no json\n")
    with pytest.raises(PullError, match=r"\.x\.bai-pulled"):
        bring(Source(src=url(original(tmp_path)), path="x"))


def test_a_stop_ends_a_pull(tmp_path: Path, bring: Puller) -> None:
    with pytest.raises(PullStopped):
        bring(Source(src=url(original(tmp_path, os.urandom(1 << 20))), path="x"), stopping=lambda: True)


def test_a_pull_waits_for_another_job_with_the_same_target_until_its_deadline(
    tmp_path: Path, bring: Puller
) -> None:
    # given the record of x locked, as a job that is pulling there has it
    import fcntl

    (tmp_path / "work").mkdir()
    with (tmp_path / "work/.x.bai-pulled").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        source = Source(src=url(original(tmp_path)), path="x")
        with pytest.raises(PullError, match="pull_timeout") as timeout:
            bring(source, seconds=0.3)
        assert source_name(source.src) in str(timeout.value)
        # when it goes away, then the waiting one goes on
        threading.Timer(0.3, fcntl.flock, [lock, fcntl.LOCK_UN]).start()
        bring(source)
    assert (tmp_path / "work/x").read_bytes() == b"content"


def test_a_file_that_is_its_own_source_is_kept(tmp_path: Path, bring: Puller) -> None:
    path = original(tmp_path)
    bring(Source(src=url(path), path=str(path)))
    assert path.read_bytes() == b"content"


def test_any_exception_in_a_thread_of_a_pull_is_raised(
    tmp_path: Path, bring: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        """As libraries written in Rust raise it."""

    def panic(*_: object, **__: object) -> None:
        raise Panic

    monkeypatch.setattr(sources, "bring", panic)

    with pytest.raises(Panic):
        bring(Source(src=url(original(tmp_path)), path="x"))


@pytest.mark.parametrize("name", [b"a b%20c.bin", b"\xff.bin", "größe #1?.bin".encode()])
def test_a_file_with_any_name_is_pulled(tmp_path: Path, bring: Puller, name: bytes) -> None:
    path = original(tmp_path, name=os.fsdecode(name))

    bring(Source(src=path.as_uri(), path="x"))

    assert (tmp_path / "work/x").read_bytes() == b"content"


def test_a_missing_file_is_named_by_its_unescaped_path(tmp_path: Path, bring: Puller) -> None:
    with pytest.raises(PullError, match=rf"^{tmp_path}/my data\.bin: there is no such file"):
        bring(Source(src=(tmp_path / "my data.bin").as_uri(), path="x"))
