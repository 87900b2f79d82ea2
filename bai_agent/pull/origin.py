"""Where a source comes from, whatever the protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bai_agent.pull.draft import PartialFile
from bai_agent.pull.landing import Landing
from bai_agent.pull.remote import Remote, RemoteListing


class Origin(Protocol):
    """Where a source comes from. All methods raise PullError."""

    def survey(self) -> RemoteListing:
        """Return what the source is, before any of it is fetched."""
        ...

    def fetch(
        self, remotes: Sequence[Remote], landing: Landing, *, keep: Callable[[PartialFile, Remote], None]
    ) -> None:
        """Fetch `remotes`; each complete draft goes to `keep`, with what it holds by now."""
        ...
