"""`repeats.jsonl`: where each run of a job with `[repeat]` begins and ends, as its shim wrote it down."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PLACES = ("run", "output_bytes", "emit_bytes", "pid", "start", "time")


@dataclass(kw_only=True)
class RepeatedRun:
    """One run, warm-up runs included."""

    run: int
    """Its number among all that were begun, from 0."""
    repeat: int | None
    """Its number as records have it, from 0; None: a warm-up run."""
    arm: str | None = None
    """Which of two it is of, in a job that compares two."""
    output_bytes: int
    """Where in the output it begins."""
    emit_bytes: int
    """The same in what was emitted."""
    pid: int
    start: int
    boot_id: str
    time: int
    ended: Mapping[str, Any] | None = None
    """How it ended, with the keys of exit.json; None: it goes on, or nobody saw its end."""

    @property
    def succeeded(self) -> bool:
        """Whether it has ended well, and not because it was told to end."""
        ended = self.ended
        return (
            ended is not None
            and ended.get("code") == 0
            and not ended.get("lost")
            and ended.get("stop") is None
            and ended.get("stop_signal") is None
        )


@dataclass(frozen=True, kw_only=True)
class FailedStep:
    """What was to be done before or after a run, and failed: no further run was begun."""

    step: str
    """"prepare" or "cleanup"."""
    run: int
    repeat: int | None
    ended: Mapping[str, Any]


@dataclass(kw_only=True)
class RepeatedRuns:
    """What a `repeats.jsonl` says so far."""

    runs: list[RepeatedRun] = field(default_factory=list)
    failed_step: FailedStep | None = None
    ready: int | None = None
    """The run, of all from 0, that waits for a word whether it begins."""

    @property
    def measured(self) -> list[RepeatedRun]:
        """All but the warm-up runs: the run with the number n as records have it is the nth."""
        return [each for each in self.runs if each.repeat is not None]

    def add(self, lines: bytes) -> None:
        """Take in whole lines; one that is damaged says nothing."""
        for line in lines.splitlines():
            with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
                self._add(json.loads(line))

    def _add(self, said: Any) -> None:
        event, number = said["event"], said["run"]
        if event == "began" and number == len(self.runs):
            places: dict[str, Any] = {name: int(said[name]) for name in _PLACES}
            repeat = None if said["repeat"] is None else int(said["repeat"])
            arm = None if said.get("arm") is None else str(said["arm"])
            self.ready = None
            self.runs.append(RepeatedRun(repeat=repeat, arm=arm, boot_id=str(said["boot_id"]), **places))
        elif event == "ended" and self.runs and number == self.runs[-1].run:
            self.runs[-1].ended = said
        elif event == "ready":
            self.ready = int(number)
        elif event == "failed" and self.failed_step is None:
            self.failed_step = FailedStep(step=said["step"], run=number, repeat=said["repeat"], ended=said)


class RepeatsFile:
    """Follows a `repeats.jsonl` that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.known = RepeatedRuns()

    def look(self) -> RepeatedRuns:
        """Return what it says now."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if self._path.stat().st_size > self._read:
                with self._path.open("rb") as file:
                    file.seek(self._read, os.SEEK_SET)
                    whole, newline, _ = file.read().rpartition(b"\n")
                self._read += len(whole) + len(newline)
                self.known.add(whole)
        return self.known


def read_repeats(path: Path) -> RepeatedRuns:
    """Return what the `repeats.jsonl` at `path` says; nothing where there is none."""
    return RepeatsFile(path).look()
