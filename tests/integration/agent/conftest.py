"""Jobs of several nodes whose agents run on this machine."""

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
