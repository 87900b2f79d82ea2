"""Jobs whose agents run on this machine: several nodes, and folders for benchmarks of other users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from node_agents import Nodes


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    """Return what makes a job that runs a program, two nodes of it unless said."""
    made: list[Nodes] = []

    def nodes(program: str, *, nodes: int = 2, **tables: Any) -> Nodes:
        made.append(Nodes(tmp_path, program, nodes=nodes, **tables))
        return made[-1]

    yield nodes
    for each in made:
        each.close()


@pytest.fixture
def outside(folder: Path) -> Path:
    """A folder of root's that is none of the job's."""
    made = folder / "outside"
    made.mkdir(mode=0o755)
    secret = made / "secret"
    secret.write_text("only root may read this")
    secret.chmod(0o600)
    return made
