"""Makes the list of a job's sources for the job descriptor that the agent reads: data, scripts, and the
checkpoint of another job. The module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bai_agent.job.descriptor.restart_tables import Checkpoint, CheckpointOrigin
from bai_agent.job.descriptor.sink_tables import Store
from bai_agent.job.descriptor.source_tables import Source, SourceKind, Unpack
from bai_agent.job.schema.declared import as_kind
from bai_agent.job.schema.source_schemes import file_path, scheme_of
from bai_agent.light_dataclass import dataclass, replace
from executor.descriptor.checks.file_checks import local_path
from executor.descriptor.job_reference import refers_to_job
from executor.descriptor.model import CheckpointTable, Descriptor, Script
from executor.descriptor.service_tables import SourceTable
from executor.errors import PlanError
from executor.planning.arms import ArmFiles, file_arms
from executor.planning.scripts_folder import ScriptsOrigin


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """A local file or folder in the staging bucket."""

    src: str
    sha256: str
    size: int
    packed: bool
    """Whether the upload is a folder, packed as a tar archive."""
    region: str | None = None


def job_sources(
    descriptor: Descriptor,
    *,
    scripts: ScriptsOrigin | None,
    folder: Path,
    data_root: Path | None,
    home: Path | None,
    arms: Mapping[str, ArmFiles] = MappingProxyType({}),
) -> tuple[Source, ...]:
    """Return all sources of a job whose agent runs on this machine. `PlanInputs` describes the arguments.
    Raises PlanError."""
    of_both = (
        *_scripts(descriptor.ml.script, scripts, folder=folder),
        *(_source(each, folder=folder, data_root=data_root, home=home) for each in descriptor.data.sources),
    )
    if (server := descriptor.used_server) is not None:
        models = (_source(each, folder=folder, data_root=data_root, home=home) for each in server.models)
        of_both = (*of_both, *(replace(each, server=True) for each in models))
    own: list[Source] = []
    for arm in file_arms(descriptor):
        origin = arms[arm.name].scripts if arm.name in arms else None
        found = (
            *_scripts(arm.script, origin, folder=arm.folder),
            *(_source(each, folder=arm.folder, data_root=data_root, home=home) for each in arm.sources),
        )
        own += (replace(each, arm=arm.name) for each in found)
    return (*of_both, *own)


def moved(source: Source, uploads: Mapping[Path, Uploaded]) -> Source:
    """Return `source` for an instance, which reads files of this machine from the staging bucket."""
    path = file_path(source.src)
    if path is None:
        return source
    found = uploads[path]
    if found.packed and (source.unpack is not Unpack.NO or source.md5 or source.sha256):
        raise PlanError(f"data.sources: {path} is a folder, which has no checksum and is not unpacked.")
    return replace(
        source,
        src=found.src,
        sha256=found.sha256,
        size=found.size,
        directory=False,
        unpack=Unpack.INTO if found.packed else source.unpack,
        region=found.region,
        anonymous=False,
    )


def script_folder(script: Script | None, *, folder: Path) -> ScriptsOrigin | None:
    """Return the folder that `script` names; None if `script` does not name a folder. folder: base of
    relative paths."""
    if script is None or script.path is None:
        return None
    return ScriptsOrigin(path=_normal(folder / script.path))


def is_stored(script: Script) -> bool:
    """Return whether `script` names an archive in a bucket."""
    return script.script is not None and scheme_of(script.script) == "s3"


def script_archive(script: Script | None, *, folder: Path) -> ScriptsOrigin | None:
    """Return the archive on this machine that `script` names; None if `script` does not name an archive.
    folder: base of relative paths."""
    if script is None or script.script is None or is_stored(script):
        return None
    return ScriptsOrigin(path=_normal(folder / script.script), is_folder=False)


def _scripts(script: Script | None, scripts: ScriptsOrigin | None, *, folder: Path) -> tuple[Source, ...]:
    if (scripts := scripts or script_folder(script, folder=folder)) is not None:
        return (
            Source(
                src=_normal(scripts.path).as_uri() + ("/" if scripts.is_folder else ""),
                path=scripts.member or ".",
                kind=SourceKind.SCRIPTS,
                directory=scripts.is_folder,
            ),
        )
    if script is not None and is_stored(script):
        raise PlanError(f'ml.script.script: "{script.script}" is in a bucket, and cannot be used here.')
    if (archive := script_archive(script, folder=folder)) is not None:
        return (Source(src=archive.path.as_uri(), path=".", kind=SourceKind.SCRIPTS, unpack=Unpack.INTO),)
    return ()


def _source(written: SourceTable, *, folder: Path, data_root: Path | None, home: Path | None) -> Source:
    src = written.src
    if refers_to_job(src):
        raise PlanError(f'data.sources: "{src}" is an artifact of another job, which cannot be used here.')
    local = local_path(src, folder)
    if local is not None and file_path(src) is None:
        src = _normal(local).as_uri() + ("/" if written.src.endswith("/") else "")
    path = _target(written.path, data_root=data_root, home=home)
    return as_kind(Source, written, src=src, path=path, directory=src.endswith("/"))


def _target(path: str, *, data_root: Path | None, home: Path | None) -> str:
    if path.startswith("~/"):
        if home is None:
            raise PlanError(
                f'data.sources: the path "{path}" starts at a home folder, which is not known. Write an absolute path.'
            )
        path = str(home / path[2:].lstrip("/"))
    if path.startswith("/") and data_root is not None:
        return str(data_root / path.strip("/")) + ("/" if path.endswith("/") else "")
    return path


def _normal(path: Path) -> Path:
    """Return `path` without "." and "..". Symbolic links are not resolved, because resolving links would read
    the disk."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part != "..":
            parts.append(part)
    return Path(*parts)


@dataclass(frozen=True, kw_only=True)
class FoundCheckpoint(CheckpointTable):
    """A `[checkpoint]` table whose key `from` has been resolved to a job."""

    origin: CheckpointOrigin
    store: str
    """Address of the job store that contains the checkpoint."""


def plan_checkpoint(written: CheckpointTable, store: Store | None) -> Checkpoint:
    """Return the checkpoint table for the agents of a job in `store`. Raises PlanError if the checkpoint of
    another job was found, but these agents cannot restore it."""
    if written.from_ is None:
        return as_kind(Checkpoint, written)
    if not isinstance(written, FoundCheckpoint):
        raise PlanError(f'checkpoint.from: "{written.from_}" is another job, which cannot be used here.')
    if store is not None and store.url != written.store:
        # An agent restores checkpoints only from the store of its own job.
        raise PlanError(
            f"checkpoint.from: the job {written.origin.job} is in {written.store}, but this job would be in {store.url}. Run this job where "
            "the other job is, or name a job in the same store."
        )
    return as_kind(Checkpoint, written)
