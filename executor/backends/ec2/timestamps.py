"""Timestamps in tags and records."""

from __future__ import annotations

from datetime import datetime, timezone

_LAST_YEAR = 9999


def parse_timestamp(text: object) -> datetime | None:
    """Return the time of a text such as "2026-11-20T22:00:00Z"; None where `text` is not one, or too late for any arithmetic."""
    try:
        time = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    if time.year >= _LAST_YEAR:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
