"""The maximum cost of a job: shown before its launch, and compared with the user's bound."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_harness import CliHarness
from moto_aws import HELLO, MotoAws

_GANG = HELLO.replace(
    '"t3.small"\n', '"g4dn.xlarge"\nstrategy = "torchrun"\n[hardware.distributed]\nnum_instances = 2\n'
)


@pytest.fixture
def cli(moto_aws: MotoAws, tmp_path: Path) -> CliHarness:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    (tmp_path / "b.toml").write_text(HELLO)
    config = tmp_path / "config.toml"
    config.write_text('[prices]\n"t3.small" = 0.1\n"g4dn.xlarge" = 1.0\n')
    mine = {**moto_aws.environment(), "BAI_CONFIG": str(config)}
    return CliHarness(tmp_path, {**environment, **mine})


@pytest.mark.parametrize("command", [("submit", "b.toml"), ("run", "b.toml"), ("plan", "b.toml")])
def test_a_job_that_may_cost_more_than_max_cost_is_not_launched(
    moto_aws: MotoAws, cli: CliHarness, command: tuple[str, ...]
) -> None:
    refused = cli.bai(*command, "--max-cost", "2")

    said = " ".join(refused.stderr.split())
    assert refused.code == 2
    assert "limits.max_cost allows 2.00 USD, but the job can cost 2." in said
    assert "volumes and monitoring at most" in said
    assert moto_aws.calls("RunInstances") == []


def test_max_cost_of_file_and_configuration_applies_and_a_flag_overrides_it(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    config = cli.folder / "config.toml"
    config.write_text(f"{config.read_text()}[limits]\nmax_cost = 2\n")

    by_configuration = cli.bai("submit", "b.toml")
    (cli.folder / "b.toml").write_text(f"{HELLO}[limits]\nmax_cost = 1.5\n")
    by_file = cli.bai("submit", "b.toml")
    by_flag = cli.bai("submit", "b.toml", "--max-cost", "20")

    assert (by_configuration.code, by_file.code, by_flag.code) == (2, 2, 0), by_flag.stderr
    assert "allows 2.00 USD" in by_configuration.stderr
    assert "allows 1.50 USD" in by_file.stderr
    # `submit` says the bound as `plan` does.
    assert "at most 25.8 instance hours, about 2." in by_flag.stderr
    assert len(moto_aws.instances()) == 1


def test_a_job_with_an_unknown_price_is_refused_under_any_max_cost(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    (cli.folder / "config.toml").write_text("")
    (cli.folder / "b.toml").write_text(HELLO.replace("t3.small", "m5.large"))

    refused = cli.bai("submit", "b.toml", "--max-cost", "1000")

    assert refused.code == 2
    assert "the cost of the job is not known" in " ".join(refused.stderr.split())
    assert moto_aws.instances() == []


@pytest.mark.parametrize("wrong", ["0", "-3", "nan", "inf", "much"])
def test_a_max_cost_that_is_not_a_positive_amount_is_refused(cli: CliHarness, wrong: str) -> None:
    refused = cli.bai("plan", "b.toml", f"--max-cost={wrong}")

    assert refused.code == 2
    assert "Traceback" not in refused.stderr
    assert "max-cost" in refused.stderr or "max_cost" in refused.stderr


def test_several_gpu_machines_without_a_limit_are_warned_of_with_their_price(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    (cli.folder / "b.toml").write_text(_GANG)

    planned = cli.bai("plan", "b.toml", "--on", "ec2")
    bounded = [
        cli.bai("plan", "b.toml", "--set", each) for each in ("limits.no_output=10m", "limits.max_runtime=2h")
    ]
    launched = cli.bai("submit", "b.toml")

    for each in (planned, launched):
        assert each.code == 0, each.stderr
        assert "warning: a benchmark that hangs holds 2 GPU machines for 1d2h6m30s, at most 52." in " ".join(
            each.stderr.split()
        )
        assert "set limits.no_output or limits.max_runtime" in each.stderr
    assert all("hangs" not in each.stderr for each in bounded)
