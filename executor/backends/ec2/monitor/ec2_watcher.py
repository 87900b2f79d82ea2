"""Monitors a job on EC2 while a command follows the job. Queries EC2 rarely, and only while the job writes
nothing new to the store."""

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
"""Time between two checks (seconds)."""
_NEWS_HOLDS_S = 30.0
"""Time for which a job is assumed to run after it last wrote something to the store (seconds)."""


@dataclass
class InstanceWatcher:
    """Monitors one job and reports changes."""

    monitor: JobMonitor
    pause_s: float = 2.0
    """Time between two reads of the job's record (seconds). Objects in a bucket are written only every few
    seconds, so more frequent reads would be useless."""
    clock: Callable[[], float] = time.monotonic
    _next: float = 0.0
    _heard: float = field(default=float("-inf"))
    _said: str = ""

    def observe(self, *, news: bool, cancelling: bool) -> str | None:
        """Do everything that is due for the job. Return a sentence for the user if there is something new to
        say. news: whether the job has written something to the store since the last call.

        A job that is being cancelled is always checked, because a cancelled job has only limited time to end.
        Raises NoResultError, RecordError.
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
            # A broken record stays broken, so `bai` would never know whether the job still runs.
            raise
        except BaiError as error:
            return self._news(str(error))
        if found.stage in (JobStage.ABANDONED, JobStage.UNKNOWN):
            raise NoResultError(found.sentence.removesuffix("."))
        return self._news(found.sentence)

    def _runs_surely(self, now: float) -> bool:
        """Return whether recent writes to the store prove that the job runs. For an elastic job, recent writes are
        no proof, because writes do not show whether nodes were lost."""
        return now - self._heard < _NEWS_HOLDS_S and not self.monitor.is_elastic

    def _news(self, sentence: str) -> str | None:
        """Return a sentence for the user, unless it repeats the previous sentence."""
        # Two sentences that differ only in numbers or time spans ("10m", "9m59s") count as equal, because a
        # growing time span is not news.
        gist = re.sub(r"\d+(?:[dhms]\d*)*", "", sentence)
        if gist == self._said:
            return None
        self._said = gist
        return sentence
