from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from shim_runs import Bench

from bai_agent.benchmark import process
from bai_agent.job.run_directory import RunDir


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    folder = tmp_path / "run"
    folder.mkdir()
    made = Bench(RunDir(folder))
    yield made
    if process.state(made.rundir) in (process.State.RUNNING, process.State.LOST):
        process.end_lost(made.rundir)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 4 MiB. Needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True, timeout=20)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True, timeout=20)
