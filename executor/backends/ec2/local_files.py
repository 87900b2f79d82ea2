"""The local files of a job on EC2, as objects of the staging bucket: scripts and data."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from bai_agent.job.descriptor import Source, SourceKind
from bai_agent.job.schema.source_schemes import file_path
from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.staging_bucket import Upload
from executor.descriptor import Descriptor
from executor.errors import ScriptsError
from executor.planning.job_sources import Uploaded, job_sources
from executor.planning.scripts_folder import ScriptsOrigin, survey_scripts

_DATE = 315_532_800
"""Time of all packed files, 1980-01-01, which is the earliest of zip archives."""
_PIECE = 2**20


@dataclass(frozen=True, kw_only=True)
class LocalFiles:
    """Files of this machine, and their objects in the bucket."""

    uploads: tuple[Upload, ...]
    sources: Mapping[Path, Uploaded]
    """Absolute path → its object."""


@contextmanager
def local_files(
    descriptor: Descriptor, folder: Path, scripts: ScriptsOrigin | None, *, bucket: str, region: str | None
) -> Iterator[LocalFiles]:
    """Yield the files that `descriptor`, which is in `folder`, and `scripts` include; packed folders exist
    until the end of the block.

    The same content has the same keys. Raises ScriptsError, PlanError.
    """
    sources = job_sources(descriptor, scripts=scripts, folder=folder, data_root=None, home=Path("/root"))
    with TemporaryDirectory(prefix="bai-upload-") as workspace:
        uploads: list[Upload] = []
        known: dict[Path, Uploaded] = {}
        for source in sources:
            path = file_path(source.src)
            if path is None or path in known:
                continue
            upload, known[path] = _take(
                source, path, Path(workspace, str(len(known))), bucket=bucket, region=region
            )
            uploads.append(upload)
        yield LocalFiles(uploads=tuple(uploads), sources=known)


def pack(folder: Path, archive: Path) -> None:
    """Write the files of `folder` that are not ignored as a tar: the same bytes for the same names, modes and contents."""
    root = folder.resolve()
    with archive.open("wb") as out, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file in survey_scripts(folder).files:
            member = tarfile.TarInfo(file.path.as_posix())
            member.mtime = _DATE
            if file.link is not None:
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, file.link, 0o777
                tar.addfile(member)
                continue
            with (root / file.path).open("rb") as content:
                status = os.fstat(content.fileno())
                member.size = status.st_size
                member.mode = 0o755 if status.st_mode & 0o100 else 0o644
                tar.addfile(member, content)


def _take(
    source: Source, path: Path, archive: Path, *, bucket: str, region: str | None
) -> tuple[Upload, Uploaded]:
    file = path
    try:
        folder = path.is_dir()
        if folder:
            pack(path, archive)
            file = archive
        with file.open("rb") as content:
            sha256, size = _sum(content)
    except OSError as error:
        raise ScriptsError(f"{error.filename or path}: cannot be read: {error.strerror}.") from error
    if source.kind is SourceKind.SCRIPTS:
        key = f"scripts/{sha256}.tar" if folder else f"scripts/{sha256}/{path.name}"
    else:
        key = f"data/{sha256}/{path.name}" + (".tar" if folder else "")
    return (
        Upload(key=key, path=file, size=size, what=f"{path.name}/" if folder else path.name),
        Uploaded(src=f"s3://{bucket}/{key}", sha256=sha256, size=size, packed=folder, region=region),
    )


def _sum(content: BinaryIO) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    while piece := content.read(_PIECE):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size
