"""A reason to stop a run: EC2's notice, read from the instance metadata service, that it will interrupt this
spot instance.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html: the notice comes
two minutes before an interruption, and applications should check every 5 seconds.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html: a rebalance recommendation
comes earlier and is not always followed by a notice. Therefore, a rebalance recommendation does not stop the
run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone

from bai_agent.aws.imds import read_if_there
from bai_agent.decode import decode
from bai_agent.errors import RecordError
from bai_agent.job.outcome import Outcome
from bai_agent.light_dataclass import dataclass
from bai_agent.runtime.poller import Poller
from bai_agent.runtime.stop import StopReason

log = logging.getLogger(__name__)

PAUSE_S = 5.0
"""Seconds between two checks, as AWS advises."""
_LONGEST_NOTICE_S = 120.0
"""Longest time from a notice to the interruption (seconds). A computed time is limited to this value, because
the computed time is too long if this machine's clock is slow."""


@dataclass(frozen=True, kw_only=True)
class _Notice:
    action: str
    time: str


class SpotNotice(Poller):
    """Checks for spot notices on a separate thread, because the metadata service can be slow. The thread ends
    at once if the instance is not a spot instance.

    warn: function that is called once with a warning about a rebalance recommendation, on the thread that
    calls `reason`.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        warn: Callable[[str], None],
        pause_s: float = PAUSE_S,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        super().__init__(
            self._look_for_notice,
            name="spot",
            pause_s=lambda: pause_s,
            failure="cannot check whether EC2 interrupts this instance",
        )
        self._environment = environment
        self._warn = warn
        self._clock = clock
        self._reason: StopReason | None = None
        self._recommended: str | None = None
        self._is_spot = self._is_warned = False

    def reason(self, running_s: float | None) -> StopReason | None:
        recommended, self._recommended = self._recommended, None
        if recommended is not None:
            self._warn(recommended)
        return self._reason

    def _look_for_notice(self) -> bool:
        if not self._is_spot and self._ask("instance-life-cycle") == "on-demand":
            return True
        self._is_spot = True
        if not self._is_warned and self._ask("events/recommendations/rebalance") is not None:
            self._recommended = "EC2 recommends leaving this spot instance, because EC2 will probably interrupt this instance."
            self._is_warned = True
        notice = self._ask("spot/instance-action")
        if notice is not None:
            self._reason = self._read(notice)
        return self._reason is not None

    def _ask(self, name: str) -> str | None:
        return read_if_there(name, environment=self._environment)

    def _read(self, notice: str) -> StopReason:
        """Return the reason to stop that EC2's notice gives. notice: text such as `{"action": "terminate",
        "time": "2017-09-18T08:22:00Z"}`."""
        action, at, left = "take back", "", _LONGEST_NOTICE_S
        try:
            found = decode(_Notice, notice, where="spot/instance-action")
            action, at = found.action[:20], found.time[:40]
            moment = datetime.strptime(at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
            left = min(max((moment - self._clock()).total_seconds(), 0.0), _LONGEST_NOTICE_S)
        except (RecordError, ValueError):
            log.warning("EC2's spot notice cannot be read: %r", notice[:200])
        return StopReason(
            Outcome.INTERRUPTED,
            f"EC2 takes this spot instance back ({action}{f' at {at}' if at else ''}).",
            deadline=time.monotonic() + left,
        )
