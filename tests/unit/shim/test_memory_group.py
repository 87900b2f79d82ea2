"""Which cgroup a benchmark's own would be below, and where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bai_agent.shim import memory_group
from bai_agent.shim.proc import read_process


def _proc(tmp_path: Path, *, cgroup: str, kind: str) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text(f"30 20 0:26 / {tmp_path / 'mounted'} rw shared:4 - {kind}\n")
    return proc


def _own(monkeypatch: pytest.MonkeyPatch, folder: Path, version: int) -> None:
    monkeypatch.setattr(memory_group, "own_memory_group", lambda: (str(folder), version))


@pytest.mark.parametrize(("handed_down", "found"), [("cpu memory pids\n", True), ("cpu pids\n", False)])
def test_the_root_cgroup_of_version_2_is_used_if_its_memory_controller_is_delegated(
    tmp_path: Path, handed_down: str, found: bool
) -> None:
    proc = _proc(tmp_path, cgroup="0::/\n", kind="cgroup2 cgroup2 rw")
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted/cgroup.subtree_control").write_text(handed_down)

    own = memory_group.own_memory_group(str(proc))

    assert own == ((str(tmp_path / "mounted"), 2) if found else None)


def test_no_cgroup_is_created_below_one_of_version_2_without_delegation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("\n")
    _own(monkeypatch, tmp_path, 2)

    assert memory_group.make_memory_group() is None
    assert [each.name for each in tmp_path.iterdir()] == ["cgroup.subtree_control"]


def test_a_cgroup_without_memory_accounting_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _own(monkeypatch, tmp_path, 1)

    assert memory_group.make_memory_group() is None
    assert not list(tmp_path.iterdir())


def test_without_permission_to_create_a_cgroup_none_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _own(monkeypatch, tmp_path / "none", 1)

    assert memory_group.make_memory_group() is None


def test_only_cgroups_of_dead_shims_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _own(monkeypatch, tmp_path, 1)
    me = read_process(os.getpid())
    assert me is not None
    kept = [f"bai-{me.pid}-{me.start}", "bai-test-1", "other"]
    for name in [*kept, f"bai-{me.pid}-{me.start + 1}", "bai-99999999-1"]:
        (tmp_path / name).mkdir()

    memory_group.remove_abandoned_groups()

    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(kept)


def test_the_cgroup_of_a_zombie_shim_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _own(monkeypatch, tmp_path, 1)
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()
        # It has closed its output, so it ends; only this process can reap it.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        zombie = read_process(child.pid)
        assert zombie is not None
        (tmp_path / f"bai-{zombie.pid}-{zombie.start}").mkdir()

        memory_group.remove_abandoned_groups()

        assert not list(tmp_path.iterdir())


def test_an_abandoned_cgroup_is_removed_with_its_nested_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _own(monkeypatch, tmp_path, 1)
    (tmp_path / "bai-99999999-1" / "inner" / "innermost").mkdir(parents=True)

    memory_group.remove_abandoned_groups()

    assert not list(tmp_path.iterdir())
