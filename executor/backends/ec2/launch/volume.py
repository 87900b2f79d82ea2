"""The root volume: as large as image and data need, with the throughput that was asked for, up to what the instance type can use.

gp3's bounds: https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bai_agent.job.descriptor import Source, SourceKind, Unpack
from executor.backends.ec2.launch.images import Image, InstanceType, placeholder
from executor.descriptor.ec2_table import Volume

MARGIN_GIB = 10
"""For what the benchmark installs and writes."""
UNPACKED = 4
"""How many times larger an archive is taken to be when it is unpacked; a text corpus compresses about so much."""
IOPS_PER_MIB = 4
"""gp3 gives at most 0.25 MiB/s for each operation per second."""
LEAST_IOPS = 3000
LEAST_THROUGHPUT = 125


@dataclass(frozen=True, kw_only=True)
class DataSize:
    """How much data comes onto the disk."""

    bytes: int
    unknown: tuple[str, ...]
    """Sources that nobody knows the size of."""


def data_size(sources: Iterable[Source]) -> DataSize:
    """Return what is known of the size of `sources` on the disk."""
    total, unknown = 0, []
    for source in sources:
        if source.size is None:
            if source.kind is SourceKind.DATA:
                unknown.append(source.src)
        elif source.unpack is Unpack.NO:
            total += source.size
        else:
            # The archive lies beside its members until it is unpacked.
            total += source.size * (1 + UNPACKED)
    return DataSize(bytes=total, unknown=tuple(unknown))


def volume_gib(wanted: Volume | None, image_gib: int, data: DataSize) -> int:
    """Return the root volume's size: what was asked for, but never less than the image has."""
    if wanted is not None and wanted.size is not None:
        return max(image_gib, wanted.size)
    return image_gib + math.ceil(data.bytes / 2**30) + MARGIN_GIB


def mappings(
    wanted: Volume | None, image: Image, kinds: Sequence[InstanceType], data: DataSize
) -> list[dict[str, Any]]:
    """Return BlockDeviceMappings: the root volume, and that every volume goes with its instance."""
    ebs: dict[str, Any] = {
        "DeleteOnTermination": True,
        "VolumeType": "gp3",
        "VolumeSize": placeholder("its size")
        if image.root_gib is None
        else volume_gib(wanted, image.root_gib, data),
        **(_speed(wanted, kinds) if wanted is not None else {}),
    }
    if wanted is not None and wanted.initialization_rate is not None:
        ebs["VolumeInitializationRate"] = wanted.initialization_rate
    return [
        {"DeviceName": image.root_device, "Ebs": ebs},
        *({"DeviceName": each, "Ebs": {"DeleteOnTermination": True}} for each in image.other_devices),
    ]


def _speed(wanted: Volume, kinds: Sequence[InstanceType]) -> dict[str, int]:
    throughput, iops = wanted.throughput, wanted.iops
    if throughput is not None:
        # More than the instance, whichever it is, can exchange would only be paid for.
        useful = max(each.ebs_mib_per_second or throughput for each in kinds)
        throughput = max(LEAST_THROUGHPUT, min(throughput, useful))
        iops = max(iops or LEAST_IOPS, IOPS_PER_MIB * throughput)
    speed = {}
    if iops is not None:
        speed["Iops"] = iops
    if throughput is not None:
        speed["Throughput"] = throughput
    return speed
