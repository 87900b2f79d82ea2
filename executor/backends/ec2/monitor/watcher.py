"""Watches a job on EC2 while somebody follows it: asks EC2 rarely, and only while the job's store has nothing new."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bai_agent.errors import BaiError
from bai_agent.job.store import RecordError
from executor.backends.ec2.monitor.diagnosis import JobStage
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.errors import NoResultError

EVERY = 10.0
"""Seconds between two looks."""
_NEWS_HOLDS_S = 30.0
"""Seconds after the last news in which nobody doubts that the job lives."""


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
        """Do what is due; return a sentence where there is a new one to say. news: something has come from the job.

        A job that is being cancelled is looked at however much it says: its time to end is limited. Raises NoResultError, RecordError.
        """
        now = self.clock()
        if news:
            self._heard = now
        if now < self._next or (now - self._heard < _NEWS_HOLDS_S and not cancelling):
            return None
        self._next = now + EVERY
        try:
            if not cancelling and self.monitor.all_well():
                return None
            found = self.monitor.reconcile()
        except RecordError:
            # Asked again it would be the same, and nobody could say any more whether the job still lives.
            raise
        except BaiError as error:
            return self._news(str(error))
        if found.stage in (JobStage.ABANDONED, JobStage.UNKNOWN):
            raise NoResultError(found.sentence.removesuffix("."))
        return self._news(found.sentence)

    def _news(self, sentence: str) -> str | None:
        """Return a sentence that was not said just before."""
        # A time span that grows is not news.
        gist = re.sub(r"\d+", "", sentence)
        if gist == self._said:
            return None
        self._said = gist
        return sentence
