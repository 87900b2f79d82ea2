"""What is known of an object before it is fetched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bai_agent.job.user_rights import User, user_rights


@dataclass(frozen=True)
class Sums:
    """The checksums that a source promises, lower-case hexadecimal."""

    md5: str | None = None
    sha256: str | None = None

    @property
    def wanted(self) -> tuple[str, ...]:
        return tuple(name for name in ("md5", "sha256") if getattr(self, name) is not None)


@dataclass(frozen=True)
class Remote:
    """One object or file at its origin."""

    name: str
    """Where it lands, relative to the root."""
    key: str
    """What the origin calls it."""
    size: int | None
    tag: str | None
    """Changes when the content does."""
    mode: int | None = None
    link: str | None = None
    """The target, where it is a symbolic link."""


@dataclass(frozen=True)
class RemoteListing:
    """What a source turned out to be."""

    objects: tuple[Remote, ...]
    folder: bool
    here: Path | None = None
    """Where it lies, if that is on this machine."""

    def is_at(self, path: Path, *, user: User | None) -> bool:
        """Return whether `path`, as `user` finds it, is this very file or folder."""
        if self.here is None:
            return False
        try:
            with user_rights(user):
                status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(status, self.here.stat())
