"""Which folders of a bundle a Python imports from."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_init.start_agent import search_path


@pytest.mark.parametrize(
    ("version", "native"),
    [
        ((3, 10), ["cp310", "cp36-abi3"]),
        ((3, 12), ["cp311-abi3", "cp312", "cp36-abi3"]),
        ((3, 15), ["cp311-abi3", "cp36-abi3"]),
    ],
)
def test_native_packages_are_imported_for_the_running_python_version(
    tmp_path: Path, version: tuple[int, int], native: list[str]
) -> None:
    for name in ("cp310", "cp311", "cp312", "cp311-abi3", "cp36-abi3", "notes"):
        (tmp_path / "native" / name).mkdir(parents=True)

    found = search_path(tmp_path, version)

    assert found == [
        str(tmp_path),
        *(str(tmp_path / "native" / each) for each in native),
        str(tmp_path / "pure"),
    ]
