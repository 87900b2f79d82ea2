"""What the tests of a run's phases share."""

from __future__ import annotations

from pathlib import Path

import pytest

from bai_agent.job.run_directory import RunDir


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    """A run directory that is not there yet."""
    return RunDir(tmp_path / "run")
