"""`bai … --set KEY=VALUE`, `--nodes` and `--instance-type`: other values than the file's, for one command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_harness import CliHarness

from bai_agent.errors import BaiError
from bai_agent.job.descriptor_file import read_job
from executor import plan, submit, wait

DESCRIPTOR = r"""
spec_version = "0.1.0"
[info]
description = "Says what it is told"
execution_engine = "local"
[hardware]
instance_type = "local"
[host_metrics]
enabled = false
[ml]
benchmark_code = "printenv"
args = "WORD"
[env.vars]
WORD = "file"
[[output.metrics]]
name = "batch"
units = "images"
pattern = '(\d+)'
"""


@pytest.fixture
def cli(tmp_path: Path) -> CliHarness:
    (tmp_path / "b.toml").write_text(DESCRIPTOR)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "BAI_STORE": str(tmp_path / "store"),
        "BAI_CONFIG": "/dev/null",
    }
    return CliHarness(tmp_path, environment)


def test_a_plan_shows_the_values_of_set(cli: CliHarness) -> None:
    options = ("--set", "ml.args=--batch 64", "--set", "limits.max_runtime=2h", "--nodes", "1")

    shown = cli.bai("plan", "b.toml", *options)
    [found] = cli.bai("plan", "b.toml", "--json", *options).objects

    assert found["benchmark"]["argv"] == ["printenv", "--batch", "64"]
    assert found["limits"]["max_runtime"] == "2h"
    assert found["set"] == {
        "ml.args": "--batch 64",
        "limits.max_runtime": "2h",
        "hardware.distributed.num_instances": "1",
    }
    assert '"ml.args" = "--batch 64"' in shown.stdout


def test_a_run_uses_the_values_of_set_and_records_them(cli: CliHarness, tmp_path: Path) -> None:
    done = cli.bai(
        "run",
        "b.toml",
        "--job-id",
        "one",
        "--set",
        "env.vars.WORD=64",
        "--set",
        "output.metrics[batch].required=true",
    )

    assert done.code == 0, done.stderr
    assert "64" in cli.bai("logs", "one").stdout.split()
    assert read_job(tmp_path / "store/one/job.toml").metrics[0].required
    assert "set       env.vars.WORD=64\n" in cli.bai("status", "one", "-v").stdout
    assert "env.vars.WORD" not in cli.bai("status", "one").stdout
    [status] = cli.bai("status", "one", "--json").objects
    assert status["set"] == {"env.vars.WORD": "64", "output.metrics[batch].required": "true"}
    assert cli.bai("resume", "one").code == 0


def test_an_existing_job_id_with_other_values_of_set_is_refused(cli: CliHarness, tmp_path: Path) -> None:
    first = cli.bai("run", "b.toml", "--job-id", "one", "--set", "env.vars.WORD=64")
    again = cli.bai("run", "b.toml", "--job-id", "one", "--set", "env.vars.WORD=64")
    other = cli.bai("run", "b.toml", "--job-id", "one", "--set", "env.vars.WORD=65")
    (tmp_path / "b.toml").write_text(DESCRIPTOR.replace('"file"', '"64"'))
    from_file = cli.bai("run", "b.toml", "--job-id", "one")

    assert [each.code for each in (first, again, other, from_file)] == [0, 0, 2, 0]
    assert "exists already and has ended" in again.stderr
    assert "something else than b.toml and the options say now" in other.stderr


@pytest.mark.parametrize(
    ("command", "options", "sentence"),
    [
        ("run", ["--set", "ml.args"], 'bai: --set "ml.args": there is no = in it'),
        ("run", ["--set", "ml.args=\udcff"], "bai: --set 'ml.args': it is not UTF-8"),
    ],
)
def test_a_wrong_value_of_set_gives_one_sentence(
    cli: CliHarness, tmp_path: Path, command: str, options: list[str], sentence: str
) -> None:
    answer = cli.bai(command, "b.toml", *options)

    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr.startswith(sentence)
    assert answer.stderr.count("\n") == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("command", "options", "sentence"),
    [
        ("plan", ["--set", "ml.args=1", "--set", "ml.args=2"], "error: --set ml.args\n    is given twice\n"),
        (
            "submit",
            ["--nodes", "1", "--set", "hardware.distributed.num_instances=1"],
            "error: --nodes\n    is set by --set hardware.distributed.num_instances as well\n",
        ),
        (
            "run",
            ["--set", "hardware.instance_type=t3.small", "--instance-type", "t3.small"],
            "error: --instance-type\n    is set by --set hardware.instance_type as well\n",
        ),
    ],
)
def test_setting_a_key_twice_is_refused_before_anything_starts(
    cli: CliHarness, tmp_path: Path, command: str, options: list[str], sentence: str
) -> None:
    answer = cli.bai(command, "b.toml", *options)

    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr.startswith(sentence)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("command", ["run", "submit"])
def test_setting_an_unknown_key_is_refused_before_anything_starts(
    cli: CliHarness, tmp_path: Path, command: str
) -> None:
    answer = cli.bai(command, "b.toml", "--set", "ml.arg=3")

    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr.startswith(
        'error: --set ml.arg\n    there is no key "arg" in [ml]\n    → did you mean "args"?\n'
    )
    assert not (tmp_path / "store").exists()


def test_validate_names_the_option_of_each_mistake(cli: CliHarness) -> None:
    options = (
        "--set", "host_metrics.enabled=maybe",
        "--set", "output.metrics[1].units=s",
        "--set", "env.secrets.KEY=env:BAI_NOBODY_SETS_THIS",
        "--instance-type", "",
    )  # fmt: skip

    answer = cli.bai("validate", "b.toml", *options)
    [found] = cli.bai("validate", "b.toml", "--json", *options).objects

    assert answer.code == 2
    assert {(each["option"], each["key"]) for each in found["findings"]} == {
        ("--set output.metrics[1].units", ""),
        ("--set host_metrics.enabled", "host_metrics.enabled"),
        ("--instance-type", "hardware.instance_type"),
    }
    assert "error: --instance-type: hardware.instance_type\n" in answer.stdout


def test_validate_names_the_option_of_a_secret_that_is_not_set(cli: CliHarness) -> None:
    answer = cli.bai("validate", "b.toml", "--set", "env.secrets.KEY=env:BAI_NOBODY_SETS_THIS")

    assert answer.code == 0
    assert answer.stdout.startswith("warning: --set env.secrets.KEY\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--nodes", "4"], "single_node uses one machine, not 4"),
        (
            ["--nodes", "4", "--set", "hardware.strategy=inference"],
            "is missing, but required by the strategy inference",
        ),
        (["--nodes", "0"], "must be at least 1, not the number 0"),
        (["--nodes", "many"], '"many" is not a number of machines'),
        (["--nodes", "4:2"], 'write "2:4"'),
        (["--nodes", "2:4"], "single_node uses one machine, not 2:4"),
    ],
)
def test_more_nodes_than_can_be_started_are_refused(
    cli: CliHarness, tmp_path: Path, options: list[str], sentence: str
) -> None:
    answer = cli.bai("run", "b.toml", *options)

    assert (answer.code, answer.stdout) == (2, "")
    assert sentence in answer.stderr
    assert not (tmp_path / "store").exists()


def test_the_api_sets_keys_as_the_command_line_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "b.toml"
    file.write_text(DESCRIPTOR)
    monkeypatch.setenv("BAI_STORE", str(tmp_path / "store"))
    values = {"env.vars.WORD": 64, "output.metrics[0].required": True}

    planned = plan(file, set=values)
    job_id = submit(file, set=values)

    assert planned["set"] == {"env.vars.WORD": "64", "output.metrics[0].required": "true"}
    assert wait(job_id, timeout_s=60).status == "SUCCEEDED"
    with pytest.raises(BaiError, match=r'set\["ml.arg"\]: ml.arg\n +there is no key "arg"'):
        plan(file, set={"ml.arg": 3})


def test_shell_completion_offers_the_keys_of_set() -> None:
    words = "bai run b.toml --set limits.m"
    completion = {"_BAI_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "4"}

    done = subprocess.run(
        [Path(sys.executable).with_name("bai")],
        env={**os.environ, **completion},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert sorted(done.stdout.split()) == ["limits.max_cost=", "limits.max_runtime="]
