"""Brings the agent of a job on this machine back when it has died, but not for ever."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

_RESTARTS = 3
_NUMBERS = re.compile(r"\d+")
"""Process ids and times: the same reason has others each time."""


class Agent(Protocol):
    """What can be done about the agent of a job on this machine."""

    def alive(self) -> bool: ...

    def last_words(self) -> str:
        """Return how its log ends; "" where nothing is known."""
        ...

    def start(self) -> None:
        """Start it, or start it again. Raises BaiError."""
        ...


class AgentRestarter:
    """What becomes of one agent while somebody follows its job."""

    def __init__(self, agent: Agent, resume: str) -> None:
        """resume: the command that starts the agent again."""
        self._agent = agent
        self._resume = resume
        self._restarts = 0
        self._lived = True
        """It was seen alive since its last start."""
        self._reason = ""
        """Of its last death."""

    def alive(self) -> bool:
        alive = self._agent.alive()
        self._lived = self._lived or alive
        return alive

    def after_death(self, say: Callable[[str], None]) -> bool:
        """Say so, and start the agent again; return False where that was given up. Raises BaiError."""
        reason = self._agent.last_words()
        told = f". Its log ends with: {reason}" if reason else ""
        again = f"start it again with: {self._resume}"
        before, self._reason = self._reason, _NUMBERS.sub("", reason)
        if not self._lived and self._reason and self._reason == before:
            # What it met at its start it would meet again.
            say(f"the agent died again as soon as it was started; mend the cause, then {again}{told}")
            return False
        if self._restarts == _RESTARTS:
            say(f"the agent died {_RESTARTS + 1} times; {again}{told}")
            return False
        self._restarts += 1
        self._lived = False
        say(f"the agent died; starting it again ({self._restarts} of {_RESTARTS}){told}")
        self._agent.start()
        return True
