"""The options about job stores and AWS; hints repeat them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.errors import NextStep
from executor.jobs.scope import JobScope
from executor.program import command

if TYPE_CHECKING:
    from executor.backends.backend import Backend


@dataclass(frozen=True, kw_only=True)
class JobOptions(JobScope):
    """The options about AWS, and about the job store; None: not given."""

    def command(self, *words: str) -> str:
        """Return the command line for `words` with the same options, quoted for a shell."""
        options = {
            "--store": self.store,
            "--profile": self.profile,
            "--region": self.region,
            "--bucket": self.bucket,
        }
        given = [text for name, value in options.items() if value is not None for text in (name, value)]
        return command(*words, *given)

    def with_next_step(self, sentence: str, next_step: NextStep | None) -> str:
        """Return a sentence, followed by the command that helps."""
        if next_step is None:
            return sentence
        return f"{sentence}; `{self.command(*next_step.words)}` {next_step.effect}"

    def for_submitted(self, backend: Backend) -> JobOptions:
        """Return the options with which a command finds a job just submitted to `backend`."""
        kept = {name: getattr(self, name) for name in backend.option_names}
        return JobOptions(store=backend.store_option(), **kept)


class AwsOptions(JobOptions):
    """The options about AWS alone."""
