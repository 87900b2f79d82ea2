"""The stores in which jobs are looked for, and their AWS configuration, for commands and the API."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from bai_agent.light_dataclass import dataclass
from executor.backends import Backends

# Imported where they are needed: `bai --help` loads this module.
if TYPE_CHECKING:
    from bai_agent.job.record import JobRecord
    from bai_agent.job.store import JobStore
    from executor.configuration.config import Settings


@dataclass(frozen=True, kw_only=True)
class JobScope:
    """The options that were given; None: the configuration and the environment decide."""

    store: str | None = None
    profile: str | None = None
    region: str | None = None
    bucket: str | None = None

    @cached_property
    def settings(self) -> Settings:
        """The configuration with these options, read once. Raises UsageError, DescriptorError."""
        from executor.configuration.config import read_settings

        return read_settings({"profile": self.profile, "region": self.region, "bucket": self.bucket})

    @cached_property
    def backends(self) -> Backends:
        """The backends, with this configuration."""
        return Backends(settings=lambda: self.settings, store=self.store)

    def stores(self) -> Iterator[JobStore]:
        """Yield the stores to look into, the nearest first. Raises UsageError, StoreError.

        A store that was named, by BAI_STORE too, is the only one; so is that in a bucket that was named.
        """
        named = self.store
        if named is None and self.bucket is not None:
            named = self.settings.store_url
        yield from self.backends.stores(named)

    def find(self, name: str) -> JobRecord:
        """Return the job that `name` means: its id, the only id that starts so, or "last". Raises UsageError, StoreError."""
        from executor.jobs.job_lookup import find_job

        return find_job(self.stores(), name)
