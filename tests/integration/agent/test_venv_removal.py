"""What scripts required is deleted after a run that went well, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_runs import events_of, python_job, result_of, run_agent


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """Scripts that require nothing, in a file: a venv is made all the same."""
    folder = tmp_path / "my scripts"
    folder.mkdir()
    (folder / "requirements.txt").touch()
    return folder


def job_that_ends_with(code: int, scripts: Path) -> Path:
    program = f"import os, sys; assert 'venv' in os.environ['PATH'].split(':')[0]; sys.exit({code})"
    return python_job(
        scripts.parent,
        program,
        benchmark={"requirements": "requirements.txt"},
        sources=[{"src": scripts.as_uri() + "/", "path": ".", "kind": "scripts"}],
    )


def test_after_a_successful_run_the_venv_is_deleted(tmp_path: Path, scripts: Path) -> None:
    job, rundir = job_that_ends_with(0, scripts), tmp_path / "run"

    assert run_agent(job, rundir) == 0, result_of(rundir)

    assert not (rundir / "venv").exists()
    assert (rundir / "requirements.log").exists()
    told = [each for each in events_of(rundir) if each["type"] == "requirements"]
    assert [(each["path"], each["done"]) for each in told] == [
        ("requirements.txt", False),
        ("requirements.txt", True),
    ]

    # And where the agent was killed before it had deleted it, the next one does
    (rundir / "venv" / "bin").mkdir(parents=True)
    assert run_agent(job, rundir) == 0
    assert not (rundir / "venv").exists()


def test_after_a_failed_run_the_venv_is_kept(tmp_path: Path, scripts: Path) -> None:
    job, rundir = job_that_ends_with(3, scripts), tmp_path / "run"

    assert run_agent(job, rundir) == 1, result_of(rundir)

    assert (rundir / "venv" / "bin" / "python").exists()
