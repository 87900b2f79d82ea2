"""`bai run` of a job with several local nodes: its end, its cancel, and killed agents."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from agent_runs import is_alive, wait_until
from local_cli import WAITS, LocalCli
from pseudo_terminal import Terminal
from stand_in_torchrun import put_torchrun

from bai_agent.job.run_directory import RunDir, is_locked


@pytest.fixture
def nodes(cli: LocalCli) -> LocalCli:
    """A harness whose PATH has a torchrun."""
    path = f"{put_torchrun(cli.folder)}:{os.environ['PATH']}"
    return replace(cli, environment={**cli.environment, "PATH": path})


def rundir(cli: LocalCli, rank: int) -> RunDir:
    return RunDir(cli.store / cli.record("one").node(rank).place)


def pid_printed(cli: LocalCli, rank: int) -> int:
    (line,) = (each for each in rundir(cli, rank).output.read_text().splitlines() if each.startswith("pid "))
    return int(line.split()[1])


def descriptor(cli: LocalCli) -> Path:
    return cli.descriptor(WAITS, strategy="torchrun")


def test_two_local_nodes_run_and_their_metrics_are_combined(nodes: LocalCli) -> None:
    nodes.go_file.touch()

    answer = nodes.bai(
        "run", descriptor(nodes), "--nodes", "2", "--job-id", "one", "--json", "--", nodes.go_file
    )

    objects = [json.loads(line) for line in answer.stdout.splitlines()]
    assert (answer.code, objects[-1]["outcome"]) == (0, "succeeded"), answer.stderr
    assert objects[-1]["metrics"]["per_metric"] == {"loss": 6}
    values = [
        (each["labels"]["rank"], each["value"])
        for each in objects
        if each["type"] == "metric" and each["src"] == "log"
    ]
    assert sorted(values) == [(rank, value) for rank in "01" for value in (0.125, 0.25, 0.5)]


def test_ctrl_c_ends_every_node(nodes: LocalCli) -> None:
    run = ("run", descriptor(nodes), "--nodes", "2", "--job-id", "one", "--", nodes.go_file)
    with Terminal(*run, cli=nodes) as terminal:
        terminal.await_text("loss=0.5 loss=0.25")
        wait_until(lambda: rundir(nodes, 1).output.exists() and "loss" in rundir(nodes, 1).output.read_text())
        pids = [pid_printed(nodes, rank) for rank in (0, 1)]
        terminal.press_ctrl_c()
        code = terminal.wait()

    assert code == 4, terminal.text
    assert nodes.result("one")["outcome"] == "cancelled"
    assert not any(map(is_alive, pids))
    wait_until(lambda: not is_locked(rundir(nodes, 1).agent_lock))


def test_the_agent_of_any_node_is_restarted_while_a_command_follows(nodes: LocalCli) -> None:
    run = ("run", descriptor(nodes), "--nodes", "2", "--job-id", "one", "--", nodes.go_file)
    with Terminal(*run, cli=nodes) as terminal:
        terminal.await_text("loss=0.5 loss=0.25")
        wait_until(rundir(nodes, 1).started.exists)
        os.kill(json.loads(rundir(nodes, 1).ready.read_text())["pid"], signal.SIGKILL)
        terminal.await_text("the agent died; starting it again (1 of 3)")
        nodes.go_file.touch()
        code = terminal.wait()

    assert code == 0, terminal.text
    assert nodes.result("one")["metrics"]["per_metric"] == {"loss": 6}
    pid_printed(nodes, 1)


def test_a_job_without_torchrun_fails_before_its_start_and_advises_to_install_pytorch(cli: LocalCli) -> None:
    path = f"{cli.folder}:/usr/bin:/bin"
    bare = replace(cli, environment={**cli.environment, "PATH": path})

    answer = bare.bai("run", descriptor(bare), "--nodes", "2", "--job-id", "one", "--", bare.go_file)

    assert answer.code == 5, answer.stdout + answer.stderr
    assert bare.result("one")["outcome"] == "prepare_failed"
    assert "torchrun is not on this machine" in answer.stdout
    assert "install PyTorch" in " ".join(answer.stdout.split())
