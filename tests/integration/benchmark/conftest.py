from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from shim_runs import Bench

from bai_agent.benchmark import process
from bai_agent.rundir import RunDir


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    folder = tmp_path / "run"
    folder.mkdir()
    made = Bench(RunDir(folder))
    yield made
    if process.state(made.rundir) in (process.State.RUNNING, process.State.LOST):
        process.end_lost(made.rundir)
