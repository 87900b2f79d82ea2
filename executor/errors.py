"""What a person got wrong when asking `bai` for something, and what can be done next."""

from __future__ import annotations

from dataclasses import dataclass

from bai_agent.errors import BaiError
from bai_agent.job.outcome import Outcome


@dataclass(frozen=True)
class NextStep:
    """A command of `bai` that helps; whoever shows it adds the options that were given."""

    words: tuple[str, ...]
    """What follows `bai`."""
    effect: str
    """What it does: "starts it again"."""


class UsageError(BaiError):
    """What was asked for makes no sense as it was asked; the message says what would."""

    def __init__(self, sentence: str, next_step: NextStep | None = None) -> None:
        super().__init__(sentence)
        self.next_step = next_step


class NotStartedError(BaiError):
    """A job ended before anything of it ran; its result says how."""

    def __init__(self, sentence: str, outcome: Outcome) -> None:
        super().__init__(sentence)
        self.outcome = outcome


class NoResultError(BaiError):
    """Nobody will write the result that somebody waits for; the message says why."""

    def __init__(self, sentence: str, next_step: NextStep | None = None) -> None:
        super().__init__(sentence)
        self.next_step = next_step
