"""What a node runs, one module for each way in which nodes work together."""

from __future__ import annotations

from typing import Protocol

from bai_agent.job.descriptor import Job
from bai_agent.job.errors import DescriptorError
from bai_agent.strategy.single_node import SingleNode


class Strategy(Protocol):
    """Given the job: what does this node run?"""

    def argv(self) -> tuple[str, ...]:
        """Return the command that starts the benchmark's `argv` on all nodes."""
        ...


def strategy_of(job: Job) -> Strategy:
    """Return the job's strategy. Raises DescriptorError for one that this agent does not know."""
    if job.strategy.name == "single_node":
        return SingleNode(job)
    raise DescriptorError(f'[strategy] name: this agent runs "single_node", not "{job.strategy.name}"')
