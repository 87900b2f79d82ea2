from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from shim_runs import Bench
from small_cgroups import small_cgroup as open_small_cgroup

from bai_agent.benchmark.state import State, state
from bai_agent.benchmark.stopping import end_lost
from bai_agent.job.run_directory import RunDir


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    folder = tmp_path / "run"
    folder.mkdir()
    made = Bench(RunDir(folder))
    yield made
    if state(made.rundir) in (State.RUNNING, State.LOST):
        end_lost(made.rundir)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 4 MiB. Needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True, timeout=60)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True, timeout=60)


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup with little memory. Needs root."""
    with open_small_cgroup(150_000_000) as members:
        yield members
