"""`bai` with a job that does several runs: while it goes on, at its end, and what is asked of it afterwards."""

from __future__ import annotations

import json
import re

from local_cli import LocalCli

PROGRAM = """
import os
run = int(os.environ["BAI_REPEAT"])
print(f"loss={100 + run}", end="")
"""
REPEAT = """
[repeat]
runs = 3
prepare = "echo loss=7"
"""


def test_several_runs_are_told_apart_and_together(cli: LocalCli) -> None:
    answer = cli.bai("run", cli.descriptor(PROGRAM, more=REPEAT), "--job-id", "three")

    assert answer.code == 0, answer.stderr
    screen = answer.stdout + answer.stderr
    assert "The benchmark finished successfully 3 times" in screen
    # Mean 101, standard deviation 1, Student's t of 2 degrees of freedom.
    assert re.search(r"loss +3 +101 nats +(±|\+-)2\.48\d* nats \(2\.5%\)", screen), screen
    assert cli.bai("logs", "three", "--repeat", "1").stdout == "loss=101"
    assert cli.bai("logs", "three", "--repeat", "0", "--json").objects == [{"line": "loss=100"}]
    records = cli.bai("metrics", "three", "--format", "jsonl").objects
    assert [(each["repeat"], each["value"]) for each in records if each["name"] == "loss"] == [
        (0, 100),
        (1, 101),
        (2, 102),
    ]
    events = cli.rundir("three").events.read_bytes().splitlines()
    assert any(each.get("name", "").endswith("of 3") for each in map(json.loads, events))

    again = cli.bai("extract", "three")
    assert again.code == 0, again.stderr
    records = cli.bai("metrics", "three", "--extract", "last", "--format", "jsonl").objects
    assert [(each["repeat"], each["value"]) for each in records if each["name"] == "loss"] == [
        (0, 100),
        (1, 101),
        (2, 102),
    ]

    answer = cli.bai("logs", "three", "--repeat", "3")
    assert (answer.code, answer.stdout) == (2, "")
    assert "three has no run 3; it has those from 0 to 2" in answer.stderr
    both = cli.bai("logs", "three", "--repeat", "3", "--follow")
    assert both.code == 2
    assert "--follow" in both.stderr


OF_RUN = """
[[output.metrics]]
name = "took"
of_run = "wall_time"
better = "lower"
[[output.metrics]]
name = "worked"
of_run = "cpu_time"
[[output.metrics]]
name = "memory"
of_run = "peak_memory"
"""


def test_what_each_run_took_is_a_metric_like_any_other(cli: LocalCli) -> None:
    file = cli.descriptor(PROGRAM, more=f"{OF_RUN}[repeat]\nruns = 3\n")

    answer = cli.bai("run", file, "--job-id", "took")

    assert answer.code == 0, answer.stderr
    runs = cli.result("took")["repeats"]
    records = [
        each for each in cli.bai("metrics", "took", "--format", "jsonl").objects if each["src"] == "exit"
    ]
    taken = {
        name: [each["value"] for each in records if each["name"] == name]
        for name in ("took", "worked", "memory")
    }
    assert taken == {
        "took": [each["wall_seconds"] for each in runs],
        "worked": [round(each["user_seconds"] + each["system_seconds"], 6) for each in runs],
        "memory": [each["peak_memory_bytes"] for each in runs],
    }
    assert [each["repeat"] for each in records if each["name"] == "took"] == [0, 1, 2]
    assert {each["name"]: each["units"] for each in records} == {
        "took": "s",
        "worked": "s",
        "memory": "bytes",
    }
    (listed,) = cli.bai("list", "--json").objects
    assert listed["headlines"]["took"]["value"] == sorted(taken["took"])[1]
    again = cli.bai(
        "run", file, "--job-id", "took-2", "--set", "repeat.until=900%", "--set", "repeat.metric=took"
    )
    assert again.code == 0, again.stderr
    compared = cli.bai("compare", "took", "took-2", "--json", "--fail-if", "took > 100000%").objects[0][
        "metrics"
    ]
    names = [each["name"] for each in compared]
    assert "took" in names
    assert "wall time" not in names


def test_what_a_single_run_took_is_a_metric_too(cli: LocalCli) -> None:
    answer = cli.bai("run", cli.descriptor("print('loss=1')", more=OF_RUN), "--job-id", "one")

    assert answer.code == 0, answer.stderr
    (took,) = (
        each for each in cli.bai("metrics", "one", "--format", "jsonl").objects if each["name"] == "took"
    )
    assert took["value"] == cli.result("one")["benchmark"]["wall_seconds"]
    assert re.search(r"took +\S*", answer.stdout)
