"""The root volume: `[aws.ec2.volume]` of benchmark descriptors, and `[volume]` of the configuration."""

from __future__ import annotations

from typing import Annotated

from bai_agent.job.schema.declared import DeclaredTable, Example
from bai_agent.job.schema.field_types import in_range
from bai_agent.light_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Volume(DeclaredTable):
    """The root volume (gp3)."""

    size: Annotated[int | None, in_range(1), Example(200)] = None
    """Size in GiB. Unset: the image's size, plus the data and a margin."""
    throughput: Annotated[int | None, in_range(125), Example(500)] = None
    """Throughput in MiB/s."""
    iops: Annotated[int | None, in_range(3000), Example(4000)] = None
    """Operations per second, at least four for each MiB/s of throughput."""
    initialization_rate: Annotated[int | None, in_range(100, 300), Example(300)] = None
    """Rate of filling the new volume from its snapshot (MiB/s, paid). Without it first reads are many
    times slower."""
