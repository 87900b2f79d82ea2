"""How processes of the benchmark ended that mpirun started: what `strategy/mpi_process.py` notes beside the log of each.

They lie in a folder of the benchmark's own user, who may put anything there: no link is followed, and no pipe is waited for.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOG = re.compile(r"(0|[1-9][0-9]{0,5})\.log")
_MOST_PROCESSES = 10_000
_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """How one process ended."""

    rank: int
    code: int | None
    """It exited with; None: a signal ended it."""
    signal: int | None
    asked: bool
    """Whether mpirun had asked it to end before."""
    time: int
    """ms UTC."""
    output_bytes: int
    """How long its log was then."""

    @property
    def failed(self) -> bool:
        """Whether it failed by itself."""
        return not self.asked and self.code != 0


def process_logs(folder: Path) -> dict[int, Path]:
    """Return the logs in `folder`, by rank; of very many the first ones."""
    try:
        names = [each.name for each in folder.iterdir()]
    except OSError:
        return {}
    ranks = sorted(int(match[1]) for match in map(_LOG.fullmatch, names) if match)
    return {rank: folder / f"{rank}.log" for rank in ranks[:_MOST_PROCESSES]}


def open_regular(path: Path) -> int:
    """Return a descriptor for reading a file of that folder. Raises FileNotFoundError where there is none, or something else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # it is there, for all that is known
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a file", str(path))
    return descriptor


def process_end(folder: Path, rank: int) -> ProcessEnd | None:
    """Return how a process ended; None where that is not known."""
    try:
        descriptor = open_regular(folder / f"{rank}.json")
    except FileNotFoundError:
        return None
    try:
        return _read(rank, json.loads(os.read(descriptor, _BYTES)))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    finally:
        os.close(descriptor)


def process_ends(folder: Path) -> list[ProcessEnd]:
    """Return how those ended that noted it, by rank."""
    ends = (process_end(folder, rank) for rank in process_logs(folder))
    return [each for each in ends if each is not None]


def _read(rank: int, value: Mapping[str, Any]) -> ProcessEnd:
    """Raises ValueError, KeyError and TypeError where `value` is something else."""
    code, signal = value["code"], value["signal"]
    numbers = [code if signal is None else signal, value["time"], value["output_bytes"]]
    if not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError
    return ProcessEnd(
        rank=rank,
        code=code if signal is None else None,
        signal=signal,
        asked=value["asked"] is not None,
        time=value["time"],
        output_bytes=value["output_bytes"],
    )
