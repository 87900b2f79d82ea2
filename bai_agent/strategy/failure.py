"""What a launch that failed has left on its node, and what its strategy can tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bai_agent.job.process_ends import ProcessEnd


@dataclass(frozen=True, kw_only=True)
class LeftFile:
    """A file in the launcher's folder."""

    path: str
    """Relative to that folder."""
    content: str
    """All of it, or its beginning where it is large. Whatever somebody wrote there."""
    modified: int
    """ms UTC."""


@dataclass(frozen=True, kw_only=True)
class Remains:
    """What a launch that failed has left on its node. The benchmark may have written anything of it."""

    log: str
    """The end of what the launcher and its processes printed."""
    code: int | None = None
    """What the launcher exited with."""
    files: Sequence[LeftFile] = ()
    """Of the launcher's folder, `LAUNCHER_FOLDER`; in no order."""
    processes: Sequence[ProcessEnd] = ()
    """How processes on this node ended, where that is noted of each."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The process that failed first, of those that a launch started."""

    process: str
    """What a person calls it: "process 3 (local rank 1)"."""
    code: int | None = None
    """It exited with; None: unknown, or it did not exit."""
    signal: int | None = None
    """That ended it."""
    message: str = ""
    """What it said of it, in one line: "ValueError: bad weights"."""
    traceback: Sequence[str] = ()
    """The lines of its exception, where it left them."""
    failed: int | None = None
    """When, in ms UTC; None: unknown."""
    printed: str | None = None
    """What the processes printed: the log up to where the launcher speaks of the failure. None: that is unknown."""
    rank: int | None = None
    """Of the process: what it printed is in its own log, where this node has that."""
