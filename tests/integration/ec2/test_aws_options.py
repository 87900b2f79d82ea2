"""The options about AWS hold for all that a command does, and its hints repeat them."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from ec2_cli import REGION, Ec2Cli, moment
from handmade_job import HandmadeJob

OPTIONS = ("--profile", "my other", "--region", REGION, "--bucket", "bucket")


@pytest.fixture
def nothing(cli: Ec2Cli) -> dict[str, str]:
    """An environment in which nothing is configured but a profile's keys."""
    keys = cli.folder / "credentials"
    keys.write_text("[my other]\naws_access_key_id = OTHERKEY\naws_secret_access_key = secret\n")
    return {
        "BAI_CONFIG": "/dev/null",
        "BAI_CLIENT_ID": "me",
        "AWS_ACCESS_KEY_ID": "",
        "AWS_SECRET_ACCESS_KEY": "",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": str(keys),
    }


def kept(cli: Ec2Cli) -> str:
    """Bring a job that failed and keeps its machine; return that."""
    made = cli.handmade(keeps=True)
    made.prints("a line\n")
    made.measures("loss", 0.5)
    made.ends("failed", 1)
    (instance,) = cli.launch()
    cli.bring(made, launched=[instance])
    return instance


@pytest.mark.parametrize(
    "command",
    [
        "list",
        "status digits-1",
        "logs digits-1",
        "logs --boot digits-1",
        "metrics digits-1",
        "fetch digits-1 folder",
        "cancel digits-1",
        "release digits-1",
        "resume digits-1 -f",
    ],
)
def test_aws_options_choose_the_credentials_of_a_command(
    cli: Ec2Cli, nothing: dict[str, str], command: str
) -> None:
    kept(cli)
    before = len(cli.gate.access_keys)

    without = cli.bai(*command.split(), env=nothing)
    assert len(cli.gate.access_keys) == before
    answer = cli.bai(*command.split(), *OPTIONS, env=nothing)

    assert "digits-1" not in without.stdout
    assert answer.code == (1 if "resume" in command else 0), answer.stderr
    assert set(cli.gate.access_keys[before:]) == {"OTHERKEY"}


def test_reaping_after_a_command_uses_the_same_profile(cli: Ec2Cli, nothing: dict[str, str]) -> None:
    kept(cli)
    (late,) = cli.launch("late-1", expires=moment(timedelta(hours=-2)))

    assert cli.bai("status", "digits-1", *OPTIONS, env=nothing).code == 0
    assert cli.state(late) == "terminated"

    (later,) = cli.launch("late-2", expires=moment(timedelta(hours=-2)))
    assert cli.bai("reap", *OPTIONS[:4], env=nothing).code == 0
    assert cli.state(later) == "terminated"


def test_bai_config_shows_the_effect_of_an_option(cli: Ec2Cli, nothing: dict[str, str]) -> None:
    shown = cli.bai("config", *OPTIONS, "--json", env=nothing).objects[0]

    assert shown["profile"] == {"value": "my other", "origin": "--profile"}
    assert shown["bucket"] == {"value": "bucket", "origin": "--bucket"}


def test_a_suggested_command_works_when_pasted_unchanged(cli: Ec2Cli, nothing: dict[str, str]) -> None:
    # Given the status of a job whose machine is kept, which says how to let it go
    kept(cli)
    step = cli.bai("status", "digits-1", "--json", *OPTIONS, env=nothing).objects[0]["next_step"]
    name, *words = shlex.split(step["command"])

    # When that is typed, word for word
    answer = cli.bai(*words, env=nothing)

    assert (name, step["effect"]) == ("bai", "releases the machine from inspection")
    assert words == ["release", "digits-1", *OPTIONS]
    assert answer.stdout == "digits-1: released\n"


def test_a_suggested_command_repeats_the_store_option(cli: Ec2Cli) -> None:
    store = Path(cli.folder / "my jobs")
    HandmadeJob(store, "dead-1").event("agent_started", pid=1)

    shown = cli.bai("status", "dead-1", "--store", store).stdout

    (todo,) = [line.partition("to do")[2].strip() for line in shown.splitlines() if line.startswith("to do")]
    assert todo == f"bai resume dead-1 --store '{store}'"
    inherited = cli.bai("status", "dead-1", env={"BAI_STORE": str(store)}).stdout
    assert "bai resume dead-1\n" in inherited


def test_a_required_mfa_code_without_a_terminal_is_an_error_in_a_sentence(
    cli: Ec2Cli, nothing: dict[str, str]
) -> None:
    config = cli.folder / "aws-config"
    config.write_text(
        "[profile guarded]\nrole_arn = arn:aws:iam::123456789012:role/x\nsource_profile = my other\n"
        "mfa_serial = arn:aws:iam::123456789012:mfa/me\n"
    )
    HandmadeJob(Path(cli.folder / "home" / ".bai" / "jobs"), "near-1").ends()
    environment = {**nothing, "AWS_CONFIG_FILE": str(config)}
    options = ("--profile", "guarded", "--region", REGION)

    # Without a terminal of its own, as under cron.
    alone = (sys.executable, "-c", "import os; os.setsid(); from executor.cli import main; main()")
    cron = replace(cli, bai_program=alone)

    reaped = cron.bai("reap", *options, env=environment)
    listed = cron.bai("list", *options, "--bucket", "bucket", env=environment)

    for answer in (reaped, listed):
        assert "Aborted" not in answer.stderr
        told = answer.stderr.splitlines()[-1]
        assert "bai: the AWS profile needs an MFA code, and there is no terminal" in told
    assert (reaped.code, listed.code) == (2, 5)
