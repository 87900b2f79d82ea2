"""The benchmark service's additions to a job: its client, and the scripts that were fetched for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from bai_agent.job.descriptor import Job, Source
from bai_agent.light_dataclass import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class ServiceRequest:
    """A request of the benchmark service."""

    action_id: str
    client_id: str
    parent_action_id: str | None = None
    username: str | None = None
    created_by: str | None = None
    """Program that sent the request to the service."""
    scripts: tuple[Source, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Known sizes of sources (bytes), by address."""

    def complete(self, job: Job) -> Job:
        """Return `job` with the request's client, ids and scripts."""
        identity = replace(
            job.job,
            action_id=self.action_id,
            parent_action_id=self.parent_action_id,
            client_id=self.client_id,
            username=self.username,
            created_by=self.created_by,
        )
        return replace(job, job=identity, sources=(*self.scripts, *map(self._sized, job.sources)))

    def _sized(self, source: Source) -> Source:
        known = self.sizes.get(source.src)
        return replace(source, size=known) if source.size is None and known is not None else source
