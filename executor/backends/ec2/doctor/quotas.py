"""How many vCPUs an account may run of a kind of instance, and how many of them are taken.

Quotas are found by their names, which say the families of types that they are for:
https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from executor.backends.ec2.session import AwsSession

_MARKETS = {
    "on-demand": re.compile(r"Running On-Demand (.+) instances"),
    "spot": re.compile(r"All (.+) Spot Instance Requests"),
}
_FAMILY = re.compile(r"[A-Z][A-Za-z]*[0-9]*")
_TYPE = re.compile(r"([a-z]+)-?([0-9]*)")
_NAMED = {"u": "memory", "dl": "dl", "hpc": "hpc", "inf": "inf", "mac": "mac", "trn": "trn", "vt": "vt"}
"""Families whose quota is not that of their first letter, and what it calls them."""
_TYPES_AT_ONCE = 100
"""https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceTypes.html"""


@dataclass(frozen=True, kw_only=True)
class VcpuQuota:
    """A quota of an account in a region, in vCPUs."""

    name: str
    limit: int
    used: int


def quota_name(instance_type: str, names: Iterable[str], *, spot: bool = False) -> str | None:
    """Return which of the quotas called `names` an instance of a type counts against; None where none of them says so."""
    found = _TYPE.match(instance_type)
    if found is None:
        return None
    letters, generation = found.groups()
    market = _MARKETS["spot" if spot else "on-demand"]
    families = {
        family.lower(): name
        for name in names
        if (match := market.fullmatch(name)) is not None
        for family in _FAMILY.findall(match[1])
    }
    family = _NAMED.get(letters, letters[0])
    return families.get(f"{family}{generation}", families.get(family))


def vcpu_quota(aws: AwsSession, instance_type: str, *, spot: bool) -> VcpuQuota | None:
    """Return the quota that a type counts against; None where none of the account's is for it. Raises what AWS's library does."""
    limits: dict[str, float] = {}
    for page in aws.service_quotas().get_paginator("list_service_quotas").paginate(ServiceCode="ec2"):
        limits |= {each["QuotaName"]: each["Value"] for each in page["Quotas"]}
    name = quota_name(instance_type, limits, spot=spot)
    if name is None:
        return None
    running = _running(aws, spot=spot)
    counted = [kind for kind in running if quota_name(kind, limits, spot=spot) == name]
    vcpus = _vcpus(aws, counted)
    return VcpuQuota(
        name=name, limit=int(limits[name]), used=sum(running[kind] * vcpus.get(kind, 0) for kind in counted)
    )


def _running(aws: AwsSession, *, spot: bool) -> Counter[str]:
    """Return how many instances of each type count now."""
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    pages = aws.ec2().get_paginator("describe_instances").paginate(Filters=states)  # type: ignore[arg-type]
    return Counter(
        str(each.get("InstanceType", ""))
        for page in pages
        for reservation in page["Reservations"]
        for each in reservation.get("Instances", ())
        if (each.get("InstanceLifecycle") == "spot") == spot
    )


def _vcpus(aws: AwsSession, kinds: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for start in range(0, len(kinds), _TYPES_AT_ONCE):
        wanted = kinds[start : start + _TYPES_AT_ONCE]
        answer = aws.ec2().describe_instance_types(InstanceTypes=wanted)  # type: ignore[arg-type]
        for each in answer["InstanceTypes"]:
            found[str(each.get("InstanceType"))] = each.get("VCpuInfo", {}).get("DefaultVCpus", 0)
    return found
