"""Computes an upper bound of a job's cost: the hours until the job's machines must be gone, times the price
per hour, plus the cost of the machines' volumes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from bai_agent.decode import parse_json
from bai_agent.errors import RecordError
from bai_agent.job.schema.durations import format_duration
from bai_agent.light_dataclass import dataclass, replace
from executor.backends.ec2.launch.images import Image
from executor.backends.ec2.session import FAILURES, AwsSession

_HOURS = 30 * 24
"""Hours of a month. EBS bills per second, and counts a month as 30 days."""
_MONITORING = 20 * 0.30 / _HOURS
"""Cost of detailed monitoring (USD per hour): USD 0.30 per month for each metric. An instance with its EBS
volumes has fewer than twenty metrics."""


@dataclass(frozen=True, kw_only=True)
class _Rates:
    """Prices of a volume type (USD per month) in the most expensive commercial region, rounded up."""

    gib: float
    iops: float = 0.0
    mib_per_second: float = 0.0
    free_iops: int = 0
    free_throughput: int = 0
    iops_tiers: tuple[tuple[int, float], ...] = ()
    """Reduced prices of volumes with many IOPS, as pairs (n, f): each IOPS beyond n costs f × `iops`."""

    def monthly(self, *, size: int, iops: int, throughput: int) -> float:
        """Return the price of a volume (USD per month). size: GiB."""
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
    # Prices in us-east-1 are 0.065, 0.0455 and 0.03185 USD; the ratios are the same in other regions.
    "io2": _Rates(gib=0.26, iops=0.10, iops_tiers=((32_000, 0.70), (64_000, 0.49))),
    "st1": _Rates(gib=0.10),
    # This is the price in sa-east-1 before AWS lowered the price there. The current price was not found in
    # any copy of the price list.
    "sc1": _Rates(gib=0.05),
}
"""Rates by volume type. Magnetic volumes ("standard") have no rate here, because AWS charges for each request to such
a volume, and the number of requests is unknown."""
_DEFAULT_TYPE = "gp2"
"""https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_EbsBlockDevice.html"""


@dataclass(frozen=True, kw_only=True)
class VolumeCost:
    """Costs of one machine in addition to the hours of the instance."""

    hourly: float
    """Maximum cost (USD per hour)."""
    unknown: tuple[str, ...] = ()
    """Costs that are not included in `hourly`."""


def volume_cost(request: Mapping[str, Any]) -> VolumeCost:
    """Return the maximum cost per hour of the volumes and the monitoring of one machine of a RunInstances
    request."""
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


_UNLIMITED = ("t3.", "t3a.", "t4g.")
"""Prefixes of instance types that buy CPU credits by default:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/burstable-performance-instances-unlimited-mode-concepts.html"""
_CREDITS = "CPU credits beyond those earned"
_CREDIT_RATES = {"t4g": 0.04}
_CREDIT_RATE = 0.05
"""Price of one vCPU hour that is paid with bought CPU credits alone (USD), on Linux, in all regions and on
all markets: https://aws.amazon.com/ec2/pricing/on-demand/#T2.2FT3.2FT4g_Unlimited_Mode_Pricing"""
_TENANCIES = {"default": "Shared", "dedicated": "Dedicated"}
"""Tenancy in RunInstances → tenancy in the price list."""
_OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-isoe-")
"""Prefixes of the names of regions in AWS partitions other than "aws". Credentials of other partitions are not valid
for the price list, and China's prices are in another currency."""


_LEAST_PAID_S = 60
"""Minimum time that is charged for an instance (seconds):
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-usage-hours.html"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a job: an upper bound of the job's instance hours, and the price of those hours if the
    price is known."""

    instances: int
    longest: timedelta
    """Longest run time of each instance."""
    hourly: float | None
    """Price of one instance without its volumes (USD per hour); None if unknown."""
    volumes: float = 0.0
    """Maximum cost of one instance's volumes and detailed monitoring (USD per hour)."""
    origin: str
    """Origin of the price."""
    bound: bool = False
    """Whether `hourly` is an upper bound of the price."""
    excluded: tuple[str, ...] = ()
    """Charges that are not included in the price."""
    replacements: int = 0
    """Number of machines that may replace lost machines. At most `instances` machines exist at a time, and
    all machines must be gone by the same deadline."""

    @property
    def hours(self) -> float:
        """Return the maximum number of instance hours that may be charged."""
        at_once = self.instances * self.longest.total_seconds()
        return (at_once + self.replacements * _LEAST_PAID_S) / 3600

    @property
    def dollars(self) -> float | None:
        return None if self.hourly is None else self.hours * (self.hourly + self.volumes)

    def sentence(self) -> str:
        """Return the cost as a sentence for the user."""
        bound = f"at most {self.hours:,.1f} instance hours"
        if self.replacements:
            times = f"{self.instances:,} × " if self.instances > 1 else ""
            more = f"{self.replacements:,} replacement{'' if self.replacements == 1 else 's'}"
            bound = f"at most {times}{self.longest.total_seconds() / 3600:,.1f} instance hours and {more}"
        if self.dollars is None:
            return f"{bound}; the price is unknown ({self.origin})"
        word = "at most" if self.bound else "about"
        beside = f"; not in it: {', '.join(self.excluded)}" if self.excluded else ""
        volumes = f", volumes and monitoring at most {self.volumes:,.4f}" if self.volumes else ""
        hour = f"{self.hourly:,.4f} USD an hour ({self.origin})"
        return f"{bound}, {word} {self.dollars:,.2f} USD at {hour}{volumes}{beside}"


def dearest(costs: Sequence[Cost]) -> Cost:
    """Return the highest of `costs`. A type without a price counts as the most expensive type."""
    most = max(costs, key=lambda each: math.inf if each.hourly is None else each.hourly)
    excluded = tuple(dict.fromkeys(what for each in costs for what in each.excluded))
    return replace(most, bound=all(each.bound for each in costs), excluded=excluded)


def mean(costs: Sequence[Cost]) -> Cost:
    """Return the total cost of machines of different types. costs: the cost of each single machine."""
    prices = [each.hourly for each in costs if each.hourly is not None]
    return replace(
        costs[0],
        instances=sum(each.instances for each in costs),
        hourly=sum(prices) / len(costs) if len(prices) == len(costs) else None,
        origin=f"the mean of {' and '.join(each.origin for each in costs)}",
        bound=all(each.bound for each in costs),
        excluded=tuple(dict.fromkeys(what for each in costs for what in each.excluded)),
    )


def over_budget(cost: Cost, most: float | None) -> str | None:
    """Return the reason why a job of this cost is not launched if it may cost at most `most` USD; None if the
    job may be launched."""
    if most is None or (cost.dollars is not None and cost.dollars <= most):
        return None
    advice = "raise limits.max_cost (--max-cost), or write a shorter limits.max_runtime, fewer nodes or a smaller type"
    if cost.dollars is None:
        return (
            f"limits.max_cost allows {most:,.2f} USD, but the cost of the job is not known ({cost.origin}); write the price of "
            "an hour under [prices] in the configuration, or leave limits.max_cost out"
        )
    return f"limits.max_cost allows {most:,.2f} USD, but the job can cost {cost.dollars:,.2f}: {cost.sentence()}; {advice}"


def hang_warning(cost: Cost) -> str:
    """Return a warning about a job on several GPU machines without a time limit, because one hanging process
    keeps all machines running."""
    price = "" if cost.dollars is None else f", at most {cost.dollars:,.2f} USD"
    return (
        f"a benchmark that hangs holds {cost.instances} GPU machines for {format_duration(cost.longest)}{price}: "
        "set limits.no_output or limits.max_runtime"
    )


def not_included(
    instance_type: str, request: Mapping[str, Any], *, vcpus: int | None = None
) -> tuple[str, ...]:
    """Return the charges of a launch that the price of the instance hours does not include. request: parameters of
    RunInstances. vcpus: number of vCPUs of the type; None if unknown."""
    found = [*volume_cost(request).unknown, "traffic", "public IPv4 addresses"]
    interfaces = request.get("NetworkInterfaces") or [{}]
    if all(each.get("AssociatePublicIpAddress") is False for each in interfaces):
        found.remove("public IPv4 addresses")
    bought = request.get("CreditSpecification", {}).get("CpuCredits")
    if bought == "unlimited" or (instance_type.startswith(_UNLIMITED) and bought != "standard"):
        found.append(_credits(instance_type, vcpus))
    if read_tenancy(request) == "dedicated":
        found.append("the region's fee for dedicated instances")
    return tuple(found)


def read_tenancy(request: Mapping[str, Any]) -> str:
    """Return the tenancy in the parameters of RunInstances, or in `[aws.ec2.run_instances]`."""
    return str(request.get("Placement", {}).get("Tenancy", "default"))


def _credits(instance_type: str, vcpus: int | None) -> str:
    """Return a text about the charge for CPU credits, with the upper bound of the charge."""
    rate = _CREDIT_RATES.get(instance_type.partition(".")[0], _CREDIT_RATE)
    hour = f", {rate * vcpus:,.2f} USD an hour for {vcpus} vCPUs" if vcpus is not None else ""
    return f"{_CREDITS} (at most {rate:.2f} USD per vCPU-hour{hour})"


def is_bound(image: Image, excluded: Sequence[str]) -> bool:
    """Return whether the listed price is an upper bound for an hour of an instance with `image`."""
    is_open = any(each.startswith(("the volume ", _CREDITS)) for each in excluded)
    return bool(image.operation) and not image.marketplace and not is_open


def price(
    instance_type: str,
    prices: Mapping[str, float],
    aws: AwsSession | None,
    *,
    operation: str = "",
    tenancy: str = "default",
) -> tuple[float | None, str]:
    """Return the on-demand price (USD per hour), and the price's origin: the configuration, or AWS's price
    list. operation: the image's UsageOperation, which determines the cost of licences. tenancy: as in
    RunInstances.
    """
    if instance_type in prices:
        return prices[instance_type], "from the configuration"
    if aws is None:
        return None, "no [prices] in the configuration, and AWS cannot be queried"
    if aws.region.startswith(_OTHER_PARTITIONS):
        advice = "write the price under [prices] in the configuration"
        return None, f"AWS's price list does not answer for {aws.region}; {advice}"
    if tenancy not in _TENANCIES:
        return None, f'AWS charges for the host, not for its instances (tenancy "{tenancy}")'
    filters = {
        "instanceType": instance_type,
        "regionCode": aws.region,
        "operation": operation or "RunInstances",
        "tenancy": _TENANCIES[tenancy],
        "capacitystatus": "Used",
    }
    return _listed_price(aws, filters)


def _listed_price(aws: AwsSession, filters: Mapping[str, str]) -> tuple[float | None, str]:
    try:
        answer = aws.pricing().get_products(
            ServiceCode="AmazonEC2",
            Filters=[{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in filters.items()],
            MaxResults=10,
        )
        found = [_on_demand(parse_json(each, where="the price list")) for each in answer["PriceList"]]
    except (*FAILURES, RecordError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"the price list does not answer: {type(error).__name__}"
    known = [each for each in found if each]
    return (max(known), "AWS's price list, on demand") if known else (None, "not in AWS's price list")


def _on_demand(product: Mapping[str, Any]) -> float | None:
    """Return the price in an entry of the price list: https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html"""
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if dimension.get("unit") == "Hrs":
                return float(dimension["pricePerUnit"]["USD"])
    return None
