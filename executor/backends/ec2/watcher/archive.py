"""Builds the watcher's archive in Lambda's format. The archive contains the parts of this package that the
watcher uses, and the wheels that these parts import.

The same sources and wheels produce the same bytes. Lambda takes 50 MB zipped and 250 MB unpacked:
https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import bai_agent
import cloud_init
from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.bundle.wheels import find_in_sets, watcher_sets
from executor.errors import WheelError
from executor.owned_folders import in_cache, keep_in_cache

PYTHON, ARCHITECTURE = "313", "x86_64"
"""Python version and CPU architecture of the function."""
HANDLER = "executor.backends.ec2.watcher.handler.handler"
_LEFT_OUT = re.compile(
    r"executor/(analysis|commands|documents|export|jobs|report|service|trial|view)/.*"
    r"|executor/(api|cli|__main__)\.py"
    r"|executor/backends/local/.*|executor/backends/ec2/(doctor|iam|setup)/.*"
    r"|bai_agent/(benchmark|checkpoint|machine|nodes|peers|phases|pull|requirements|run|runtime|shim|sinks|strategy)/.*"
    r"|.*/__pycache__/.*|.*\.pyi|.*\.dist-info/(?!METADATA|licenses/|LICENSE).*|boto3/(data|examples)/.*"
)
_SERVICES = re.compile(r"botocore/data/(?!(ec2|pricing|sts)/)[^/]+/.*")
"""Files in botocore that describe AWS services that the watcher does not use."""
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class WatcherArchive:
    """The archive on this machine."""

    path: Path
    sha256: str
    size: int

    @property
    def key(self) -> str:
        """Return the archive's key in the staging bucket."""
        return f"agent/watcher-{self.sha256}.zip"


def build_watcher(*, cache: Path, python: str = PYTHON, architecture: str = ARCHITECTURE) -> WatcherArchive:
    """Return the archive of the watcher, which is saved in `cache`; missing wheels are downloaded. Raises
    WheelError."""
    try:
        wheels = find_in_sets(watcher_sets(architecture, python), cache=cache / "wheels")
        content = pack({**own_files(), **{name: file for each in wheels for name, file in _unpacked(each)}})
        sha256 = hashlib.sha256(content).hexdigest()
        path = cache / "watchers" / f"{sha256}.zip"
        if not in_cache(path):
            keep_in_cache(path, content)
    except OSError as error:
        raise WheelError(f"the watcher's archive cannot be kept in {cache}: {error.strerror}") from error
    return WatcherArchive(path=path, sha256=sha256, size=len(content))


def own_files() -> dict[str, bytes]:
    """Return the package's own files that the watcher may need: name in the archive → content."""
    found = {}
    roots = [Path(str(each.__file__)).parent for each in (bai_agent, cloud_init)]
    for root in (*roots, Path(__file__).parents[3]):
        for path in root.rglob("*"):
            name = f"{root.name}/{path.relative_to(root).as_posix()}"
            if path.is_file() and not _LEFT_OUT.fullmatch(name):
                found[name] = path.read_bytes()
    return found


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return `files` as a zip file. The same files produce the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, content in sorted(files.items()):
            member = zipfile.ZipInfo(name, _DATE)
            member.compress_type = zipfile.ZIP_DEFLATED
            # Lambda runs the function as a user who does not own the files, so all users must be able to read
            # the files.
            member.external_attr = 0o644 << 16
            archive.writestr(member, content)
    return packed.getvalue()


def _unpacked(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith("/") and not _LEFT_OUT.fullmatch(name) and not _SERVICES.fullmatch(name):
                yield name, archive.read(name)
