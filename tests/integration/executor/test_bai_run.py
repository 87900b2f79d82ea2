"""`bai run` with real agents and benchmarks: exit codes, Ctrl-C, and processes that die before others."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading

import pytest
from agent_runs import is_alive, wait_until
from cli_harness import CliResult
from local_cli import IGNORES_SIGTERM, WAITS, LocalCli
from pseudo_terminal import Terminal

from bai_agent.benchmark.orphans import find_remains
from bai_agent.job.descriptor_file import parse_job
from bai_agent.job.run_directory import is_locked


def pids_printed(cli: LocalCli, job_id: str) -> list[str]:
    return re.findall(r"^pid (\d+)$", cli.output(job_id), re.MULTILINE)


def test_a_run_in_a_pipe_prints_its_headlines_at_the_end(cli: LocalCli) -> None:
    cli.go_file.touch()

    answer = cli.bai("run", cli.descriptor(), "--job-id", "one", "--", cli.go_file)

    assert answer.code == 0, answer.stdout + answer.stderr
    assert "loss=0.5 loss=0.25\nloss=0.125\n" in answer.stdout
    assert "\x1b" not in answer.stdout
    assert "[bai] run finished in" in answer.stdout
    (row,) = (line.split() for line in answer.stdout.splitlines() if line.split()[:2] == ["loss", "↓"])
    figures = ["0.1250", "0.2500", "0.1909", "0.4750", "0.1250", "0.5000", "0.2917", "3"]
    assert row[-8:] == figures  # last, median, deviation, p95, least, greatest, mean, count
    assert cli.bai("status", "last", "--wait").code == 0


def test_the_last_json_line_of_a_run_is_its_result(cli: LocalCli) -> None:
    cli.go_file.touch()

    answer = cli.bai("run", cli.descriptor(), "--json", "--", cli.go_file)

    objects = [json.loads(line) for line in answer.stdout.splitlines()]
    assert (objects[0]["type"], objects[-1]["type"]) == ("job", "result")
    assert objects[-1]["outcome"] == "succeeded"
    assert [each["value"] for each in objects if each["type"] == "metric" and each["src"] == "log"] == [
        0.5,
        0.25,
        0.125,
    ]
    assert "loss=0.125" in [each["line"] for each in objects if each["type"] == "log"]


@pytest.mark.usefixtures("_no_memory_killer")
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
def test_the_exit_code_of_a_run_depends_on_its_outcome(
    cli: LocalCli, code: str, limits: str, exit_code: int, outcome: str
) -> None:
    answer = cli.bai("run", cli.descriptor(code, limits=limits), "--job-id", "one", "--", cli.go_file)

    assert answer.code == exit_code, answer.stdout + answer.stderr
    assert cli.result("one")["outcome"] == outcome
    assert f"({outcome}: bai's exit code is {exit_code})" in answer.stdout
    assert cli.bai("status", "one", "--wait").code == exit_code
    if code != WAITS:
        assert "│ the reason" in answer.stdout


def test_the_first_ctrl_c_cancels_and_follows_to_the_end(cli: LocalCli) -> None:
    with Terminal("run", cli.descriptor(), "--job-id", "one", "--", cli.go_file, cli=cli) as terminal:
        terminal.await_text("loss=0.5 loss=0.25")
        terminal.press_ctrl_c()
        code = terminal.wait()

    assert code == 4, terminal.text
    assert cli.result("one")["outcome"] == "cancelled"
    assert "cancelling; press Ctrl-C again" in terminal.text
    assert "(cancelled: bai's exit code is 4)" in terminal.text
    # The terminal is left with its cursor on
    assert terminal.drawn.rindex("\x1b[?25h") > terminal.drawn.rindex("\x1b[?25l")


def test_the_second_ctrl_c_stops_following_and_says_how_to_return(cli: LocalCli) -> None:
    # Given a benchmark that does not listen to SIGTERM
    file = cli.descriptor(IGNORES_SIGTERM, limits='grace = "10s"')
    with Terminal("run", file, "--job-id", "one", "--", cli.go_file, cli=cli) as terminal:
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
    assert cli.bai("status", "one", "--wait").code == 4
    assert cli.result("one")["benchmark"]["signal"] == signal.SIGKILL


def test_a_closed_terminal_ends_the_command_but_not_the_job(cli: LocalCli) -> None:
    with Terminal("run", cli.descriptor(), "--job-id", "one", "--", cli.go_file, cli=cli) as terminal:
        terminal.await_text("loss=0.5 loss=0.25")
        terminal.close()
        code = terminal.wait()
    assert code != 0

    assert is_locked(cli.rundir("one").agent_lock)
    cli.go_file.touch()
    assert cli.bai("status", "one", "--wait").code == 0
    assert cli.result("one")["outcome"] == "succeeded"


def test_two_concurrent_runs_of_one_file_are_separate_jobs(cli: LocalCli) -> None:
    file = cli.descriptor()
    answers: list[CliResult] = []
    threads = [
        threading.Thread(target=lambda: answers.append(cli.bai("run", file, "--", cli.go_file)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    job_ids = cli.await_jobs(2)
    for job_id in job_ids:
        cli.await_output(job_id, "loss=0.25")
    cli.go_file.touch()
    for thread in threads:
        thread.join(timeout=60)

    assert [each.code for each in answers] == [0, 0]
    pids = [pids_printed(cli, job_id) for job_id in job_ids]
    assert len(pids[0]) == len(pids[1]) == 1
    assert pids[0] != pids[1]


def test_a_run_with_an_existing_job_id_follows_the_existing_job(cli: LocalCli) -> None:
    file = cli.descriptor()
    assert cli.bai("run", file, "--job-id", "one", "--detach", "--", cli.go_file).stdout == "one\n"
    cli.await_output("one", "loss=0.25")

    # When it is asked for again while it runs, and again after its end
    with cli.start("run", file, "--job-id", "one", "--", cli.go_file, stderr=None) as again:
        cli.go_file.touch()
        out, _ = again.communicate(timeout=60)
    after = cli.bai("run", file, "--job-id", "one", "--", cli.go_file)

    # Then nothing ran twice
    assert (again.returncode, after.code) == (0, 0)
    assert "loss=0.125" in out
    assert "exists already" in after.stderr
    assert len(pids_printed(cli, "one")) == 1

    # And another content under this id is refused
    other = cli.bai("run", file, "--job-id", "one", "--", "other-argument")
    assert other.code == 2
    assert "another --job-id" in other.stderr


def test_a_killed_agent_is_restarted_while_a_command_follows(cli: LocalCli) -> None:
    with Terminal("run", cli.descriptor(), "--job-id", "one", "--", cli.go_file, cli=cli) as terminal:
        terminal.await_text("loss=0.5 loss=0.25")
        cli.kill_agent("one")
        terminal.await_text("the agent died; starting it again (1 of 3)")
        cli.go_file.touch()
        code = terminal.wait()

    assert code == 0, terminal.text
    assert len(pids_printed(cli, "one")) == 1
    assert cli.result("one")["metrics"]["per_metric"] == {"loss": 3}


def test_bai_resume_restarts_an_agent_that_died_unnoticed(cli: LocalCli) -> None:
    # Given a job that nobody follows, whose agent was killed
    cli.bai("run", cli.descriptor(), "--job-id", "one", "--detach", "--", cli.go_file)
    cli.await_output("one", "loss=0.25")
    cli.kill_agent("one")
    waited = cli.bai("status", "one", "--wait")
    assert waited.code == 5
    assert "bai resume one" in waited.stdout
    assert "benchmark still running" in waited.stdout
    # Its benchmark lives, so it is not deleted
    assert cli.bai("prune", "--older-than", "1ms").stdout == ""

    # When it is resumed, twice
    assert "running again" in cli.bai("resume", "one").stdout
    assert "the job's agent is running" in cli.bai("resume", "one").stdout
    cli.go_file.touch()

    # Then it goes on where it was
    assert cli.bai("status", "one", "--wait").code == 0
    assert len(pids_printed(cli, "one")) == 1
    assert cli.bai("prune", "--older-than", "1ms", "--json").stdout != ""
    assert not cli.store.joinpath("one").exists()


def kill_agent_and_shim(cli: LocalCli) -> list[int]:
    """Run a job that goes on for long, kill both that watch it, and return the pids of its benchmark."""
    code = f"import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n{WAITS}"
    cli.bai("run", cli.descriptor(code), "--job-id", "one", "--detach", "--", cli.go_file)
    cli.await_output("one", "loss=0.25")
    cli.kill_agent("one")
    started = json.loads(cli.rundir("one").started.read_text())
    os.kill(started["shim_pid"], signal.SIGKILL)
    wait_until(lambda: not is_locked(cli.rundir("one").shim_lock))
    pids = [each.pid for each in find_remains(cli.rundir("one"))]
    assert len(pids) == 2
    return pids


def test_a_benchmark_whose_agent_and_shim_died_is_shown_as_running_and_can_be_cancelled(
    cli: LocalCli,
) -> None:
    pids = kill_agent_and_shim(cli)

    assert "AGENT DIED" in cli.bai("status", "one").stdout
    assert "benchmark still running, but its shim is gone too" in cli.bai("status", "one").stdout
    assert json.loads(cli.bai("status", "one", "--json").stdout)["benchmark_alive"] is True
    assert "AGENT DIED" in cli.bai("list").stdout
    for options in ([], ["--dry-run"]):
        assert cli.bai("prune", "--older-than", "1ms", *options).stdout == ""
    assert all(is_alive(pid) for pid in pids)

    # When a cancel comes: whoever sends it sees to the end
    cancelled = cli.bai("cancel", "one")
    assert "started again to end the job" in cancelled.stdout

    assert cli.bai("status", "one", "--wait").code == 4
    assert [pid for pid in pids if is_alive(pid)] == []
    assert cli.result("one")["outcome"] == "cancelled"
    assert cli.bai("prune", "--older-than", "1ms", "--json").stdout != ""


def test_a_benchmarks_processes_are_found_under_another_store_path(cli: LocalCli) -> None:
    pids = kill_agent_and_shim(cli)
    # Given that the process that led its session has gone as well, and a second name for the store
    os.kill(json.loads(cli.rundir("one").started.read_text())["pid"], signal.SIGKILL)
    other = cli.folder / "other"
    other.symlink_to(cli.store)

    pruned = cli.bai("prune", "--older-than", "1ms", "--store", other)

    assert pruned.stdout == ""
    assert sum(is_alive(pid) for pid in pids) == 1
    assert "ends the benchmark as well" in cli.bai("status", "one", "--store", other).stdout


def test_resuming_a_benchmark_without_a_shim_ends_it_as_lost(cli: LocalCli) -> None:
    pids = kill_agent_and_shim(cli)

    assert cli.bai("resume", "one").code == 0

    assert cli.bai("status", "one", "--wait").code == 5
    assert cli.result("one")["outcome"] == "lost"
    assert [pid for pid in pids if is_alive(pid)] == []


def test_bai_cancel_ends_a_detached_job(cli: LocalCli) -> None:
    cli.bai("run", cli.descriptor(), "--job-id", "one", "--detach", "--", cli.go_file)
    cli.await_output("one", "loss=0.25")

    assert cli.bai("cancel", "on").stdout == "one: cancelling\n"

    assert cli.bai("status", "one", "--wait").code == 4
    assert "the job has already ended" in cli.bai("cancel", "one").stdout


def test_a_reader_that_closes_the_pipe_does_not_end_the_job(cli: LocalCli) -> None:
    with cli.start("run", cli.descriptor(), "--job-id", "one", "--", cli.go_file) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "loss" not in process.stdout.readline():
            pass
        process.stdout.close()
        cli.go_file.touch()
        said = process.stderr.read()
        assert process.wait(timeout=60) == 141

    assert "bai status one" in said
    assert cli.bai("status", "one", "--wait").code == 0


def test_a_job_runs_the_scripts_as_they_were_at_submission(cli: LocalCli) -> None:
    # Given a folder of scripts
    file = cli.descriptor()
    text = file.read_text().partition("[ml]")[0]
    file.write_text(text + '[ml]\nbenchmark_code = "python3 step.py"\n[ml.script]\npath = "."\n')
    (cli.folder / "step.py").write_text(WAITS.replace("0.125", "0.0625"))

    # When they are changed after the submission
    assert cli.bai("run", file, "--job-id", "one", "--detach", "--", cli.go_file).code == 0
    cli.await_output("one", "loss=0.25")
    (cli.folder / "step.py").write_text("raise SystemExit(9)")
    cli.go_file.touch()

    # Then the job runs what was submitted, and its store is no part of it
    assert cli.bai("status", "one", "--wait").code == 0
    assert cli.output("one").endswith("loss=0.0625\n")
    assert sorted(each.name for each in cli.rundir("one").scripts.iterdir()) == ["benchmark.toml", "step.py"]
    assert len(list((cli.store / "one").rglob("step.py"))) == 1


def test_concurrent_runs_with_the_same_job_id_start_one_job(cli: LocalCli) -> None:
    # Given scripts that take a while to be copied
    file = cli.descriptor()
    text = file.read_text().partition("[ml]")[0]
    file.write_text(text + '[ml]\nbenchmark_code = "python3 step.py"\n[ml.script]\npath = "."\n')
    (cli.folder / "step.py").write_text(WAITS)
    (cli.folder / "many").mkdir()
    for number in range(3000):
        (cli.folder / "many" / str(number)).touch()
    cli.go_file.touch()

    # When two start it
    started = [
        cli.start("run", file, "--job-id", "one", "--", cli.go_file, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    said = [each.communicate(timeout=120)[0] for each in started]

    # Then both follow the one that runs
    assert [each.returncode for each in started] == [0, 0], said
    assert len(pids_printed(cli, "one")) == 1
    assert all("loss=0.125" in each for each in said)


def test_a_printed_plan_run_by_the_agent_is_an_ordinary_job(cli: LocalCli) -> None:
    # Given two plans of one descriptor
    cli.go_file.touch()
    file = cli.descriptor()
    ids = []
    for name in ("p.toml", "q.toml"):
        plan = cli.bai("plan", file, "--", cli.go_file)
        (cli.folder / name).write_text(plan.stdout)

        # When the agent runs them as they are printed
        done = cli.agent("run", name, "--quiet")
        assert done.code == 0, done.stderr
        ids.append(parse_job(plan.stdout.encode(), where=name).job.id)

    # Then they are two jobs, which all commands see
    assert ids[0] != ids[1]
    jobs = [json.loads(line) for line in cli.bai("list", "--json").stdout.splitlines()]
    assert [(each["job_id"], each["status"]) for each in jobs] == [(each, "SUCCEEDED") for each in ids]
    assert cli.bai("status", ids[0], "--wait").code == 0
    assert "loss=0.125" in cli.bai("logs", ids[0]).stdout
    assert "loss" in cli.bai("metrics", ids[1]).stdout
    pruned = cli.bai("prune", "--older-than", "0s", "--json").stdout.splitlines()
    assert sorted(json.loads(each)["job_id"] for each in pruned) == sorted(ids)


def test_a_different_job_with_an_existing_id_is_refused(cli: LocalCli) -> None:
    cli.go_file.touch()
    plan = cli.bai("plan", cli.descriptor(), "--job-id", "one", "--", cli.go_file).stdout
    assert cli.bai("run", cli.descriptor(), "--job-id", "one", "--", cli.go_file, "other").code == 0
    shutil.rmtree(cli.rundir("one").path)
    (cli.folder / "p.toml").write_text(plan)

    done = cli.agent("run", "p.toml")

    assert done.code == 2
    assert 'has another job "one"; give this job another [job] id' in done.stderr


def test_a_memory_peak_below_the_shims_is_shown_as_an_upper_bound(cli: LocalCli) -> None:
    file = cli.descriptor("print('loss=1')")
    text = file.read_text()
    small = text[: text.index("[ml]")] + '[ml]\nbenchmark_code = "true"\n'
    file.write_text(small)

    answer = cli.bai("run", file, "--job-id", "small")

    assert answer.code == 0, answer.stderr
    said = " ".join((answer.stdout + answer.stderr).split())
    assert re.search(r"peak memory below [0-9.]+ MiB \(largest process\)", said), said
