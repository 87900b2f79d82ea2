"""`bai run SCRIPT`: the commands that take a script, and the job that it makes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from local_cli import LocalCli
from stand_in_torchrun import put_torchrun

SCRIPT = "import sys\nfrom values import LOSS\nprint(f'loss: {LOSS}', *sys.argv[1:])\n"
WORDS = ("src", "train.py", "--metric", r"loss=loss: (\S+)", "--set", "host_metrics.enabled=false")
ARGUMENTS = ("--", "--lr", "a $b")


def scripts(cli: LocalCli) -> Path:
    folder = cli.folder / "src"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "values.py").write_text("LOSS = 0.5\n")
    return folder


def test_running_a_script_equals_running_its_emitted_descriptor(cli: LocalCli) -> None:
    scripts(cli)
    emitted = cli.bai("run", *WORDS, "--emit-toml", *ARGUMENTS)
    (cli.folder / "emitted.toml").write_text(emitted.stdout)

    runs = [
        cli.bai("run", *WORDS, "--job-id", "script", *ARGUMENTS),
        cli.bai("run", "emitted.toml", "--job-id", "emitted"),
        cli.bai("run", "--like", "script", "--job-id", "again"),
    ]

    assert [each.code for each in (emitted, *runs)] == [0] * 4, "".join(each.stderr for each in runs)
    ids = ["script", "emitted", "again"]
    assert {cli.output(each) for each in ids} == {"loss: 0.5 --lr a $b\n"}
    jobs = [cli.record(each).job() for each in ids]
    parts = [(each.benchmark, each.strategy, each.metrics, each.limits) for each in jobs]
    assert parts == [parts[0]] * 3
    assert [cli.result(each)["metrics"]["per_metric"] for each in ids] == [{"loss": 1}] * 3


def test_a_script_runs_under_torchrun_on_two_nodes(cli: LocalCli) -> None:
    scripts(cli)
    path = f"{put_torchrun(cli.folder)}:{os.environ['PATH']}"
    nodes = replace(cli, environment={**cli.environment, "PATH": path})

    run = nodes.bai("run", *WORDS, "--nodes", "2", "--job-id", "two")

    assert run.code == 0, run.stderr
    assert cli.result("two")["metrics"]["per_metric"] == {"loss": 2}


def test_plan_submit_and_validate_take_a_script(cli: LocalCli) -> None:
    scripts(cli)
    words = ("src/train.py", "--instance-type", "g5.xlarge", "--nodes", "2")
    planned = cli.bai("plan", "src/train.py", "--on", "local", *ARGUMENTS)
    validated = cli.bai("validate", "src", "train.py", "src/train.py", "--on", "local")
    emitted = [cli.bai(command, *words, "--emit-toml") for command in ("run", "plan", "submit", "validate")]

    assert 'argv = [\n    "python3",\n    "train.py",\n    "--lr",\n    "a $b",\n]' in planned.stdout
    assert validated.code == 0
    assert validated.stdout.count("train.py: valid; runs `python3 train.py` on this machine") == 2
    assert len({each.stdout for each in emitted}) == 1
    assert 'execution_engine = "aws.ec2"' in emitted[0].stdout
    without_type = cli.bai("submit", "src/train.py")
    assert without_type.code == 2
    assert "--instance-type TYPE" in " ".join(without_type.stderr.split())
    descriptor = cli.bai("run", "emitted.toml", "--emit-toml")
    assert descriptor.stderr == (
        "bai: --emit-toml is for a script, but emitted.toml is a descriptor; leave --emit-toml out\n"
    )
    like = cli.bai("run", "--like", "last", "--preset", "fio")
    assert like.stderr == (
        "bai: --metric, --preset and --emit-toml are for a script; leave them out with --like last\n"
    )
