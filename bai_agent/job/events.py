"""The run's own story: `events.jsonl`, one JSON object a line, appended by the agent.

It is also the agent's memory: a restarted one reads which phases have finished.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bai_agent.job.redaction import Redactor
from bai_agent.job.reserved_space import FULL
from bai_agent.job.run_directory import append_line, now_ms, open_append

log = logging.getLogger(__name__)


class EventLog:
    """Appends events, each complete or not there at all, and remembers them."""

    def __init__(
        self, path: Path, *, redactor: Redactor | None = None, clock: Callable[[], int] = now_ms
    ) -> None:
        self._descriptor = open_append(path)
        self._redactor = redactor or Redactor()
        self._clock = clock
        self.seen: list[dict[str, Any]] = list(read_events(path))
        self.lenient = False
        """Whether an event that finds no space is only remembered: at the end of a run its result matters more."""

    def add(self, kind: str, **details: Any) -> None:
        """Append one event: `{"time": ms UTC, "type": kind, …details}`. It is in `seen` even where that raises OSError."""
        told = self._redactor.redact_all(details, own_levels=1)
        line = json.dumps({"time": self._clock(), "type": kind, **told}, ensure_ascii=False)
        content = f"{line}\n".encode(errors="replace")
        self.seen.append(json.loads(content))
        log.info("%s %s", kind, " ".join(f"{key}={value}" for key, value in told.items()))
        try:
            append_line(self._descriptor, content)
        except OSError as error:
            if not self.lenient or error.errno not in FULL:
                raise
            log.warning("there is no space for the event %s", kind)

    def finished_phases(self) -> dict[str, float]:
        """Return the phases that have finished, with their seconds."""
        return {
            event["phase"]: event["seconds"]
            for event in self.seen
            if event["type"] == "phase" and event["state"] == "finished"
        }

    def close(self) -> None:
        os.close(self._descriptor)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete events in `path`; a line that is no JSON object is passed over."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("type"), str):
            yield event
