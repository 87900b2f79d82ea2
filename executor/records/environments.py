"""What the nodes of a job ran on, as their agents wrote it down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord, NodeRecord


@dataclass(frozen=True, kw_only=True)
class NodeEnvironment:
    """What one node ran on; or why that is not known."""

    attempt: int
    rank: int
    environment: dict[str, Any] | None
    trouble: str | None = None

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return dict(self.__dict__)


def environments(record: JobRecord) -> Iterator[NodeEnvironment]:
    """Yield what each node of the job's last attempt ran on. Raises StoreError where the nodes cannot be listed."""
    nodes = record.nodes()
    for node in nodes:
        if node.attempt == nodes[-1].attempt:
            yield _environment(node)


def _environment(node: NodeRecord) -> NodeEnvironment:
    try:
        found = node.read_object("environment.json")
    except StoreError as error:
        return NodeEnvironment(attempt=node.attempt, rank=node.rank, environment=None, trouble=str(error))
    why = (
        "its agent has written no environment.json: the benchmark has not started, or an older version ran it"
    )
    return NodeEnvironment(
        attempt=node.attempt, rank=node.rank, environment=found, trouble=None if found is not None else why
    )
