"""Defines the tables `[limits]` and root volume, which benchmark descriptors and the configuration share."""

from __future__ import annotations

import math
from typing import Annotated

from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.schema.declared import Check, DeclaredTable, Example, Mistake
from bai_agent.job.schema.field_types import PositiveDuration, in_range
from bai_agent.light_dataclass import dataclass


# Annotations are strings in this module, so a lambda in them would not find the module's names.
def _dollars(dollars: float | None) -> Mistake | None:
    if dollars is None or 0 < dollars < math.inf:
        return None
    return "must be a number of USD > 0", "write for example 25.0"


@dataclass(frozen=True, kw_only=True)
class JobLimits(Limits):
    """Limits of durations and costs. Durations: `"250ms"`, `"90s"`, `"15m"`, `"2h"`, `"1h30m"`, `"1d"`."""

    max_cost: Annotated[float | None, Check(_dollars), Example(25.0)] = None
    """Maximum cost on EC2 (USD). A job that may cost more, or whose price is unknown, is not launched. Unset:
    no bound."""
    wait_for_capacity: Annotated[PositiveDuration | None, Example("6h")] = None
    """Maximum time that a job on EC2 waits for capacity, from the submission on. During the wait, all zones are
    requested again, with pauses of up to five minutes. Unset: all zones are requested only once."""


@dataclass(frozen=True, kw_only=True)
class Volume(DeclaredTable):
    """The root volume (gp3)."""

    size: Annotated[int | None, in_range(1), Example(200)] = None
    """Size in GiB. Unset: the volume has the image's size, plus the data and a margin."""
    throughput: Annotated[int | None, in_range(125), Example(500)] = None
    """Throughput in MiB/s."""
    iops: Annotated[int | None, in_range(3000), Example(4000)] = None
    """Number of I/O operations per second, at least four for each MiB/s of throughput."""
    initialization_rate: Annotated[int | None, in_range(100, 300), Example(300)] = None
    """Rate at which the new volume is filled from its snapshot (MiB/s, charged). If `initialization_rate` is unset,
    first reads are many times slower."""
