"""Metadata of files and objects, as known before they are fetched."""

from __future__ import annotations

import os
from pathlib import Path

from bai_agent.files.user_rights import User, user_rights
from bai_agent.light_dataclass import dataclass


@dataclass(frozen=True)
class Sums:
    """Checksums of a source that the descriptor lists, in lower-case hexadecimal."""

    md5: str | None = None
    sha256: str | None = None

    @property
    def wanted(self) -> tuple[str, ...]:
        return tuple(name for name in ("md5", "sha256") if getattr(self, name) is not None)


@dataclass(frozen=True)
class Remote:
    """An object or file of a source, as the origin lists it."""

    name: str
    """Path below the root."""
    key: str
    """Key at the origin."""
    size: int | None
    tag: str | None
    """Tag that changes with the content. None if the origin has no tag."""
    mode: int | None = None
    link: str | None = None
    """Target of a symbolic link. None for a file."""


@dataclass(frozen=True)
class RemoteListing:
    """The content of a source."""

    objects: tuple[Remote, ...]
    folder: bool
    here: Path | None = None
    """Path of the source if it is on this machine; None otherwise."""

    def is_at(self, path: Path, *, user: User | None) -> bool:
        """Return whether `path`, looked up with the rights of `user`, is the source itself."""
        if self.here is None:
            return False
        try:
            with user_rights(user):
                status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(status, self.here.stat())
