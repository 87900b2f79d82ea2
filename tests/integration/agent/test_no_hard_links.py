"""A run directory on a file system without hard links: one sentence, and the result says it too."""

from __future__ import annotations

from pathlib import Path

from agent_runs import result_of, run_agent, write_job
from without_hard_links import without_hard_links


def test_a_run_directory_without_hard_links_is_refused_with_advice(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    code = run_agent(write_job(tmp_path, ["touch", tmp_path / "ran"]), rundir, prefix=without_hard_links())

    assert code == 5
    result = result_of(rundir)
    assert result["outcome"] == "prepare_failed"
    assert result["sentence"].startswith(
        f"The run directory cannot be in {rundir}: its file system has no hard links"
    )
    assert "another file system with --store" in result["sentence"]
    assert not (tmp_path / "ran").exists()
