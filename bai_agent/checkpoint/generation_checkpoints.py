"""Selects the checkpoint from which a generation continues, and restores this checkpoint before the launch.

Each member restores the checkpoint before it launches a generation. After the launch, `periodic.py` saves new
checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bai_agent.benchmark.environment import expand, find_user, working_folder
from bai_agent.checkpoint.keep import ask_patiently
from bai_agent.checkpoint.restore import Restorer
from bai_agent.checkpoint.snapshot import STAGING
from bai_agent.errors import (
    CheckpointError,
    NoSpaceError,
    PullError,
    PullStopped,
    RecordError,
    SetupError,
    StoreError,
)
from bai_agent.files.user_rights import User, user_rights, writable_folder
from bai_agent.generations.checkpoint_marker import (
    SLOTS,
    CheckpointMarker,
    CheckpointRecord,
    checkpoint_number,
    marker_digest,
)
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor.restart_tables import Checkpoint, CheckpointOrigin
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import RestoreEvent
from bai_agent.job.run_directory import write_json
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.nodes.members_file import is_first_member, peers_of
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.stop import RunEndedError

if TYPE_CHECKING:
    # The following modules are not loaded in a job of one node.
    from bai_agent.peers.elastic_monitor import ElasticMonitor

T = TypeVar("T")

_TICK_S = 0.05
_TRIED = 3 * SLOTS
"""Maximum number of checkpoints that a restore tries after the newest checkpoint. Files of older checkpoints
have been overwritten. On a shared file system this is also the maximum number of earlier generations' folders
whose paths the benchmark gets."""


def checkpoint_record(ctx: RunContext) -> CheckpointRecord:
    """Return the record of the job's checkpoints. Without a job store, the record is in the run directory."""
    record = ctx.record or JobRecord(DirectoryStore(ctx.rundir.path), "checkpoints")
    return CheckpointRecord(AttemptRecord(record, ctx.job.job.attempt))


def checkpoint_environment(ctx: RunContext) -> dict[str, str]:
    """Return the environment variables with the path and the name of the benchmark's checkpoints."""
    if ctx.job.checkpoint is None:
        return {}
    variables = {
        "BAI_CHECKPOINT_DIR": str(checkpoint_folder(ctx, ctx.job.checkpoint)),
        "BAI_RESUMED": ctx.resumed,
    }
    if ctx.job.checkpoint.shared:
        variables["BAI_CHECKPOINTS"] = ":".join(ctx.shared_checkpoints)
    return variables


def restore_together(ctx: RunContext, elastic: ElasticMonitor) -> None:
    """Restore the checkpoint that the leader has chosen, as `restore` does. Then wait until the other members
    have restored the same checkpoint. Raises RunEndedError."""
    generation, name = ctx.rundir.generation, ctx.begins_with
    at = checkpoint_number(name) if name is not None else None
    if not _has_origin_here(ctx):
        restore(ctx, None if at is None else _insist(ctx, lambda: checkpoint_record(ctx).marker(at)))
    elastic.restored = generation
    if at is None and (generation == 0 or not ctx.resumed):
        return
    elastic.waits_to_launch = True
    elastic.look_now()
    while elastic.launched < generation:
        ctx.watch.raise_reason()
        ctx.clock.sleep(_TICK_S)
    elastic.waits_to_launch = False


def restore_newest(ctx: RunContext) -> None:
    """Restore the newest checkpoint of earlier generations, as `restore` does. Raises RunEndedError."""
    checkpoint, marker = ctx.job.checkpoint, None
    if checkpoint is not None and not checkpoint.shared and ctx.rundir.generation:
        marker = _insist(ctx, lambda: checkpoint_record(ctx).newest(before=ctx.rundir.generation))
    if not _has_origin_here(ctx):
        restore(ctx, marker)


def restore_origin(ctx: RunContext) -> None:
    """Restore the checkpoint of another job with which this job begins, unless this job already has its own
    checkpoints. Raises RunEndedError.

    The restore happens during the pull, so that the nodes of this job launch together.
    """
    if _is_restored_by_first(ctx):
        return  # The checkpoint folder may be on a file system that the first node has not mounted yet.
    if ctx.job.strategy.nodes == 1 or not _insist(ctx, lambda: checkpoint_record(ctx).numbers()):
        restore(ctx, None)


def _has_origin_here(ctx: RunContext) -> bool:
    """Return whether this agent has restored another job's checkpoint for the first generation."""
    return ctx.rundir.generation == 0 and bool(ctx.resumed)


def restore(ctx: RunContext, marker: CheckpointMarker | None) -> None:
    """Make the checkpoint folder, and restore a checkpoint into the folder, before a generation is launched.
    Raises RunEndedError.

    If the files of a checkpoint do not match its marker, a job of one node restores the previous checkpoint
    with a warning. If the job began with another job's checkpoint, that checkpoint counts as the previous
    checkpoint of the job's first own checkpoint. In a job of several nodes, a node without matching files
    fails, because the first node has the newer checkpoint in its folder.
    """
    checkpoint = ctx.job.checkpoint
    if checkpoint is None:
        return
    folder = checkpoint_folder(ctx, checkpoint)
    user = benchmark_user(ctx)
    begun = ctx.clock.monotonic()
    ctx.resumed, ctx.restored, ctx.shared_checkpoints = "", None, ()
    bytes_brought = 0
    try:
        _make(ctx, checkpoint, folder, user)
    except OSError as error:
        raise _bad(
            f"[checkpoint] path: {error.filename or folder} cannot be made: {error.strerror}"
        ) from error
    with _plain_errors(ctx, folder):
        if checkpoint.shared:
            ctx.shared_checkpoints = _newest_shared(folder.parent, ctx.rundir.generation, user)
            ctx.resumed = next(iter(ctx.shared_checkpoints), "")
        elif marker is not None:
            bytes_brought = _restore(ctx, folder, user, marker)
        if not ctx.resumed and checkpoint.origin is not None:
            bytes_brought = _restore_origin(ctx, folder, user, checkpoint.origin)
    _tell(ctx, bytes_brought, ctx.clock.monotonic() - begun)


@contextmanager
def _plain_errors(ctx: RunContext, folder: Path) -> Iterator[None]:
    """Raise RunEndedError with the reason if a restore fails."""
    try:
        yield
    except OSError as error:
        raise _failed(f"{error.filename or folder}: {error.strerror or error}") from error
    except NoSpaceError as error:
        raise RunEndedError.of(Outcome.DISK_FULL, str(error)) from error
    except PullStopped:
        ctx.watch.raise_reason()
        raise RunEndedError.of(Outcome.INTERRUPTED, "The restore of the checkpoint was stopped.") from None
    except (PullError, CheckpointError) as error:
        ctx.watch.raise_reason()
        raise _failed(str(error)) from error


def checkpoint_folder(ctx: RunContext, checkpoint: Checkpoint) -> Path:
    working = working_folder(ctx.job, ctx.rundir, scripts=ctx.scripts)
    folder = working / expand(checkpoint.path, {"BAI_JOB_ID": ctx.job.job.id})
    return folder / f"g{ctx.rundir.generation}" if checkpoint.shared else folder


def benchmark_user(ctx: RunContext) -> User | None:
    try:
        return find_user(ctx.job.benchmark.user)
    except SetupError as error:
        raise RunEndedError.of(Outcome.PREPARE_FAILED, str(error)) from error


def _make(ctx: RunContext, checkpoint: Checkpoint, folder: Path, user: User | None) -> None:
    """Make the checkpoint folder if the folder does not exist. Raises RunEndedError, OSError."""
    working = working_folder(ctx.job, ctx.rundir, scripts=ctx.scripts)
    is_absolute = Path(checkpoint.path).is_absolute()
    if not is_absolute and not working.is_dir():
        return  # the start of the benchmark reports the error
    if working.is_relative_to(folder) or ctx.rundir.path.is_relative_to(folder):
        raise _bad(
            f'[checkpoint] path "{checkpoint.path}" is the folder of the job itself; name a subfolder, or a folder elsewhere'
        )
    try:
        with user_rights(user):
            folder.mkdir(parents=True, exist_ok=True)
    except PermissionError:
        if user is None or writable_folder(user, folder) is not None:
            raise
        # The benchmark's user cannot replace a folder on this path, so root can create the folder safely.
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, user.uid, user.gid, follow_symlinks=False)
    if is_absolute and is_first_member(ctx):
        _require_own(ctx, checkpoint, folder, user)


def _require_own(ctx: RunContext, checkpoint: Checkpoint, folder: Path, user: User | None) -> None:
    """Raise RunEndedError if the checkpoint folder has files that do not belong to the job, because a restore
    would delete these files."""
    if checkpoint.shared:
        if _has_files(folder, user):
            raise _bad(
                f'[checkpoint] path: {folder} has files of another job; use "$(BAI_JOB_ID)" in the path, or name another folder'
            )
        return
    note = ctx.rundir.checkpoint_folder
    if ctx.record is not None and isinstance(store := ctx.record.store, DirectoryStore):
        # Nodes on the same machine share the checkpoint folder, so they also share the note that the folder
        # belongs to the job.
        note = store.folder / checkpoint_record(ctx).attempt.key(note.name)
    if note.exists():
        return
    if _has_files(folder, user):
        raise _bad(
            f"[checkpoint] path: {folder} is not empty, and a restored checkpoint would replace its content; "
            'use "$(BAI_JOB_ID)" in the path, or name an empty folder'
        )
    write_json(note, {"folder": str(folder)})


def _has_files(folder: Path, user: User | None) -> bool:
    with user_rights(user):
        return any(each.name != STAGING for each in folder.iterdir())


def _newest_shared(path: Path, generation: int, user: User | None) -> list[str]:
    """Return the non-empty folders of earlier generations, at most `_TRIED`, newest first."""
    folders = (path / f"g{each}" for each in reversed(range(generation)))
    with user_rights(user):
        left = (str(each) for each in folders if each.is_dir() and any(each.iterdir()))
        return list(islice(left, _TRIED))


def _restore(ctx: RunContext, folder: Path, user: User | None, newest: CheckpointMarker) -> int:
    """Restore `newest`; return the number of restored bytes. If the files of `newest` are incomplete and the
    job has one node, the most recent earlier checkpoint with complete files is restored. Raises
    CheckpointError."""
    record = checkpoint_record(ctx)
    if _is_restored_by_first(ctx):
        ctx.resumed = newest.name
        return 0
    restorer = _restorer(ctx, folder, user, record)
    older = iter(_insist(ctx, lambda: list(islice(record.markers(before=newest.at), _TRIED))))
    marker: CheckpointMarker | None = newest
    while marker is not None:
        wanted = marker
        is_there = restorer.is_there(wanted)
        if is_there or _insist(ctx, lambda: restorer.restore(wanted)):  # noqa: B023 - called at once
            ctx.resumed, ctx.restored = wanted.name, wanted
            return 0 if is_there else wanted.bytes
        if len(peers_of(ctx.rundir)) > 1:
            raise CheckpointError(
                f"the files of {wanted.name} differ from its marker, and another node may have that checkpoint"
            )
        marker = next(older, None)
        instead = f"{marker.name} is tried instead" if marker is not None else "no earlier checkpoint exists"
        ctx.warn(f"The files of {wanted.name} differ from its marker: {instead}.")
    return 0


def _restore_origin(ctx: RunContext, folder: Path, user: User | None, origin: CheckpointOrigin) -> int:
    """Restore the checkpoint of another job; return the number of restored bytes. Raises CheckpointError if
    the other job's checkpoint has changed."""
    if _is_restored_by_first(ctx):
        ctx.resumed = origin.title
        return 0
    assert ctx.record is not None  # the job descriptor has a store
    record = CheckpointRecord(AttemptRecord(JobRecord(ctx.record.store, origin.job), origin.attempt))
    marker = _insist(ctx, lambda: _origin_marker(record, origin))
    restorer = _restorer(ctx, folder, user, record)
    is_there = restorer.is_there(marker)
    if not is_there and not _insist(ctx, lambda: restorer.restore(marker)):
        raise CheckpointError(f"[checkpoint.origin]: the files of {origin.title} differ from its marker")
    ctx.resumed, ctx.restored = origin.title, marker
    return 0 if is_there else marker.bytes


def _origin_marker(record: CheckpointRecord, origin: CheckpointOrigin) -> CheckpointMarker:
    """Return the marker of `origin`. Raises CheckpointError if the marker is missing or has changed,
    StoreError."""
    at = checkpoint_number(origin.name)
    if at is None:
        raise CheckpointError(f'[checkpoint.origin] name "{origin.name}" is not the name of a checkpoint')
    try:
        marker = record.marker(at)
    except RecordError as error:
        raise CheckpointError(f"[checkpoint.origin]: {origin.title}: {error}") from error
    if marker_digest(marker) != origin.sha256:
        raise CheckpointError(f"[checkpoint.origin]: {origin.title} has changed since this job was submitted")
    return marker


def _is_restored_by_first(ctx: RunContext) -> bool:
    """Return whether the first node restores the checkpoint for this node, because several nodes share the
    machine and the checkpoint folder."""
    assert ctx.job.checkpoint is not None
    is_shared = Path(ctx.job.checkpoint.path).is_absolute() and ctx.node.instance_id is None
    return is_shared and not is_first_member(ctx)


def _restorer(ctx: RunContext, folder: Path, user: User | None, record: CheckpointRecord) -> Restorer:
    return Restorer(
        folder=folder,
        user=user,
        record=record,
        store=ctx.job.store,
        manifest=ctx.rundir.checkpoint_pulled,
        deadline=ctx.clock.monotonic() + ctx.job.limits.pull_timeout.total_seconds(),
        stopping=ctx.watch.stopping,
    )


def _insist(ctx: RunContext, ask: Callable[[], T]) -> T:
    """Return the result of a request to the job store. If the store is unreachable, the request is retried
    within `limits.pull_timeout`. Raises RunEndedError."""
    try:
        return ask_patiently(
            ask, patience=ctx.job.limits.pull_timeout, check=ctx.watch.raise_reason, clock=ctx.clock
        )
    except StoreError as error:
        raise _failed(str(error)) from error


def _tell(ctx: RunContext, size: int, seconds: float) -> None:
    generation = ctx.rundir.generation
    # A missing checkpoint is reported only once. In the first generation a missing checkpoint is not
    # reported, because a job begins without a checkpoint of its own.
    if not ctx.resumed and (generation == 0 or ctx.events.of(RestoreEvent)):
        return
    marker = ctx.restored
    ctx.events.add(
        RestoreEvent(
            generation=generation,
            name=ctx.resumed or None,
            files=len(marker.files) if marker is not None else 0,
            bytes=size,
            seconds=round(seconds, 3),
        )
    )


def _failed(why: str) -> RunEndedError:
    return RunEndedError.of(Outcome.PULL_FAILED, f"The checkpoint could not be restored: {why}.")


def _bad(message: str) -> RunEndedError:
    return RunEndedError.of(Outcome.PREPARE_FAILED, message)
