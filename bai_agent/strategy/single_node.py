"""One node, one process: the benchmark's command as it stands."""

from __future__ import annotations

from dataclasses import dataclass

from bai_agent.job.descriptor import Job
from bai_agent.job.errors import DescriptorError


@dataclass(frozen=True)
class SingleNode:
    """The job as its one node runs it. Raises DescriptorError for a job of several."""

    job: Job

    def __post_init__(self) -> None:
        if self.job.strategy.nodes != 1:
            raise DescriptorError(
                f"[strategy] nodes: single_node runs on 1 node, not on {self.job.strategy.nodes}"
            )

    def argv(self) -> tuple[str, ...]:
        return self.job.benchmark.argv
