"""A file gets its name when it is complete, on any file system and however long the name is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from without_hard_links import without_hard_links

from bai_agent.files.new_files import draft_beside, place_new
from bai_agent.job.run_directory import write_atomic


@pytest.mark.parametrize("name", ["n", "n" * 250, "n" * 255, "é" * 127])
def test_the_name_of_a_temporary_file_is_never_too_long(tmp_path: Path, name: str) -> None:
    path = tmp_path / name

    write_atomic(path, b"whole")
    draft = draft_beside(path, ".123456.123456.new")
    draft.touch()

    assert path.read_bytes() == b"whole"
    assert draft.name.startswith(".")
    assert draft.name.endswith(".123456.123456.new")


def test_temporary_files_of_two_long_names_do_not_collide(tmp_path: Path) -> None:
    one, other = (draft_beside(tmp_path / ("n" * 254 + end), ".part") for end in "ab")

    assert one != other


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    draft, path = tmp_path / "draft", tmp_path / "path"
    draft.write_text("new")
    path.write_text("old")

    with pytest.raises(FileExistsError):
        place_new(draft, path)

    assert (draft.read_text(), path.read_text()) == ("new", "old")


_CLAIM = """
import sys, threading
from pathlib import Path
from bai_agent.job.store.directory import DirectoryStore
store = DirectoryStore(Path(sys.argv[1]))
won = []
def claim(number):
    if store.put("job/ready.json", b"%d" % number, if_absent=True):
        won.append(number)
threads = [threading.Thread(target=claim, args=(number,)) for number in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert [b"%d" % each for each in won] == [store.get("job/ready.json")], won
"""


def test_without_hard_links_one_of_many_claims_wins(tmp_path: Path) -> None:
    subprocess.run(without_hard_links(sys.executable, "-c", _CLAIM, tmp_path), check=True, timeout=60)

    assert [each.name for each in (tmp_path / "job").iterdir()] == ["ready.json"]


def test_without_hard_links_nothing_is_overwritten_either(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from bai_agent.files.new_files import place_new
Path(sys.argv[1]).write_text("theirs")
place_new(Path(sys.argv[1]), Path(sys.argv[2]))
"""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    refused = subprocess.run(
        without_hard_links(sys.executable, "-c", program, tmp_path / "part", mine),
        capture_output=True,
        timeout=60,
    )

    assert b"FileExistsError" in refused.stderr
    assert mine.read_text() == "mine"
