"""A detached agent starts even if the process that detached it was killed and nothing reads its first message."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import AGENT, RUN_SECONDS, environment, result_of, write_job


@pytest.fixture
def deaf() -> Iterator[int]:
    """The end of a pipe that has no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def run_agent(job: Path, rundir: Path, deaf: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*AGENT, job, "--dir", rundir, "--quiet", f"--ready-fd={deaf}"],
        pass_fds=(deaf,),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        env=environment(),
    )


def test_a_detached_job_runs_even_if_its_caller_is_gone(tmp_path: Path, deaf: int) -> None:
    job = write_job(tmp_path, ["true"])

    child = run_agent(job, tmp_path / "run", deaf)

    assert child.returncode == 0
    assert result_of(tmp_path / "run")["outcome"] == "succeeded"


def test_a_refused_detached_start_has_the_same_exit_code_and_message(tmp_path: Path, deaf: int) -> None:
    job = tmp_path / "job.toml"
    job.write_text("version = 1\n")

    child = run_agent(job, tmp_path / "run", deaf)

    assert child.returncode == 2
    assert child.stderr == f'bai-agent: {job}: lacks the key "job"\n'
