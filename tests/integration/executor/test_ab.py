"""`bai ab`: two descriptors take turns in one job, and are compared."""

from __future__ import annotations

import json
from pathlib import Path

from local_cli import LocalCli

PROGRAM = """
import os, sys
print(f"loss={int(sys.argv[1]) + int(os.environ['BAI_REPEAT']) % 3 + int(os.environ.get('MORE', 0))}")
"""


def arm(cli: LocalCli, name: str, base: int, more: str = "") -> Path:
    text = cli.descriptor(PROGRAM, more=more).read_text().replace("[[output", f'args = "{base}"\n[[output', 1)
    file = cli.folder / f"{name}.toml"
    file.write_text(text)
    return file


def test_two_arms_take_turns_and_are_compared(cli: LocalCli) -> None:
    old, new = arm(cli, "old", 1000), arm(cli, "new", 1000, "[env.vars]\nMORE = 500\n")

    answer = cli.bai("ab", old, new, "--runs", "4", "--seed", "5", "--job-id", "two", "--json")

    assert answer.code == 1, answer.stderr  # lower is better
    result = cli.result("two")
    assert result["outcome"] == "succeeded"
    arms = [each["arm"] for each in result["repeats"]]
    assert all({arms[i], arms[i + 1]} == {"old", "new"} for i in range(0, 8, 2))
    assert "seed = 5" in (cli.store / "two" / "job.toml").read_text()
    metrics = json.loads(answer.stdout.splitlines()[-1])["metrics"]
    loss = next(each for each in metrics if each["name"] == "loss")
    assert loss["verdict"] == "worse"


def test_what_differs_beyond_the_arms_is_named(cli: LocalCli) -> None:
    one = arm(cli, "one", 1)
    other = arm(cli, "other", 2, "[env]\nuser = 'nobody'\n")

    answer = cli.bai("ab", one, other)

    assert answer.code == 2
    assert "env.user" in answer.stderr
    assert str(other) in answer.stderr
    assert not list(cli.store.glob("*/job.toml"))
