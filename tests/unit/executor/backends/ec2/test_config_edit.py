"""Changes of a configuration file: only the named keys, and shown first."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.toml import read_toml_text
from executor.backends.ec2.setup.config_edit import configured, edit_config
from executor.errors import UsageError

MINE = """\
# mine
client_id = "me" # as ever
bucket = "old"

[limits]
max_runtime = "2h"
"""


def test_other_lines_are_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(MINE)

    edit = edit_config(path, {"bucket": "new", "region": "eu-central-1", "client_id": "me"})

    assert edit.after == MINE.replace('"old"', '"new"').replace('"new"\n', '"new"\nregion = "eu-central-1"\n')
    assert [line for line in edit.diff if line[0] in "+-"][2:] == [
        '-bucket = "old"',
        '+bucket = "new"',
        '+region = "eu-central-1"',
    ]
    assert path.read_text() == MINE
    edit.write()
    assert path.read_text() == edit.after
    assert edit_config(path, {"bucket": "new"}).diff == []


def test_a_file_that_is_not_there_is_made(tmp_path: Path) -> None:
    path = tmp_path / "bai" / "config.toml"

    edit_config(path, {"bucket": "b", "security_groups": ["sg-1"]}).write()

    assert path.read_text() == 'bucket = "b"\nsecurity_groups = ["sg-1"]\n'
    assert configured(path) == {"bucket": "b", "security_groups": ["sg-1"]}


def test_a_key_is_removed_and_a_table_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('bucket = "b"\n\n[service]\nbucket = "c"\n')

    edit = edit_config(path, {"bucket": None, "region": None})

    assert edit.after == '\n[service]\nbucket = "c"\n'


def test_a_link_to_a_file_elsewhere_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").write_text("# kept\n")
    path = tmp_path / "config.toml"
    path.symlink_to(tmp_path / "dotfiles")

    edit_config(path, {"bucket": "b"}).write()

    assert path.is_symlink()
    assert (tmp_path / "dotfiles").read_text() == '# kept\nbucket = "b"\n'


@pytest.mark.parametrize(
    "text",
    ['bucket = """\nold"""\n', "subnets = [\n[]\n]\nbucket = 'x'\n", 'note = """\n[a]\n"""\n'],
    ids=["value of several lines", "list of several lines", "text that looks like a table"],
)
def test_an_unusual_file_is_refused_with_the_lines_to_write(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)

    with pytest.raises(UsageError, match=r'change the file by hand: bucket = "b"'):
        edit_config(path, {"bucket": "b"})
    assert path.read_text() == text


def test_invalid_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("bucket = \n")

    with pytest.raises(UsageError, match="cannot be read"):
        edit_config(path, {"bucket": "b"})


_LINES = st.sampled_from(
    [
        "",
        "# note",
        'bucket = "a"',
        "bucket='a' # it",
        '"bucket" = "a"',
        "bucketish = 1",
        "[t]",
        "x = [1]",
        "[[t.u]]",
    ]
)


@given(st.lists(_LINES, max_size=8), st.booleans())
def test_any_file_is_changed_correctly_or_refused(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ends: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    text = "\n".join(lines) + ("\n" if ends else "")
    path.write_text(text)
    try:
        before = read_toml_text(text)
    except ValueError:
        return
    try:
        after = edit_config(path, {"bucket": "b", "region": "r"}).after
    except UsageError:
        return
    assert read_toml_text(after) == {**before, "bucket": "b", "region": "r"}
