"""Limits of durations, and what happens to the machine after the end: `[limits]` and `[end]`."""

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
"""Limit of a job on EC2 that sets none, because a machine costs as long as it is on."""
_MACHINE_SLACK = timedelta(minutes=15)
"""Time in addition to a job's own limits: for the boot, and for steps that no limit covers."""


@dataclass(frozen=True, kw_only=True)
class Limits(DeclaredTable):
    """Limits of the duration of each step."""

    max_runtime: Annotated[PositiveDuration | None, Example("2h")] = None
    """From the benchmark's start to its forced end. Unset: none on this machine, 24h on EC2."""
    pull_timeout: Annotated[PositiveDuration, Example("1h")] = timedelta(hours=1)
    """For all data together."""
    join: Annotated[PositiveDuration, Example("10m")] = timedelta(minutes=10)
    """For how long the other nodes wait for a node without signs of life."""
    peer_silence: Annotated[
        Duration,
        at_least(
            ELASTIC_SILENCE,
            "nodes give signs of life every 5 s, and a healthy one may have a slow request to the store",
        ),
        Example("20s"),
    ] = timedelta(seconds=60)
    """One of several nodes is lost after this time without a sign of life or an answer. At least 20s, the
    default of elastic jobs."""
    store_away: Annotated[PositiveDuration, Example("30m")] = timedelta(minutes=10)
    """For how long several nodes continue if none of them reaches the job store. A single node that does not
    reach it ends after `peer_silence`."""
    grace: Annotated[Duration, Example("30s")] = timedelta(seconds=30)
    """From SIGTERM to SIGKILL when a benchmark is ended."""
    extract_timeout: Annotated[Duration, Example("2h")] = timedelta(minutes=30)
    """Time after the benchmark's exit for the rest of the extraction, while it makes progress. `bai extract`
    can search the rest later."""
    drain: Annotated[Duration, Example("60s")] = timedelta(seconds=60)
    """Time after that for records and files that are still to be sent."""
    no_output: Annotated[PositiveDuration | None, Example("10m")] = None
    """Time without output or `emit` after which the benchmark is ended. Unset: off."""

    def machine_time(self, *, max_runtime: timedelta, nodes: int = 1) -> timedelta:
        """Return how long a machine for such a run may be on, if the benchmark may take `max_runtime`.

        Several nodes may wait for each other, and for the store through which they meet.
        """
        at_work = max_runtime + self.pull_timeout + self.grace + self.extract_timeout + self.drain
        together = self.join + self.store_away if nodes > 1 else timedelta()
        return at_work + together + _MACHINE_SLACK


class Power(str, Enum):
    """What happens to the machine after the end."""

    STAY = "stay"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class End:
    """The `[end]` table."""

    power: Power = Power.STAY
    keep_on_failure: timedelta | None = None
    """How long a machine is kept for inspection if the job did not succeed; unset: not at all."""
    keep_after: timedelta | None = None
    """How long a machine is kept after a job that was not cancelled, also if it succeeded; unset: not at all."""

    def keep_time(self, exit_code: object) -> timedelta:
        """Return how long machines are kept after a job with this exit code. None and what is no exit code: it failed."""
        if exit_code == ExitCode.CANCELLED:
            return timedelta()
        after = self.keep_after or timedelta()
        return after if exit_code == ExitCode.SUCCEEDED else max(after, self.keep_on_failure or timedelta())
