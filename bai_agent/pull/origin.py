"""Where a source comes from, whatever the scheme of its address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Protocol

from bai_agent.errors import PullError
from bai_agent.job.descriptor import Source
from bai_agent.job.source_schemes import SCHEMES, scheme_of, schemes_text, source_name
from bai_agent.pull.draft import PartialFile
from bai_agent.pull.landing import Landing
from bai_agent.pull.progress import PullWatch
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


def open_origin(source: Source, watch: PullWatch) -> Origin:
    """Return where `source` comes from. Raises PullError."""
    scheme = SCHEMES.get(scheme_of(source.src))
    if scheme is None:
        raise PullError(f"{source_name(source.src)}: is none of {schemes_text()}")
    # Only here: what a protocol takes to import is paid for by jobs that use it.
    kind: Callable[[Source, PullWatch], Origin] = resolve_name(f"bai_agent.pull.{scheme.origin}")
    return kind(source, watch)
