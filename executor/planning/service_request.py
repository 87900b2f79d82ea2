"""What the benchmark service says of a job beside its descriptor: who asks for it, and what was fetched for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bai_agent.job.descriptor import Job, Source


@dataclass(frozen=True, kw_only=True)
class ServiceRequest:
    """A request that came through the service."""

    action_id: str
    client_id: str
    parent_action_id: str | None = None
    username: str | None = None
    created_by: str | None = None
    """The program that takes the service's requests."""
    scripts: tuple[Source, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Address of a source → its bytes, where they are known."""

    def complete(self, job: Job) -> Job:
        """Return `job` as this request's: in its client's name, with its scripts."""
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
