"""Options that several commands have in common: those about job stores and AWS, which suggested commands
repeat; those that override values of a descriptor; and those that make a descriptor from a script. Also
checks of single values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import dataclass, replace
from executor.errors import NextStep, UsageError
from executor.jobs.scope import JobScope
from executor.program import command

# `bai --help` and each shell completion load this module, so modules that only one command needs are imported
# in functions.
if TYPE_CHECKING:
    from executor.backends.backend import Backend
    from executor.descriptor.overrides import Override
    from executor.planning.request import JobRequest


@dataclass(frozen=True, kw_only=True)
class JobOptions(JobScope):
    """The options about AWS and the job store. An option is None if it was not given."""

    def command(self, *words: str) -> str:
        """Return the command line of `bai` with the arguments `words` and these options, quoted for a
        shell."""
        named = ((name, getattr(self, name)) for name in ("store", "profile", "region", "bucket"))
        given = [text for name, value in named if value is not None for text in (f"--{name}", value)]
        return command(*words, *given)

    def with_next_step(self, sentence: str, next_step: NextStep | None) -> str:
        """Return `sentence`, followed by the command that the user should run next."""
        if next_step is None:
            return sentence
        return f"{sentence}; `{self.command(*next_step.words)}` {next_step.effect}"

    def for_submitted(self, backend: Backend) -> JobOptions:
        """Return the options with which another command finds a job that was just submitted to `backend`."""
        kept = {name: getattr(self, name) for name in backend.option_names}
        return JobOptions(store=backend.store_option(), **kept)


class AwsOptions(JobOptions):
    """Only the options about AWS."""


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """The options for a script in place of a descriptor. An option is None if it was not given."""

    metric: list[str] | None = None
    """Metrics as texts of the form NAME=REGEX."""
    preset: list[str] | None = None
    emit_toml: bool | None = None
    """Whether the command only prints the script's descriptor, and runs nothing."""

    def request(self, job_request: JobRequest) -> JobRequest:
        """Return the user's request, to which the environment variables are added. If the request names a
        script, a descriptor is made for the script. Raises UsageError."""
        from executor.planning.script_request import with_script

        made = with_script(
            replace(job_request, variables=dict(os.environ)),
            metrics=self.metric or (),
            presets=self.preset or (),
        )
        if self.emit_toml and made.flags is None:
            raise UsageError(
                f"--emit-toml is for a script, but {job_request.file} is a descriptor; leave --emit-toml out"
            )
        return made


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """The options that set keys of the descriptor. An option is None if it was not given."""

    set_: list[str] | None = None
    """Overrides as texts of the form KEY=VALUE."""
    nodes: str | None = None
    """A number of machines, or a range such as "2:4"."""
    instance_type: str | None = None
    max_cost: float | None = None

    def overrides(self) -> tuple[Override, ...]:
        """Return these options as overrides of the descriptor's values. Raises UsageError."""
        from executor.descriptor.overrides import key_override, read_overrides

        own = (
            ("--nodes", ("hardware", "distributed", "num_instances"), self.nodes),
            ("--instance-type", ("hardware", "instance_type"), self.instance_type),
            ("--max-cost", ("limits", "max_cost"), self.max_cost),
        )
        return (
            *read_overrides(self.set_ or ()),
            *(key_override(option, path, value) for option, path, value in own if value is not None),
        )


def label_values(given: list[str] | None, *, option: str) -> dict[str, str]:
    """Return the labels that were given as KEY=VALUE. Raises UsageError."""
    found = {}
    for each in given or ():
        key, mark, value = each.partition("=")
        if not mark or not key:
            raise UsageError(f'{option}: "{each}" is not KEY=VALUE; write for example {option} team=vision')
        found[key] = value
    return found


def check_choice(option: str, given: str, known: Sequence[str]) -> None:
    """Raise UsageError unless the value of an option is one of `known`."""
    if given not in known:
        *first, last = known
        raise UsageError(f'{option}: "{given}" is not known; write {", ".join(first)} or {last}')


def duration_of(option: str, text: str) -> timedelta:
    """Convert the value of an option to a duration. Raises UsageError."""
    from bai_agent.job.schema.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def time_ago(option: str, text: str) -> int:
    """Return the current time minus the duration in an option's value (ms UTC). Raises UsageError."""
    return now_ms() - round(duration_of(option, text).total_seconds() * 1000)


def check_output(output: Path | None, endings: Sequence[str] = ()) -> None:
    """Raise UsageError if an output file cannot be written. endings: allowed suffixes of its name; () for
    any."""
    if output is None or output == Path("-"):
        return
    if not output.parent.is_dir():
        raise UsageError(
            f"-o {output}: the folder {output.parent} does not exist; make it first: mkdir -p {output.parent}"
        )
    ending = output.suffix.removeprefix(".").lower()
    if endings and ending not in endings:
        known = " or ".join(f".{each}" for each in endings)
        raise UsageError(
            f"-o {output}: a page is written, not {f'.{ending}' if ending else 'a file without ending'}; end it with {known}"
        )
