"""The tables `[[sources]]` and `[[mounts]]`: data, scripts and network file systems of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Annotated

from bai_agent.job.schema.declared import DeclaredTable, Example, Mistake, WrittenAs, wrong
from bai_agent.job.schema.field_types import Md5, Mode, MountTarget, Sha256, shown
from bai_agent.light_dataclass import dataclass


class Unpack(str, Enum):
    """How a pulled archive is unpacked."""

    NO = "no"
    """The archive stays packed, at `path`."""
    INTO = "into"
    """The archive's members are written into the folder `path`, without a copy of the archive."""
    IN_PLACE = "in_place"
    """The archive's members are written beside `path`, without a copy of the archive."""


class SourceKind(str, Enum):
    """The purpose of a source. The purpose decides in which folder a relative `path` starts."""

    DATA = "data"
    SCRIPTS = "scripts"


def _unpack(value: object) -> Unpack:
    choices = {False: Unpack.NO, True: Unpack.INTO, "into": Unpack.INTO, "in_place": Unpack.IN_PLACE}
    for each, unpack in choices.items():
        if type(value) is type(each) and value == each:
            return unpack
    problem = f"{shown(value) if isinstance(value, str) else value} is not one of the choices"
    raise wrong(problem, 'possible: false, true, "into", "in_place"')


@dataclass(frozen=True, kw_only=True)
class WrittenSource(DeclaredTable):
    """Data or scripts that are pulled before the run."""

    src: Annotated[str, Example("s3://bucket/train.npz")]
    path: Annotated[str, Example("/data/train.npz")]
    id: Annotated[str | None, Example("train")] = None
    """A name of the source for other programs. bai only copies this name to the job descriptor."""
    md5: Annotated[Md5 | None, Example("8a61469f7ea1b51cbae51d4f78837e45")] = None
    """The file's MD5, which is checked while the file is written."""
    sha256: Annotated[Sha256 | None, Example("0" * 64)] = None
    """The file's SHA-256, which is checked while the file is written."""
    unpack: Annotated[
        Unpack, WrittenAs(_unpack, {"enum": [False, True, "into", "in_place"]}), Example("into")
    ] = Unpack.NO
    """How an archive is unpacked: `true` or `"into"` puts the archive's members into the folder `path`, and
    `"in_place"` puts the members beside `path`."""
    mode: Annotated[Mode | None, Example("0755")] = None
    """The file's permissions, as a string with an octal number."""
    region: Annotated[str | None, Example("eu-west-1")] = None
    """The bucket's region. Unset: looked up."""
    anonymous: bool = False
    """Whether the bucket is read without credentials."""


@dataclass(frozen=True, kw_only=True)
class Source(WrittenSource):
    """A source as an agent pulls it: an item of `[[sources]]`."""

    src: str
    """An address of one of the schemes in `job/schema/source_schemes.py`."""
    path: str
    """Where the source is put on the machine: absolute, or relative to the folder in which the benchmark
    starts (data) or to the scripts' folder (scripts)."""
    kind: SourceKind = SourceKind.DATA
    directory: bool = False
    """Whether the source is a prefix or folder although `src` does not end in a slash."""
    size: int | None = None
    """Size (bytes). None if unknown."""
    etag: str | None = None
    """The S3 object's ETag, without quotes, if the object must not have changed since the job was planned."""
    endpoint: str | None = None
    """Address of an S3 server other than AWS's; unset: the address in the environment, if any."""
    arm: str | None = None
    """The arm of `[repeat]` that needs the source. If any source names an arm, each arm has its own folders.
    Unset: the source is for all arms."""
    server: bool = False
    """Whether the source is for the server of `[server]` instead of its client. Scripts are for both server
    and client."""


_HELPER_FOLDERS = ("/sbin", "/usr/sbin")
"""Folders in which helper programs of `mount` are searched, in addition to PATH: mount(8)."""


class MountType(str, Enum):
    """How a network file system is mounted."""

    EFS = "efs"
    """Amazon EFS with TLS, by the program mount.efs."""
    NFS = "nfs"
    """NFS version 4, by the program mount.nfs."""

    @property
    def program(self) -> str:
        """The helper program with which `mount` mounts the file system."""
        return f"mount.{self.value}"

    @property
    def package(self) -> str:
        """Name, for messages, of the package that contains the helper program."""
        if self is MountType.EFS:
            return "amazon-efs-utils"
        return "nfs-common (Debian, Ubuntu) or nfs-utils (Amazon Linux)"

    def is_installed(self) -> bool:
        """Return whether the helper program is installed on this machine."""
        # Imported here because few jobs have mounts.
        import os
        import shutil

        path = os.pathsep.join([os.environ.get("PATH", ""), *_HELPER_FOLDERS])
        return shutil.which(self.program, path=path) is not None


_HOST = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_-]{1,63})*\.?"
"""A host name or an IPv4 address. The pattern rejects an empty part and a part of more than 63 characters,
because a lookup of such a name raises UnicodeError instead of OSError."""
_NFS_SRC = re.compile(rf"(?P<server>{_HOST}|\[[0-9A-Fa-f:.]+\]):/[^\s\x00-\x1f\x7f]*")
_EFS_SRC = re.compile(r"fs-[0-9a-f]{8,40}:/[^\s\x00-\x1f\x7f]*")


@dataclass(frozen=True, kw_only=True)
class Mount(DeclaredTable):
    """A network file system that is mounted on each machine before the pull, and unmounted at the job's end:
    see [data.md](data.md#network-file-systems)."""

    type: Annotated[MountType, Example("efs")]
    """`efs`: Amazon EFS, encrypted with TLS, by the package amazon-efs-utils. `nfs`: NFS version 4."""
    src: Annotated[str, Example("fs-0123456789abcdef0:/")]
    """The file system: `fs-…:/FOLDER` with `efs`, `SERVER:/EXPORT` with `nfs`."""
    target: Annotated[MountTarget, Example("/efs")]
    """The absolute path of the folder at which the file system is mounted. The folder must be empty or must
    not exist."""
    iam: Annotated[bool, Example(True)] = False
    """With `efs`: whether the machine authenticates with its IAM role. The file system's policy may require the
    role."""

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        if self.type is MountType.EFS and not _EFS_SRC.fullmatch(self.src):
            problem = f"{shown(self.src)} does not name an EFS file system and a folder in it"
            yield "src", (problem, 'write for example "fs-0123456789abcdef0:/"')
        if self.type is MountType.NFS and not _NFS_SRC.fullmatch(self.src):
            problem = f"{shown(self.src)} does not name an NFS server and an export"
            yield "src", (problem, 'write for example "10.0.0.5:/export"')
        elif self.type is MountType.NFS and _EFS_SRC.fullmatch(self.src):
            problem = f"{shown(self.src)} names an EFS file system, not an NFS server"
            yield "src", (problem, 'write type = "efs", or the DNS name: "fs-….efs.REGION.amazonaws.com:/"')
        if self.iam and self.type is not MountType.EFS:
            yield "iam", ("is for efs", "remove it")

    @property
    def server(self) -> str | None:
        """Name or address of the NFS server. None for EFS, because `mount.efs` finds the server."""
        found = _NFS_SRC.fullmatch(self.src) if self.type is MountType.NFS else None
        return found["server"].strip("[]") if found is not None else None

    def contains(self, path: str) -> bool:
        """Return whether an absolute path is the mount's target or a path below the target."""
        return path == self.target or path.startswith(f"{self.target}/")


def overlapping_target(targets: Sequence[str]) -> tuple[int, str] | None:
    """Return the index of the first target that overlaps an earlier target (the same folder, a parent or a
    subfolder), and the earlier target. Return None if no targets overlap."""
    for index, target in enumerate(targets):
        for earlier in targets[:index]:
            if f"{target}/".startswith(f"{earlier}/") or earlier.startswith(f"{target}/"):
                return index, earlier
    return None
