"""Moments as tags and records hold them."""

from __future__ import annotations

from datetime import datetime, timezone

_LAST_YEAR = 9999


def parse_moment(text: object) -> datetime | None:
    """Return a moment such as "2026-11-20T22:00:00Z"; None where `text` is none, or one that nothing could follow."""
    try:
        moment = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.year >= _LAST_YEAR:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
