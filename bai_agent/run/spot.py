"""EC2's notices about a spot instance, from the instance metadata service, as a reason to stop.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html: an instance is told two minutes
before it is interrupted; applications are to look every 5 seconds.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html: a recommendation comes earlier, and may
be all that comes for long; nothing is ended for it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone

from bai_agent.aws.imds import MetadataError, find_token, read_if_there
from bai_agent.job.outcome import Outcome
from bai_agent.run.stop import StopReason

log = logging.getLogger(__name__)

PAUSE_S = 5.0
"""Between two looks, as AWS advises."""
_LONGEST_NOTICE_S = 120.0
"""Seconds from a notice to its time, at most: where this machine's clock is behind, more would seem to be left."""


class SpotNotice(threading.Thread):
    """Looks for notices on a thread: the metadata service may be slow. Ends at once where the instance is not a spot one.

    warn: is told of a rebalance recommendation, once, on the thread that asks for the reason.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        warn: Callable[[str], None],
        pause_s: float = PAUSE_S,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        super().__init__(name="spot", daemon=True)
        self._environment = environment
        self._warn = warn
        self._pause_s = pause_s
        self._clock = clock
        self._reason: StopReason | None = None
        self._recommended: str | None = None

    def reason(self, running_s: float | None) -> StopReason | None:
        recommended, self._recommended = self._recommended, None
        if recommended is not None:
            self._warn(recommended)
        return self._reason

    def run(self) -> None:
        pause = threading.Event()
        is_spot = told = warned = False
        while self._reason is None:
            try:
                if not is_spot and self._ask("instance-life-cycle") == "on-demand":
                    return
                is_spot = True
                if not warned and self._ask("events/recommendations/rebalance") is not None:
                    self._recommended = "EC2 recommends to leave this spot instance: it is likelier than others to be taken back."
                    warned = True
                notice = self._ask("spot/instance-action")
                if notice is not None:
                    self._reason = self._read(notice)
                told = False
            except MetadataError as error:
                if not told:
                    log.warning("cannot see whether EC2 takes this instance back: %s", error)
                told = True
            pause.wait(self._pause_s)

    def _ask(self, name: str) -> str | None:
        token = find_token(self._environment)
        if token is None:
            raise MetadataError("the instance metadata service gives no token")
        return read_if_there(name, token=token, environment=self._environment)

    def _read(self, notice: str) -> StopReason:
        """Return the reason that `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}` is, whatever else it holds."""
        action, at, left = "take back", "", _LONGEST_NOTICE_S
        try:
            found = json.loads(notice)
            action, at = str(found["action"])[:20], str(found["time"])[:40]
            moment = datetime.strptime(at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
            left = min(max((moment - self._clock()).total_seconds(), 0.0), _LONGEST_NOTICE_S)
        except (ValueError, KeyError, TypeError, RecursionError):
            log.warning("a notice that cannot be read: %r", notice[:200])
        return StopReason(
            Outcome.INTERRUPTED,
            f"EC2 takes this spot instance back ({action}{f' at {at}' if at else ''}).",
            deadline=time.monotonic() + left,
        )
