"""How `bai` starts the agent of a job on this machine: itself, whole or not at all."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import wait_until
from bai_desk import Desk
from bai_program import PROGRAM

from bai_agent.benchmark.orphans import kill_remains
from bai_agent.benchmark.proc import read_process
from bai_agent.job.run_directory import RunDir, is_locked


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    for node in made.store.glob("*/attempts/0/nodes/0"):
        if not is_locked(RunDir(node).shim_lock):
            kill_remains(RunDir(node), None)


def starting(desk: Desk, job_id: str, *, detach: bool = False) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PROGRAM, "run", desk.descriptor(), "--job-id", job_id, *["--detach"] * detach, "--", desk.word],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=desk.environment,
        cwd=desk.folder,
    )


def test_bai_starts_the_agent_itself_in_another_session(desk: Desk) -> None:
    with starting(desk, "one") as bai:
        desk.await_output("one", "loss=0.25")
        agent = read_process(json.loads(desk.rundir("one").ready.read_text())["pid"])
        desk.word.touch()
        assert bai.wait(timeout=60) == 0

    assert agent is not None
    assert agent.parent == bai.pid
    assert agent.session == agent.pid


@pytest.mark.parametrize("share", [0.5, 0.75, 0.95])
def test_bai_killed_at_any_moment_leaves_no_half_agent(desk: Desk, share: float) -> None:
    # Given how long a start takes, as it is here and now
    begun = time.monotonic()
    assert starting(desk, "measured", detach=True).wait(timeout=60) == 0
    took = time.monotonic() - begun

    with starting(desk, "one", detach=True) as bai:
        time.sleep(share * took)
        bai.kill()
    desk.word.touch()
    again = desk.bai("run", desk.descriptor(), "--job-id", "one", "--", desk.word)

    assert again.returncode == 0, again.stdout + again.stderr
    assert len(re.findall(r"^pid \d+$", desk.output("one"), re.MULTILINE)) == 1
    assert desk.bai("status", "measured", "--wait").returncode == 0


def test_no_module_of_the_run_directory_is_taken(desk: Desk) -> None:
    with starting(desk, "one", detach=True) as bai:
        assert bai.wait(timeout=60) == 0
    desk.await_output("one", "loss=0.25")
    desk.kill_agent("one")
    (desk.rundir("one").path / "logging.py").write_text("raise SystemExit(9)\n")
    wait_until(lambda: not is_locked(desk.rundir("one").agent_lock))

    resumed = desk.bai("resume", "one")

    assert resumed.returncode == 0, resumed.stderr
    desk.word.touch()
    assert desk.bai("status", "one", "--wait").returncode == 0


def test_a_start_that_fails_says_why_in_one_sentence(desk: Desk) -> None:
    with starting(desk, "one", detach=True) as bai:
        assert bai.wait(timeout=60) == 0
    desk.await_output("one", "loss=0.25")
    desk.kill_agent("one")
    rundir = desk.rundir("one")
    wait_until(lambda: not is_locked(rundir.agent_lock))
    rundir.job.write_text("another one")

    resumed = desk.bai("resume", "one")

    assert resumed.returncode == 5
    (sentence,) = resumed.stderr.splitlines()
    assert sentence.endswith(
        f"the agent of one did not start: {rundir.path} holds the run of another job descriptor; give another --dir"
    )
    os.kill(json.loads(rundir.started.read_text())["shim_pid"], signal.SIGTERM)
