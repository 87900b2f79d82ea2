"""Types for the output and files that a failed launch leaves on its node, and for the cause of the failure
that a strategy finds in them."""

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
    """Content of the file, or its beginning if the file is large. The content is untrusted, because the
    benchmark can have written it."""
    modified: int
    """Time of the file's last change (ms UTC)."""


@dataclass(frozen=True, kw_only=True)
class Remains:
    """The output and files that a failed launch leaves on its node. The benchmark can have written each of
    the files."""

    log: str
    """The end of the output of the launcher and its processes."""
    code: int | None = None
    """Exit code of the launcher."""
    files: Sequence[LeftFile] = ()
    """Files in the launcher's folder (see `LAUNCHER_FOLDER`), in any order."""
    processes: Sequence[ProcessEnd] = ()
    """How processes on this node ended, as far as recorded."""


def left_note(kind: type[T], remains: Remains, *, path: str) -> T | None:
    """Return the content of a JSON file (note) that one of bai's programs wrote into the launcher's folder.
    Return None if the file does not exist or is not a valid note."""
    for each in remains.files:
        if each.path == path:
            with suppress(RecordError):
                return decode(kind, each.content, where=path)
    return None


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The first process of a launch that failed."""

    process: str
    """Name of the process for messages, such as "process 3 (local rank 1)"."""
    code: int | None = None
    """Exit code of the process; None if the code is unknown or a signal terminated the process."""
    signal: int | None = None
    """Signal that terminated the process; None if no signal did."""
    message: str = ""
    """The process's own error message, in one line, such as "ValueError: bad weights"."""
    traceback: Sequence[str] = ()
    """Lines of the process's exception, if the process recorded an exception."""
    failed: int | None = None
    """Time of the failure (ms UTC); None if unknown."""
    printed: str | None = None
    """Output of the processes: the part of the log before the launcher's report of the failure. None if the
    end of this part is unknown."""
    rank: int | None = None
    """Rank of the process, if this node has a separate log of the process. None otherwise."""
