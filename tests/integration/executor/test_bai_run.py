"""`bai run` with real agents and benchmarks: how it ends, what Ctrl-C does, and what outlives what."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import is_alive, wait_until
from bai_desk import IGNORES_SIGTERM, WAITS, Desk, Terminal
from bai_program import PROGRAM

from bai_agent.benchmark.orphans import find_remains, kill_remains
from bai_agent.job.descriptor_file import parse_job
from bai_agent.job.run_directory import RunDir, is_locked


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    for node in made.store.glob("*/attempts/0/nodes/0"):
        if not is_locked(RunDir(node).shim_lock):
            kill_remains(RunDir(node), None)


def pids_printed(desk: Desk, job_id: str) -> list[str]:
    return re.findall(r"^pid (\d+)$", desk.output(job_id), re.MULTILINE)


def test_a_run_in_a_pipe_ends_with_its_numbers(desk: Desk) -> None:
    desk.word.touch()

    answer = desk.bai("run", desk.descriptor(), "--job-id", "one", "--", desk.word)

    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "loss=0.5 loss=0.25\nloss=0.125\n" in answer.stdout
    assert "\x1b" not in answer.stdout
    assert "[bai] run finished in" in answer.stdout
    (row,) = (line.split() for line in answer.stdout.splitlines() if line.split()[:2] == ["loss", "↓"])
    assert row[-6:] == ["0.5000", "0.1250", "0.1250", "0.5000", "0.2917", "3"]
    assert desk.bai("status", "last", "--wait").returncode == 0


def test_a_program_reads_the_result_from_the_last_line(desk: Desk) -> None:
    desk.word.touch()

    answer = desk.bai("run", desk.descriptor(), "--json", "--", desk.word)

    objects = [json.loads(line) for line in answer.stdout.splitlines()]
    assert (objects[0]["type"], objects[-1]["type"]) == ("job", "result")
    assert objects[-1]["outcome"] == "succeeded"
    assert [each["value"] for each in objects if each["type"] == "metric" and each["src"] == "log"] == [
        0.5,
        0.25,
        0.125,
    ]
    assert "loss=0.125" in [each["line"] for each in objects if each["type"] == "log"]


@pytest.mark.parametrize(
    ("code", "limits", "exit_code", "outcome"),
    [
        ('print("the reason"); raise SystemExit(7)', "", 1, "failed"),
        (WAITS, 'max_runtime = "1s"', 3, "max_runtime"),
        (
            "import os, signal; print('the reason', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
            "",
            6,
            "killed",
        ),
    ],
)
def test_the_exit_code_says_how_it_ended(
    desk: Desk, code: str, limits: str, exit_code: int, outcome: str
) -> None:
    answer = desk.bai("run", desk.descriptor(code, limits=limits), "--job-id", "one", "--", desk.word)

    assert answer.returncode == exit_code, answer.stdout + answer.stderr
    assert desk.result("one")["outcome"] == outcome
    assert f"({outcome}: bai's exit code is {exit_code})" in answer.stdout
    assert desk.bai("status", "one", "--wait").returncode == exit_code
    if code != WAITS:
        assert "│ the reason" in answer.stdout


def test_the_first_ctrl_c_cancels_and_follows_to_the_end(desk: Desk) -> None:
    with Terminal("run", desk.descriptor(), "--job-id", "one", "--", desk.word, desk=desk) as terminal:
        terminal.await_text("loss=0.5 loss=0.25")
        terminal.press_ctrl_c()
        code = terminal.wait()

    assert code == 4, terminal.text
    assert desk.result("one")["outcome"] == "cancelled"
    assert "cancelling; press Ctrl-C again" in terminal.text
    assert "(cancelled: bai's exit code is 4)" in terminal.text
    # The terminal is left with its cursor on
    assert terminal.drawn.rindex("\x1b[?25h") > terminal.drawn.rindex("\x1b[?25l")


def test_the_second_ctrl_c_leaves_and_says_how_to_come_back(desk: Desk) -> None:
    # Given a benchmark that does not listen to SIGTERM
    file = desk.descriptor(IGNORES_SIGTERM, limits='grace = "5s"')
    with Terminal("run", file, "--job-id", "one", "--", desk.word, desk=desk) as terminal:
        terminal.await_text("loss=0.5 loss=0.25")
        terminal.press_ctrl_c()
        terminal.await_text("press Ctrl-C again")

        # When Ctrl-C is pressed once more
        terminal.press_ctrl_c()
        code = terminal.wait()

    # Then bai has gone, and the job ends without it
    assert code == 130, terminal.text
    assert "no longer following; cancelling goes on" in terminal.text
    assert "bai status --wait one" in terminal.text
    assert "bai logs -f one" in terminal.text
    assert "bai cancel" not in terminal.text
    assert desk.bai("status", "one", "--wait").returncode == 4
    assert desk.result("one")["benchmark"]["signal"] == signal.SIGKILL


def test_a_closed_terminal_only_ends_the_following(desk: Desk) -> None:
    with Terminal("run", desk.descriptor(), "--job-id", "one", "--", desk.word, desk=desk) as terminal:
        terminal.await_text("loss=0.5 loss=0.25")
        terminal.close()
        code = terminal.wait()
    assert code != 0

    assert is_locked(desk.rundir("one").agent_lock)
    desk.word.touch()
    assert desk.bai("status", "one", "--wait").returncode == 0
    assert desk.result("one")["outcome"] == "succeeded"


def test_two_jobs_at_once_from_one_file_do_not_meet(desk: Desk) -> None:
    file = desk.descriptor()
    answers: list[subprocess.CompletedProcess[str]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(desk.bai("run", file, "--", desk.word)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    desk_ids = desk.await_jobs(2)
    for job_id in desk_ids:
        desk.await_output(job_id, "loss=0.25")
    desk.word.touch()
    for thread in threads:
        thread.join(timeout=60)

    assert [each.returncode for each in answers] == [0, 0]
    pids = [pids_printed(desk, job_id) for job_id in desk_ids]
    assert len(pids[0]) == len(pids[1]) == 1
    assert pids[0] != pids[1]


def test_the_same_job_id_is_the_same_job(desk: Desk) -> None:
    file = desk.descriptor()
    assert desk.bai("run", file, "--job-id", "one", "--detach", "--", desk.word).stdout == "one\n"
    desk.await_output("one", "loss=0.25")

    # When it is asked for again while it runs, and again after its end
    with subprocess.Popen(
        (*PROGRAM, "run", file, "--job-id", "one", "--", desk.word),
        stdout=subprocess.PIPE,
        text=True,
        env=desk.environment,
    ) as again:
        desk.word.touch()
        out, _ = again.communicate(timeout=60)
    after = desk.bai("run", file, "--job-id", "one", "--", desk.word)

    # Then nothing ran twice
    assert (again.returncode, after.returncode) == (0, 0)
    assert "loss=0.125" in out
    assert "exists already" in after.stderr
    assert len(pids_printed(desk, "one")) == 1

    # And another content under this id is refused
    other = desk.bai("run", file, "--job-id", "one", "--", "other-argument")
    assert other.returncode == 2
    assert "another --job-id" in other.stderr


def test_an_agent_that_is_killed_comes_back_while_somebody_follows(desk: Desk) -> None:
    with Terminal("run", desk.descriptor(), "--job-id", "one", "--", desk.word, desk=desk) as terminal:
        terminal.await_text("loss=0.5 loss=0.25")
        desk.kill_agent("one")
        terminal.await_text("the agent died; starting it again (1 of 3)")
        desk.word.touch()
        code = terminal.wait()

    assert code == 0, terminal.text
    assert len(pids_printed(desk, "one")) == 1
    assert desk.result("one")["metrics"]["per_metric"] == {"loss": 3}


def test_an_agent_that_died_unseen_is_resumed(desk: Desk) -> None:
    # Given a job that nobody follows, whose agent was killed
    desk.bai("run", desk.descriptor(), "--job-id", "one", "--detach", "--", desk.word)
    desk.await_output("one", "loss=0.25")
    desk.kill_agent("one")
    waited = desk.bai("status", "one", "--wait")
    assert waited.returncode == 5
    assert "bai resume one" in waited.stdout
    assert "benchmark still running" in waited.stdout
    # Its benchmark lives, so it is not deleted
    assert desk.bai("prune", "--older-than", "1ms").stdout == ""

    # When it is resumed, twice
    assert "running again" in desk.bai("resume", "one").stdout
    assert "its agent is running" in desk.bai("resume", "one").stdout
    desk.word.touch()

    # Then it goes on where it was
    assert desk.bai("status", "one", "--wait").returncode == 0
    assert len(pids_printed(desk, "one")) == 1
    assert desk.bai("prune", "--older-than", "1ms", "--json").stdout != ""
    assert not desk.store.joinpath("one").exists()


def kill_agent_and_shim(desk: Desk) -> list[int]:
    """Run a job that goes on for long, kill both that watch it, and return the pids of its benchmark."""
    code = f"import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n{WAITS}"
    desk.bai("run", desk.descriptor(code), "--job-id", "one", "--detach", "--", desk.word)
    desk.await_output("one", "loss=0.25")
    desk.kill_agent("one")
    started = json.loads(desk.rundir("one").started.read_text())
    os.kill(started["shim_pid"], signal.SIGKILL)
    wait_until(lambda: not is_locked(desk.rundir("one").shim_lock))
    pids = [each.pid for each in find_remains(desk.rundir("one"))]
    assert len(pids) == 2
    return pids


def test_a_benchmark_without_agent_and_shim_is_not_forgotten(desk: Desk) -> None:
    pids = kill_agent_and_shim(desk)

    assert "AGENT DIED" in desk.bai("status", "one").stdout
    assert "benchmark still running, but its shim is gone too" in desk.bai("status", "one").stdout
    assert json.loads(desk.bai("status", "one", "--json").stdout)["benchmark_alive"] is True
    assert "AGENT DIED" in desk.bai("list").stdout
    for options in ([], ["--dry-run"]):
        assert desk.bai("prune", "--older-than", "1ms", *options).stdout == ""
    assert all(is_alive(pid) for pid in pids)

    # When a cancel comes: whoever sends it sees to the end
    cancelled = desk.bai("cancel", "one")
    assert "started again to end the job" in cancelled.stdout

    assert desk.bai("status", "one", "--wait").returncode == 4
    assert [pid for pid in pids if is_alive(pid)] == []
    assert desk.result("one")["outcome"] == "cancelled"
    assert desk.bai("prune", "--older-than", "1ms", "--json").stdout != ""


def test_what_lives_of_a_benchmark_is_found_under_another_name_of_the_store(desk: Desk) -> None:
    pids = kill_agent_and_shim(desk)
    # Given that the process that led its session has gone as well, and a second name for the store
    os.kill(json.loads(desk.rundir("one").started.read_text())["pid"], signal.SIGKILL)
    other = desk.folder / "other"
    other.symlink_to(desk.store)

    pruned = desk.bai("prune", "--older-than", "1ms", "--store", other)

    assert pruned.stdout == ""
    assert sum(is_alive(pid) for pid in pids) == 1
    assert "ends it as well" in desk.bai("status", "one", "--store", other).stdout


def test_resuming_a_benchmark_without_a_shim_ends_it_as_lost(desk: Desk) -> None:
    pids = kill_agent_and_shim(desk)

    assert desk.bai("resume", "one").returncode == 0

    assert desk.bai("status", "one", "--wait").returncode == 5
    assert desk.result("one")["outcome"] == "lost"
    assert [pid for pid in pids if is_alive(pid)] == []


def test_cancelling_from_elsewhere(desk: Desk) -> None:
    desk.bai("run", desk.descriptor(), "--job-id", "one", "--detach", "--", desk.word)
    desk.await_output("one", "loss=0.25")

    assert desk.bai("cancel", "on").stdout == "one: cancelling\n"

    assert desk.bai("status", "one", "--wait").returncode == 4
    assert "it has ended before" in desk.bai("cancel", "one").stdout


def test_a_reader_that_leaves_does_not_end_the_job(desk: Desk) -> None:
    process = subprocess.Popen(
        (*PROGRAM, "run", desk.descriptor(), "--job-id", "one", "--", desk.word),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=desk.environment,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        while b"loss" not in process.stdout.readline():
            pass
        process.stdout.close()
        desk.word.touch()
        said = process.stderr.read().decode()
        assert process.wait(timeout=60) == 141

    assert "bai status one" in said
    assert desk.bai("status", "one", "--wait").returncode == 0


def test_scripts_are_those_of_the_submission(desk: Desk) -> None:
    # Given a folder of scripts
    file = desk.descriptor()
    text = file.read_text().partition("[ml]")[0]
    file.write_text(text + '[ml]\nbenchmark_code = "python3 step.py"\n[ml.script]\npath = "."\n')
    (desk.folder / "step.py").write_text(WAITS.replace("0.125", "0.0625"))

    # When they are changed after the submission
    assert desk.bai("run", file, "--job-id", "one", "--detach", "--", desk.word).returncode == 0
    desk.await_output("one", "loss=0.25")
    (desk.folder / "step.py").write_text("raise SystemExit(9)")
    desk.word.touch()

    # Then the job runs what was submitted, and its store is no part of it
    assert desk.bai("status", "one", "--wait").returncode == 0
    assert desk.output("one").endswith("loss=0.0625\n")
    assert sorted(each.name for each in desk.rundir("one").scripts.iterdir()) == ["benchmark.toml", "step.py"]
    assert len(list((desk.store / "one").rglob("step.py"))) == 1


def test_one_job_id_started_twice_at_once_is_one_job(desk: Desk) -> None:
    # Given scripts that take a while to be copied
    file = desk.descriptor()
    text = file.read_text().partition("[ml]")[0]
    file.write_text(text + '[ml]\nbenchmark_code = "python3 step.py"\n[ml.script]\npath = "."\n')
    (desk.folder / "step.py").write_text(WAITS)
    (desk.folder / "many").mkdir()
    for number in range(3000):
        (desk.folder / "many" / str(number)).touch()
    desk.word.touch()

    # When two start it
    command = (*PROGRAM, "run", file, "--job-id", "one", "--", desk.word)
    started = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=desk.environment, cwd=desk.folder
        )
        for _ in range(2)
    ]
    said = [each.communicate(timeout=120)[0].decode() for each in started]

    # Then both follow the one that runs
    assert [each.returncode for each in started] == [0, 0], said
    assert len(pids_printed(desk, "one")) == 1
    assert all("loss=0.125" in each for each in said)


def test_a_plan_that_the_agent_runs_is_a_job_like_any_other(desk: Desk) -> None:
    # Given two plans of one descriptor
    desk.word.touch()
    file = desk.descriptor()
    ids = []
    for name in ("p.toml", "q.toml"):
        plan = desk.bai("plan", file, "--", desk.word)
        (desk.folder / name).write_text(plan.stdout)

        # When the agent runs them as they are printed
        done = subprocess.run(
            [sys.executable, "-m", "bai_agent", "run", name, "--quiet"],
            cwd=desk.folder,
            env=desk.environment,
            timeout=60,
        )
        assert done.returncode == 0
        ids.append(parse_job(plan.stdout.encode(), where=name).job.id)

    # Then they are two jobs, which all commands see
    assert ids[0] != ids[1]
    jobs = [json.loads(line) for line in desk.bai("list", "--json").stdout.splitlines()]
    assert [(each["job_id"], each["status"]) for each in jobs] == [(each, "SUCCEEDED") for each in ids]
    assert desk.bai("status", ids[0], "--wait").returncode == 0
    assert "loss=0.125" in desk.bai("logs", ids[0]).stdout
    assert "loss" in desk.bai("metrics", ids[1]).stdout
    pruned = desk.bai("prune", "--older-than", "0s", "--json").stdout.splitlines()
    assert sorted(json.loads(each)["job_id"] for each in pruned) == sorted(ids)


def test_another_job_of_the_same_id_is_refused(desk: Desk) -> None:
    desk.word.touch()
    plan = desk.bai("plan", desk.descriptor(), "--job-id", "one", "--", desk.word).stdout
    assert desk.bai("run", desk.descriptor(), "--job-id", "one", "--", desk.word, "other").returncode == 0
    shutil.rmtree(desk.rundir("one").path)
    (desk.folder / "p.toml").write_text(plan)

    done = subprocess.run(
        [sys.executable, "-m", "bai_agent", "run", "p.toml"],
        cwd=desk.folder,
        env=desk.environment,
        timeout=60,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 2
    assert 'has another job "one"; give this one another [job] id' in done.stderr
