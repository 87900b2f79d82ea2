"""Fixtures of the sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.world import World, open_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh account with no instance in it, and a hypervisor for those to come."""
    if os.geteuid() != 0:
        pytest.skip("needs root: machines are made of namespaces and mounts")
    with open_world(tmp_path / "world") as world:
        yield world
