"""The light bundles of tests: how many stay."""

from __future__ import annotations

import os
from pathlib import Path

import light_bundles
import pytest


def test_only_the_bundles_that_were_used_last_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given bundles of earlier versions, the oldest of which is that of this version
    monkeypatch.setattr(light_bundles, "_CACHE", tmp_path)
    name = "0.tar.gz"
    bundles = tmp_path / "light-bundles" / "none" / "bai" / "bundles"
    bundles.mkdir(parents=True)
    for number in range(9):
        (bundles / f"{number}.tar.gz").write_bytes(b"")
        os.utime(bundles / f"{number}.tar.gz", (1_000_000 + number, 1_000_000 + number))
    whole = type("Bundle", (), {"path": tmp_path / name})
    monkeypatch.setattr(light_bundles, "build", lambda *_, **__: whole)

    # when it is used
    light_bundles.light_cache.__wrapped__()

    # then it stays, and so do the newest others
    assert sorted(each.name for each in bundles.iterdir()) == [
        name,
        *(f"{each}.tar.gz" for each in range(5, 9)),
    ]
