"""Writes a job for this machine into the job store, exactly once per job id. Also warns about programs,
secrets and rights that the job needs and this machine lacks."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import make_folder
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import dataclass, replace
from executor.descriptor import Finding, Severity
from executor.descriptor.checks.command_checks import is_script
from executor.errors import UsageError
from executor.owned_folders import new_owned_folder, remove_unowned
from executor.planning.job_strategy import nodes_on_this_machine
from executor.planning.job_toml import job_toml
from executor.planning.plan import sink_secrets
from executor.planning.request import JobRequest, Submitted, check_id
from executor.planning.requested_job import (
    arm_files,
    check_start,
    find_archive,
    find_scripts,
    new_job_id,
    planned,
    same_job,
    unset_secrets,
)
from executor.planning.rerun_record import keep_request, kept_scripts
from executor.planning.scripts_folder import ScriptsOrigin, copy_scripts

if TYPE_CHECKING:
    from executor.descriptor import Descriptor
    from executor.planning.arms import ArmFiles


def submit(
    job_request: JobRequest,
    descriptor: Descriptor,
    store: DirectoryStore,
    *,
    job_id: str | None = None,
    on_submit: Callable[[str], None] = lambda job_id: None,
) -> Submitted:
    """Write the job of `job_request` into `store`, with a copy of its scripts. Before the job is written,
    `on_submit` is called with the job id.

    An existing job of this id is returned if it has the same content; for any other content UsageError is
    raised.
    """
    if sys.platform != "linux":
        raise UsageError(
            f"benchmarks run on Linux (x86_64, aarch64) with this version, not on {sys.platform}"
        )
    if job_id is not None:
        check_id(job_id)
    record = JobRecord(store, job_id or new_job_id(job_request, descriptor))
    nodes = nodes_on_this_machine(descriptor)
    arms = arm_files(descriptor, leave_out=[store.folder])
    originals = _originals(job_request, descriptor, arms)
    copies = {arm: ScriptsOrigin(path=kept_scripts(record, nodes=nodes, arm=arm)) for arm in originals}
    job = planned(
        job_request,
        descriptor,
        job_id=record.job_id,
        store=store,
        scripts=copies.get(None),
        arms={name: replace(each, scripts=copies.get(name)) for name, each in arms.items()},
    )
    on_submit(record.job_id)
    if not record.exists():
        check_start(job, os.environ)
        with job_draft(store, record.job_id) as draft:
            for arm, origin in originals.items():
                copy_scripts(origin, draft.scripts(nodes=nodes, arm=arm), leave_out=[store.folder])
            files = originals.get(None) or find_archive(job_request, descriptor)
            keep_request(draft.record, job_request, files, leave_out=[store.folder])
            # The job is published last, because an agent may start as soon as the job exists, and the agent
            # needs the scripts.
            if draft.publish(job_toml(job).encode()):
                return Submitted(record, job, new=True)
    there = record.job()
    same_job(there, job, job_request)
    return Submitted(record, there, new=False)


def _originals(
    job_request: JobRequest, descriptor: Descriptor, arms: Mapping[str, ArmFiles]
) -> dict[str | None, ScriptsOrigin]:
    """Return the scripts of each arm that has its own scripts, by the arm's name, and the job's scripts under
    None."""
    found: dict[str | None, ScriptsOrigin | None] = {name: each.scripts for name, each in arms.items()}
    found[None] = find_scripts(job_request, descriptor)
    return {arm: origin for arm, origin in found.items() if origin is not None}


_DRAFTS = ".drafts"
"""Folder in the store for drafts of jobs. A draft is published by a rename. No job can have this name as its
id."""


@dataclass(frozen=True)
class JobDraft:
    """A job that is being written and is not visible to other commands yet."""

    store: DirectoryStore
    """Store of the finished job."""
    record: JobRecord
    """Record of the draft, with the same keys as the finished job."""

    def scripts(self, *, nodes: int = 1, arm: str | None = None) -> Path:
        """Return the path of the draft's copy of the scripts."""
        return kept_scripts(self.record, nodes=nodes, arm=arm)

    def publish(self, descriptor: bytes) -> bool:
        """Publish the draft as a job of the store; return False if the store already has a job of this id.
        Raises StoreError."""
        self.record.store.put(self.record.key("job.toml"), descriptor)
        job_id = self.record.job_id
        target = self.store.folder / job_id
        try:
            # A rename fails if a non-empty folder has the new name, so only one of several submissions of the
            # same job id succeeds.
            _record_folder(self.record).rename(target)
        except OSError as error:
            if JobRecord(self.store, job_id).exists():
                return False
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise StoreError(
                    f"{target} already exists and holds no job; move the folder away, or give another --job-id"
                ) from error
            raise _unwritable(error) from error
        return True


@contextmanager
def job_draft(store: DirectoryStore, job_id: str) -> Iterator[JobDraft]:
    """Yield a new draft of the job `job_id`. After the `with` block, a draft that was not published is removed.
    Raises StoreError."""
    remove_abandoned(store)
    with ExitStack() as stack:
        try:
            folder = new_owned_folder(store.folder / _DRAFTS, private=store.folder, stack=stack)
            stack.callback(_remove, folder)
            draft = JobDraft(store, JobRecord(DirectoryStore(folder), job_id))
            make_folder(draft.scripts().parent, private=store.folder)
        except OSError as error:
            raise _unwritable(error) from error
        yield draft


def remove_abandoned(store: DirectoryStore) -> None:
    """Remove the drafts of killed processes. A draft that cannot be removed is left for the next call."""
    drafts = store.folder / _DRAFTS
    remove_unowned(drafts)
    with suppress(OSError):
        drafts.rmdir()  # fails while another job is being written


def _record_folder(record: JobRecord) -> Path:
    assert isinstance(record.store, DirectoryStore)
    return record.store.folder / record.job_id


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()  # fails while another job is being written


def _unwritable(error: OSError) -> StoreError:
    return StoreError(
        f"the job store cannot be written: {error.filename}: {error.strerror}; name another with --store"
    )


def preflight(job_request: JobRequest, descriptor: Descriptor) -> list[Finding]:
    """Return warnings about secrets, programs and rights that the job needs and this machine lacks."""
    return [
        Finding(file=str(job_request.file), path=path, problem=problem, fix=fix, severity=Severity.WARNING)
        for path, problem, fix in _missing(descriptor)
    ]


def _missing(descriptor: Descriptor) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Yield the descriptor's key, the problem and the fix for everything that this machine lacks."""
    for key, name in unset_secrets(descriptor.env.secrets, sink_secrets(descriptor), os.environ):
        problem = f"the environment variable {name} is not set here"
        yield key, problem, f"export {name} before `bai run`, which would refuse to start"
    for index, mount in enumerate(descriptor.mounts):
        if os.geteuid() != 0:
            fix = "run the command as root, or with --on ec2"
            yield ("mounts", index), "only root may mount, but you are not root here", fix
        elif not mount.type.is_installed():
            problem = f"there is no {mount.type.program} here"
            yield ("mounts", index, "type"), problem, f"install the package {mount.type.package}"
    if descriptor.env.container is not None and shutil.which("podman") is None:
        fix = "install the package podman before `bai run`"
        yield ("env", "container"), "podman is not on PATH here", fix
    if (program := missing_program(descriptor)) is not None:
        fix = "install the program, correct its name, or write its path"
        yield ("ml", "benchmark_code"), f"no program {program} is on PATH here", fix


def missing_program(descriptor: Descriptor) -> str | None:
    """Return the command's program if the program must be on PATH but is not found; None if nothing is missing."""
    ml = descriptor.ml
    program = _program_on_path(ml.benchmark_code or "")
    # The program is not searched here if requirements may install it, or if the benchmark runs in a
    # container, which has its own programs.
    if program is None or (ml.script is not None and ml.script.requirements) or descriptor.env.container:
        return None
    python = descriptor.env.python
    folders = [str(Path(python).expanduser().parent)] if python else []
    path = descriptor.env.vars.get("PATH", os.environ.get("PATH") or os.defpath)
    return None if shutil.which(program, path=os.pathsep.join([*folders, path])) else program


def _program_on_path(code: str) -> str | None:
    """Return the program of a command if the program is looked up on PATH; None if the command is a path, a
    variable or a script."""
    try:
        words = [] if is_script(code) else shlex.split(code)
    except ValueError:  # reported elsewhere
        return None
    return words[0] if words and not re.search(r"^~|[/$]", words[0]) else None
