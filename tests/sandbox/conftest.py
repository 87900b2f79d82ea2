"""Fixtures of the sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.desk import Desk, new_desk
from sandbox.world import World, open_world

pytest.register_assert_rewrite("sandbox.ends")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh account with no instance in it, and a hypervisor for those to come."""
    if os.geteuid() != 0:
        pytest.skip("needs root: machines are made of namespaces and mounts")
    with open_world(tmp_path / "world") as world:
        yield world


@pytest.fixture
def desk(world: World, tmp_path: Path) -> Desk:
    """Somebody who runs benchmarks in this world."""
    return new_desk(world, tmp_path / "desk")
