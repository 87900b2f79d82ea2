"""`bai top` at a real terminal: it shows a run, and its own end never ends the run."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from cli_harness import CliResult
from local_cli import LocalCli
from pseudo_terminal import Terminal
from terminal_screen import Screen

from bai_agent.job.run_directory import is_locked


@pytest.fixture
def running(cli: LocalCli) -> LocalCli:
    """A job "one" that runs until its file is there."""
    assert cli.bai("run", "-d", cli.descriptor(), "--job-id", "one", "--", cli.go_file).code == 0
    cli.await_value("one", 0.25)
    return cli


def drawn_once(lines: list[str], *, columns: int) -> bool:
    """Return whether one whole picture stands there, and no piece of another one."""
    heading = [line for line in lines if "one  run" in line]
    pieces = [line for line in lines if line and not line.strip("─ ")]
    return (
        len(heading) == 1
        and len(heading[0]) == columns
        and not pieces
        and "q leaves; the job goes on"[:columns] in lines
    )


def still_runs(cli: LocalCli) -> bool:
    return is_locked(cli.rundir("one").agent_lock) and is_locked(cli.rundir("one").shim_lock)


def test_top_reacts_to_keys_resizing_and_the_end_of_the_job(running: LocalCli) -> None:
    cli = running
    with Terminal("top", cli=cli) as terminal:
        terminal.await_text("q leaves; the job goes on")
        os.write(terminal.master, b"xq")
        assert terminal.wait() == 0
        assert "one goes on: bai top one" in terminal.text.replace("\r\n", " ")
    assert still_runs(cli)

    with Terminal("top", "one", cli=cli) as terminal:
        terminal.await_text("q leaves; the job goes on")
        terminal.press_ctrl_c()
        assert terminal.wait() == 128 + signal.SIGINT
    assert still_runs(cli)

    environment = {name: value for name, value in cli.environment.items() if name != "TERM"}
    with Screen(
        *cli.bai_program,
        "top",
        folder=cli.folder,
        environment=environment,
        columns=100,
        first="TERM=screen-256color; export TERM",
        resizes=True,
    ) as window:
        window.await_lines(
            lambda lines: any(line.startswith("loss ↓") and "0.2500" in line for line in lines)
        )
        for columns in (60, 40, 90):
            window.resize(columns)
            window.await_lines(partial(drawn_once, columns=columns))
        cli.go_file.touch()
        assert window.wait() == 0
        shown = window.lines
    assert sum("one  SUCCEEDED" in line for line in shown) == 1
    assert not any("q leaves" in line for line in shown)
    assert cli.result("one")["outcome"] == "succeeded"


def test_without_a_terminal_top_prints_once(running: LocalCli) -> None:
    cli = running
    answer: CliResult = cli.bai("top")
    assert (answer.code, answer.stderr) == (0, "")
    assert "one  run" in answer.stdout
    assert any(line.split()[:3] == ["loss", "↓", "0.2500"] for line in answer.stdout.splitlines())
    assert "\x1b" not in answer.stdout
    cli.kill_agent("one")
    assert "its agent has died; `bai resume one` starts it again" in " ".join(
        cli.bai("top", "one").stdout.split()
    )
    cli.go_file.touch()
    assert cli.bai("resume", "one", "-f").code == 0
    nothing = cli.bai("top")
    assert nothing.code == 2
    assert "no job runs in" in nothing.stderr
    assert "SUCCEEDED" in cli.bai("top", "one").stdout


def test_top_refuses_an_unknown_job_with_a_sentence(cli: LocalCli, tmp_path: Path) -> None:
    assert cli.bai("top", "nothing").code == 2


def test_top_json_prints_one_snapshot_of_the_job(running: LocalCli) -> None:
    cli = running
    answer = cli.bai("top", "one", "--json")
    table = json.loads(answer.stdout)
    assert answer.code == 0
    assert (table["job_id"], table["status"], table["phase"]) == ("one", "running", "run")
    assert {"name": "loss", "units": "nats", "last": 0.25} in table["metrics"]
    assert [node["rank"] for node in table["nodes"]] == [0]
    assert still_runs(cli)
