"""The stacks of a benchmark of another user: the program that reads them has that user's rights, not root's."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from shim_runs import Bench

from bai_agent.benchmark.environment import find_user
from bai_agent.benchmark.start import launch
from bai_agent.job.outcome import Outcome

pytestmark = pytest.mark.root

_PYTHON = "/usr/bin/python3"
"""One that every user may run."""
_RANK = """
import time
def waits_for_ever():
    print("ready", flush=True)
    time.sleep(600)
waits_for_ever()
"""
_PY_SPY = """#!/bin/sh
echo "uid $(id -u) groups $(id -G)"
grep -E 'Cap(Prm|Eff|Amb)' /proc/self/status
env
"""
_START = """
import os, sys
from bai_agent.shim.stacks import start_dump
uid, gid = map(int, sys.argv[2:4])
helper = start_dump(sys.argv[1], 1, user={"uid": uid, "gid": gid, "groups": [gid]}, yama=sys.argv[4])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]))
"""


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder that only root can enter, as an agent's may be."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder


def as_program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_stacks_of_another_users_processes_are_in_the_log(bench: Bench, private: Path) -> None:
    # Given a rank that a shell started, and a py-spy in a folder of root's
    py_spy = private / "py-spy"
    shutil.copy(Path(sys.executable).with_name("py-spy"), py_spy)
    order = bench.order("sh", "-c", f"{_PYTHON} -c '{_RANK}'; true", cwd=Path("/"), user=find_user("nobody"))
    launch(replace(order, py_spy=py_spy), bench.rundir)
    bench.wait_for_output("ready")

    bench.stop(Outcome.NO_OUTPUT, stacks=True)

    assert bench.ended()["stop"] == "no_output"
    assert "waits_for_ever" in bench.output


def test_py_spy_runs_as_the_benchmarks_user(bench: Bench, private: Path) -> None:
    py_spy = as_program(private / "py-spy", _PY_SPY)
    order = bench.order(_PYTHON, "-c", _RANK, cwd=Path("/"), user=find_user("nobody"))
    launch(replace(order, py_spy=py_spy), bench.rundir)
    bench.wait_for_output("ready")

    bench.stop(Outcome.NO_OUTPUT, stacks=True)

    assert bench.ended()["stop"] == "no_output"
    nobody = pwd.getpwnam("nobody")
    assert f"uid {nobody.pw_uid} groups {nobody.pw_gid}\n" in bench.output


@pytest.mark.parametrize(("scope", "rights"), [(None, 0), ("0\n", 0), ("1\n", 1 << 19), ("2\n", 1 << 19)])
def test_if_yama_restricts_ptrace_py_spy_keeps_one_right_of_root(
    private: Path, tmp_path: Path, scope: str | None, rights: int
) -> None:
    yama = tmp_path / "ptrace_scope"
    if scope is not None:
        yama.write_text(scope)
    nobody = pwd.getpwnam("nobody")
    py_spy = as_program(private / "py-spy", _PY_SPY)

    done = subprocess.run(
        [sys.executable, "-c", _START, py_spy, str(nobody.pw_uid), str(nobody.pw_gid), yama],
        env={**os.environ, "SECRET_OF_ROOTS": "in the agent's environment"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"uid {nobody.pw_uid} groups {nobody.pw_gid}"
    found = {name: int(value, 16) for name, _, value in (line.partition(":") for line in lines[1:4])}
    assert found == {"CapPrm": rights, "CapEff": rights, "CapAmb": rights}
    assert "SECRET_OF_ROOTS" not in done.stdout


def test_a_line_in_the_log_says_that_the_user_may_not_run_py_spy(bench: Bench, private: Path) -> None:
    py_spy = as_program(private / "py-spy", _PY_SPY)
    py_spy.chmod(0o700)
    order = bench.order(_PYTHON, "-c", _RANK, cwd=Path("/"), user=find_user("nobody"))
    launch(replace(order, py_spy=py_spy), bench.rundir)
    bench.wait_for_output("ready")

    bench.stop(Outcome.NO_OUTPUT, stacks=True)

    assert bench.ended()["stop"] == "no_output"
    assert f"[bai] no Python stacks: {py_spy}: Permission denied" in bench.output
