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
