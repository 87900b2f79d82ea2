"""The environments of a job's nodes, as recorded by their agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.light_dataclass import dataclass

SUMMARY_NODES = 16
"""Number of nodes whose machines a summary reads: each is a request."""
_RANKS = 6
"""Most nodes that a sentence names."""


@dataclass(frozen=True, kw_only=True)
class NodeEnvironment:
    """The environment of one node, or the reason why it is not known."""

    attempt: int
    rank: int
    environment: dict[str, Any] | None
    trouble: str | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """The known facts; empty if there are none."""
        return self.environment or {}

    def sentences(self, name: str) -> list[str]:
        """Return the sentences in the list `name` of the environment; others in it are left out."""
        found = self.facts.get(name)
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return dict(self.__dict__)


def environments(record: JobRecord, *, most: int | None = None) -> Iterator[NodeEnvironment]:
    """Yield the environment of each node of the job's last attempt. most: largest number of nodes.

    Raises StoreError if the nodes cannot be listed.
    """
    nodes = record.nodes()
    for node in [node for node in nodes if node.attempt == nodes[-1].attempt][:most]:
        yield _environment(node)


@dataclass(frozen=True, kw_only=True)
class MachineWarning:
    """A fact that distorts a measurement on one or more nodes."""

    sentence: str
    ranks: tuple[int, ...]
    """Nodes with this fact."""
    several: bool
    """Whether the job also has other nodes."""

    def as_table(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"sentence": self.sentence, "ranks": list(self.ranks)}

    @property
    def text(self) -> str:
        """The sentence, with its nodes unless it applies to all."""
        if not self.several:
            return self.sentence
        shown = ", ".join(map(str, self.ranks[:_RANKS])) + (", …" if len(self.ranks) > _RANKS else "")
        return f"node {shown}: {self.sentence}"


def machine_warnings(nodes: Iterable[NodeEnvironment]) -> list[MachineWarning]:
    """Return the warnings of `environments` for a summary: those that do not apply to most desktop machines.

    Each sentence once, with its nodes.
    """
    ranks: dict[str, list[int]] = {}
    count = 0
    for node in nodes:
        count += 1
        minor = node.sentences("minor")
        for sentence in node.sentences("warnings"):
            if sentence not in minor:
                ranks.setdefault(sentence, []).append(node.rank)
    return [
        MachineWarning(sentence=sentence, ranks=tuple(found), several=len(found) < count)
        for sentence, found in ranks.items()
    ]


def table_in(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the table `name` of an environment, or of a table in it; an empty one if it is missing."""
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}


def tables_in(value: Any) -> list[Mapping[str, Any]]:
    """Return the tables of a list in an environment; empty if `value` is not a list."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


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
