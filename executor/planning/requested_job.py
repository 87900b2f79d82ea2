"""Plans the job of a request: finds the job's files on this machine, makes its descriptor, and makes the
checks before the job is created."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Git
from bai_agent.job.descriptor.sink_tables import Store
from bai_agent.job.descriptor_file import without_credentials
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import replace
from executor.configuration.config import Settings, read_settings
from executor.descriptor import Descriptor
from executor.errors import UsageError
from executor.planning.arms import ArmFiles, file_arms
from executor.planning.job_sources import script_archive, script_folder
from executor.planning.plan import PlanInputs, plan, sink_secrets, task_name
from executor.planning.request import REF_KEY, JobRequest, set_values
from executor.planning.scripts_folder import ScriptsOrigin, ScriptsSurvey, one_member, scripts_digest

_GIT_SECONDS = 5.0
"""Longest time of one git command (seconds), so that a repository on a slow network file system does not
delay a run."""


def plan_inputs(
    job_request: JobRequest, settings: Settings, *, job_id: str, store: Store, scripts: ScriptsOrigin | None
) -> PlanInputs:
    """Return those inputs of the plan of `job_request` that do not depend on the backend. The function
    queries git. scripts: origin of the scripts."""
    return PlanInputs(
        folder=job_request.folder,
        job_id=job_id,
        client_id=settings.client,
        store=store,
        arguments=job_request.arguments,
        scripts=scripts,
        git=_commit(job_request),
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
    """Return the job descriptor of `job_request` on this machine. The function queries git, and changes
    nothing. Raises PlanError."""
    inputs = plan_inputs(
        job_request,
        read_settings(),
        job_id=job_id,
        store=Store(url=store.url),
        scripts=scripts or find_scripts(job_request, descriptor),
    )
    data_root = job_request.data_root.absolute() if job_request.data_root is not None else None
    return plan(descriptor, replace(inputs, data_root=data_root, home=Path.home(), arms=arms))


def new_job_id(job_request: JobRequest, descriptor: Descriptor) -> str:
    """Return a new job id for `job_request`: readable, and unique because of its random part."""
    name = task_name(descriptor) or job_request.folder.name
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "job"
    return f"{slug}-{date.today():%Y%m%d}-{secrets.token_hex(3)}"  # noqa: DTZ011 - a name


def find_scripts(job_request: JobRequest, descriptor: Descriptor) -> ScriptsOrigin | None:
    """Return the file or folder on this machine that becomes the scripts' folder; None if the job has no
    scripts. Raises ScriptsError."""
    if job_request.script is not None:
        return one_member(job_request.script)
    if job_request.scripts is not None:
        return ScriptsOrigin(path=job_request.scripts)
    return script_folder(descriptor.ml.script, folder=job_request.folder)


def find_archive(job_request: JobRequest, descriptor: Descriptor) -> ScriptsOrigin | None:
    """Return the archive that is unpacked as the scripts' folder; None if the descriptor names no archive."""
    return script_archive(descriptor.ml.script, folder=job_request.folder)


def survey(
    job_request: JobRequest, descriptor: Descriptor, *, leave_out: Sequence[Path] = ()
) -> ScriptsSurvey | None:
    """Return the files of the request's scripts; None if the request has no scripts. Raises ScriptsError."""
    scripts = find_scripts(job_request, descriptor)
    return scripts.survey(leave_out=leave_out) if scripts is not None else None


def digest_of(job_request: JobRequest, descriptor: Descriptor, leave_out: Sequence[Path] = ()) -> str | None:
    """Return the checksum of a request's scripts as the scripts are now; None if the request has no scripts.
    Raises ScriptsError."""
    origin = find_scripts(job_request, descriptor) or find_archive(job_request, descriptor)
    return None if origin is None else scripts_digest(origin, leave_out)


def arm_files(descriptor: Descriptor, *, leave_out: Sequence[Path] = ()) -> dict[str, ArmFiles]:
    """Return the files of each arm, by the arm's name. The function queries git, and reads the scripts.
    Raises ScriptsError."""
    found = {}
    for arm in file_arms(descriptor):
        scripts = script_folder(arm.script, folder=arm.folder)
        digest = scripts_digest(scripts, leave_out) if scripts is not None else None
        found[arm.name] = ArmFiles(scripts=scripts, sha256=digest, git=_git_state(arm.folder))
    return found


def _commit(job_request: JobRequest) -> Git | None:
    """Return the commit of the request's folder or, if the scripts are a copy, the known commit of the copy.
    Git is queried only for the request's folder."""
    if job_request.service is not None or job_request.of_copy:
        return job_request.git
    return _git_state(job_request.folder)


def _git_state(folder: Path) -> Git | None:
    """Return the commit, branch and dirty flag of the repository around `folder`; None if there is no git or no commit."""
    commit = _ask_git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    branch = _ask_git(folder, "symbolic-ref", "--quiet", "--short", "HEAD") or ""
    changes = _ask_git(folder, "status", "--porcelain", "--untracked-files=normal", "--", ".")
    return Git(commit=commit, branch=branch, dirty=changes is None or changes != "")


def _ask_git(folder: Path, *question: str) -> str | None:
    try:
        answer = subprocess.run(
            ("git", "-C", folder, *question),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
            # git must not lock the index, because the user may be working in the repository.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.decode(errors="replace").strip() if answer.returncode == 0 else None


def check_start(job: Job, environment: Mapping[str, str]) -> None:
    """Raise UsageError if a cheap check shows that a run on this machine would fail before its benchmark
    starts."""
    for path, name in unset_secrets(job.benchmark.secrets, sink_secrets(job), environment):
        raise UsageError(
            f"{'.'.join(path)}: the environment variable {name} is not set; export it, and run again"
        )
    if not job.sources:
        return
    # The module is imported here because its HTTP client is slow to import.
    from executor.planning.source_checks import refused_sources

    if refused := refused_sources(job.sources):
        raise UsageError(f"data.sources: {' '.join(refused)}")


def unset_secrets(
    references: Mapping[str, str], of_sinks: Mapping[tuple[str, ...], str], environment: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the key and the environment variable of each secret whose variable is not set.

    references: the benchmark's references to secrets, by variable. of_sinks: the sinks' references, by key.
    """
    every: dict[tuple[str, ...], str] = {("env", "secrets", name): text for name, text in references.items()}
    for path, reference in {**every, **of_sinks}.items():
        kind, _, name = reference.partition(":")
        if kind == "env" and name not in environment:
            yield path, name


def same_job(there: Job, job: Job, job_request: JobRequest) -> None:
    """Raise UsageError if the existing job `there` differs from the job that `job_request` makes."""
    if _asked_for(there) != _asked_for(job):
        says = f"{job_request.file} {'and the options say' if job_request.overrides else 'says'}"
        raise UsageError(
            f'the job "{job.job.id}" exists already and runs something else than {says} now; '
            "give another --job-id, or leave the option out"
        )


def _asked_for(job: Job) -> Job:
    """Return `job` for the comparison with a job of the same id: without the origin of its values, and
    without values that `bai` looked up.

    An address that was signed again counts as the same address.
    """
    job = without_credentials(job)
    strategy = replace(job.strategy, gpus=None)
    repeat = job.repeat
    if repeat is not None:
        repeat = replace(repeat, arms=tuple(replace(each, git=None) for each in repeat.arms))
    # Of the values in `set`, only the commit of the scripts' repository affects what runs, so only that value
    # is compared.
    given = {key: value for key, value in job.set.items() if key == REF_KEY}
    return replace(job, git=None, set=given, strategy=strategy, repeat=repeat)
