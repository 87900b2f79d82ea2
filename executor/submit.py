"""From a benchmark descriptor to a job that is written down in the store, exactly once for a job id."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bai_agent.errors import BaiError
from bai_agent.job import Identity, Job, Store
from bai_agent.store.directory import DirectoryStore
from bai_agent.store.record import JobRecord
from executor.errors import UsageError
from executor.git import git_state
from executor.jobs import LAST

if TYPE_CHECKING:
    from executor.descriptor import Descriptor, Finding
    from executor.scripts_folder import ScriptsOrigin, ScriptsSurvey

UNDRAWN_ID = "drawn-at-submission"
"""The job id in the plan of a launch that was never submitted."""


class FindingsError(BaiError):
    """A benchmark descriptor has mistakes: all of them, for a person to read."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        from executor.descriptor import render_findings

        super().__init__(render_findings(findings).rstrip())
        self.findings = findings


@dataclass(frozen=True, kw_only=True)
class Wish:
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


def place_of(wish: Wish, descriptor: Descriptor) -> Literal["local", "ec2"]:
    """Return where `wish` wants to run: as it says, else as its descriptor does. Raises UsageError."""
    engine = wish.on or descriptor.info.execution_engine
    if engine in ("local", "default"):
        return "local"
    if engine in ("ec2", "aws.ec2"):
        return "ec2"
    raise UsageError(
        f'"{engine}" is no place to run a benchmark; write `--on local` for this machine, or `--on ec2`'
    )


def read_wish(wish: Wish) -> tuple[Descriptor, list[Finding]]:
    """Return the descriptor that is to run, with its warnings. Raises FindingsError, UsageError."""
    from executor.descriptor import load

    for argument in wish.arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"the argument {os.fsencode(argument)!r} is not UTF-8, and a job descriptor holds text only; "
                "give it another way, in a file for instance"
            ) from None
    descriptor, findings = load(wish.file, script=wish.script)
    if descriptor is None:
        raise FindingsError(findings)
    return descriptor, findings


def planned(
    wish: Wish, descriptor: Descriptor, *, job_id: str, store: DirectoryStore, scripts: ScriptsOrigin | None
) -> Job:
    """Return the job descriptor of `wish`; asks git, and changes nothing. Raises PlanError."""
    from executor.config import read_settings
    from executor.plan import plan

    settings = read_settings()
    folder = wish.file.absolute().parent
    return plan(
        descriptor,
        folder=folder,
        job_id=job_id,
        client_id=settings.client,
        store=Store(url=store.url),
        arguments=wish.arguments,
        scripts=scripts or scripts_of_wish(wish, descriptor),
        data_root=wish.data_root.absolute() if wish.data_root is not None else None,
        home=Path.home(),
        git=git_state(folder),
        kafka=settings.kafka,
        defaults=settings.limits,
    )


def submit(
    wish: Wish,
    store: DirectoryStore,
    *,
    job_id: str | None = None,
    told: Callable[[str, Sequence[Finding]], None] = lambda job_id, findings: None,
) -> Submitted:
    """Write the job of `wish` into `store`, with a copy of its scripts. `told` hears the job id and the warnings before that.

    A job id that is there already with the same content is that job; with another it is a UsageError.
    """
    from executor.job_draft import job_draft, scripts_of
    from executor.job_file import job_toml
    from executor.scripts_folder import ScriptsOrigin, copy_scripts

    if sys.platform != "linux":
        raise UsageError(
            f"benchmarks run on Linux (x86_64, aarch64) with this version, not on {sys.platform}"
        )
    if job_id is not None:
        check_id(job_id)
    descriptor, findings = read_wish(wish)
    drawn = job_id or new_job_id(wish, descriptor)
    record = JobRecord(store, drawn)
    original = scripts_of_wish(wish, descriptor)
    scripts = ScriptsOrigin(path=scripts_of(record)) if original is not None else None
    job = planned(wish, descriptor, job_id=drawn, store=store, scripts=scripts)
    told(drawn, findings)
    if not record.exists():
        check_start(job, os.environ)
        with job_draft(store, drawn) as draft:
            if original is not None:
                copy_scripts(original, draft.scripts, leave_out=[store.folder])
            # An agent may start as soon as the job is there: with its scripts, or not at all.
            if draft.publish(job_toml(job).encode()):
                return Submitted(record, job, new=True)
    there = record.job()
    same_job(there, job, wish)
    return Submitted(record, there, new=False)


def check_start(job: Job, environment: Mapping[str, str]) -> None:
    """Raise UsageError for what would end a run on this machine before its benchmark starts, and costs little to know now."""
    from executor.descriptor.places import is_broker
    from executor.source_checks import refused_sources

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


def survey(wish: Wish, descriptor: Descriptor, *, leave_out: Sequence[Path] = ()) -> ScriptsSurvey | None:
    """Return what of the scripts' folder goes along with `wish`; None where it has none. Raises ScriptsError."""
    scripts = scripts_of_wish(wish, descriptor)
    return scripts.survey(leave_out=leave_out) if scripts is not None else None


def scripts_of_wish(wish: Wish, descriptor: Descriptor) -> ScriptsOrigin | None:
    """Return what of this machine becomes the scripts' folder; None where nothing does. Raises ScriptsError."""
    from executor.job_sources import scripts_folder
    from executor.scripts_folder import one_member

    if wish.script is not None:
        return one_member(wish.script)
    return scripts_folder(descriptor, folder=wish.file.absolute().parent)


def same_job(there: Job, job: Job, wish: Wish) -> None:
    """Raise UsageError where a job that exists already, `there`, is not the one that `wish` makes."""
    if dataclasses.replace(there, git=None) != dataclasses.replace(job, git=None):
        raise UsageError(
            f'the job "{job.job.id}" exists already and runs something else than {wish.file} says now; '
            "give another --job-id, or none"
        )


def new_job_id(wish: Wish, descriptor: Descriptor) -> str:
    """Return a job id of its own for `wish`."""
    from executor.plan import task_name

    name = task_name(descriptor) or wish.file.absolute().parent.name
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
