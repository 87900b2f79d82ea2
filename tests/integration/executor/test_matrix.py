"""A descriptor with `[matrix]` on this machine: a group of jobs, killed and resumed, with one table and one report."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from local_cli import PATIENCE, WAITS, LocalCli

COUNTS = """
import os, sys
with open(sys.argv[1], "a") as file:
    file.write(os.environ["SIZE"] + " " + os.environ["KIND"] + "\\n")
print("loss=" + os.environ["SIZE"])
"""
"""Notes its combination in the file that its argument names, and prints its size."""
MATRIX = """
[env.vars]
SIZE = "0"
KIND = "-"
[matrix]
max_parallel = 2
"env.vars.KIND" = ["plain", "fused"]
"env.vars.SIZE" = ["1", "2", "4"]
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def sweep(cli: LocalCli, code: str = COUNTS, *, more: str = "") -> Path:
    return cli.descriptor(code, more=MATRIX + more)


def test_a_matrix_killed_at_several_points_runs_six_jobs_and_gives_one_report(
    cli: LocalCli, tmp_path: Path
) -> None:
    # given a group of two by three combinations, two at a time, whose `bai` is killed again and again
    file, ran = sweep(cli), tmp_path / "ran"
    group = cli.store / "sizes"
    points: list[Callable[[], bool]] = [
        (group / "group.json").exists,
        (group / "starts" / "000000.json").exists,
        lambda: len(list(cli.store.glob("sizes.*/job.toml"))) >= 2,
        lambda: len(list(cli.store.glob("sizes.*/result.json"))) >= 3,
    ]
    command: tuple[str | Path, ...] = ("run", file, "--job-id", "sizes", "--", ran)
    for reached in points:
        with cli.start(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            until(reached)
            running.send_signal(signal.SIGKILL)
            running.wait(PATIENCE)
        command = ("resume", "sizes")

    # when it is resumed to its end
    ended = cli.bai("resume", "sizes")

    # then each combination ran once
    assert ended.code == 0, ended.stderr
    combinations = [f"{size} {kind}" for kind in ("plain", "fused") for size in (1, 2, 4)]
    assert sorted(ran.read_text().splitlines()) == sorted(combinations)
    assert len(list(cli.store.glob("sizes.*/job.toml"))) == 6
    # and there is one table, and one report with a plot
    rows = [each.split()[:3] for each in ended.stdout.splitlines() if each.startswith(("plain", "fused"))]
    assert rows == [[kind, size, "SUCCEEDED"] for kind in ("plain", "fused") for size in ("1", "2", "4")]
    compared = json.loads(cli.bai("compare", "sizes", "--json").stdout)
    assert [each["mean"] for each in compared["combinations"]] == [1.0, 2.0, 4.0, 1.0, 2.0, 4.0]
    assert cli.bai("report", "sizes").stdout == "sizes.html\n"
    page = (cli.folder / "sizes.html").read_text()
    assert page.count("<polyline") == 2
    assert "loss over env.vars.SIZE" in page
    # and the other commands know the group
    assert cli.bai("status", "sizes").stdout.count("SUCCEEDED") == 6
    listed = cli.bai("list", "--group", "sizes", "--json").objects
    assert {each["group"] for each in listed} == {"sizes"}
    assert len(listed) == 6
    assert "`bai status sizes`" in cli.bai("logs", "sizes").stderr
    # and the same command runs nothing again, unless the group has changed
    again = cli.bai("run", file, "--job-id", "sizes", "--", ran)
    assert again.code == 0, again.stderr
    assert len(ran.read_text().splitlines()) == 6
    changed = cli.bai("run", file, "--job-id", "sizes", "--set", "matrix.rounds=2", "--", ran)
    assert changed.code == 2
    assert 'the group "sizes" exists already and runs something else' in changed.stderr


def test_the_exit_code_of_a_group_is_the_worst_of_its_jobs_and_cancel_ends_all(cli: LocalCli) -> None:
    # given jobs that wait, of which the first two run
    waits = """
import os, sys, time
print("loss=1", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
    file = sweep(cli, waits)
    with cli.start("run", file, "--job-id", "waits", "--", cli.go_file) as running:
        jobs = cli.await_jobs(2)
        for each in jobs:
            cli.await_output(each, "loss=1")

        # when the group is cancelled
        cancelled = cli.bai("cancel", "waits")
        out, err = running.communicate(timeout=PATIENCE)

    # then the running ones end, and no other starts
    assert cancelled.code == 0, cancelled.stderr
    assert "waits: no further job of the group starts" in cancelled.stdout
    assert running.returncode == 4, err
    assert len(cli.await_jobs(2)) == 2
    assert out.count("CANCELED") == 2
    assert out.count("NOT STARTED") == 4
    assert err.count("the group is cancelled") == 1
    assert "bai resume" not in err


def test_no_job_starts_while_one_may_run_that_cannot_be_followed(cli: LocalCli) -> None:
    # given two jobs, one at a time, of which the first can have no agent any more, and its benchmark goes on
    file = cli.descriptor(WAITS, more='[matrix]\n"env.vars.SIZE" = ["1", "2"]\n')
    with cli.start("run", file, "--job-id", "two", "--", cli.go_file, stderr=subprocess.PIPE) as running:
        (first,) = cli.await_jobs(1)
        cli.await_output(first, "loss=0.5")
        descriptor = cli.store / first / "job.toml"
        content = descriptor.read_bytes()
        descriptor.write_text("torn")
        cli.kill_agent(first)
        _, said = running.communicate(timeout=PATIENCE)
    (second,) = {"two.001", "two.002"} - {first}

    # then the other one is not started, and this is said
    assert running.returncode == 5, said
    assert cli.await_jobs(1) == [first]
    assert f"{first} may still run: 1 job is not started" in said
    assert "`bai resume two` starts the jobs that were not started" in said

    # when it can be followed again, both end, one after the other
    descriptor.write_bytes(content)
    cli.go_file.touch()
    assert cli.bai("resume", "two").code == 0
    assert cli.result(first)["ended"] <= cli.result(second)["started"]


def test_a_failing_combination_stops_no_other_and_several_rounds_give_intervals(
    cli: LocalCli, tmp_path: Path
) -> None:
    fails = COUNTS + 'sys.exit(7 if os.environ["KIND"] == "fused" and os.environ["SIZE"] == "2" else 0)'
    file = cli.descriptor(
        fails,
        more=MATRIX.replace('"1", "2", "4"', '"1", "2"').replace(
            "[matrix]", "[matrix]\nrounds = 2\nseed = 3"
        ),
    )

    ended = cli.bai("run", file, "--json", "--job-id", "r", "--", tmp_path / "ran")

    assert ended.code == 1, ended.stderr
    assert "starts the jobs" not in ended.stderr
    assert len((tmp_path / "ran").read_text().splitlines()) == 8
    (found,) = ended.objects
    rows: list[dict[str, Any]] = found["combinations"]
    assert [each["runs"] for each in rows] == [2, 2, 2, 0]
    assert [each["half_width"] for each in rows] == [0.0, 0.0, 0.0, None]
    assert "2 FAILED" in rows[3]["status"]
    # each round has each combination once, in an order of its own
    order = [each["set"]["env.vars.KIND"] + each["set"]["env.vars.SIZE"] for each in found["jobs"]]
    assert sorted(order[:4]) == sorted(order[4:]) == ["fused1", "fused2", "plain1", "plain2"]
    # and one of its jobs can be run again, alone
    like = cli.bai("run", "--like", found["jobs"][0]["job_id"], "--json")
    assert like.code in (0, 1)
    assert len(list(cli.store.glob("*/group.json"))) == 1


def test_commands_for_one_job_refuse_a_matrix_with_one_sentence(cli: LocalCli) -> None:
    file = sweep(cli)

    answers = [
        cli.bai(*words)
        for words in (("run", "--detach", file), ("ab", file, file), ("plan", file, "--user-data"))
    ]

    for each in answers:
        assert each.code == 2
        assert "[matrix]" in each.stderr
        assert len(each.stderr.splitlines()) == 1, each.stderr
    assert not list(cli.store.glob("*"))
    alone = cli.bai("run", file, "--set", "matrix={}", "--", cli.folder / "ran")
    assert alone.code == 0, alone.stderr
    assert len(list(cli.store.glob("*/job.toml"))) == 1
