"""Time limits, and what happens to the machine after the job's end: `[limits]` and `[end]`."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Annotated

from bai_agent.job.outcome import ExitCode
from bai_agent.job.schema.declared import DeclaredTable, Example
from bai_agent.job.schema.field_types import Duration, PositiveDuration, at_least
from bai_agent.light_dataclass import dataclass

ELASTIC_SILENCE = timedelta(seconds=20)
"""`limits.peer_silence` of an elastic job that does not set it."""
EC2_MAX_RUNTIME = timedelta(hours=24)
"""`limits.max_runtime` of a job on EC2 that does not set it, because a machine costs money while it is on."""
_MACHINE_SLACK = timedelta(minutes=15)
"""Time that is added to a job's own limits, for the machine's boot and for steps without a limit."""


@dataclass(frozen=True, kw_only=True)
class Limits(DeclaredTable):
    """Time limits of the steps of a job."""

    max_runtime: Annotated[PositiveDuration | None, Example("2h")] = None
    """Time from the benchmark's start until the benchmark is stopped. Unset: no limit on this machine, 24h on
    EC2."""
    pull_timeout: Annotated[PositiveDuration, Example("1h")] = timedelta(hours=1)
    """Time limit for the pull of all sources together."""
    join: Annotated[PositiveDuration, Example("10m")] = timedelta(minutes=10)
    """Time for which the other nodes wait for a node that sends no heartbeat."""
    peer_silence: Annotated[
        Duration,
        at_least(
            ELASTIC_SILENCE,
            "nodes send heartbeats every 5 s, and a slow store may delay the heartbeat of a healthy node",
        ),
        Example("20s"),
    ] = timedelta(seconds=60)
    """In a job of several nodes, a node counts as lost after this time without a heartbeat or an answer. The
    minimum is 20s, which is also the default for elastic jobs."""
    store_away: Annotated[PositiveDuration, Example("30m")] = timedelta(minutes=10)
    """Time for which the nodes of a job continue if no node reaches the job store. If only some nodes cannot
    reach the store, these nodes end after `peer_silence`."""
    grace: Annotated[Duration, Example("30s")] = timedelta(seconds=30)
    """Time from SIGTERM to SIGKILL when a benchmark is stopped."""
    extract_timeout: Annotated[Duration, Example("2h")] = timedelta(minutes=30)
    """Time limit for the rest of the extraction after the benchmark's exit, as long as the extraction makes
    progress. `bai extract` can search the remaining output later."""
    drain: Annotated[Duration, Example("60s")] = timedelta(seconds=60)
    """Time limit for sending the remaining records and files after the extraction."""
    no_output: Annotated[PositiveDuration | None, Example("10m")] = None
    """Time without output and without emitted values after which the benchmark is stopped. Unset: no
    limit."""

    def machine_time(self, *, max_runtime: timedelta, nodes: int = 1) -> timedelta:
        """Return how long a machine may be on for a run with these limits, if the benchmark may take
        `max_runtime`.

        The time is longer for several nodes, because nodes may wait for each other and for the job store.
        """
        at_work = max_runtime + self.pull_timeout + self.grace + self.extract_timeout + self.drain
        together = self.join + self.store_away if nodes > 1 else timedelta()
        return at_work + together + _MACHINE_SLACK


class Power(str, Enum):
    """What happens to the machine after the job's end."""

    STAY = "stay"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class End:
    """The `[end]` table."""

    power: Power = Power.STAY
    keep_on_failure: timedelta | None = None
    """Time for which a machine stays on for inspection after a job that did not succeed. Unset: the machine
    does not stay on."""
    keep_after: timedelta | None = None
    """Time for which a machine stays on after any job that was not cancelled, even if the job succeeded.
    Unset: the machine does not stay on."""

    def keep_time(self, exit_code: object) -> timedelta:
        """Return for how long machines stay on after a job with this exit code. If the exit code is None or
        unknown, the job is regarded as failed."""
        if exit_code == ExitCode.CANCELLED:
            return timedelta()
        after = self.keep_after or timedelta()
        return after if exit_code == ExitCode.SUCCEEDED else max(after, self.keep_on_failure or timedelta())
