"""What was given on the command line about where jobs are, and in whose name AWS is asked; hints repeat it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from executor.backends import Backends
from executor.errors import NextStep
from executor.program import command

if TYPE_CHECKING:
    from bai_agent.job.store import JobStore
    from executor.config import Settings


@dataclass(frozen=True, kw_only=True)
class AwsOptions:
    """The options about AWS; None: not given."""

    profile: str | None = None
    region: str | None = None
    bucket: str | None = None

    @cached_property
    def settings(self) -> Settings:
        """The configuration with these options, read once. Raises UsageError, DescriptorError."""
        from executor.config import read_settings

        return read_settings({"profile": self.profile, "region": self.region, "bucket": self.bucket})


@dataclass(frozen=True, kw_only=True)
class JobOptions(AwsOptions):
    """The options about AWS, and about the job store."""

    store: str | None = None

    def stores(self) -> Iterator[JobStore]:
        """Yield the stores to look into, the nearest first. Raises UsageError, StoreError."""
        from executor.jobs.stores import stores

        named = self.store
        if named is None and self.bucket is not None:
            named = self.settings.store_url
        yield from stores(named, lambda: self.settings)

    @cached_property
    def backends(self) -> Backends:
        """The places where jobs run, asked in the name that these options say."""
        return Backends(settings=lambda: self.settings, store=self.store)

    def command(self, *words: str) -> str:
        """Return how to call this program with `words` for the same jobs: to be pasted into a shell as it stands."""
        options = {
            "--store": self.store,
            "--profile": self.profile,
            "--region": self.region,
            "--bucket": self.bucket,
        }
        given = [text for name, value in options.items() if value is not None for text in (name, value)]
        return command(*words, *given)

    def with_next_step(self, sentence: str, next_step: NextStep | None) -> str:
        """Return a sentence, with the command that helps behind it."""
        if next_step is None:
            return sentence
        return f"{sentence}; `{self.command(*next_step.words)}` {next_step.effect}"

    def for_job(self, record: JobRecord) -> JobOptions:
        """Return what a command needs that looks at this job."""
        local = isinstance(record.store, DirectoryStore)
        return self.for_local() if local else self.for_bucket(record.store.url)

    def for_local(self) -> JobOptions:
        """Return what a command needs that looks at a job of this machine."""
        return JobOptions(store=self.store)

    def for_bucket(self, url: str) -> JobOptions:
        """Return what a command needs that looks at a job in the store `url`, which is the configured one."""
        elsewhere = self.store or os.environ.get("BAI_STORE")
        return JobOptions(
            profile=self.profile,
            region=self.region,
            bucket=self.bucket,
            store=url if elsewhere else None,
        )
