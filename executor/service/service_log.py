"""Sets up the service's log, as text or as JSON. Each line contains the action id of the request that the
line is about."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone

from executor.errors import UsageError

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_ACTION = ContextVar[str | None]("action", default=None)


@contextmanager
def about_action(action_id: str) -> Iterator[None]:
    """Add a request's action id to the log lines of this `with` block."""
    before = _ACTION.set(action_id)
    try:
        yield
    finally:
        _ACTION.reset(before)


def log_level(environment: Mapping[str, str]) -> str:
    """Return the level in LOGGING_LEVEL, "INFO" by default. Raises UsageError."""
    level = environment.get("LOGGING_LEVEL", "").strip().upper() or "INFO"
    if level not in _LEVELS:
        raise UsageError(f'LOGGING_LEVEL is "{level}"; write one of {", ".join(_LEVELS)}')
    return level


def start_log(*, level: str, as_json: bool) -> None:
    """Log to stderr. level: "DEBUG", "INFO", "WARNING" or "ERROR"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_add_action)
    handler.setFormatter(_Json() if as_json else _Text("%(asctime)s %(levelname)s %(about)s%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for program in ("executor", "bai_agent"):
        logging.getLogger(program).setLevel(level)


def _add_action(record: logging.LogRecord) -> bool:
    action = _ACTION.get()
    record.action_id = action
    # Ids come from other programs, and a line break in an id would begin a new line of the log.
    record.about = f"{_one_line(action)}: " if action is not None else ""
    return True


class _Text(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        # Messages quote texts of other programs, which must not begin new lines of the log.
        record.message = _one_line(record.message)
        return super().formatMessage(record)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        table = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "action_id": getattr(record, "action_id", None),
            "message": record.getMessage(),
        }
        if record.exc_info:
            table["exception"] = self.formatException(record.exc_info)
        return json.dumps(table)


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else "�" for each in text)
