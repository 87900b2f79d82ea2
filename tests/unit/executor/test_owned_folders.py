"""Files of the cache: how many of a folder stay."""

from __future__ import annotations

import os
import time
from pathlib import Path

from executor.owned_folders import in_cache, keep_in_cache

HOUR_S = 3600


def test_the_files_of_a_cache_that_were_used_last_stay(tmp_path: Path) -> None:
    # given files that were used days ago, the oldest of which is used again
    folder = tmp_path / "bundles"
    for number in range(9):
        keep_in_cache(folder / str(number), b"")
    for number in range(9):
        days_ago = time.time() - (10 - number) * 24 * HOUR_S
        os.utime(folder / str(number), (days_ago, days_ago))
    assert in_cache(folder / "0")

    # when another one is written
    keep_in_cache(folder / "new", b"new")

    # then five stay, with this one
    assert {each.name for each in folder.iterdir()} == {"0", "6", "7", "8", "new"}
    assert (folder / "new").read_bytes() == b"new"


def test_files_that_a_launch_may_still_use_stay(tmp_path: Path) -> None:
    for number in range(9):
        keep_in_cache(tmp_path / str(number), b"")
        minutes_ago = time.time() - HOUR_S / 2
        os.utime(tmp_path / str(number), (minutes_ago, minutes_ago))

    keep_in_cache(tmp_path / "new", b"")

    assert len(list(tmp_path.iterdir())) == 10


def test_a_file_that_is_not_in_the_cache_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert not in_cache(tmp_path / "absent" / "bundle")
    assert not in_cache(tmp_path / "file" / "bundle")
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208 - the names alone
