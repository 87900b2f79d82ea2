"""Finds the command that starts this program, for suggested commands that users copy."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path

_NAME = "bai"


@cache
def program() -> str:
    """Return "bai" if a shell would find this program by that name, otherwise the path with which the program
    was started."""
    return called(sys.argv[0], path=os.environ.get("PATH"), folder=Path.cwd())


def called(started: str, *, path: str | None, folder: Path) -> str:
    """Return the command that starts a program again. started: how the program was started in `folder`. path:
    the shell's PATH."""
    here = Path(os.path.abspath(folder / started))  # noqa: PTH100 - resolve() would follow links
    if here.name != _NAME or not here.exists():
        # The program was started as a Python module or by a test, so there is no path that would start it
        # again.
        return _NAME
    found = shutil.which(_NAME, path=path)
    if found is not None and here.samefile(folder / found):
        return _NAME
    relative = os.path.relpath(here, folder)
    relative = relative if os.sep in relative else f".{os.sep}{relative}"
    return shlex.quote(min(str(here), relative, key=len))


def command(*words: str) -> str:
    """Return a command line of this program with the arguments `words`, quoted for a shell."""
    return " ".join((program(), shlex.join(words)))
