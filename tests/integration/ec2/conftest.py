"""A person with an AWS account."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ec2_cli import Ec2Cli, open_ec2_cli
from moto_aws import MotoAws, open_moto_aws
from s3_gate import Gate


@pytest.fixture
def cli(tmp_path: Path, gate: Gate, moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Cli]:
    with open_ec2_cli(tmp_path, gate, moto, monkeypatch) as cli:
        yield cli


@pytest.fixture
def moto_aws() -> Iterator[MotoAws]:
    with open_moto_aws() as aws:
        yield aws


@pytest.fixture
def moto_environment(moto_aws: MotoAws, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process itself work in the account."""
    for name in [each for each in os.environ if each.startswith(("AWS_", "BAI_"))]:
        monkeypatch.delenv(name)
    for name, value in moto_aws.environment().items():
        monkeypatch.setenv(name, value)
