"""The staging bucket, from which instances download their files. A file's key is made from its content, so
the same content is uploaded only once. A job's local scripts and data become objects in the staging
bucket."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from bai_agent.aws.credentials import from_botocore
from bai_agent.aws.s3_client import bucket_region, endpoint_of
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.job.schema.source_schemes import file_path
from bai_agent.job.store import JobStore, open_store
from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.session import AwsSession
from executor.configuration.config import Settings
from executor.descriptor import Descriptor
from executor.errors import ScriptsError, UsageError
from executor.planning.job_sources import Uploaded, job_sources
from executor.planning.scripts_folder import ScriptsOrigin, survey_scripts

_AT_A_TIME = 4
_DATE = 315_532_800
"""Modification time of all packed files: 1980-01-01, the earliest time that zip archives support."""
_PIECE = 2**20


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A file to upload. The file's `key` in the bucket is made from its content."""

    key: str
    path: Path
    size: int
    what: str
    """Name of the file in messages, for example "scripts" or "data/train.csv"."""


def staging_bucket(settings: Settings) -> JobStore:
    """Return the staging bucket as a store of objects. Raises UsageError, StoreError."""
    aws = AwsSession(settings.need_region(), settings.aws_profile)
    return open_store(
        f"s3://{settings.need_bucket()}", region=aws.region, credentials=from_botocore(aws.credentials())
    )


def check_region(settings: Settings) -> None:
    """Raise UsageError if the staging bucket is in a region other than the configured region.

    This machine and the instances sign every request for the configured region, and S3 refuses requests that
    are signed for a region other than the bucket's. If S3 does not report the bucket's region, the configured
    region is assumed to be right.
    """
    bucket, region = settings.need_bucket(), settings.need_region()
    there = bucket_region(
        bucket, endpoint=endpoint_of(os.environ), environment={**os.environ, "AWS_REGION": region}
    )
    if there != region:
        raise UsageError(
            f'the bucket {bucket} lies in {there}, but the configured region is {region}; write region = "{there}" into the '
            "configuration, or use a bucket in the configured region; [aws.ec2] region may name another region for the instances"
        )


def missing(bucket: JobStore, uploads: Sequence[Upload]) -> list[Upload]:
    """Return the `uploads` that are not in the bucket yet, without duplicates. Raises StoreError."""
    different = list({each.key: each for each in uploads}.values())
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="look") as pool:
        there = pool.map(
            lambda each: any(found.key == each.key for found in bucket.find(each.key)), different
        )
        return [each for each, found in zip(different, there, strict=True) if not found]


def upload(
    bucket: JobStore, uploads: Sequence[Upload], *, on_upload: Callable[[Upload], None] = lambda upload: None
) -> None:
    """Upload the objects that the bucket lacks; `on_upload` is called before each. Raises StoreError."""

    def bring(each: Upload) -> None:
        on_upload(each)
        bucket.put_file(each.key, each.path)

    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="upload") as pool:
        for done in [pool.submit(bring, each) for each in missing(bucket, uploads)]:
            done.result()


@dataclass(frozen=True, kw_only=True)
class LocalFiles:
    """Files of this machine, with the objects in the staging bucket that will contain them."""

    uploads: tuple[Upload, ...]
    sources: Mapping[Path, Uploaded]
    """Absolute path → its object in the bucket."""


@contextmanager
def local_files(
    descriptor: Descriptor, folder: Path, scripts: ScriptsOrigin | None, *, bucket: str, region: str | None
) -> Iterator[LocalFiles]:
    """Yield the local files that `scripts` and `descriptor` include. folder: the descriptor's folder. Packed
    folders exist until the end of the `with` block. Files of the same content have the same key. Raises
    ScriptsError, PlanError.
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
    """Write the files of `folder`, except ignored files, as a tar archive. The same names, modes and contents
    produce the same bytes."""
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
