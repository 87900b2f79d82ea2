"""How `bai` starts the agent of a local job: completely or not at all."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import replace

import pytest
from agent_runs import wait_until
from local_cli import LocalCli

from bai_agent.job.run_directory import is_locked
from bai_agent.shim.proc import read_process


def starting(cli: LocalCli, job_id: str, *, detach: bool = False) -> subprocess.Popen[str]:
    options = ["--job-id", job_id, *["--detach"] * detach]
    # Not forked, so that the agent is a child of its own.
    return replace(cli, preloads=False).start(
        "run",
        cli.descriptor(),
        *options,
        "--",
        cli.go_file,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_bai_starts_the_agent_itself_in_another_session(cli: LocalCli) -> None:
    with starting(cli, "one") as bai:
        cli.await_output("one", "loss=0.25")
        agent = read_process(json.loads(cli.rundir("one").ready.read_text())["pid"])
        cli.go_file.touch()
        assert bai.wait(timeout=60) == 0

    assert agent is not None
    assert agent.parent == bai.pid
    assert agent.session == agent.pid


@pytest.mark.parametrize("share", [0.5, 0.75, 0.95])
def test_bai_killed_while_it_starts_an_agent_leaves_a_complete_agent_or_none(
    cli: LocalCli, share: float
) -> None:
    # Given how long a start takes, as it is here and now
    begun = time.monotonic()
    assert starting(cli, "measured", detach=True).wait(timeout=60) == 0
    took = time.monotonic() - begun

    with starting(cli, "one", detach=True) as bai:
        time.sleep(share * took)
        bai.kill()
    cli.go_file.touch()
    again = cli.bai("run", cli.descriptor(), "--job-id", "one", "--", cli.go_file)

    assert again.code == 0, again.stdout + again.stderr
    assert len(re.findall(r"^pid \d+$", cli.output("one"), re.MULTILINE)) == 1
    assert cli.bai("status", "measured", "--wait").code == 0


def test_no_module_is_imported_from_the_run_directory(cli: LocalCli) -> None:
    with starting(cli, "one", detach=True) as bai:
        assert bai.wait(timeout=60) == 0
    cli.await_output("one", "loss=0.25")
    cli.kill_agent("one")
    (cli.rundir("one").path / "logging.py").write_text("raise SystemExit(9)\n")
    wait_until(lambda: not is_locked(cli.rundir("one").agent_lock))

    resumed = cli.bai("resume", "one")

    assert resumed.code == 0, resumed.stderr
    cli.go_file.touch()
    assert cli.bai("status", "one", "--wait").code == 0


def test_a_start_that_fails_says_why_in_one_sentence(cli: LocalCli) -> None:
    with starting(cli, "one", detach=True) as bai:
        assert bai.wait(timeout=60) == 0
    cli.await_output("one", "loss=0.25")
    cli.kill_agent("one")
    rundir = cli.rundir("one")
    wait_until(lambda: not is_locked(rundir.agent_lock))
    rundir.job.write_text("another one")

    resumed = cli.bai("resume", "one")

    assert resumed.code == 5
    (sentence,) = resumed.stderr.splitlines()
    assert sentence.endswith(
        f"the agent of one did not start: {rundir.path} holds the run of another job descriptor; give another --dir"
    )
    os.kill(json.loads(rundir.started.read_text())["shim_pid"], signal.SIGTERM)
