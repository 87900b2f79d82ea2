"""Fixtures of the sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.fake_aws import FakeAws, open_fake_aws
from sandbox.sandbox_cli import SandboxCli, sandbox_cli

pytest.register_assert_rewrite("sandbox.ends")


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[FakeAws]:
    """A fresh account with no instance in it, and a hypervisor for those to come."""
    if os.geteuid() != 0:
        pytest.skip("needs root: machines are made of namespaces and mounts")
    with open_fake_aws(tmp_path / "aws") as aws:
        yield aws


@pytest.fixture
def cli(aws: FakeAws, tmp_path: Path) -> SandboxCli:
    """Somebody who runs benchmarks on this AWS."""
    return sandbox_cli(aws, tmp_path / "cli")
