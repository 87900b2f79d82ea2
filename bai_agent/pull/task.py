"""One source with its place on this machine, and what is kept of it once it is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bai_agent.job.descriptor import Source, Unpack
from bai_agent.job.source_schemes import file_path, scheme_of
from bai_agent.job.user_rights import User, may_change
from bai_agent.pull.progress import PullTally
from bai_agent.pull.remote import Sums


@dataclass(frozen=True)
class PullTask:
    """A source and its place on this machine."""

    source: Source
    target: Path
    tally: PullTally
    user: User | None = None
    """The benchmark's, if that is not our own."""

    @property
    def key(self) -> str:
        """Names this source, with all that is asked of it, in the manifest."""
        source = self.source
        wanted = (source.directory, source.md5, source.sha256, source.unpack.value, source.mode)
        return " ".join([self.tally.src, str(self.target), *map(str, wanted)])

    @property
    def group(self) -> Path:
        return self.unpack_root if self.source.unpack is Unpack.IN_PLACE else self.target

    def landing_user(self) -> User | None:
        """Return whose rights it lands with: those of the benchmark's user, if that can write there. Raises OSError."""
        root = self.target if self.source.unpack is Unpack.NO else self.unpack_root
        return self.user if self.user is not None and may_change(self.user, root) else None

    def reader(self) -> User | None:
        """Return the same for reading the source. Raises OSError."""
        path = file_path(self.source.src) if scheme_of(self.source.src) == "file" else None
        return (
            self.user if self.user is not None and path is not None and may_change(self.user, path) else None
        )

    @property
    def unpack_root(self) -> Path:
        """The folder that an archive's members land in."""
        beside = self.source.unpack is Unpack.IN_PLACE and not self.source.path.endswith("/")
        return self.target.parent if beside else self.target

    @property
    def lands_as_file(self) -> bool:
        source = self.source
        return source.unpack is Unpack.NO and not (
            source.directory or source.src.endswith("/") or source.path.endswith("/")
        )

    @property
    def sums(self) -> Sums:
        source = self.source
        return Sums(
            md5=source.md5.lower() if source.md5 else None,
            sha256=source.sha256.lower() if source.sha256 else None,
        )


@dataclass(frozen=True)
class Pulled:
    """What the manifest keeps of a finished source."""

    src: str
    path: str
    root: str
    journal: str
    files: int
    bytes: int
    tag: str | None
    md5: str | None
    sha256: str | None
