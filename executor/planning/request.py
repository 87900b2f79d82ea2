"""Defines a request to run a benchmark, and reads the descriptor of a request."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Git, Identity
from bai_agent.job.descriptor.source_tables import Source
from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import dataclass, field, replace
from executor.errors import UsageError

# The functions that read a descriptor import the reader themselves, because commands that only show jobs also
# load this module.
if TYPE_CHECKING:
    from executor.descriptor import Descriptor, Finding
    from executor.descriptor.override_places import Flags
    from executor.descriptor.overrides import Override
    from executor.descriptor.variables import Variables

REF_KEY = "ml.script.ref"
"""Descriptor key that names the commit of the scripts' repository. If a job's scripts are from a repository,
the job's `set` always contains `ml.script.ref`."""
LAST = "last"
"""Word that stands for the newest job in commands."""
MATRIX = "matrix"
"""Descriptor table that makes a group of jobs. The record of each job of a group contains `--set matrix={}`,
so that `--like` runs this one job and not the whole group."""
_JOB_OF_GROUP = re.compile(r"(.+)\.\d{3}(?:\.\d+)?")
UNDRAWN_ID = "drawn-at-submission"
"""Placeholder for the job id if a launch is only planned and not submitted."""


class FindingsError(BaiError):
    """A benchmark descriptor has mistakes. The message lists all mistakes for the user."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        from executor.descriptor import render_findings

        super().__init__(render_findings(findings).rstrip())
        self.findings = findings


class MatrixError(UsageError):
    """A descriptor has `[matrix]`, but the command runs only one job."""


@dataclass(frozen=True, kw_only=True)
class OtherArms:
    """The other descriptors of a comparison in one job."""

    files: tuple[Path, ...]
    runs: int | None = None
    """Number of runs of each arm; None if the descriptors set the number."""
    until: float | None = None
    """Relative half-width of the confidence interval at which the runs end; None if the descriptors set
    it."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ServiceRequest:
    """What the benchmark service adds to a job: the ids of the client and of the request, and the scripts
    that were fetched for the job."""

    action_id: str
    client_id: str
    parent_action_id: str | None = None
    username: str | None = None
    created_by: str | None = None
    """Program that sent the request to the service."""
    scripts: tuple[Source, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Address of a source → its size (bytes), for sources of known size."""

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
    """Backend on which the job runs, in place of the descriptor's backend; None if the descriptor decides."""
    arguments: tuple[str, ...] = ()
    data_root: Path | None = None
    script: Path | None = None
    """File or folder that becomes the only member of the scripts' folder, in place of the descriptor's scripts."""
    overrides: tuple[Override, ...] = ()
    """Values that override values of the descriptor file."""
    content: bytes | None = None
    """Descriptor text of the earlier job that is run again. None if the current text of `file` is used."""
    scripts: Path | None = None
    """Folder that replaces the descriptor's scripts: the copy that an earlier job saved, or the files of a
    commit."""
    of_copy: bool = False
    """Whether `scripts` or `script` is a copy of an earlier job's scripts, or comes from a commit. If so, the
    commit of the descriptor's folder does not describe these scripts."""
    git: Git | None = None
    """Commit of the files in `scripts` or `script`; None if unknown."""
    other_arms: OtherArms | None = None
    """Other descriptors that are compared with `file` in the same job."""
    exclusive: bool = False
    """Whether the job waits until no other job is running on its machine."""
    variables: Variables | None = None
    """Environment for `${NAME}` in the descriptor; None if `${NAME}` is not expanded."""
    flags: Flags | None = None
    """Descriptor key → option that set it, if bai made the descriptor for a script. None if the user wrote
    the descriptor."""
    service: ServiceRequest | None = None
    """The benchmark service's additions; None if the request did not come from the service. If set, the job
    uses no file of this machine, and `file` is only a name."""

    @property
    def folder(self) -> Path:
        """Absolute base of the descriptor's relative paths. For a request of the service the base is "/",
        because such a request has no folder."""
        return self.file.absolute().parent if self.service is None else Path("/")

    def read_content(self) -> bytes:
        """Return the text of the request's descriptor. Raises OSError."""
        return self.content if self.content is not None else self.file.read_bytes()


@dataclass(frozen=True)
class Submitted:
    """A submitted job in the store, and whether this submission created it."""

    record: JobRecord
    job: Job
    new: bool


def read_request(job_request: JobRequest) -> tuple[Descriptor, list[Finding]]:
    """Return the descriptor to run, with the warnings about the descriptor. Raises FindingsError, UsageError,
    and MatrixError if the descriptor has `[matrix]`."""
    descriptor, findings = read_file(job_request)
    if descriptor.matrix is not None and descriptor.matrix.axes:
        raise MatrixError(
            f"{job_request.file}: [matrix] makes several jobs, which only `bai run` starts; --set 'matrix={{}}' runs the file without it"
        )
    if (arms := job_request.other_arms) is not None:
        return _read_other_arms(job_request, arms, descriptor, findings)
    return descriptor, findings


def read_file(job_request: JobRequest) -> tuple[Descriptor, list[Finding]]:
    """Return the request's own descriptor, with the warnings about the descriptor. Raises FindingsError,
    UsageError."""
    check_arguments(job_request.arguments)
    descriptor, findings = load_request(job_request)
    if descriptor is None:
        raise FindingsError(findings)
    return descriptor, findings


def load_request(job_request: JobRequest) -> tuple[Descriptor | None, list[Finding]]:
    """Return the request's own descriptor, and all findings. The descriptor is None if a finding is an
    error."""
    from executor.descriptor import load
    from executor.descriptor.override_places import name_flag

    descriptor, findings = load(
        job_request.file,
        content=job_request.content,
        script=job_request.script,
        overrides=job_request.overrides,
        scripts=job_request.scripts,
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
                f"the argument {os.fsencode(argument)!r} is not UTF-8, but a job descriptor can contain only text; "
                "pass it in another way, for example in a file"
            ) from None


def _read_other_arms(
    job_request: JobRequest, arms: OtherArms, first: Descriptor, findings: list[Finding]
) -> tuple[Descriptor, list[Finding]]:
    """Return the descriptor that combines `first` and the descriptors in the files of `arms`, with the
    warnings about all descriptors."""
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
    """Return the values that the job's record must contain to repeat the job: values that options set, and
    values in which variables were expanded.

    If the job has other arms, their values are recorded in the arms and not here. Raises OSError if the file
    is gone.
    """
    from executor.descriptor.override_places import put_overrides
    from executor.descriptor.overrides import recorded
    from executor.descriptor.toml_file import parse_toml
    from executor.descriptor.variables import expand_variables

    overrides, variables = job_request.overrides, job_request.variables
    if variables is None or job_request.other_arms is not None:
        return recorded(overrides)
    file = str(job_request.file)
    table = parse_toml(job_request.read_content(), file=file)[0] or {}
    origins, _ = put_overrides(table, overrides, file=file)
    expanded, _ = expand_variables(table, variables, file=file, skip=origins)
    return recorded([*overrides, *expanded])


def group_of(job_id: str) -> str | None:
    """Return the id of the group that this job id belongs to; None if the id is not the id of a group's
    job."""
    found = _JOB_OF_GROUP.fullmatch(job_id)
    return None if found is None else found[1]


def check_id(job_id: str) -> None:
    """Raise UsageError if `job_id` is not a valid job id."""
    try:
        Identity(id=job_id)
    except ValueError as error:
        raise UsageError(f"--job-id: {error}") from error
    if job_id == LAST:
        raise UsageError(f'--job-id: "{LAST}" means the newest job in commands; choose another id')
