"""What the volumes and the detailed monitoring of a machine cost an hour at most: reckoned at the dearest region's prices.

AWS's price list has each of these as a product of its own, for each type and region. Beside the hours of an instance they are
small, unless somebody provisions IOPS: for a bound the dearest region's price will do, and nobody is asked.
https://aws.amazon.com/ebs/pricing/ and https://aws.amazon.com/cloudwatch/pricing/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_HOURS = 30 * 24
"""EBS is paid for by the second of a month of 30 days."""
_MONITORING = 20 * 0.30 / _HOURS
"""Detailed monitoring: USD 0.30 a month for each metric of an instance; with those of its EBS volumes there are fewer than twenty."""


@dataclass(frozen=True, kw_only=True)
class _Rates:
    """USD a month, in the dearest commercial region and rounded up."""

    gib: float
    iops: float = 0.0
    mib_per_second: float = 0.0
    free_iops: int = 0
    free_throughput: int = 0


_RATES: Mapping[str, _Rates] = {
    "gp3": _Rates(gib=0.17, iops=0.011, mib_per_second=0.09, free_iops=3000, free_throughput=125),
    "gp2": _Rates(gib=0.21),
    "io1": _Rates(gib=0.26, iops=0.10),
    # Operations beyond 32,000 cost less.
    "io2": _Rates(gib=0.26, iops=0.10),
    "st1": _Rates(gib=0.10),
    "sc1": _Rates(gib=0.04),
}
"""Magnetic volumes ("standard") are not here: their requests are paid for, and nobody knows how many there will be."""
_DEFAULT_TYPE = "gp2"
"""https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_EbsBlockDevice.html"""


@dataclass(frozen=True, kw_only=True)
class VolumeCost:
    """What is paid for one machine beside the hours of the instance."""

    hourly: float
    """USD at most."""
    unknown: tuple[str, ...] = ()
    """What is not in it."""


def volume_cost(request: Mapping[str, Any]) -> VolumeCost:
    """Return what the volumes and the monitoring of one machine of a RunInstances request cost an hour at most."""
    monthly, unknown = 0.0, []
    for device in request.get("BlockDeviceMappings", ()):
        ebs = device.get("Ebs")
        if ebs is None:
            continue
        rates, size = _RATES.get(ebs.get("VolumeType", _DEFAULT_TYPE)), ebs.get("VolumeSize")
        if rates is None or not isinstance(size, int):
            unknown.append(f"the volume {device.get('DeviceName', '?')}")
            continue
        monthly += size * rates.gib
        monthly += max(0, int(ebs.get("Iops") or 0) - rates.free_iops) * rates.iops
        monthly += max(0, int(ebs.get("Throughput") or 0) - rates.free_throughput) * rates.mib_per_second
        if "VolumeInitializationRate" in ebs:
            unknown.append("filling the volume from its snapshot")
    monitored = request.get("Monitoring", {}).get("Enabled") is True
    return VolumeCost(hourly=monthly / _HOURS + (_MONITORING if monitored else 0), unknown=tuple(unknown))
