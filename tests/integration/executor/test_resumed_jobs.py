"""`bai run --resume JOB`: a new job goes on from the newest checkpoint of one that was killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from local_cli import PATIENCE, LocalCli

_COUNTS = """
import os, sys, time
folder, resumed = os.environ["BAI_CHECKPOINT_DIR"], os.environ["BAI_RESUMED"]
step = int(open(f"{folder}/step").read()) if resumed else 0
print(f"pid {os.getpid()}", flush=True)
print(f"from {resumed or '-'} at {step}", flush=True)
for _ in range(int(sys.argv[1])):
    step += 1
    with open(f"{folder}/new", "w") as file:
        file.write(str(step))
    os.rename(f"{folder}/new", f"{folder}/step")
    time.sleep(0.2)
print(f"ended at {step}")
"""
_CHECKPOINT = '[checkpoint]\npath = "checkpoints"\nevery = "1s"\n'


def _await_checkpoint(signs: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not list(signs.glob("checkpoint-*.json")):
        assert time.monotonic() < deadline, "no checkpoint was kept"
        time.sleep(0.05)


def _start(text: str) -> tuple[str, int]:
    """Return the checkpoint and the step from which a benchmark says that it began."""
    found = re.search(r"from (\S+) at (\d+)", text)
    assert found is not None, text
    return found[1], int(found[2])


def test_a_new_job_resumes_from_the_checkpoint_of_a_killed_one(cli: LocalCli) -> None:
    file = cli.descriptor(_COUNTS, more=_CHECKPOINT)
    many = "ml.args=600"
    started = cli.bai("run", "--detach", file, "--job-id", "first", "--set", many)
    assert started.code == 0, started.stderr
    cli.await_output("first", "from - at 0")
    _await_checkpoint(cli.store / "first/attempts/0/signs")

    early = cli.bai("run", "--resume", "first")
    pid = re.search(r"pid (\d+)", cli.output("first"))
    assert pid is not None
    os.kill(int(pid[1]), signal.SIGKILL)
    assert cli.bai("status", "first", "--wait").code == 6
    file.write_text("what the file says by now is of no account")
    resumed = cli.bai("run", "--resume", "first", "--job-id", "second", "--set", "ml.args=3")
    again = cli.bai("run", "--like", "second", "--job-id", "third")
    onwards = cli.bai("run", "--resume", "last", "--job-id", "fourth", "--set", "ml.args=1")

    assert early.code == 2
    assert 'checkpoint.from: "job:first": the job first has not ended' in early.stderr
    assert [each.code for each in (resumed, again, onwards)] == [0, 0, 0], resumed.stderr + onwards.stderr
    name, step = _start(cli.output("second"))
    assert re.fullmatch(r"first/checkpoint-0-\d+", name)
    assert step > 0
    assert f"The job continues from {name}." in resumed.stderr + resumed.stdout
    assert f"ended at {step + 3}" in cli.output("second")
    # Repeated, it begins where it began; resumed, where that ended.
    assert _start(cli.output("third")) == (name, step)
    assert _start(cli.output("fourth"))[1] == step + 3
    assert cli.record("fourth").job().set["checkpoint.from"] == "job:third"
    assert cli.result("second")["checkpoints"]["restored"] == 1

    # What a job went on from may be gone when its command is repeated.
    command = ("run", "--resume", "first", "--job-id", "second", "--set")
    assert cli.bai("rm", "first").code == 0
    shown = cli.bai(*command, "ml.args=3")
    changed = cli.bai(*command, "ml.args=4")
    unknown = cli.bai("run", "--resume", "first", "--job-id", "fifth")

    assert (shown.code, changed.code, unknown.code) == (0, 2, 2), shown.stderr
    assert "the job second exists already and has ended; its result follows" in shown.stderr
    assert 'the job "second" exists already and runs something else' in changed.stderr
    assert 'there is no job "first"' in unknown.stderr


def test_a_repeated_resume_of_the_newest_job_is_the_same_job(cli: LocalCli) -> None:
    # given a job that goes on from the newest one, whose `bai` is killed while it runs
    file = cli.descriptor(_COUNTS, more=_CHECKPOINT)
    first = cli.bai("run", file, "--job-id", "first", "--set", "ml.args=2")
    assert first.code == 0, first.stderr
    command = ("run", "--resume", "last", "--job-id", "second", "--set", "ml.args=50")
    with cli.start(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        cli.await_output("second", "from ")
        running.kill()

    # when the same command is given again: while the job runs, after its end, and after the start of a newer one
    joined = cli.bai(*command)
    shown = cli.bai(*command)
    copies = [cli.bai("run", "--like", "last", "--job-id", "third", "--", "more") for _ in range(2)]
    later = cli.bai(*command)
    changed = cli.bai(*command[:-1], "ml.args=51")

    # then it is the same job each time
    assert [each.code for each in (joined, shown, later)] == [0, 0, 0], joined.stderr + later.stderr
    assert "the job second exists already and continues" in joined.stderr
    assert "the job second exists already and has ended" in shown.stderr
    assert "the job second exists already and has ended" in later.stderr
    name, step = _start(cli.output("second"))
    assert name.startswith("first/checkpoint-0-")
    assert step == 2
    assert cli.output("second").count("from ") == 1
    # and so is a copy of the newest job, with more arguments
    assert [each.code for each in copies] == [0, 0], copies[1].stderr
    assert cli.record("third").job().benchmark.argv[-2:] == ("50", "more")
    assert changed.code == 2
    assert 'the job "second" exists already and runs something else' in changed.stderr
