"""What a source looks like where it comes from, whatever the protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bai_agent.pull.draft import Draft
    from bai_agent.pull.landing import Landing


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
class Listing:
    """What a source turned out to be."""

    objects: tuple[Remote, ...]
    folder: bool


class Origin(Protocol):
    """Where a source comes from. All methods raise PullError."""

    def survey(self) -> Listing:
        """Return what the source is, before any of it is fetched."""
        ...

    def fetch(
        self, remotes: Sequence[Remote], landing: Landing, *, keep: Callable[[Draft, Remote], None]
    ) -> None:
        """Fetch `remotes`; each complete draft goes to `keep`, with what it holds by now."""
        ...
