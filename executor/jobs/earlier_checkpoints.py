"""Checkpoints of earlier jobs: `[checkpoint] from = "job:last"` becomes the checkpoint of one job, with its checksum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bai_agent.errors import RecordError
from bai_agent.generations.checkpoint_marker import CheckpointMarker, CheckpointRecord, marker_digest
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import CheckpointOrigin, Job
from bai_agent.job.record import JobRecord
from bai_agent.job.schema.declared import as_kind
from bai_agent.light_dataclass import replace
from executor.descriptor.job_reference import read_reference, with_job_of
from executor.errors import UsageError
from executor.jobs.job_lookup import find_reference
from executor.planning.checkpoints import FoundCheckpoint
from executor.records.reading import result_of

if TYPE_CHECKING:
    from executor.descriptor.model import CheckpointTable, Descriptor
    from executor.jobs.scope import JobScope

KEY = "checkpoint.from"


def find_checkpoint(
    written: CheckpointTable, scope: JobScope, *, before: Job | None
) -> tuple[FoundCheckpoint, str]:
    """Return the table with the checkpoint that its key `from` means, and that key's value with the job's id.

    before: the same job if it was submitted before. It keeps its checkpoint if the same earlier job is meant, which may be gone.
    Raises UsageError, StoreError.
    """
    text = written.from_ or ""
    if before is not None:
        text = with_job_of(before.set.get(KEY), text)
        if (kept := _as_before(written, text, before)) is not None:
            return kept, text
    try:
        record = find_reference(read_reference(text), scope.stores())
        origin = _newest(record)
    except (UsageError, RecordError) as error:
        raise UsageError(f'{KEY}: "{written.from_}": {error}') from error
    return as_kind(FoundCheckpoint, written, origin=origin, store=record.store.url), f"job:{record.job_id}"


def _as_before(written: CheckpointTable, text: str, before: Job) -> FoundCheckpoint | None:
    """Return the table with the checkpoint of the job `before`; None if the reference `text` means another job, or it has none."""
    origin = before.checkpoint.origin if before.checkpoint is not None else None
    if origin is None or before.store is None or text != before.set.get(KEY, f"job:{origin.job}"):
        return None
    return as_kind(FoundCheckpoint, written, origin=origin, store=before.store.url)


def without_origin(descriptor: Descriptor) -> Descriptor:
    """Return the descriptor without the checkpoint of another job, which a check alone does not look up."""
    if descriptor.checkpoint is None:
        return descriptor
    return descriptor.model_copy(update={"checkpoint": replace(descriptor.checkpoint, from_=None)})


def _newest(record: JobRecord) -> CheckpointOrigin:
    """Return the newest complete checkpoint of an ended job, or the one that it began from. Raises UsageError."""
    job_id = record.job_id
    if result_of(record) is None:
        raise UsageError(
            f"the job {job_id} has not ended; wait for it with `bai status {job_id} --wait`, or end it with `bai cancel {job_id}`"
        )
    job = record.job()
    checkpoint, attempt = job.checkpoint, job.job.attempt
    if checkpoint is None:
        raise UsageError(f"the job {job_id} has no [checkpoint], so none was kept")
    if checkpoint.shared:
        raise UsageError(
            f"the job {job_id} has its checkpoints in the shared folder {checkpoint.path}, and none in its record; read them there"
        )
    found = _complete(record, attempt)
    if found is not None:
        return CheckpointOrigin(job=job_id, name=found.name, sha256=marker_digest(found), attempt=attempt)
    if checkpoint.origin is None:
        raise UsageError(f"the job {job_id} has kept no complete checkpoint")
    # It ended before it kept one of its own.
    earlier = JobRecord(record.store, checkpoint.origin.job)
    if not any(
        each.name == checkpoint.origin.name and marker_digest(each) == checkpoint.origin.sha256
        for each in CheckpointRecord(AttemptRecord(earlier, checkpoint.origin.attempt)).markers()
    ):
        raise UsageError(
            f"the job {job_id} has kept no checkpoint of its own, and {checkpoint.origin.title}, from which it began, is gone"
        )
    return checkpoint.origin


def _complete(record: JobRecord, attempt: int) -> CheckpointMarker | None:
    checkpoints = CheckpointRecord(AttemptRecord(record, attempt))
    return next((each for each in checkpoints.markers() if checkpoints.has_files(each)), None)
