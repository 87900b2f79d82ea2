"""What a job may cost at most: the hours that its deadman allows, times what an hour costs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from bai_agent.job.durations import format_duration
from executor.backends.ec2.launch.images import Image
from executor.backends.ec2.launch.volume_cost import volume_cost
from executor.backends.ec2.session import FAILURES, AwsSession

_UNLIMITED = ("t3.", "t3a.", "t4g.")
"""Types that buy CPU credits unless told otherwise:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/burstable-performance-instances-unlimited-mode-concepts.html"""
_CREDITS = "CPU credits beyond those earned"
_TENANCIES = {"default": "Shared", "dedicated": "Dedicated"}
"""RunInstances' word → the price list's."""
_OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-isoe-")
"""Their credentials mean nothing to the price list of the others, and China's is in another currency."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a job may cost: an upper bound of its hours, and the price of those hours as far as it is known."""

    instances: int
    longest: timedelta
    """For each instance."""
    hourly: float | None
    """USD for one instance without its volumes; None where nobody knows."""
    volumes: float = 0.0
    """USD an hour at most for the volumes and the detailed monitoring of one instance."""
    origin: str
    """Where the price came from."""
    bound: bool = False
    """Whether an hour of the instance costs no more than `hourly`."""
    excluded: tuple[str, ...] = ()
    """What is paid beside it."""

    @property
    def hours(self) -> float:
        """Return how many instance hours may be paid."""
        return self.instances * self.longest.total_seconds() / 3600

    @property
    def dollars(self) -> float | None:
        return None if self.hourly is None else self.hours * (self.hourly + self.volumes)

    def sentence(self) -> str:
        """Return it for a person."""
        bound = f"at most {self.hours:,.1f} instance hours"
        if self.dollars is None:
            return f"{bound}; the price is unknown ({self.origin})"
        word = "at most" if self.bound else "about"
        beside = f"; not in it: {', '.join(self.excluded)}" if self.excluded else ""
        volumes = f", volumes and monitoring at most {self.volumes:,.4f}" if self.volumes else ""
        hour = f"{self.hourly:,.4f} USD an hour ({self.origin})"
        return f"{bound}, {word} {self.dollars:,.2f} USD at {hour}{volumes}{beside}"


def dearest(costs: Sequence[Cost]) -> Cost:
    """Return what is paid at most of what one of `costs` will be; of one without a price nobody knows."""
    most = max(costs, key=lambda each: math.inf if each.hourly is None else each.hourly)
    excluded = tuple(dict.fromkeys(what for each in costs for what in each.excluded))
    return replace(most, bound=all(each.bound for each in costs), excluded=excluded)


def over_budget(cost: Cost, most: float | None) -> str | None:
    """Return why a job is not launched that may cost `cost`, if `most` USD are allowed; None if it is."""
    if most is None or (cost.dollars is not None and cost.dollars <= most):
        return None
    advice = "raise limits.max_cost (--max-cost), or write a shorter limits.max_runtime, fewer nodes or a smaller type"
    if cost.dollars is None:
        return (
            f"limits.max_cost allows {most:,.2f} USD, and what the job may cost is not known ({cost.origin}); write the price of "
            "an hour under [prices] in the configuration, or leave limits.max_cost out"
        )
    return f"limits.max_cost allows {most:,.2f} USD, and the job may cost {cost.dollars:,.2f}: {cost.sentence()}; {advice}"


def hang_warning(cost: Cost) -> str:
    """Return what to know of a job on several GPU machines without a limit of its own: one process that hangs holds all of them."""
    price = "" if cost.dollars is None else f", at most {cost.dollars:,.2f} USD"
    return (
        f"a benchmark that hangs holds {cost.instances} GPU machines for {format_duration(cost.longest)}{price}: "
        "set limits.no_output or limits.max_runtime"
    )


def not_included(instance_type: str, request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a launch by `request` is charged beside the hours of its instances."""
    found = [*volume_cost(request).unknown, "traffic", "public IPv4 addresses"]
    interfaces = request.get("NetworkInterfaces") or [{}]
    if all(each.get("AssociatePublicIpAddress") is False for each in interfaces):
        found.remove("public IPv4 addresses")
    bought = request.get("CreditSpecification", {}).get("CpuCredits")
    if bought == "unlimited" or (instance_type.startswith(_UNLIMITED) and bought != "standard"):
        found.append(_CREDITS)
    if request.get("Placement", {}).get("Tenancy") == "dedicated":
        found.append("the region's fee for dedicated instances")
    return tuple(found)


def is_bound(image: Image, excluded: Sequence[str]) -> bool:
    """Return whether the price list's hour is the most that an hour of an instance of `image` costs."""
    volumes = any(each.startswith("the volume ") for each in excluded)
    return bool(image.operation) and not image.marketplace and _CREDITS not in excluded and not volumes


def price(
    instance_type: str,
    prices: Mapping[str, float],
    aws: AwsSession | None,
    *,
    operation: str = "",
    tenancy: str = "default",
) -> tuple[float | None, str]:
    """Return what an hour costs on demand, in USD, and where that is from: the configuration, or AWS's price list.

    operation: the image's UsageOperation, which says what its licences cost. tenancy: as RunInstances calls it.
    """
    if instance_type in prices:
        return prices[instance_type], "from the configuration"
    if aws is None:
        return None, "no [prices] in the configuration, and no AWS to ask"
    if aws.region.startswith(_OTHER_PARTITIONS):
        return (
            None,
            f"AWS's price list does not answer for {aws.region}; write it under [prices] in the configuration",
        )
    if tenancy not in _TENANCIES:
        return None, f'a host is paid for, not its instances (tenancy "{tenancy}")'
    filters = {
        "instanceType": instance_type,
        "regionCode": aws.region,
        "operation": operation or "RunInstances",
        "tenancy": _TENANCIES[tenancy],
        "capacitystatus": "Used",
    }
    try:
        answer = aws.pricing().get_products(
            ServiceCode="AmazonEC2",
            Filters=[{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in filters.items()],
            MaxResults=10,
        )
        found = [_on_demand(json.loads(each)) for each in answer["PriceList"]]
    except (*FAILURES, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return None, f"the price list does not answer: {type(error).__name__}"
    known = [each for each in found if each]
    return (max(known), "AWS's price list, on demand") if known else (None, "not in AWS's price list")


def _on_demand(product: Mapping[str, Any]) -> float | None:
    """https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html"""
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if dimension.get("unit") == "Hrs":
                return float(dimension["pricePerUnit"]["USD"])
    return None
