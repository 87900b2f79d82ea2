"""The environment of a shell in a run directory: the benchmark's, without secrets and without what belongs to the run alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.peers import Members, Peer
from bai_agent.job.run_directory import RunDir
from bai_agent.nodes.inspection_shell import open_shell, shell_environment
from bai_agent.nodes.members_file import write_members

SECRETS = {"TOKEN": "env:HF_TOKEN", "KEY": "ssm:/bai/key"}


def shell_env(rundir: RunDir, base: dict[str, str], *, rank: int = 0, **benchmark: Any) -> dict[str, str]:
    job = Job(
        job=Identity(id="j1"), benchmark=Benchmark(**{"argv": ("true",), "secrets": SECRETS, **benchmark})
    )
    return shell_environment(job, rundir, rank=rank, base=base)


def test_a_shell_has_the_variables_of_the_benchmark_and_no_secret(rundir: RunDir) -> None:
    variables = {"LR": "0.1", "ADDRESS": "https://u:$(TOKEN)@h/", "OF_JOB": "$(BAI_JOB_ID)"}
    base = {"HF_TOKEN": "hf_1", "TOKEN": "t", "KEY": "k", "EDITOR": "vi", "PATH": "/bin"}

    env = shell_env(rundir, base, inherit_env=True, env=variables)

    assert (env["LR"], env["OF_JOB"], env["EDITOR"]) == ("0.1", "j1", "vi")
    assert env["ADDRESS"] == "https://u:$(TOKEN)@h/"
    assert env["BAI_GENERATION"] == "0"
    assert not {"HF_TOKEN", "TOKEN", "KEY"} & env.keys()
    assert "EDITOR" not in shell_env(rundir, base, inherit_env=False)


def test_a_shell_lacks_variables_that_mark_processes_of_the_run(rundir: RunDir) -> None:
    env = shell_env(rundir, {"BAI_RUN_DIR": "/x"}, inherit_env=True)

    assert [name for name in env if name.startswith("BENCHMARK_AI") or name == "BAI_RUN_DIR"] == []


def test_a_shell_has_the_addresses_of_the_other_nodes_once_they_joined(rundir: RunDir) -> None:
    peers = tuple(
        Peer(node=rank, rank=rank, address=f"10.0.0.{rank}", port=1000, slots=1) for rank in range(2)
    )
    write_members(rundir, Members(peers=peers))

    env = shell_env(rundir, {}, rank=1)

    assert (env["BAI_NODE_RANK"], env["BAI_NODE_ADDRS"]) == ("1", "10.0.0.0,10.0.0.1")


def test_a_folder_without_a_run_has_no_shell(tmp_path: Path) -> None:
    with pytest.raises(BaiError, match="is not a run directory, or its run has not started"):
        open_shell(tmp_path, rank=0)


@pytest.mark.root
def test_the_run_directory_of_another_user_has_no_shell(rundir: RunDir) -> None:
    """Its LD_PRELOAD would be ours."""
    rundir.path.mkdir()
    rundir.job.touch()
    os.chown(rundir.job, 1, 1)

    with pytest.raises(BaiError, match="belongs to another user"):
        open_shell(rundir.path, rank=0)


def test_a_run_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 300)

    with pytest.raises(BaiError, match="cannot be read: File name too long"):
        open_shell(folder, rank=0)
