"""Restarts the dead agent of a job on this machine, a few times, while a command follows the job."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bai_agent.job.record import JobRecord
from executor.errors import NextStep, NoResultError
from executor.records.reading import result_of

_PAUSE_S = 0.1
_LOOK_S = 1.0
"""Seconds between two checks whether the agent lives."""
_RESTARTS = 3
_NUMBERS = re.compile(r"\d+")
"""Pattern of process ids and times: they differ each time for the same reason."""


class Agent(Protocol):
    """The agent of a job on this machine."""

    def alive(self) -> bool: ...

    def complete(self) -> bool:
        """Return whether it lives on each node. An elastic job that has lost some agents continues."""
        ...

    def last_words(self) -> str:
        """Return the end of its log; "" if it is unknown."""
        ...

    def start(self) -> None:
        """Start it, or start it again. Raises BaiError."""
        ...

    def proposed(self) -> int | None:
        """Return the number of nodes that the benchmark's hints ask for; None if they ask for none. Raises BaiError."""
        ...

    def scale(self, desired: int) -> list[int]:
        """Start nodes until so many live; return the numbers of those that were started. Raises BaiError."""
        ...


class AgentWatcher:
    """Looks whether the agent of one job lives while the job has no result."""

    pause_s = _PAUSE_S

    def __init__(
        self,
        agent: Agent,
        record: JobRecord,
        on_status: Callable[[str], None],
        *,
        look_s: float = _LOOK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """on_status: called before the agent is restarted, which may take a while."""
        self._agent, self._restarter = agent, AgentRestarter(agent, record.job_id)
        self._record, self._on_status = record, on_status
        self._has_given_up = False
        self._proposed: int | None = None
        self._may_start = 0
        """Number of nodes that may still be started for that proposal: nodes that end at once are not replaced for ever."""
        self._look_s, self._clock = look_s, clock
        self._next = clock() + look_s

    def observe(self, *, news: bool, cancelling: bool) -> str | None:
        """Restart a dead agent, or start nodes that the job lacks. Raises NoResultError after too many restarts, BaiError if one fails."""
        if self._clock() < self._next:
            return None
        self._next = self._clock() + self._look_s
        if self._restarter.complete():
            return None if cancelling else self._grow()
        if result_of(self._record) is None:
            try:
                self._restarter.restart(self._on_status)
            except NoResultError as error:
                if not self._agent.alive():
                    raise
                is_news, self._has_given_up = not self._has_given_up, True
                return f"{error}; the job goes on without it" if is_news else None
        return None

    def _grow(self) -> str | None:
        """Start the nodes that the benchmark's hints ask for and that do not live; return a sentence about them. Raises BaiError."""
        proposed = self._agent.proposed()
        if proposed != self._proposed:
            self._proposed, self._may_start = proposed, proposed or 0
        if proposed is None or self._may_start <= 0:
            return None
        started = self._agent.scale(proposed)
        self._may_start -= len(started)
        return f"{started_nodes(started)}: the benchmark's hints ask for more nodes" if started else None


def started_nodes(nodes: Sequence[int]) -> str:
    """Return which nodes' agents were started."""
    return f"started node {', '.join(map(str, nodes))}"


class AgentRestarter:
    """Restarts an agent a few times, unless it dies at once for the same reason again."""

    def __init__(self, agent: Agent, job_id: str) -> None:
        self._agent = agent
        self._resume = NextStep(("resume", job_id), "starts it again")
        self._restarts = 0
        self._lived = True
        """Time at which it was seen alive since its last start."""
        self._reason = ""
        """Time when it was last found dead."""

    def complete(self) -> bool:
        complete = self._agent.complete()
        self._lived = self._lived or complete
        return complete

    def restart(self, on_status: Callable[[str], None]) -> None:
        """Announce the restart and start the agent. Raises NoResultError after too many restarts, BaiError if one fails."""
        reason = self._agent.last_words()
        cause = f". Its log ends with: {reason}" if reason else ""
        before, self._reason = self._reason, _NUMBERS.sub("", reason)
        if not self._lived and self._reason and self._reason == before:
            # It would fail again at its start.
            raise NoResultError(
                f"the agent died again as soon as it was started, for a cause that has to be removed first{cause}",
                self._resume,
            )
        if self._restarts == _RESTARTS:
            raise NoResultError(f"the agent died {_RESTARTS + 1} times{cause}", self._resume)
        self._restarts += 1
        self._lived = False
        on_status(f"the agent died; starting it again ({self._restarts} of {_RESTARTS}){cause}")
        self._agent.start()
