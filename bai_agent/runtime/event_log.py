"""The history of a run: `events.jsonl`, to which the agent appends one JSON object per line.

A restarted agent reads this history to find out which phases have finished.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from bai_agent.decode import parse_json
from bai_agent.errors import RecordError
from bai_agent.job.record_types import PhaseEvent, RunEvent, UnknownEvent, event_of, event_table
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import FULL, append_line, now_ms, open_append

E = TypeVar("E", bound=RunEvent)

log = logging.getLogger(__name__)

_COMMON = ("time", "type")
"""Keys that every event has."""


class EventLog:
    """Appends events to `events.jsonl`, and keeps all events in memory. An event is written to the file
    completely or not at all."""

    def __init__(
        self, path: Path, *, redactor: Redactor | None = None, clock: Callable[[], int] = now_ms
    ) -> None:
        self._descriptor = open_append(path)
        self._redactor = redactor or Redactor()
        self._clock = clock
        self.seen: list[RunEvent] = list(read_events(path))
        self.lenient = False
        """Whether `add` stores an event only in memory if the disk is full. `lenient` is true at the end of a
        run, because a full disk must not prevent the result."""

    def add(self, event: RunEvent) -> None:
        """Append an event with the current time. `seen` contains the event even if `add` raises OSError."""
        table = {**event_table(event), "time": self._clock()}
        line = json.dumps(
            self._redactor.redact_all(table, own_levels=1) | {"type": event.type}, ensure_ascii=False
        )
        content = f"{line}\n".encode(errors="replace")
        seen = _event(parse_json(content, where=event.type))
        self.seen.append(seen)
        details = (f"{key}={value}" for key, value in event_table(seen).items() if key not in _COMMON)
        log.info("%s %s", event.type, " ".join(details))
        try:
            append_line(self._descriptor, content)
        except OSError as error:
            if not self.lenient or error.errno not in FULL:
                raise
            log.warning("there is no space for the event %s", event.type)

    def of(self, kind: type[E]) -> list[E]:
        """Return all events of the class `kind`, in their order."""
        return [each for each in self.seen if isinstance(each, kind)]

    def finished_phases(self) -> dict[str, float]:
        """Return the finished phases with their durations (seconds)."""
        finished = (each for each in self.of(PhaseEvent) if each.state == "finished")
        return {each.phase: each.seconds or 0.0 for each in finished}

    def close(self) -> None:
        os.close(self._descriptor)


def read_events(path: Path) -> Iterator[RunEvent]:
    """Yield the complete events in `path`; a line that is not a JSON object is skipped."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        try:
            yield _event(parse_json(line, where=path.name))
        except RecordError:
            continue


def _event(table: Any) -> RunEvent:
    """Return the event in a line of the file. An event of another version of bai, with missing or changed
    keys, becomes an UnknownEvent."""
    try:
        return event_of(table, where="events.jsonl")
    except RecordError:
        if not isinstance(table, dict) or not isinstance(table.get("type"), str):
            raise
        return UnknownEvent(table=table)
