"""A person without an AWS account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_cli import LocalCli, open_local_cli


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[LocalCli]:
    with open_local_cli(tmp_path) as cli:
        yield cli
