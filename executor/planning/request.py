"""What somebody asks to run, and what is checked of it before anything is made."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Identity, Job, Store
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from executor.errors import UsageError
from executor.planning.git import git_state

if TYPE_CHECKING:
    from executor.descriptor import Descriptor, Finding
    from executor.planning.scripts_folder import ScriptsOrigin, ScriptsSurvey

LAST = "last"
"""What commands call the newest job."""
UNDRAWN_ID = "drawn-at-submission"
"""The job id in the plan of a launch that was never submitted."""


class FindingsError(BaiError):
    """A benchmark descriptor has mistakes: all of them, for a person to read."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        from executor.descriptor import render_findings

        super().__init__(render_findings(findings).rstrip())
        self.findings = findings


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What somebody wants to run."""

    file: Path
    on: str | None = None
    """Where, against what the descriptor says."""
    arguments: tuple[str, ...] = ()
    data_root: Path | None = None
    script: Path | None = None
    """A file or folder that becomes the one member of the scripts' folder, in place of what the descriptor names."""


@dataclass(frozen=True)
class Submitted:
    """A job in the store, and whether it was there before."""

    record: JobRecord
    job: Job
    new: bool


def read_request(job_request: JobRequest) -> tuple[Descriptor, list[Finding]]:
    """Return the descriptor that is to run, with its warnings. Raises FindingsError, UsageError."""
    from executor.descriptor import load

    for argument in job_request.arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"the argument {os.fsencode(argument)!r} is not UTF-8, and a job descriptor holds text only; "
                "give it another way, in a file for instance"
            ) from None
    descriptor, findings = load(job_request.file, script=job_request.script)
    if descriptor is None:
        raise FindingsError(findings)
    return descriptor, findings


def planned(
    job_request: JobRequest,
    descriptor: Descriptor,
    *,
    job_id: str,
    store: DirectoryStore,
    scripts: ScriptsOrigin | None,
) -> Job:
    """Return the job descriptor of `job_request`; asks git, and changes nothing. Raises PlanError."""
    from executor.config import read_settings
    from executor.planning.plan import plan

    settings = read_settings()
    folder = job_request.file.absolute().parent
    return plan(
        descriptor,
        folder=folder,
        job_id=job_id,
        client_id=settings.client,
        store=Store(url=store.url),
        arguments=job_request.arguments,
        scripts=scripts or scripts_of_request(job_request, descriptor),
        data_root=job_request.data_root.absolute() if job_request.data_root is not None else None,
        home=Path.home(),
        git=git_state(folder),
        kafka=settings.kafka,
        defaults=settings.limits,
    )


def check_start(job: Job, environment: Mapping[str, str]) -> None:
    """Raise UsageError for what would end a run on this machine before its benchmark starts, and costs little to know now."""
    from executor.descriptor.places import is_broker
    from executor.planning.source_checks import refused_sources

    password = job.kafka.sasl_password if job.kafka is not None else None
    for path, name in unset_secrets(job.benchmark.secrets, password, environment):
        raise UsageError(
            f"{'.'.join(path)}: the environment variable {name} is not set; export it, and run again"
        )
    for broker in job.kafka.brokers if job.kafka is not None else ():
        if not is_broker(broker):
            raise UsageError(f'kafka.brokers: "{broker}" is no broker\'s address; write host:port')
    if refused := refused_sources(job.sources):
        raise UsageError(f"data.sources: {' '.join(refused)}")


def unset_secrets(
    references: Mapping[str, str], kafka_password: str | None, environment: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the key of each secret that is to come from an environment variable that is not set, and that variable.

    references: those of the benchmark, by the variables that they are for.
    """
    every: dict[tuple[str, ...], str] = {("env", "secrets", name): text for name, text in references.items()}
    if kafka_password:
        every["kafka", "sasl_password"] = kafka_password
    for path, reference in every.items():
        kind, _, name = reference.partition(":")
        if kind == "env" and name not in environment:
            yield path, name


def survey(
    job_request: JobRequest, descriptor: Descriptor, *, leave_out: Sequence[Path] = ()
) -> ScriptsSurvey | None:
    """Return what of the scripts' folder goes along with `job_request`; None where it has none. Raises ScriptsError."""
    scripts = scripts_of_request(job_request, descriptor)
    return scripts.survey(leave_out=leave_out) if scripts is not None else None


def scripts_of_request(job_request: JobRequest, descriptor: Descriptor) -> ScriptsOrigin | None:
    """Return what of this machine becomes the scripts' folder; None where nothing does. Raises ScriptsError."""
    from executor.planning.job_sources import scripts_folder
    from executor.planning.scripts_folder import one_member

    if job_request.script is not None:
        return one_member(job_request.script)
    return scripts_folder(descriptor, folder=job_request.file.absolute().parent)


def same_job(there: Job, job: Job, job_request: JobRequest) -> None:
    """Raise UsageError where a job that exists already, `there`, is not the one that `job_request` makes."""
    if dataclasses.replace(there, git=None) != dataclasses.replace(job, git=None):
        raise UsageError(
            f'the job "{job.job.id}" exists already and runs something else than {job_request.file} says now; '
            "give another --job-id, or none"
        )


def new_job_id(job_request: JobRequest, descriptor: Descriptor) -> str:
    """Return a job id of its own for `job_request`."""
    from executor.planning.plan import task_name

    name = task_name(descriptor) or job_request.file.absolute().parent.name
    return draw_job_id(name, date.today())  # noqa: DTZ011 - a name


def draw_job_id(name: str, day: date) -> str:
    """Return a new job id for a benchmark called `name`: readable, and unique by its random part."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "job"
    return f"{slug}-{day:%Y%m%d}-{secrets.token_hex(3)}"


def check_id(job_id: str) -> None:
    """Raise UsageError where no job can have this id."""
    try:
        Identity(id=job_id)
    except ValueError as error:
        raise UsageError(f"--job-id: {error}") from error
    if job_id == LAST:
        raise UsageError(f'--job-id: "{LAST}" is what commands call the newest job; choose another')
