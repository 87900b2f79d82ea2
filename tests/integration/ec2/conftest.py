"""A person with an AWS account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ec2_cli import Ec2Cli, open_ec2_cli
from s3_gate import Gate


@pytest.fixture
def cli(tmp_path: Path, gate: Gate, moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Cli]:
    with open_ec2_cli(tmp_path, gate, moto, monkeypatch) as cli:
        yield cli
