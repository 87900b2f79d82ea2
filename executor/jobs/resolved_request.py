"""A request whose references outside its files have been looked up: other jobs, a commit of a repository, and an archive in a bucket."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent.errors import PullError
from bai_agent.job.descriptor import Git, Job, Source, SourceKind, Unpack
from executor.descriptor.key_path import overlap, read_key_path
from executor.errors import ScriptsError, UsageError
from executor.jobs.earlier_jobs import job_before, pin, pinned, use_earlier_jobs
from executor.owned_folders import scratch_folder
from executor.planning.arms import file_arms
from executor.planning.job_sources import is_stored
from executor.planning.request import REF_KEY

if TYPE_CHECKING:
    from executor.descriptor.model import Descriptor, Script
    from executor.jobs.scope import JobScope
    from executor.planning.git_fetch import GitFiles
    from executor.planning.request import JobRequest

_SCRATCH = ".bai-scripts-"


@contextmanager
def resolved_request(
    job_request: JobRequest, descriptor: Descriptor, scope: JobScope, *, job_id: str | None
) -> Iterator[tuple[JobRequest, Descriptor]]:
    """Give the request and its descriptor with single jobs, and with the files of one commit, in place of references.

    The request names the jobs by their ids and the commit by its hash, so that `--like` uses the same ones. Fetched files exist until
    the end. job_id: the id that was given; if that job exists, its record says what was meant. Raises UsageError, StoreError.
    """
    with ExitStack() as stack:
        job_request, descriptor = use_earlier_jobs(job_request, descriptor, scope, job_id=job_id)
        job_request = _use_commit(job_request, descriptor, scope, job_id=job_id, stack=stack)
        job_request = _use_archive(job_request, descriptor, stack=stack)
        try:
            yield job_request, descriptor
        except ScriptsError as error:
            if (
                job_request.scripts is None
                or descriptor.ml.script is None
                or descriptor.ml.script.git is None
            ):
                raise
            raise ScriptsError(
                f'ml.script.git: "{descriptor.ml.script.git}": {_without_place(error, job_request.scripts)} Do so in the repository, or in '
                "a clone that path names."
            ) from error


def _without_place(error: ScriptsError, folder: Path) -> str:
    """Return a message about files of `folder`, which will be gone, with their paths in it."""
    return str(error).replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")


def _use_commit(
    job_request: JobRequest,
    descriptor: Descriptor,
    scope: JobScope,
    *,
    job_id: str | None,
    stack: ExitStack,
) -> JobRequest:
    """Return the request with the files of the commit that `[ml.script] git` and `ref` mean as its scripts. Raises UsageError."""
    script = _repository(job_request, descriptor)
    if script is None:
        return job_request
    # Imported here: few jobs have their scripts in a repository.
    from executor.planning.git_fetch import COMMIT

    scripts_vary = _is_varied(descriptor)
    if scripts_vary:
        script = script.model_copy(update={"folder": None, "requirements": None})
    branch = "" if script.ref is None or COMMIT.fullmatch(script.ref) else script.ref
    files = _fetch(script, _ref_before(job_before(job_id, scope), branch, script.ref), stack)
    overrides = pinned(
        job_request.overrides, [pin(REF_KEY, ("ml", "script", "ref"), files.commit)], descriptor
    )
    if scripts_vary:
        return dataclasses.replace(job_request, overrides=overrides)
    return dataclasses.replace(
        job_request,
        overrides=overrides,
        scripts=files.folder,
        of_copy=True,
        git=Git(commit=files.commit, branch=branch),
    )


def _repository(job_request: JobRequest, descriptor: Descriptor) -> Script | None:
    """Return the table that names the one repository of a request; None if there is none. Raises UsageError."""
    if any(arm.script is not None and arm.script.git is not None for arm in file_arms(descriptor)):
        raise UsageError(
            "ml.script.git: files that are compared in one job cannot have repositories of their own; compare commits with "
            '[matrix] "ml.script.ref" = [ … ]'
        )
    script = descriptor.ml.script
    if script is None or script.git is None:
        return None
    if _has_scripts(job_request) or any(
        _is_varied(descriptor, key) for key in ("git", "ref", "path", "script")
    ):
        return None  # each job of a group has a commit or a folder of its own if they vary
    return script


def _ref_before(before: Job | None, branch: str, ref: str | None) -> str | None:
    """Return the commit that the job of this id, if it exists, has by the same branch or tag, which may have moved; else `ref`.

    branch: `ref` if that is a branch or a tag, else "".
    """
    if (
        before is None
        or before.git is None
        or before.git.branch != branch
        or (ref is not None and not branch)
    ):
        return ref
    return before.set.get(REF_KEY, ref)


def _fetch(script: Script, ref: str | None, stack: ExitStack) -> GitFiles:
    """Return the files of the commit that `ref` means, which exist until the end of `stack`. Raises UsageError."""
    from executor.planning.git_fetch import fetch_files

    address = script.git or ""
    try:
        files = fetch_files(
            address, ref, script.folder, scratch_folder(_SCRATCH, stack=stack), environment=os.environ
        )
        _check_requirements(script, files.folder)
    except UsageError as error:
        raise UsageError(f'ml.script.git: "{address}": {error}') from error
    except OSError as error:
        raise UsageError(f"ml.script.git: {error.filename or address}: {error.strerror}") from error
    return files


def _use_archive(job_request: JobRequest, descriptor: Descriptor, *, stack: ExitStack) -> JobRequest:
    """Return the request with the members of an archive in a bucket as its scripts, as they are now. Raises UsageError."""
    script = descriptor.ml.script
    if script is None or not is_stored(script) or _has_scripts(job_request) or _is_varied(descriptor):
        return job_request
    from executor.jobs.rerun import pull_scripts

    archive = Source(src=script.script or "", path=".", kind=SourceKind.SCRIPTS, unpack=Unpack.INTO)
    try:
        folder = pull_scripts(archive, scratch_folder(_SCRATCH, stack=stack))
        _check_requirements(script, folder)
    except UsageError as error:
        raise UsageError(f'ml.script.script: "{script.script}": {error}') from error
    except PullError as error:  # it names the address
        raise UsageError(f"ml.script.script: {error}") from error
    except OSError as error:
        raise UsageError(f"ml.script.script: {error.filename or script.script}: {error.strerror}") from error
    return dataclasses.replace(job_request, scripts=folder, of_copy=True)


def _has_scripts(job_request: JobRequest) -> bool:
    """Return whether the request has scripts in place of the descriptor's."""
    return job_request.script is not None or job_request.scripts is not None


def _is_varied(descriptor: Descriptor, *key: str) -> bool:
    """Return whether the jobs of a group have values of their own for `[ml.script]`, or for this key of it."""
    axes = descriptor.matrix.axes if descriptor.matrix is not None else ()
    return any(overlap(read_key_path(each)[0], ("ml", "script", *key)) for each in axes)


def _check_requirements(script: Script, folder: Path) -> None:
    if script.requirements is not None and not (folder / script.requirements).is_file():
        raise UsageError(f"it has no file {script.requirements}, which requirements names; correct it")
