"""A request to run a benchmark, and the checks before anything is created."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Git, Identity, Job, Store
from bai_agent.job.descriptor_file import without_credentials
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from executor.errors import UsageError
from executor.planning.git import git_state
from executor.planning.service_request import ServiceRequest

# What reads descriptors is imported where one is read: looking at a job needs this module, too, and nothing of that.
if TYPE_CHECKING:
    from executor.descriptor import Descriptor, Finding
    from executor.descriptor.overrides import Override
    from executor.planning.arms import ArmFiles
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
class OtherArms:
    """What turns a request into a comparison of several descriptors."""

    files: tuple[Path, ...]
    runs: int | None = None
    """Of each arm."""
    until: float | None = None
    seed: int = 0


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
    overrides: tuple[Override, ...] = ()
    """Values in place of what the file says."""
    content: bytes | None = None
    """What the file held when a job was made of it that is asked for again; None: what it holds now."""
    scripts: Path | None = None
    """The copy that such a job has kept of its scripts' folder, in place of what the descriptor names."""
    of_copy: bool = False
    """Whether `scripts` or `script` is such a copy, which no folder's commit is that of."""
    git: Git | None = None
    """The commit that such a copy was taken at, as far as it is known."""
    other_arms: OtherArms | None = None
    """The descriptors that are compared in one job with the first, which is `file`."""
    exclusive: bool = False
    """Whether it begins only when no other job runs on this machine."""
    service: ServiceRequest | None = None
    """Where it came through the benchmark service: what that says. Nothing of this machine goes along then; `file` is a name."""


@dataclass(frozen=True)
class Submitted:
    """A job in the store, and whether it was there before."""

    record: JobRecord
    job: Job
    new: bool


def read_request(job_request: JobRequest) -> tuple[Descriptor, list[Finding]]:
    """Return the descriptor that is to run, with its warnings. Raises FindingsError, UsageError."""
    from executor.descriptor import load, load_text

    for argument in job_request.arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"the argument {os.fsencode(argument)!r} is not UTF-8, and a job descriptor holds text only; "
                "give it another way, in a file for instance"
            ) from None
    if job_request.content is not None:
        descriptor, findings = load_text(
            job_request.content,
            path=job_request.file,
            script=job_request.script,
            overrides=job_request.overrides,
            scripts=job_request.scripts,
        )
    else:
        descriptor, findings = load(
            job_request.file, script=job_request.script, overrides=job_request.overrides
        )
    if descriptor is None:
        raise FindingsError(findings)
    if (arms := job_request.other_arms) is not None:
        from executor.planning.arms import as_arms

        each = [descriptor]
        for file in arms.files:
            other, more = load(file, script=job_request.script, overrides=job_request.overrides)
            findings = [*findings, *more]
            if other is None:
                raise FindingsError(findings)
            each.append(other)
        files = job_request.file, *arms.files
        descriptor = as_arms(files, each, runs=arms.runs, until=arms.until, seed=arms.seed)
    return descriptor, findings


def planned(
    job_request: JobRequest,
    descriptor: Descriptor,
    *,
    job_id: str,
    store: DirectoryStore,
    scripts: ScriptsOrigin | None,
    arms: Mapping[str, ArmFiles] = MappingProxyType({}),
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
        git=git_of_request(job_request),
        sinks=settings.sinks,
        defaults=settings.limits,
        overrides=job_request.overrides,
        exclusive=job_request.exclusive,
        arms=arms,
    )


def git_of_request(job_request: JobRequest) -> Git | None:
    """Return the commit of what `job_request` runs: that of its file's folder, which git is asked for, or what is known of a copy."""
    if job_request.service is not None or job_request.of_copy:
        return job_request.git
    return git_state(job_request.file.absolute().parent)


def check_start(job: Job, environment: Mapping[str, str]) -> None:
    """Raise UsageError for what would end a run on this machine before its benchmark starts, as far as that is cheap to check."""
    from executor.descriptor.places import is_broker
    from executor.planning.plan import sink_secrets
    from executor.planning.source_checks import refused_sources

    for path, name in unset_secrets(job.benchmark.secrets, sink_secrets(job), environment):
        raise UsageError(
            f"{'.'.join(path)}: the environment variable {name} is not set; export it, and run again"
        )
    for broker in job.kafka.brokers if job.kafka is not None else ():
        if not is_broker(broker):
            raise UsageError(f'kafka.brokers: "{broker}" is not a broker\'s address; write host:port')
    if refused := refused_sources(job.sources):
        raise UsageError(f"data.sources: {' '.join(refused)}")


def unset_secrets(
    references: Mapping[str, str], of_sinks: Mapping[tuple[str, ...], str], environment: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the key of each secret that is to come from an environment variable that is not set, and that variable.

    references: those of the benchmark, by the variables that they are for. of_sinks: by their keys.
    """
    every: dict[tuple[str, ...], str] = {("env", "secrets", name): text for name, text in references.items()}
    for path, reference in {**every, **of_sinks}.items():
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
    from executor.planning.scripts_folder import ScriptsOrigin, one_member

    if job_request.script is not None:
        return one_member(job_request.script)
    if job_request.scripts is not None:
        return ScriptsOrigin(path=job_request.scripts)
    return scripts_folder(descriptor, folder=job_request.file.absolute().parent)


def archive_of_request(job_request: JobRequest, descriptor: Descriptor) -> ScriptsOrigin | None:
    """Return the archive that is unpacked where a folder of this machine would become the scripts' folder; None where there is none."""
    from executor.planning.job_sources import script_archive

    script = descriptor.ml.script if descriptor.ml else None
    return script_archive(script, folder=job_request.file.absolute().parent)


def _asked_for(job: Job) -> Job:
    """Return `job` without how it came about (the same values may come from the file today), and what was looked up for it.

    An address that was signed again is the same one.
    """
    job = without_credentials(job)
    strategy = dataclasses.replace(job.strategy, gpus=None)
    repeat = job.repeat
    if repeat is not None:
        arms = tuple(dataclasses.replace(each, git=None) for each in repeat.arms)
        repeat = dataclasses.replace(repeat, arms=arms)
    return dataclasses.replace(job, git=None, set={}, strategy=strategy, repeat=repeat)


def same_job(there: Job, job: Job, job_request: JobRequest) -> None:
    """Raise UsageError where a job that exists already, `there`, is not the one that `job_request` makes."""
    if _asked_for(there) != _asked_for(job):
        says = f"{job_request.file} {'and the options say' if job_request.overrides else 'says'}"
        raise UsageError(
            f'the job "{job.job.id}" exists already and runs something else than {says} now; '
            "give another --job-id, or none"
        )


def new_job_id(job_request: JobRequest, descriptor: Descriptor) -> str:
    """Return a new job id for `job_request`."""
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
