"""A request to run a benchmark, and the checks before anything is created."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Git, Identity, Job, Source, Store
from bai_agent.job.descriptor_file import without_credentials
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import dataclass, field, replace
from executor.errors import UsageError
from executor.planning.git import git_state

# Imported in the functions that read a descriptor: commands that only look at jobs load this module, too.
if TYPE_CHECKING:
    from executor.configuration.config import Settings
    from executor.descriptor import Descriptor, Finding
    from executor.descriptor.override_places import Flags
    from executor.descriptor.overrides import Override
    from executor.descriptor.variables import Variables
    from executor.planning.arms import ArmFiles
    from executor.planning.plan import PlanInputs
    from executor.planning.scripts_folder import ScriptsOrigin, ScriptsSurvey

REF_KEY = "ml.script.ref"
"""Key of the commit of the scripts' repository, which the `set` of a job always has."""
LAST = "last"
"""Name of the newest job in commands."""
MATRIX = "matrix"
"""Table of a descriptor that makes a group of jobs. Each of them has `--set matrix={}` in its record, so that `--like` runs it alone."""
_JOB_OF_GROUP = re.compile(r"(.+)\.\d{3}(?:\.\d+)?")
UNDRAWN_ID = "drawn-at-submission"
"""Job id in the plan of a launch that is not submitted."""


class FindingsError(BaiError):
    """A benchmark descriptor has mistakes. The message lists all of them for the user."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        from executor.descriptor import render_findings

        super().__init__(render_findings(findings).rstrip())
        self.findings = findings


class MatrixError(UsageError):
    """A descriptor has `[matrix]`, and its reader runs only one job."""


@dataclass(frozen=True, kw_only=True)
class OtherArms:
    """The other descriptors of a comparison in one job."""

    files: tuple[Path, ...]
    runs: int | None = None
    """Runs of each arm; None if the descriptors set the number."""
    until: float | None = None
    """Relative half-width of the interval that ends the runs; None if the descriptors set it."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ServiceRequest:
    """The benchmark service's additions to a job: its client, and the scripts that were fetched for it."""

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


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A user's request to run a job."""

    file: Path
    on: str | None = None
    """Backend, in place of the descriptor's."""
    arguments: tuple[str, ...] = ()
    data_root: Path | None = None
    script: Path | None = None
    """File or folder that becomes the only member of the scripts' folder, in place of the descriptor's scripts."""
    overrides: tuple[Override, ...] = ()
    """Values in place of the file's."""
    content: bytes | None = None
    """Text of the file, if an earlier job is run again; None: the file's text now."""
    scripts: Path | None = None
    """Copy of the scripts' folder that the earlier job kept, or the files of a commit, in place of the descriptor's scripts."""
    of_copy: bool = False
    """Whether `scripts` or `script` is such a copy or such files, so that no folder's commit describes it."""
    git: Git | None = None
    """Their commit; None if unknown."""
    other_arms: OtherArms | None = None
    """Other descriptors that are compared with `file` in one job."""
    exclusive: bool = False
    """Whether the job begins only when no other job runs on this machine."""
    variables: Variables | None = None
    """Environment with which `${NAME}` in the descriptor is expanded; None: it stays as it is."""
    flags: Flags | None = None
    """Options that have set values, if the descriptor was made for a script; None if it was written."""
    service: ServiceRequest | None = None
    """The benchmark service's additions; None if the request did not come from it. With it, no file of this
    machine belongs to the job, and `file` is only a name."""

    @property
    def folder(self) -> Path:
        """Absolute base of the descriptor's relative paths. A request of the service has none of its own."""
        return self.file.absolute().parent if self.service is None else Path("/")


@dataclass(frozen=True)
class Submitted:
    """A job in the store, and whether this submission made it."""

    record: JobRecord
    job: Job
    new: bool


def read_request(job_request: JobRequest) -> tuple[Descriptor, list[Finding]]:
    """Return the descriptor that is to run, with its warnings. Raises FindingsError, UsageError, and MatrixError if it is one of a group."""
    descriptor, findings = read_file(job_request)
    if descriptor.matrix is not None and descriptor.matrix.axes:
        raise MatrixError(
            f"{job_request.file}: [matrix] makes several jobs, which only `bai run` starts; --set 'matrix={{}}' runs the file without it"
        )
    if (arms := job_request.other_arms) is not None:
        return _read_other_arms(job_request, arms, descriptor, findings)
    return descriptor, findings


def read_file(job_request: JobRequest) -> tuple[Descriptor, list[Finding]]:
    """Return the request's own descriptor, with its warnings. Raises FindingsError, UsageError."""
    check_arguments(job_request.arguments)
    descriptor, findings = load_request(job_request)
    if descriptor is None:
        raise FindingsError(findings)
    return descriptor, findings


def load_request(job_request: JobRequest) -> tuple[Descriptor | None, list[Finding]]:
    """Return the request's own descriptor, and all findings. With a descriptor all findings are warnings."""
    from executor.descriptor import load, load_text
    from executor.descriptor.override_places import name_flag

    if job_request.content is not None:
        descriptor, findings = load_text(
            job_request.content,
            path=job_request.file,
            script=job_request.script,
            overrides=job_request.overrides,
            scripts=job_request.scripts,
            variables=job_request.variables,
        )
    else:
        descriptor, findings = load(
            job_request.file,
            script=job_request.script,
            overrides=job_request.overrides,
            variables=job_request.variables,
        )
    if (flags := job_request.flags) is not None:
        findings = [name_flag(each, flags) for each in findings]
    return descriptor, findings


def check_arguments(arguments: Sequence[str]) -> None:
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"the argument {os.fsencode(argument)!r} is not UTF-8, and a job descriptor holds text only; "
                "give it another way, in a file for instance"
            ) from None


def _read_other_arms(
    job_request: JobRequest, arms: OtherArms, first: Descriptor, findings: list[Finding]
) -> tuple[Descriptor, list[Finding]]:
    """Return the one descriptor of `first` and the files of `arms`, with the warnings of all."""
    from executor.descriptor import load
    from executor.planning.arms import as_arms

    descriptors = [first]
    for file in arms.files:
        other, more = load(
            file,
            script=job_request.script,
            overrides=job_request.overrides,
            variables=job_request.variables,
        )
        findings = [*findings, *more]
        if other is None:
            raise FindingsError(findings)
        descriptors.append(other)
    files = job_request.file, *arms.files
    return as_arms(files, descriptors, runs=arms.runs, until=arms.until, seed=arms.seed), findings


def set_values(job_request: JobRequest) -> dict[str, str]:
    """Return the values for the job's record that options have set, and those with expanded variables.

    Values of other arms are only in the arms. Raises OSError if the file is gone.
    """
    from executor.descriptor.override_places import put_overrides
    from executor.descriptor.overrides import recorded
    from executor.descriptor.toml_file import parse_toml
    from executor.descriptor.variables import expand_variables

    overrides, variables = job_request.overrides, job_request.variables
    if variables is None or job_request.other_arms is not None:
        return recorded(overrides)
    file = str(job_request.file)
    content = job_request.content if job_request.content is not None else job_request.file.read_bytes()
    table = parse_toml(content, file=file)[0] or {}
    origins, _ = put_overrides(table, overrides, file=file)
    expanded, _ = expand_variables(table, variables, file=file, skip=origins)
    return recorded([*overrides, *expanded])


def plan_inputs(
    job_request: JobRequest, settings: Settings, *, job_id: str, store: Store, scripts: ScriptsOrigin | None
) -> PlanInputs:
    """Return the inputs of a plan of `job_request`, wherever the job runs; asks git. scripts: their
    origin."""
    from executor.planning.plan import PlanInputs

    return PlanInputs(
        folder=job_request.folder,
        job_id=job_id,
        client_id=settings.client,
        store=store,
        arguments=job_request.arguments,
        scripts=scripts,
        git=find_commit(job_request),
        sinks=settings.sinks,
        defaults=settings.limits,
        set=set_values(job_request),
        exclusive=job_request.exclusive,
    )


def planned(
    job_request: JobRequest,
    descriptor: Descriptor,
    *,
    job_id: str,
    store: DirectoryStore,
    scripts: ScriptsOrigin | None,
    arms: Mapping[str, ArmFiles] = MappingProxyType({}),
) -> Job:
    """Return the job descriptor of `job_request` on this machine; asks git, and changes nothing. Raises
    PlanError."""
    from executor.configuration.config import read_settings
    from executor.planning.plan import plan

    inputs = plan_inputs(
        job_request,
        read_settings(),
        job_id=job_id,
        store=Store(url=store.url),
        scripts=scripts or find_scripts(job_request, descriptor),
    )
    data_root = job_request.data_root.absolute() if job_request.data_root is not None else None
    return plan(descriptor, dataclasses.replace(inputs, data_root=data_root, home=Path.home(), arms=arms))


def find_commit(job_request: JobRequest) -> Git | None:
    """Return the commit of the request's folder, which git is asked for, or the known commit of a copy."""
    if job_request.service is not None or job_request.of_copy:
        return job_request.git
    return git_state(job_request.folder)


def check_start(job: Job, environment: Mapping[str, str]) -> None:
    """Raise UsageError if a cheap check shows that a run on this machine would end before its benchmark starts."""
    from executor.planning.plan import sink_secrets

    for path, name in unset_secrets(job.benchmark.secrets, sink_secrets(job), environment):
        raise UsageError(
            f"{'.'.join(path)}: the environment variable {name} is not set; export it, and run again"
        )
    if not job.sources:
        return
    # Imported here: the HTTP client is slow to import.
    from executor.planning.source_checks import refused_sources

    if refused := refused_sources(job.sources):
        raise UsageError(f"data.sources: {' '.join(refused)}")


def unset_secrets(
    references: Mapping[str, str], of_sinks: Mapping[tuple[str, ...], str], environment: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the key of each secret whose environment variable is not set, and that variable.

    references: the benchmark's, by its variables. of_sinks: the sinks', by their keys.
    """
    every: dict[tuple[str, ...], str] = {("env", "secrets", name): text for name, text in references.items()}
    for path, reference in {**every, **of_sinks}.items():
        kind, _, name = reference.partition(":")
        if kind == "env" and name not in environment:
            yield path, name


def survey(
    job_request: JobRequest, descriptor: Descriptor, *, leave_out: Sequence[Path] = ()
) -> ScriptsSurvey | None:
    """Return the files of the request's scripts; None if it has none. Raises ScriptsError."""
    scripts = find_scripts(job_request, descriptor)
    return scripts.survey(leave_out=leave_out) if scripts is not None else None


def find_scripts(job_request: JobRequest, descriptor: Descriptor) -> ScriptsOrigin | None:
    """Return the file or folder of this machine that becomes the scripts' folder; None if none does. Raises ScriptsError."""
    from executor.planning.job_sources import script_folder
    from executor.planning.scripts_folder import ScriptsOrigin, one_member

    if job_request.script is not None:
        return one_member(job_request.script)
    if job_request.scripts is not None:
        return ScriptsOrigin(path=job_request.scripts)
    return script_folder(descriptor.ml.script, folder=job_request.folder)


def find_archive(job_request: JobRequest, descriptor: Descriptor) -> ScriptsOrigin | None:
    """Return the archive that is unpacked as the scripts' folder; None if the descriptor names none."""
    from executor.planning.job_sources import script_archive

    return script_archive(descriptor.ml.script, folder=job_request.folder)


def _asked_for(job: Job) -> Job:
    """Return `job` without the origin of its values, and without values that were looked up for it.

    An address that was signed again counts as the same.
    """
    job = without_credentials(job)
    strategy = dataclasses.replace(job.strategy, gpus=None)
    repeat = job.repeat
    if repeat is not None:
        arms = tuple(dataclasses.replace(each, git=None) for each in repeat.arms)
        repeat = dataclasses.replace(repeat, arms=arms)
    # Of the values, the commit of a repository says what runs.
    given = {key: value for key, value in job.set.items() if key == REF_KEY}
    return dataclasses.replace(job, git=None, set=given, strategy=strategy, repeat=repeat)


def same_job(there: Job, job: Job, job_request: JobRequest) -> None:
    """Raise UsageError if the existing job `there` differs from the one that `job_request` makes."""
    if _asked_for(there) != _asked_for(job):
        says = f"{job_request.file} {'and the options say' if job_request.overrides else 'says'}"
        raise UsageError(
            f'the job "{job.job.id}" exists already and runs something else than {says} now; '
            "give another --job-id, or none"
        )


def new_job_id(job_request: JobRequest, descriptor: Descriptor) -> str:
    """Return a new job id for `job_request`."""
    from executor.planning.plan import task_name

    name = task_name(descriptor) or job_request.folder.name
    return draw_job_id(name, date.today())  # noqa: DTZ011 - a name


def draw_job_id(name: str, day: date) -> str:
    """Return a new job id for the benchmark `name`: readable, and unique because of its random part."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "job"
    return f"{slug}-{day:%Y%m%d}-{secrets.token_hex(3)}"


def group_of(job_id: str) -> str | None:
    """Return the group whose jobs have ids of this form; None for an id of another form."""
    found = _JOB_OF_GROUP.fullmatch(job_id)
    return None if found is None else found[1]


def check_id(job_id: str) -> None:
    """Raise UsageError if this is not a valid job id."""
    try:
        Identity(id=job_id)
    except ValueError as error:
        raise UsageError(f"--job-id: {error}") from error
    if job_id == LAST:
        raise UsageError(f'--job-id: "{LAST}" means the newest job in commands; choose another')
