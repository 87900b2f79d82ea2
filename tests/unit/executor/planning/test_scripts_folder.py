"""Which files belong to a benchmark, and the copy of them that a job keeps."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.errors import ScriptsError
from executor.planning.scripts_folder import (
    ScriptsOrigin,
    copy_scripts,
    one_member,
    survey_scripts,
)


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def names(folder: Path, leave_out: tuple[Path, ...] = ()) -> list[str]:
    return [file.path.as_posix() for file in survey_scripts(folder, leave_out=leave_out).files]


def test_all_files_are_taken_dotfiles_and_strange_names_included(tmp_path: Path) -> None:
    tree(
        tmp_path, {"a.py": "12", ".env": "", "sub/b c,d:é.py": "", ".git/config": "", "__pycache__/a.pyc": ""}
    )

    assert names(tmp_path) == [".env", "a.py", "sub/b c,d:é.py"]
    assert [file.size for file in survey_scripts(tmp_path).files] == [0, 2, 0]


def test_ignore_files_are_honoured_the_nearest_first(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            ".gitignore": "*.log\n/data/\n# a comment\n!kept.log\n",
            "x.log": "",
            "kept.log": "",
            "data/big": "",
            "sub/data/small": "",
            "sub/.gitignore": "!y.log\nz.py\n",
            "sub/y.log": "",
            "sub/z.py": "",
        },
    )

    assert names(tmp_path) == [".gitignore", "kept.log", "sub/.gitignore", "sub/data/small", "sub/y.log"]


def test_baiignore_overrides_gitignore(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {".gitignore": "model.bin\n", ".baiignore": "!model.bin\nnotes/\n", "model.bin": "", "notes/a": ""},
    )

    assert names(tmp_path) == [".baiignore", ".gitignore", "model.bin"]


def test_the_repositorys_ignore_rules_apply_in_its_subfolders(tmp_path: Path) -> None:
    tree(tmp_path, {".gitignore": "*.tmp\n", "repo/.git/HEAD": "", "repo/.gitignore": "*.bin\n/bench/out/\n"})
    tree(tmp_path / "repo/bench", {"a.py": "", "a.bin": "", "a.tmp": "", "out/x": ""})

    assert names(tmp_path / "repo/bench") == ["a.py", "a.tmp"]


def test_the_included_files_equal_those_that_git_lists(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            ".gitignore": "*.o\nbuild/\n!important.o\ndoc/**/x\nfoo/*\n!foo/keep\n\\#odd\nspace\\ \n",
            "a.o": "", "important.o": "", "build/b": "", "sub/build/c": "", "doc/x": "", "doc/1/2/x": "",
            "foo/keep": "", "foo/drop": "", "#odd": "", "space ": "", "sub/.gitignore": "/only-here\n*.c\n!a.c\n",
            "sub/only-here": "", "sub/deep/only-here": "", "sub/a.c": "", "sub/b.c": "",
        },
    )  # fmt: skip
    git = ["git", "-C", str(tmp_path), "-c", "core.excludesFile=/dev/null"]
    subprocess.run([*git, "init", "-q"], check=True, timeout=60)
    listed = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--exclude-standard"],
        check=True,
        timeout=60,
        capture_output=True,
    )

    assert names(tmp_path) == sorted(name for name in listed.stdout.decode().split("\0") if name)


CACHES = {
    ".venv/bin/python": "", "env of mine/pyvenv.cfg": "", "env of mine/lib/x.py": "", ".git/config": "",
    "sub/__pycache__/a.pyc": "", ".mypy_cache/x": "", ".pytest_cache/x": "", ".ruff_cache/x": "", ".tox/x": "",
}  # fmt: skip


def test_environments_and_caches_are_left_out_and_named(tmp_path: Path) -> None:
    tree(tmp_path, {**CACHES, "a.py": "12345", "node_modules/x.js": "1", "venv/train.py": "", "out.log": ""})
    # A whitelist, as some write it, means no virtual environment
    (tmp_path / ".gitignore").write_text("*.log\n!*/\n")

    survey = survey_scripts(tmp_path)

    assert [file.path.as_posix() for file in survey.files] == [
        ".gitignore",
        "a.py",
        "node_modules/x.js",
        "venv/train.py",
    ]
    assert sorted(survey.left_out) == [
        ".git/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".tox/", ".venv/", "env of mine/", "out.log",
        "sub/__pycache__/",
    ]  # fmt: skip
    assert survey.sentence().startswith("4 files, 16 bytes; the largest is .gitignore with 10; left out: ")


@pytest.fixture
def closed() -> Iterator[Path]:
    """Two folders of scripts, each with a folder `data` that this process may not enter, even where it is root's."""
    before = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = tree(
            Path(name), {"open/data/table": "", "ignoring/data/table": "", "ignoring/.gitignore": "data/\n"}
        )
        folder.chmod(0o755)
        for each in folder.glob("*/data"):
            each.chmod(0)
        try:
            if before == 0:
                os.seteuid(65534)
            yield folder
        finally:
            os.seteuid(before)
            for each in folder.glob("*/data"):
                each.chmod(0o700)


def test_a_folder_that_cannot_be_entered_is_refused_by_name(closed: Path) -> None:
    with pytest.raises(
        ScriptsError, match=r"/data: cannot be read: Permission denied\. Name the folder in \.baiignore"
    ):
        survey_scripts(closed / "open")


def test_a_member_below_a_folder_that_cannot_be_entered_is_refused(closed: Path) -> None:
    script = closed / "open/data/table"

    with pytest.raises(ScriptsError, match=f"^--script {script}: cannot be read: Permission denied; name"):
        one_member(script)


def test_a_folder_that_cannot_be_entered_may_be_ignored(closed: Path) -> None:
    assert survey_scripts(closed / "ignoring").left_out == ("data/",)


@pytest.mark.parametrize("name", [".venv", "env of mine", "__pycache__"])
def test_baiignore_includes_default_exclusions(tmp_path: Path, name: str) -> None:
    tree(tmp_path, {**CACHES, ".gitignore": "*.pyc\n.venv\n", ".baiignore": f"!{name}/\n!*.pyc\n"})

    assert {file.split("/")[0] for file in names(tmp_path)} - {".gitignore", ".baiignore"} == {
        "sub" if name == "__pycache__" else name
    }


def test_excluded_folders_are_left_out(tmp_path: Path) -> None:
    tree(tmp_path, {"a.py": "", "jobs/j1/log": ""})

    assert names(tmp_path, (tmp_path / "jobs",)) == ["a.py"]


def test_the_copy_has_contents_modes_and_links(tmp_path: Path) -> None:
    source = tree(
        tmp_path / "source",
        {"run.sh": "#!/bin/sh\n", "sub/data": "x", "ignored": "", ".gitignore": "ignored\n"},
    )
    (source / "run.sh").chmod(0o755)
    (source / "sub/link").symlink_to("../run.sh")

    copy = copy_scripts(ScriptsOrigin(path=source), tmp_path / "job/scripts")

    assert (copy / "run.sh").read_text() == "#!/bin/sh\n"
    assert os.access(copy / "run.sh", os.X_OK)
    assert str((copy / "sub/link").readlink()) == "../run.sh"
    assert not (copy / "ignored").exists()
    assert [each.name for each in copy.parent.iterdir()] == ["scripts"]


def test_a_copy_into_the_same_folder_does_not_contain_itself(tmp_path: Path) -> None:
    tree(tmp_path, {"a": ""})

    copy = copy_scripts(ScriptsOrigin(path=tmp_path), tmp_path / "jobs/j/scripts")

    assert [each.name for each in copy.iterdir()] == ["a"]


@pytest.mark.parametrize("link", ["/etc/hostname", "../outside", "sub/../../outside"])
def test_a_link_out_of_the_folder_is_refused_by_name(tmp_path: Path, link: str) -> None:
    source = tree(tmp_path / "source", {"sub/a": ""})
    (source / "bad").symlink_to(link)

    with pytest.raises(ScriptsError, match=r"bad: a link out of the folder"):
        copy_scripts(ScriptsOrigin(path=source), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_socket_is_refused_by_name_and_may_be_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.sock")
        with pytest.raises(ScriptsError, match=r"s\.sock: neither file"):
            survey_scripts(tmp_path)
        tree(tmp_path, {".baiignore": "*.sock\n"})
        assert names(tmp_path) == [".baiignore"]


def test_a_missing_scripts_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptsError, match="no folder"):
        survey_scripts(tmp_path / "nowhere")


def test_a_broken_ignore_file_is_named(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes(b"\xff\xfe\n")

    with pytest.raises(ScriptsError, match=r"\.gitignore: cannot be read"):
        survey_scripts(tmp_path)
