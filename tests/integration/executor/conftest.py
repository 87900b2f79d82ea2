"""A person with an AWS account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ec2_desk import Ec2Desk, ec2_desk
from s3_gate import Gate


@pytest.fixture
def desk(tmp_path: Path, gate: Gate, moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Desk]:
    with ec2_desk(tmp_path, gate, moto, monkeypatch) as desk:
        yield desk
