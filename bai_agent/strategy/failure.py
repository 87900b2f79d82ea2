"""The traces of a failed launch on its node, and the cause that its strategy finds in them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

from bai_agent.decode import decode
from bai_agent.errors import RecordError
from bai_agent.light_dataclass import dataclass
from bai_agent.strategy.process_ends import ProcessEnd

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LeftFile:
    """A file in the launcher's folder."""

    path: str
    """Path of the file, relative to the launcher's folder."""
    content: str
    """Content of a file, or its beginning if it is large. The benchmark may have written it."""
    modified: int
    """Time of the last change (ms UTC)."""


@dataclass(frozen=True, kw_only=True)
class Remains:
    """The traces of a failed launch on its node. The benchmark may have written any of these files."""

    log: str
    """The end of the output of the launcher and its processes."""
    code: int | None = None
    """Exit code of the launcher."""
    files: Sequence[LeftFile] = ()
    """Files of the launcher's folder, `LAUNCHER_FOLDER`, in any order."""
    processes: Sequence[ProcessEnd] = ()
    """Ends of processes on this node, if they were recorded."""


def left_note(kind: type[T], remains: Remains, *, path: str) -> T | None:
    """Return the note that one of our programs wrote into the launcher's folder. None if there is no note or the file has other
    content."""
    for each in remains.files:
        if each.path == path:
            with suppress(RecordError):
                return decode(kind, each.content, where=path)
    return None


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The first process that failed, among those of a launch."""

    process: str
    """Name of the process for messages, such as "process 3 (local rank 1)"."""
    code: int | None = None
    """Exit code of the process; None if the code is unknown or a signal ended the process."""
    signal: int | None = None
    """Signal that ended the process."""
    message: str = ""
    """The process's own message, in one line, such as "ValueError: bad weights"."""
    traceback: Sequence[str] = ()
    """Lines of the process's exception, if the process recorded an exception."""
    failed: int | None = None
    """Time of the failure (ms UTC); None if unknown."""
    printed: str | None = None
    """Output of the processes, which is the log before the launcher's report of the failure. None if
    unknown."""
    rank: int | None = None
    """Rank of the process, if its output is in a log of its own on this node."""
