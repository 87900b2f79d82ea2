"""Has launched jobs looked at until all is said about them: again and again, and at once where EC2 says that something has happened."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from bai_agent.errors import BaiError
from executor.service.ec2_events import InstanceEvent
from executor.service.lanes import Lanes
from executor.service.reconciler import Reconciler
from executor.service.share import Share
from executor.unattended import unattended

log = logging.getLogger(__name__)

_AT_ONCE = 8
"""Jobs that are looked at side by side."""
_REAP_S = 60.0


class Supervisor:
    """Looks after the jobs of a replica's share."""

    def __init__(self, reconciler: Reconciler, *, share: Share, every: timedelta) -> None:
        """every: between two looks."""
        self._reconciler = reconciler
        self._share = share
        self._stopping = threading.Event()
        self._lanes = Lanes(self._work, at_once=_AT_ONCE, name="life")
        looks = (("looks", self._look, every.total_seconds()), ("reaper", self._reap, _REAP_S))
        self._threads = [
            threading.Thread(target=self._repeat, args=(work, pause_s), name=name, daemon=True)
            for name, work, pause_s in looks
        ]
        self._troubles: dict[str, str] = {}
        """What was wrong at the last look at a job."""

    def start(self) -> None:
        self._lanes.start()
        for thread in self._threads:
            thread.start()

    def stop(self, *, timeout_s: float) -> bool:
        """Begin nothing more; return whether what was under way came to its end in time."""
        self._stopping.set()
        deadline = time.monotonic() + timeout_s
        ended = self._lanes.stop(timeout_s=timeout_s)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return ended and not any(thread.is_alive() for thread in self._threads)

    def launched(self, name: str, client_id: str) -> None:
        """Hear that a request was answered here: what comes next need not wait for a look."""
        self._reconciler.launched(name)
        if self._share.holds(client_id):
            self._lanes.add(name, name)

    def changed(self, events: Sequence[InstanceEvent]) -> None:
        """Hear what EC2 says about instances: jobs whose they are need not wait for a look. Raises StoreError."""
        for name in set(self._reconciler.changed(events).values()):
            # One that is being looked at just now is looked at thoroughly the next time.
            self._lanes.add(name, name)

    def _repeat(self, work: Callable[[], None], pause_s: float) -> None:
        while not self._stopping.is_set():
            try:
                with unattended():
                    work()
            except BaiError as error:
                log.warning("open jobs: %s", error)
            except Exception:
                # The thread's outermost frame: whatever goes wrong, the next look comes.
                log.exception("a look at all open jobs failed by a defect")
            self._stopping.wait(pause_s)

    def _look(self) -> None:
        """Have all open jobs of ours looked at. Raises StoreError."""
        names = self._reconciler.due()
        for name in self._troubles.copy().keys() - set(names):
            # A copy: the lanes change them meanwhile.
            self._troubles.pop(name, None)
        for name in names:
            self._lanes.add(name, name)

    def _work(self, name: str) -> None:
        try:
            with unattended():
                self._reconciler.attend(name)
        except BaiError as error:
            # The next look tries again; what stays wrong is said once.
            if self._troubles.get(name) != str(error):
                self._troubles[name] = str(error)
                log.warning("%s: %s", name, error)
        else:
            self._troubles.pop(name, None)

    def _reap(self) -> None:
        """Terminate machines whose time is up, one replica for all. Raises StoreError."""
        if self._share.leads:
            self._reconciler.reap()
