"""Resolves references to earlier jobs in a descriptor: `job:last/model.pt` becomes the artifact of one job,
with its checksum. A reference to a checkpoint becomes the checkpoint of one job."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent.errors import RecordError
from bai_agent.generations.checkpoint_marker import CheckpointRecord, marker_digest
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.restart_tables import CheckpointOrigin
from bai_agent.job.descriptor.source_tables import Unpack
from bai_agent.job.outcome import Status
from bai_agent.job.record import JobRecord
from bai_agent.job.schema.declared import as_kind
from bai_agent.job.schema.source_schemes import file_path
from bai_agent.job.store import StoredObject
from bai_agent.light_dataclass import dataclass, replace
from executor.descriptor.job_reference import (
    JobReference,
    artifact_mistake,
    read_reference,
    refers_to_job,
    with_job_of,
)
from executor.descriptor.overrides import Override
from executor.descriptor.service_tables import SourceTable
from executor.descriptor.toml_text import ItemName, overlap
from executor.errors import UsageError
from executor.jobs.job_lookup import did_you_mean, find_reference
from executor.planning.arms import FileArm
from executor.planning.job_sources import FoundCheckpoint
from executor.planning.scripts_folder import content_digest
from executor.records.reading import result_of

if TYPE_CHECKING:
    from executor.descriptor.model import CheckpointTable, Descriptor
    from executor.jobs.scope import JobScope
    from executor.planning.request import JobRequest

CHECKPOINT_KEY = "checkpoint.from"
_MOST_FILES = 1000
"""Maximum number of files in a referenced folder of artifacts. Each file becomes a source of the
descriptor."""
_NAMED = 5
"""Maximum number of artifacts that an error message names."""
_WRITTEN = ("id", "md5", "sha256", "unpack", "mode")
"""Keys of a source that are copied to the artifacts that replace it."""


@dataclass(frozen=True, kw_only=True)
class ArtifactSource(SourceTable):
    """An artifact of another job."""

    size: int | None = None
    etag: str | None = None
    endpoint: str | None = None


def without_earlier_jobs(descriptor: Descriptor) -> Descriptor:
    """Return the descriptor without its references to artifacts and checkpoints of other jobs, for checks
    that must not read other jobs."""
    kept = [each for each in descriptor.data.sources if not refers_to_job(each.src)]
    descriptor = _with_sources(descriptor, kept)
    if descriptor.checkpoint is None:
        return descriptor
    return descriptor.model_copy(update={"checkpoint": replace(descriptor.checkpoint, from_=None)})


def use_earlier_jobs(
    job_request: JobRequest, descriptor: Descriptor, scope: JobScope, *, job_id: str | None
) -> tuple[JobRequest, Descriptor]:
    """Return the request and its descriptor. References such as `job:last/model.pt` are replaced by the
    artifacts or the checkpoint of one job.

    The request names the jobs by their ids, so that `--like` uses the same jobs. job_id: the id that the user
    gave. If a job with the id `job_id` exists, the references name the earlier jobs that this job used.
    Raises UsageError, StoreError.
    """
    checkpoint = descriptor.checkpoint
    has_origin = checkpoint is not None and checkpoint.from_ is not None
    if not has_origin and not any(refers_to_job(each.src) for each in _every_source(descriptor)):
        return job_request, descriptor
    before = job_before(job_id, scope)
    sources: list[SourceTable] = []
    pins: list[Override] = []
    for index, each in enumerate(descriptor.data.sources):
        key = f"data.sources[{index}].src"
        found, src = _resolved(each, scope, key=key, before=before)
        sources += found
        if src != each.src:
            pins.append(pin(key, ("data", "sources", index, "src"), src))
    used = _with_arms(_with_sources(descriptor, sources), scope)
    if checkpoint is not None and has_origin:
        table, src = _find_checkpoint(checkpoint, scope, before=before)
        used = used.model_copy(update={"checkpoint": table})
        if src != checkpoint.from_:
            pins.append(pin(CHECKPOINT_KEY, ("checkpoint", "from"), src))
    return replace(job_request, overrides=pinned(job_request.overrides, pins, descriptor)), used


def pin(key: str, path: tuple[str | int, ...], src: str) -> Override:
    """Return the value that replaces a reference in the descriptor."""
    return Override(option=f"--set {key}", key=key, path=path, value=src, typed=False)


def pinned(
    given: Sequence[Override], pins: Sequence[Override], descriptor: Descriptor
) -> tuple[Override, ...]:
    """Return the overrides of the descriptor, with each reference replaced by an address that names a single
    job."""
    places = {each.path: each for each in pins}
    kept = []
    for each in given:
        place = tuple(
            _position(step, descriptor) if isinstance(step, ItemName) else step for step in each.path
        )
        if place not in places and any(overlap(place, one) for one in places):
            # The user has set the whole list of sources, so a single source of the list cannot be set in
            # addition.
            return tuple(given)
        if place not in places:
            kept.append(each)
    return (*kept, *pins)


def _position(item: ItemName, descriptor: Descriptor) -> int | ItemName:
    ids = [each.id for each in descriptor.data.sources]
    return ids.index(item.name) if item.name in ids else item


def _every_source(descriptor: Descriptor) -> list[SourceTable]:
    arms = descriptor.repeat.arms if descriptor.repeat is not None else ()
    own = [source for arm in arms if isinstance(arm, FileArm) for source in arm.sources]
    return [*descriptor.data.sources, *own]


def _with_sources(descriptor: Descriptor, sources: Sequence[SourceTable]) -> Descriptor:
    data = descriptor.data.model_copy(update={"sources": list(sources)})
    return descriptor.model_copy(update={"data": data})


def _with_arms(descriptor: Descriptor, scope: JobScope) -> Descriptor:
    """Return the descriptor with artifacts in place of references, for each arm that has sources of its
    own."""
    if descriptor.repeat is None:
        return descriptor
    arms = tuple(
        arm.model_copy(
            update={
                "sources": [
                    found
                    for index, each in enumerate(arm.sources)
                    for found in _resolved(each, scope, key=f"data.sources[{index}].src")[0]
                ]
            }
        )
        if isinstance(arm, FileArm)
        else arm
        for arm in descriptor.repeat.arms
    )
    return descriptor.model_copy(update={"repeat": replace(descriptor.repeat, arms=arms)})


def job_before(job_id: str | None, scope: JobScope) -> Job | None:
    """Return the job of this id; None if there is no such job. The job's `set` contains the values that
    overrode its descriptor."""
    record = scope.with_id(job_id) if job_id is not None else None
    return None if record is None else record.job()


def _resolved(
    source: SourceTable, scope: JobScope, *, key: str, before: Job | None = None
) -> tuple[Sequence[SourceTable], str]:
    """Return the sources that replace `source`, and the address of `source` with the earlier job's id."""
    if not refers_to_job(source.src):
        return [source], source.src
    meant = before.set.get(key) if before is not None else None
    reference = read_reference(with_job_of(meant, source.src))
    try:
        record = _succeeded(reference, scope)
        return _artifacts(record, reference, source), reference.of(record.job_id)
    except (UsageError, RecordError) as error:
        if before is not None and (kept := _as_before(source, reference, before)):
            return kept, reference.of(reference.job)
        raise UsageError(f'{key}: "{source.src}": {error}') from error


def _as_before(source: SourceTable, reference: JobReference, before: Job) -> list[ArtifactSource]:
    """Return the artifacts that replaced `source` when the job `before` was submitted. Empty if the record of
    `before` does not contain such artifacts."""
    mark, wanted = f"/{reference.job}/artifacts/", reference.artifact or ""
    whole = not wanted or wanted.endswith("/")
    found: dict[str, ArtifactSource] = {}
    for each in before.sources:
        name = str(file_path(each.src) or each.src).partition(mark)[2]
        if name and (name == wanted or (whole and name.startswith(wanted))):
            path = f"{source.path.rstrip('/')}/{name.removeprefix(wanted)}" if whole else source.path
            written = {key: getattr(source, key) for key in _WRITTEN}
            kept = {key: getattr(each, key) for key in ("src", "size", "etag", "region", "endpoint")}
            sha256 = source.sha256 or each.sha256
            found[name] = ArtifactSource(path=path, **{**written, **kept, "sha256": sha256})
    return list(found.values())


def _succeeded(reference: JobReference, scope: JobScope) -> JobRecord:
    """Return the job that the reference names. Raises UsageError if the job does not exist or has not
    succeeded."""
    record = find_reference(reference, scope.stores())
    result = result_of(record)
    if result is None:
        raise UsageError(
            f"the job {record.job_id} has not ended; wait for it: `bai status {record.job_id} --wait`"
        )
    if result.status != Status.SUCCEEDED.value:
        raise UsageError(
            f'the job {record.job_id} ended as "{result.outcome}"; name a job that succeeded: `bai list` shows them'
        )
    return record


def _artifacts(record: JobRecord, reference: JobReference, source: SourceTable) -> list[SourceTable]:
    """Return one source for an artifact, or one source for each file of a folder of artifacts. Raises
    UsageError."""
    wanted, found = reference.artifact or "", _kept(record, reference)
    if wanted in found:
        return [_artifact(record, found[wanted], source, path=source.path)]
    if wanted and not wanted.endswith("/"):
        raise UsageError(f"the job {record.job_id} has no artifact {wanted}; {_hint(wanted, list(found))}")
    below = {name.removeprefix(wanted): each for name, each in found.items() if name.startswith(wanted)}
    if not below:
        what = f"artifacts in {wanted}" if wanted else "artifacts"
        raise UsageError(f"the job {record.job_id} has no {what}; {_hint(wanted, list(found))}")
    _check_folder(record, source, len(below))
    folder = source.path.rstrip("/")
    return [_artifact(record, each, source, path=f"{folder}/{name}") for name, each in below.items()]


def _check_folder(record: JobRecord, source: SourceTable, files: int) -> None:
    """Raise UsageError if a folder of artifacts cannot replace `source`: it has too many files, or `source`
    has a checksum or is to be unpacked. files: number of artifacts in the folder."""
    if files > _MOST_FILES:
        raise UsageError(
            f"the job {record.job_id} has {files:,} artifacts in this folder, but a source has at most {_MOST_FILES:,}; "
            "put them into an archive, and use unpack"
        )
    if source.md5 or source.sha256 or source.unpack is not Unpack.NO:
        raise UsageError("a folder has no checksum and is not unpacked; remove md5, sha256 and unpack")


def _kept(record: JobRecord, reference: JobReference) -> dict[str, StoredObject]:
    """Return the job's artifacts by their paths. Raises UsageError if the path of a referenced artifact would
    lead out of the artifacts' folder."""
    place, wanted = record.key("artifacts/"), reference.artifact or ""
    found = {each.key.removeprefix(place): each for each in record.store.find(place)}
    for name in found:
        is_meant = name.startswith(wanted) if wanted.endswith("/") or not wanted else name == wanted
        if is_meant and (mistake := artifact_mistake(reference.of(record.job_id, name))) is not None:
            # Another program wrote this artifact's path into the record, so the path could lead anywhere on
            # the machine.
            raise UsageError(f"the job {record.job_id} has an artifact that cannot be used: {mistake[0]}")
    return found


def _hint(wanted: str, names: Sequence[str]) -> str:
    """Return a hint with names of artifacts that exist."""
    if not names:
        return "list the files to keep in [output] artifacts of the job's descriptor"
    if any(name.startswith(f"{wanted}/") for name in names):
        return f'it is a folder: write a slash at its end, "{wanted}/"'
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return did_you_mean(wanted, names, f"it has {', '.join(names[:_NAMED])}{more}")


def _artifact(record: JobRecord, item: StoredObject, source: SourceTable, *, path: str) -> ArtifactSource:
    """Return the source of one artifact, with its checksum: SHA-256 on this machine, S3's ETag in a bucket."""
    kept = {name: getattr(source, name) for name in _WRITTEN}
    folder = record.store.folder
    if folder is not None:
        file = folder.absolute() / item.key
        found = _sha256(file, below=folder.absolute() / record.key("artifacts"))
        if source.sha256 not in (None, found):
            raise UsageError(f"the artifact's SHA-256 is {found}; correct sha256, or remove it")
        return ArtifactSource(src=file.as_uri(), path=path, **{**kept, "sha256": found})
    store = record.job().store
    return ArtifactSource(
        src=f"{record.store.url}/{item.key}",
        path=path,
        size=item.size,
        etag=item.etag.strip('"') or None,
        region=store.region if store is not None else None,
        endpoint=store.endpoint if store is not None else None,
        **kept,
    )


def _sha256(file: Path, *, below: Path) -> str:
    """Return the SHA-256 of a file. Raises UsageError if the file is reached through a symbolic link below
    the folder `below`."""
    way = [file, *file.parents]
    for each in way[: way.index(below) + 1]:
        if each.is_symlink():
            raise UsageError(f"{each} is a symbolic link; an artifact is a file of the job itself")
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as content:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"{file} is not a file")
            return content_digest(content).hex()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def _find_checkpoint(
    written: CheckpointTable, scope: JobScope, *, before: Job | None
) -> tuple[FoundCheckpoint, str]:
    """Return the table `written` with the checkpoint that its key `from` names, and the value of `from` with
    the earlier job's id.

    before: the new job's record, if the new job was already submitted. If the first submission named the same
    earlier job, the checkpoint of the first submission is used again, because the earlier job may be gone.
    Raises UsageError, StoreError.
    """
    text = written.from_ or ""
    if before is not None:
        text = with_job_of(before.set.get(CHECKPOINT_KEY), text)
        if (kept := _checkpoint_before(written, text, before)) is not None:
            return kept, text
    try:
        record = find_reference(read_reference(text), scope.stores())
        origin = _newest_checkpoint(record)
    except (UsageError, RecordError) as error:
        raise UsageError(f'{CHECKPOINT_KEY}: "{written.from_}": {error}') from error
    return as_kind(FoundCheckpoint, written, origin=origin, store=record.store.url), f"job:{record.job_id}"


def _checkpoint_before(written: CheckpointTable, text: str, before: Job) -> FoundCheckpoint | None:
    """Return the table with the checkpoint from which the job `before` was submitted. None if `before` was
    submitted without a checkpoint, or if the reference `text` names another job."""
    origin = before.checkpoint.origin if before.checkpoint is not None else None
    if origin is None or before.store is None or text != before.set.get(CHECKPOINT_KEY, f"job:{origin.job}"):
        return None
    return as_kind(FoundCheckpoint, written, origin=origin, store=before.store.url)


def _newest_checkpoint(record: JobRecord) -> CheckpointOrigin:
    """Return the newest complete checkpoint of an ended job or, if the job saved no checkpoint, the
    checkpoint from which it began. Raises UsageError."""
    job_id = record.job_id
    if result_of(record) is None:
        raise UsageError(
            f"the job {job_id} has not ended; wait for it with `bai status {job_id} --wait`, or end it with `bai cancel {job_id}`"
        )
    job = record.job()
    checkpoint, attempt = job.checkpoint, job.job.attempt
    if checkpoint is None:
        raise UsageError(f"the job {job_id} has no [checkpoint], so no checkpoint was saved")
    if checkpoint.shared:
        raise UsageError(
            f"the job {job_id} keeps its checkpoints in the shared folder {checkpoint.path}, not in its record; read the files of this folder"
        )
    found = CheckpointRecord(AttemptRecord(record, attempt)).newest_whole()
    if found is not None:
        return CheckpointOrigin(job=job_id, name=found.name, sha256=marker_digest(found), attempt=attempt)
    if checkpoint.origin is None:
        raise UsageError(f"the job {job_id} has kept no complete checkpoint")
    # The job ended before it saved a checkpoint of its own.
    earlier = JobRecord(record.store, checkpoint.origin.job)
    if not any(
        each.name == checkpoint.origin.name and marker_digest(each) == checkpoint.origin.sha256
        for each in CheckpointRecord(AttemptRecord(earlier, checkpoint.origin.attempt)).markers()
    ):
        raise UsageError(
            f"the job {job_id} has kept no checkpoint of its own, and {checkpoint.origin.title}, from which it began, is gone"
        )
    return checkpoint.origin
