"""Watches a job on EC2 while a command follows it: asks EC2 rarely, and only while the job's store has no
news."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from bai_agent.errors import BaiError, RecordError
from bai_agent.light_dataclass import dataclass, field
from executor.backends.ec2.monitor.job_observation import JobStage
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.errors import NoResultError

EVERY = 10.0
"""Seconds between two looks."""
_NEWS_HOLDS_S = 30.0
"""Time after the last news in which the job certainly runs (seconds)."""


@dataclass
class InstanceWatcher:
    """Monitors one job and reports changes."""

    monitor: JobMonitor
    pause_s: float = 2.0
    """A bucket's objects are written every few seconds."""
    clock: Callable[[], float] = time.monotonic
    _next: float = 0.0
    _heard: float = field(default=float("-inf"))
    _said: str = ""

    def observe(self, *, news: bool, cancelling: bool) -> str | None:
        """Do everything that is due; return a new sentence, if there is one. news: whether the job has written something.

        A job that is being cancelled is always checked, because its time to end is limited. Raises NoResultError, RecordError.
        """
        now = self.clock()
        if news:
            self._heard = now
        if now < self._next or (self._runs_surely(now) and not cancelling):
            return None
        self._next = now + EVERY
        try:
            if not cancelling and self.monitor.all_well():
                return None
            found = self.monitor.reconcile()
        except RecordError:
            # The next answer would be the same, and whether the job still runs would stay unknown.
            raise
        except BaiError as error:
            return self._news(str(error))
        if found.stage in (JobStage.ABANDONED, JobStage.UNKNOWN):
            raise NoResultError(found.sentence.removesuffix("."))
        return self._news(found.sentence)

    def _runs_surely(self, now: float) -> bool:
        """Return whether the last news are sufficient: news of some nodes of an elastic job say nothing about
        lost ones."""
        return now - self._heard < _NEWS_HOLDS_S and not self.monitor.is_elastic

    def _news(self, sentence: str) -> str | None:
        """Return a sentence unless it was the last one."""
        # A time span that grows is not news.
        gist = re.sub(r"\d+", "", sentence)
        if gist == self._said:
            return None
        self._said = gist
        return sentence
