"""Reads `repeats.jsonl`, in which the shim records the beginning and end of each run of a `[repeat]` job."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from bai_agent.decode import checked, parse_json
from bai_agent.errors import RecordError
from bai_agent.job.record_types import Count, Moment, RunEnd, Text
from bai_agent.light_dataclass import dataclass, field

_FILE = "repeats.jsonl"


@dataclass(frozen=True, kw_only=True)
class _Line:
    event: Text
    run: Count


@dataclass(kw_only=True)
class RepeatedRun:
    """One run of a `[repeat]` job, which may be a warm-up run."""

    run: Count
    """Number of the run among all started runs, from 0."""
    repeat: Count | None
    """Number of the run as records contain it, from 0; None for a warm-up run."""
    arm: Text | None = None
    """Arm of the run, in a job that compares several arms; None in other jobs."""
    output_bytes: Count
    """Offset in the output at which the run begins (bytes)."""
    emit_bytes: Count
    """Offset in the emitted values at which the run begins (bytes)."""
    pid: Count
    start: Count
    boot_id: Text
    time: Moment
    ended: RunEnd | None = None
    """The run's end; None if the run is still running or was lost."""

    @property
    def succeeded(self) -> bool:
        """Whether the run succeeded and was not stopped."""
        ended = self.ended
        return ended is not None and ended.code == 0 and not ended.lost and not ended.was_stopped


@dataclass(frozen=True, kw_only=True)
class FailedStep:
    """A failed command before or after a run. No further run begins after the failure."""

    step: Text
    """"prepare" or "cleanup"."""
    run: Count
    repeat: Count | None
    ended: RunEnd


@dataclass(kw_only=True)
class RepeatedRuns:
    """The content of `repeats.jsonl` so far."""

    runs: list[RepeatedRun] = field(default_factory=list)
    failed_step: FailedStep | None = None
    ready: int | None = None
    """Number of the run that waits for permission to begin, counted among all runs from 0. None if no run waits."""

    @property
    def measured(self) -> list[RepeatedRun]:
        """All runs except warm-up runs, in the order of their numbers in records."""
        return [each for each in self.runs if each.repeat is not None]

    def add(self, lines: bytes) -> None:
        """Add whole lines. Damaged lines are skipped."""
        for line in lines.splitlines():
            with suppress(RecordError):
                self._add(parse_json(line, where=_FILE))

    def _add(self, said: Any) -> None:
        line = checked(_Line, said, where=_FILE)
        if line.event == "began" and line.run == len(self.runs):
            self.runs.append(checked(RepeatedRun, said, where=_FILE))
            self.ready = None
        elif line.event == "ended" and self.runs and line.run == self.runs[-1].run:
            self.runs[-1].ended = checked(RunEnd, said, where=_FILE)
        elif line.event == "ready":
            self.ready = line.run
        elif line.event == "failed" and self.failed_step is None:
            self.failed_step = checked(FailedStep, {**said, "ended": said}, where=_FILE)


class RepeatsFile:
    """Follows a `repeats.jsonl` that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.known = RepeatedRuns()

    def look(self) -> RepeatedRuns:
        """Return the file's current content."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if self._path.stat().st_size > self._read:
                with self._path.open("rb") as file:
                    file.seek(self._read, os.SEEK_SET)
                    whole, newline, _ = file.read().rpartition(b"\n")
                self._read += len(whole) + len(newline)
                self.known.add(whole)
        return self.known


def read_repeats(path: Path) -> RepeatedRuns:
    """Return the content of the file `path`, a `repeats.jsonl`. If the file does not exist, the returned content is
    empty."""
    return RepeatsFile(path).look()
