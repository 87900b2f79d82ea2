"""A file stays in reach although its name is taken away."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from bai_agent.runtime.open_file import OpenFile


def test_a_deleted_hard_link_of_an_open_file_is_restored(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("content")
    (tmp_path / "kept").hardlink_to(tmp_path / "output.log")
    with closing(OpenFile(tmp_path / "kept")) as file:
        assert file.size() == 7
        (tmp_path / "kept").unlink()

        file.link_again()

    assert (tmp_path / "kept").samefile(tmp_path / "output.log")


def test_an_open_file_without_any_name_left_cannot_be_restored(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("content")
    with closing(OpenFile(tmp_path / "kept")) as file:
        assert file.size() == 7
        (tmp_path / "kept").unlink()

        with pytest.raises(OSError):
            file.link_again()


def test_opening_a_fifo_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "emit.log")

    with closing(OpenFile(tmp_path / "emit.log")) as file:
        assert file.size() == 0
