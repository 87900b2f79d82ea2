"""Schedules the checks of launched jobs until the last message about a job is sent: periodically, and at once
after an event of EC2."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from bai_agent.errors import BaiError
from executor.backends.terminal import unattended
from executor.service.broker import PartitionOwnership
from executor.service.events.ec2_events import InstanceEvent
from executor.service.keyed_work_queue import KeyedWorkQueue
from executor.service.reconciler import REAP_S, Reconciler

log = logging.getLogger(__name__)

_AT_ONCE = 8
"""Maximum number of jobs that are checked at the same time."""


class Supervisor:
    """Monitors the jobs of a replica."""

    def __init__(self, reconciler: Reconciler, *, share: PartitionOwnership, every: timedelta) -> None:
        """every: time between two checks."""
        self._reconciler = reconciler
        self._share = share
        self._stopping = threading.Event()
        self._queue = KeyedWorkQueue(self._work, at_once=_AT_ONCE, name="supervision")
        looks = (("looks", self._look, every.total_seconds()), ("reaper", self._reap, REAP_S))
        self._threads = [
            threading.Thread(target=self._repeat, args=(work, pause_s), name=name, daemon=True)
            for name, work, pause_s in looks
        ]
        self._troubles: dict[str, str] = {}
        """Error of the last check of each job."""

    def start(self) -> None:
        self._queue.start()
        for thread in self._threads:
            thread.start()

    def stop(self, *, timeout_s: float) -> bool:
        """Begin no more checks, and wait for the checks in progress. Return whether all checks finished in
        time."""
        self._stopping.set()
        deadline = time.monotonic() + timeout_s
        ended = self._queue.stop(timeout_s=timeout_s)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return ended and not any(thread.is_alive() for thread in self._threads)

    def launched(self, name: str, client_id: str) -> None:
        """Record that this process answered a request, so that the request's job is checked at once."""
        self._reconciler.launched(name)
        if self._share.owns(client_id):
            self._queue.add(name, name)

    def changed(self, events: Sequence[InstanceEvent]) -> None:
        """Record EC2's events about instances, so that the instances' jobs are checked at once. Raises
        StoreError."""
        for name in set(self._reconciler.changed(events).values()):
            # A job that is being checked at this moment is checked again completely the next time.
            self._queue.add(name, name)

    def _repeat(self, work: Callable[[], None], pause_s: float) -> None:
        while not self._stopping.is_set():
            try:
                with unattended():
                    work()
            except BaiError as error:
                log.warning("open jobs: %s", error)
            except Exception:
                # An unexpected error must not prevent the next check.
                log.exception("the check of all open jobs failed because of a defect")
            self._stopping.wait(pause_s)

    def _look(self) -> None:
        """Schedule checks of all open jobs of this replica. Raises StoreError."""
        names = self._reconciler.due()
        for name in self._troubles.copy().keys() - set(names):
            # `_troubles` is copied, because other threads change it.
            self._troubles.pop(name, None)
        for name in names:
            self._queue.add(name, name)

    def _work(self, name: str) -> None:
        try:
            with unattended():
                self._reconciler.reconcile_one(name)
        except BaiError as error:
            # The error is only logged, because the next check tries again. A lasting error is logged only
            # once.
            if self._troubles.get(name) != str(error):
                self._troubles[name] = str(error)
                log.warning("%s: %s", name, error)
        else:
            self._troubles.pop(name, None)

    def _reap(self) -> None:
        """Terminate expired machines, if this replica is the leader. Raises StoreError."""
        if self._share.is_leader:
            self._reconciler.reap()
