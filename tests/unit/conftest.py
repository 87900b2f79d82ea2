"""What the tests of the agent's rooms share."""

from __future__ import annotations

from pathlib import Path

import pytest

from bai_agent.job.run_directory import RunDir


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    """A run directory that is not there yet."""
    return RunDir(tmp_path / "run")
