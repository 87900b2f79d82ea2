"""The container that these tests run in is the instance: they take its disk, its console and all its processes for their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from container.account import ContainerAccount, open_account
from container.instance import ContainerInstance

if not Path("/etc/instance").is_dir():
    # Not the image of Dockerfile.test: scripts/test-container runs them there.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerAccount]:
    with open_account(tmp_path_factory.mktemp("account")) as account:
        yield account


@pytest.fixture
def instance(account: ContainerAccount) -> Iterator[ContainerInstance]:
    """A fresh instance that has not been started yet."""
    instance = ContainerInstance(account)
    yield instance
    instance.take_power()
