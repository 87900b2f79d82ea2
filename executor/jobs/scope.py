"""Finds the stores in which commands and the API search for jobs, and the AWS configuration for these
stores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from bai_agent.light_dataclass import dataclass
from executor.backends import Backends

# These modules are imported in functions because `bai --help` loads this module.
if TYPE_CHECKING:
    from bai_agent.job.record import JobRecord
    from bai_agent.job.store import JobStore
    from executor.configuration.config import Settings


@dataclass(frozen=True, kw_only=True)
class JobScope:
    """The user's options about stores and AWS. If an option is None, the configuration and the environment
    decide."""

    store: str | None = None
    profile: str | None = None
    region: str | None = None
    bucket: str | None = None

    @cached_property
    def settings(self) -> Settings:
        """The configuration, overridden by these options. The configuration is read only once. Raises
        UsageError, DescriptorError."""
        from executor.configuration.config import read_settings

        return read_settings({"profile": self.profile, "region": self.region, "bucket": self.bucket})

    @cached_property
    def backends(self) -> Backends:
        """The backends, with this configuration."""
        return Backends(settings=lambda: self.settings, store=self.store)

    def stores(self) -> Iterator[JobStore]:
        """Yield the stores to search, the nearest first. Raises UsageError, StoreError.

        If the user names a store or a bucket, by an option or by BAI_STORE, only that store is searched.
        """
        named = self.store
        if named is None and self.bucket is not None:
            named = self.settings.store_url
        yield from self.backends.stores(named)

    def find(self, name: str) -> JobRecord:
        """Return the job that `name` stands for. `name` is an id, a unique beginning of an id, or "last".
        Raises UsageError, StoreError."""
        from executor.jobs.job_lookup import find_job

        return find_job(self.stores(), name)

    def with_id(self, job_id: str) -> JobRecord | None:
        """Return the job of this id; None if there is no such job. Raises UsageError, StoreError."""
        from bai_agent.job.record import JobRecord

        records = (JobRecord(store, job_id) for store in self.stores())
        return next((each for each in records if each.exists()), None)
