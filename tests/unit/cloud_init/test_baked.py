"""What baking puts into an image."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from instance_jobs import bundle

from bai_agent.errors import BaiError
from cloud_init.baked import bake

BAKE = Path(__file__).parents[3] / "scripts/bake"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/etc/cloud/cloud.cfg.d").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "bundle.tar.gz"
    path.write_bytes(bundle("end(0)"))
    return path


def test_baking_unpacks_the_bundle_where_the_guardian_looks_for_it(root: Path, archive: Path) -> None:
    sha256 = bake(archive, root=root)
    assert sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert (root / "var/lib/bai/agent" / sha256 / "start_agent.py").is_file()


def test_the_cloud_config_names_existing_files(root: Path, archive: Path) -> None:
    bake(archive, root=root)
    config = yaml.safe_load((root / "etc/cloud/cloud.cfg.d/90-bai.cfg").read_text())
    for (shell, script), *more in (config["bootcmd"], config["runcmd"]):
        assert (shell, more) == ("sh", [])
        subprocess.run(["sh", "-n", root / script.lstrip("/")], check=True, timeout=60)


def test_baking_twice_works_and_leaves_no_job(root: Path, archive: Path) -> None:
    bake(archive, root=root)
    for left in ("boot/settings", "jobs/j/result.json", "job.toml"):
        (root / "var/lib/bai" / left).parent.mkdir(parents=True, exist_ok=True)
        (root / "var/lib/bai" / left).write_text("x")
    bake(archive, root=root)
    assert sorted(path.name for path in (root / "var/lib/bai").iterdir()) == ["agent", "baked"]


def test_a_file_that_is_not_a_bundle_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("x")
    with pytest.raises(BaiError, match="`bai bundle` makes one"):
        bake(tmp_path / "wrong", root=root)
    with pytest.raises(BaiError, match="cannot be read"):
        bake(tmp_path / "absent", root=root)


def test_a_system_without_cloud_init_is_refused(tmp_path: Path, archive: Path) -> None:
    with pytest.raises(BaiError, match="cloud-init is not installed"):
        bake(archive, root=tmp_path)


def test_the_bake_command_prints_the_bundle_or_asks_for_root(root: Path, archive: Path) -> None:
    done = subprocess.run(
        [sys.executable, BAKE, archive, "--root", root],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if os.geteuid() == 0:
        assert (done.returncode, done.stdout.split()[0]) == (0, "bundle")
    else:
        assert "needs root" in done.stderr


@pytest.mark.parametrize("damage", ["cut", "changed", "wrong sum"])
def test_a_damaged_bundle_is_refused_and_leaves_nothing(root: Path, archive: Path, damage: str) -> None:
    content = bytearray(archive.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "changed":
        content[len(content) // 2 : len(content) // 2 + 8] = bytes(8)
    else:
        content[-8:-4] = bytes(4)
    archive.write_bytes(content)

    with pytest.raises(BaiError, match="`bai bundle` makes one"):
        bake(archive, root=root)

    assert not list((root / "var/lib/bai/agent").glob("*"))
