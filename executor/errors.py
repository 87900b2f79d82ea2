"""What a person got wrong when asking `bai` for something."""

from __future__ import annotations

from bai_agent.errors import BaiError


class UsageError(BaiError):
    """What was asked for makes no sense as it was asked; the message says what would."""
