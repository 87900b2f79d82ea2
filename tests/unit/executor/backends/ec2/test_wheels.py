"""The bundle's packages are those that the agent asks for."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from executor.backends.ec2.bundle.wheels import ARCHITECTURES, PURE, PYTHONS, locked, native, sets

SETUP = Path(__file__).parents[5] / "setup.cfg"


def test_the_bundle_has_every_package_at_an_accepted_version() -> None:
    setup = configparser.ConfigParser()
    setup.read(SETUP)
    for python in PYTHONS:
        pinned = {each.partition("==")[0]: each.partition("==")[2] for each in (*native(python), *PURE)}
        for line in setup["options"]["install_requires"].split("\n"):
            found = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)(?:,<([\d.]+))?(?:; .*)?", line.strip())
            if found is None or (found[1] == "backports.zstd" and python == "314"):
                assert found is not None or not line.strip() or line.startswith("#")
                continue
            assert _number(pinned[found[1]]) >= _number(found[2])
            assert found[3] is None or _number(pinned[found[1]]) < _number(found[3])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_bundled_package_is_locked_by_one_checksum(architecture: str) -> None:
    fixed = {name.lower().replace("_", "-"): sha256 for name, sha256 in locked().items()}
    for folder, (packages, _) in sets(architecture).items():
        for package in packages:
            project, _, version = package.partition("==")
            start = f"{folder}/{project.replace('.', '-')}-{version}-".lower().replace("_", "-")
            [sha256] = [each for name, each in fixed.items() if name.startswith(start)]
            assert re.fullmatch("[0-9a-f]{64}", sha256)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version))
