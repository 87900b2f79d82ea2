"""Resolves the references in a request to other jobs, to a commit of a repository, and to an archive in a
bucket."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bai_agent.errors import PullError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Git
from bai_agent.job.descriptor.source_tables import Source, SourceKind, Unpack
from executor.descriptor.toml_text import overlap, read_key_path
from executor.errors import ScriptsError, UsageError
from executor.jobs.earlier_jobs import job_before, pin, pinned, use_earlier_jobs
from executor.owned_folders import scratch_folder
from executor.planning.arms import file_arms
from executor.planning.job_sources import is_stored
from executor.planning.request import REF_KEY
from executor.planning.requested_job import digest_of

if TYPE_CHECKING:
    from executor.descriptor.model import Descriptor, Script
    from executor.jobs.scope import JobScope
    from executor.planning.git_fetch import GitFiles
    from executor.planning.request import JobRequest

_SCRATCH = ".bai-scripts-"
_COPIES = 4
"""Maximum number of copies of scripts at a time. Each copy may have up to 8 GiB."""


class FetchedScripts(ExitStack):
    """Scripts that were fetched from repositories and buckets, so that all jobs of a group get the same
    files. The most recently used copies exist until the context ends. Older copies are removed, and are
    fetched again if a job needs them. Incomplete copies are removed at once."""

    def __init__(self) -> None:
        super().__init__()
        self._commits: dict[tuple[str, str | None], str] = {}
        """Hashes of the commits, by the repository's address and the branch, tag or commit in the
        reference."""
        self._copies: dict[tuple[str | None, ...], tuple[Any, ExitStack]] = {}
        """Copies of the scripts, by address; for a repository also by commit and folder. The most recently
        used copy is the last."""

    def of_commit(self, script: Script, ref: str | None) -> GitFiles:
        """Return the files of the commit that `ref` names. Raises UsageError."""
        from executor.planning.git_fetch import fetch_files

        address, folder = script.git or "", script.folder
        # The commit of the first look-up is used again, because a branch may have moved since the group was
        # created.
        key = (address, self._commits.get((address, ref), ref), folder)
        try:
            files: GitFiles = self._copy(key, lambda place: fetch_files(*key, place, environment=os.environ))
            self._commits[address, ref] = files.commit
            copy = self._copies.pop(key)
            if same := self._copies.pop((address, files.commit, folder), None):
                same[1].close()  # Another branch or tag has already been resolved to the same commit.
            self._copies[address, files.commit, folder] = copy
            _check_requirements(script, files.folder)
        except UsageError as error:
            raise UsageError(f'ml.script.git: "{address}": {error}') from error
        except OSError as error:
            raise UsageError(f"ml.script.git: {error.filename or address}: {error.strerror}") from error
        return files

    def of_archive(self, script: Script) -> Path:
        """Return the folder with the members of the archive in a bucket that `script` names. Raises UsageError."""
        from executor.jobs.rerun import pull_scripts

        address = script.script or ""
        archive = Source(src=address, path=".", kind=SourceKind.SCRIPTS, unpack=Unpack.INTO)
        try:
            folder: Path = self._copy((address,), lambda place: pull_scripts(archive, place))
            _check_requirements(script, folder)
        except UsageError as error:
            raise UsageError(f'ml.script.script: "{address}": {error}') from error
        # The message of the error already contains the address, so it is not added again.
        except PullError as error:
            raise UsageError(f"ml.script.script: {error}") from error
        except OSError as error:
            raise UsageError(f"ml.script.script: {error.filename or address}: {error.strerror}") from error
        return folder

    def _copy(self, key: tuple[str | None, ...], bring: Callable[[Path], Any]) -> Any:
        """Return the copy for `key`. Make a missing copy by calling `bring` with a new folder. Raises OSError
        and the errors of `bring`."""
        if key not in self._copies:
            while len(self._copies) >= _COPIES:
                self._copies.pop(next(iter(self._copies)))[1].close()
            with ExitStack() as stack:
                found = bring(scratch_folder(_SCRATCH, stack=stack))
                self._copies[key] = found, self.enter_context(stack.pop_all())
        return self._copies[key][0]


@contextmanager
def resolved_request(
    job_request: JobRequest,
    descriptor: Descriptor,
    scope: JobScope,
    *,
    job_id: str | None,
    fetched: FetchedScripts | None = None,
) -> Iterator[tuple[JobRequest, Descriptor]]:
    """Return the request and its descriptor, with references replaced by single jobs and by the files of one
    commit.

    The request names the jobs by their ids and the commit by its hash, so that `--like` uses the same jobs
    and the same commit. job_id: the id that the user gave. If a job with the id `job_id` exists, the
    references name the jobs and the commit that this job used. fetched: owner of the fetched files. Without
    an owner, the fetched files exist until the `with` block ends. Raises UsageError, StoreError.
    """
    with FetchedScripts() as own:
        job_request, descriptor = use_earlier_jobs(job_request, descriptor, scope, job_id=job_id)
        job_request = _with_scripts(
            job_request, descriptor, fetched or own, before=partial(job_before, job_id, scope)
        )
        with _naming_the_repository(job_request, descriptor):
            yield job_request, descriptor


def fetched_digest(
    job_request: JobRequest,
    descriptor: Descriptor,
    *,
    fetched: FetchedScripts,
    leave_out: Sequence[Path] = (),
) -> str | None:
    """Return the checksum of a request's scripts, which are fetched if necessary; None if the request has no
    scripts. Raises UsageError, ScriptsError."""
    found = _with_scripts(job_request, descriptor, fetched)
    with _naming_the_repository(found, descriptor):
        return digest_of(found, descriptor, leave_out)


@contextmanager
def _naming_the_repository(job_request: JobRequest, descriptor: Descriptor) -> Iterator[None]:
    """Name the repository in errors about its files, because the files are in a temporary folder."""
    script, folder = descriptor.ml.script, job_request.scripts
    try:
        yield
    except ScriptsError as error:
        if folder is None or script is None or script.git is None:
            raise
        told = str(error).replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
        raise ScriptsError(
            f'ml.script.git: "{script.git}": {told} Make this change in the repository, or in a clone that path names.'
        ) from error


def _with_scripts(
    job_request: JobRequest,
    descriptor: Descriptor,
    fetched: FetchedScripts,
    *,
    before: Callable[[], Job | None] = lambda: None,
) -> JobRequest:
    """If the request's scripts are in a repository or a bucket, fetch them to this machine. Return the
    request with the fetched scripts. Raises UsageError.

    before: function that returns the job of the same id, if that job was submitted before.
    """
    if job_request.script is not None or job_request.scripts is not None:
        return job_request  # The request already has scripts that replace the descriptor's scripts.
    job_request = _use_commit(job_request, descriptor, fetched, before)
    script = descriptor.ml.script
    if script is None or not is_stored(script) or _is_varied(descriptor):
        return job_request
    return dataclasses.replace(job_request, scripts=fetched.of_archive(script), of_copy=True)


def _use_commit(
    job_request: JobRequest, descriptor: Descriptor, fetched: FetchedScripts, before: Callable[[], Job | None]
) -> JobRequest:
    """Return the request with the files of the commit that `[ml.script] git` and `ref` name as its scripts.
    Raises UsageError."""
    script = _repository(descriptor)
    if script is None:
        return job_request
    # The modules are imported here because few jobs have their scripts in a repository.
    from executor.planning.git_fetch import COMMIT

    scripts_vary = _is_varied(descriptor)
    if scripts_vary:
        script = script.model_copy(update={"folder": None, "requirements": None})
    branch = "" if script.ref is None or COMMIT.fullmatch(script.ref) else script.ref
    files = fetched.of_commit(script, _ref_before(before(), branch, script.ref))
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


def _repository(descriptor: Descriptor) -> Script | None:
    """Return the table that names the repository of a request; None if there is no such table. Raises
    UsageError."""
    if any(arm.script is not None and arm.script.git is not None for arm in file_arms(descriptor)):
        raise UsageError(
            "ml.script.git: files that are compared in one job cannot have repositories of their own; compare commits with "
            '[matrix] "ml.script.ref" = [ … ]'
        )
    script = descriptor.ml.script
    if script is None or script.git is None:
        return None
    # If these keys differ between the jobs of a group, each job has its own commit or folder.
    return None if any(_is_varied(descriptor, key) for key in ("git", "ref", "path", "script")) else script


def _ref_before(before: Job | None, branch: str, ref: str | None) -> str | None:
    """Return the commit that the earlier job `before` got from the same branch or tag, because the branch or
    tag may have moved since then. Without such a commit, return `ref`. branch: `ref` if it is a branch or a
    tag, otherwise "".
    """
    if (
        before is None
        or before.git is None
        or before.git.branch != branch
        or (ref is not None and not branch)
    ):
        return ref
    return before.set.get(REF_KEY, ref)


def _is_varied(descriptor: Descriptor, *key: str) -> bool:
    """Return whether the jobs of a group have different values for `[ml.script]` or, if `key` is given, for
    this key in `[ml.script]`."""
    axes = descriptor.matrix.axes if descriptor.matrix is not None else ()
    return any(overlap(read_key_path(each)[0], ("ml", "script", *key)) for each in axes)


def _check_requirements(script: Script, folder: Path) -> None:
    if script.requirements is not None and not (folder / script.requirements).is_file():
        raise UsageError(f"the file {script.requirements} is missing; correct requirements")
