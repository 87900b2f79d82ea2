"""What the volumes and the detailed monitoring of a machine cost an hour at most: reckoned at the dearest region's prices.

AWS's price list has each of these as a product of its own, for each type and region. Beside the hours of an instance they are
small, unless somebody provisions IOPS: for a bound the dearest region's price will do, and nobody is asked.
https://aws.amazon.com/ebs/pricing/ and https://aws.amazon.com/cloudwatch/pricing/; compared in November 2026 with what public
copies of the price list say of us-east-1, ap-northeast-1 and sa-east-1, the dearest of them.
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
    iops_tiers: tuple[tuple[int, float], ...] = ()
    """From how many operations on each of them costs which part of `iops`."""

    def monthly(self, *, size: int, iops: int, throughput: int) -> float:
        """Return USD a month for a volume of `size` GiB."""
        paid = max(0, iops - self.free_iops) * self.iops
        last = 1.0
        for beyond, part in self.iops_tiers:
            paid -= max(0, iops - beyond) * self.iops * (last - part)
            last = part
        return size * self.gib + paid + max(0, throughput - self.free_throughput) * self.mib_per_second


_RATES: Mapping[str, _Rates] = {
    "gp3": _Rates(gib=0.17, iops=0.011, mib_per_second=0.09, free_iops=3000, free_throughput=125),
    "gp2": _Rates(gib=0.21),
    "io1": _Rates(gib=0.26, iops=0.10),
    # 0.065, 0.0455 and 0.03185 USD in us-east-1; the same parts elsewhere.
    "io2": _Rates(gib=0.26, iops=0.10, iops_tiers=((32_000, 0.70), (64_000, 0.49))),
    "st1": _Rates(gib=0.10),
    # The price in sa-east-1 before AWS lowered it: what it is since was not found in any copy of the list.
    "sc1": _Rates(gib=0.05),
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
        monthly += rates.monthly(
            size=size, iops=int(ebs.get("Iops") or 0), throughput=int(ebs.get("Throughput") or 0)
        )
        if "VolumeInitializationRate" in ebs:
            unknown.append("filling the volume from its snapshot")
    monitored = request.get("Monitoring", {}).get("Enabled") is True
    return VolumeCost(hourly=monthly / _HOURS + (_MONITORING if monitored else 0), unknown=tuple(unknown))
