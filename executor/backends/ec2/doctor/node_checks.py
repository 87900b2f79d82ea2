"""Checks for `bai doctor FILE` whether the account's quotas allow the machines of the launch and, if there
are several, whether the machines can reach each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bai_agent.errors import BaiError
from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.doctor.doctor_findings import (
    HealthFinding,
    failed,
    guarded,
    passed,
    refused,
    unknown,
    warned,
)
from executor.backends.ec2.doctor.groups import group_rights, group_rules
from executor.backends.ec2.instances import LIVING, described
from executor.backends.ec2.launch.images import InstanceType
from executor.backends.ec2.launch.resolve import Resolved
from executor.backends.ec2.routes import ENDPOINT_ADVICE, cut_off_sentence, find_subnets, without_s3
from executor.backends.ec2.session import FAILURES, AwsSession, is_denied, plain_errors, tolerated
from executor.descriptor.ec2_table import ON_DEMAND, efa_interfaces

_MARKETS = {
    "on-demand": re.compile(r"Running On-Demand (.+) instances"),
    "spot": re.compile(r"All (.+) Spot Instance Requests"),
}
_FAMILY = re.compile(r"[A-Z][A-Za-z]*[0-9]*")
_TYPE = re.compile(r"([a-z]+)-?([0-9]*)")
_NAMED = {"u": "memory", "dl": "dl", "hpc": "hpc", "inf": "inf", "mac": "mac", "trn": "trn", "vt": "vt"}
"""First letters of an instance type → the family in the name of the type's quota. The quota of any other type is
named after the type's first letter:
https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html"""
_TYPES_AT_ONCE = 100
"""https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceTypes.html"""


@dataclass(frozen=True, kw_only=True)
class VcpuQuota:
    """A quota of an account in a region, in vCPUs."""

    name: str
    limit: int
    used: int


def quota_name(instance_type: str, names: Iterable[str], *, spot: bool = False) -> str | None:
    """Return the one of `names` that is the quota for instances of this type; None if there is no such
    quota."""
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
    """Return the account's quota that instances of a type count against; None if there is no such quota.
    Raises BaiError."""
    limits: dict[str, float] = {}
    with plain_errors("reading the quotas"):
        for page in aws.service_quotas().get_paginator("list_service_quotas").paginate(ServiceCode="ec2"):
            limits |= {each["QuotaName"]: each["Value"] for each in page["Quotas"]}
    name = quota_name(instance_type, limits, spot=spot)
    if name is None:
        return None
    there = described(aws.ec2(), [{"Name": "instance-state-name", "Values": list(LIVING)}])
    running = Counter(each.type for each in there if (each.market == "spot") == spot)
    counted = [kind for kind in running if quota_name(kind, limits, spot=spot) == name]
    vcpus = _vcpus(aws, counted)
    return VcpuQuota(
        name=name, limit=int(limits[name]), used=sum(running[kind] * vcpus.get(kind, 0) for kind in counted)
    )


def _vcpus(aws: AwsSession, kinds: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    with plain_errors("describing instance types"):
        for start in range(0, len(kinds), _TYPES_AT_ONCE):
            wanted = kinds[start : start + _TYPES_AT_ONCE]
            answer = aws.ec2().describe_instance_types(InstanceTypes=wanted)  # type: ignore[arg-type]
            for each in answer["InstanceTypes"]:
                found[str(each.get("InstanceType"))] = each.get("VCpuInfo", {}).get("DefaultVCpus", 0)
    return found


_SPREAD_LIMIT = 7
"""Maximum number of instances of a spread placement group in one zone:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html"""


def node_findings(
    aws: AwsSession,
    resolved: Resolved,
    request: Mapping[str, Any],
    own_group: Mapping[str, Any] | None,
    *,
    bucket_region: str,
) -> Iterator[HealthFinding]:
    """Yield the findings about a launch by `request`.

    own_group: parameters of CreateSecurityGroup; None if no group is created for the job.
    """
    nodes = _machines(resolved, request)
    servers = [(resolved.server, 1)] if resolved.server is not None else []
    kinds = {kind.name: kind for kind in resolved.kinds}
    for name, market in dict.fromkeys(each.kind for each in resolved.candidates):
        yield from _quotas(aws, [(kinds[name], request["MaxCount"]), *servers], market)
    if placement := request.get("Placement", {}):
        yield from _placement(aws, placement, nodes)
    yield from _efas(resolved.kinds, efa_interfaces(request), request["MaxCount"])
    if nodes > 1 or len(request.get("NetworkInterfaces", ())) > 1:
        yield from _network(aws, resolved, request, own_group, bucket_region)


def _machines(resolved: Resolved, request: Mapping[str, Any]) -> int:
    """Return the total number of machines that the launch requests."""
    return int(request["MaxCount"]) + (resolved.server is not None)


def _network(
    aws: AwsSession,
    resolved: Resolved,
    request: Mapping[str, Any],
    own_group: Mapping[str, Any] | None,
    bucket_region: str,
) -> Iterator[HealthFinding]:
    """Check the network of several machines, or of machines with several interfaces."""
    nodes, interfaces = _machines(resolved, request), request.get("NetworkInterfaces") or [{}]
    try:
        ids = dict.fromkeys(each.subnet for each in resolved.candidates)
        subnets: Sequence[Any] = find_subnets(aws, list(ids))
    except FAILURES as error:
        yield refused("addresses", error)
        return
    if len(interfaces) > 1:
        yield guarded("interfaces", lambda: _interfaces(aws, subnets, len(interfaces), bucket_region))
    if nodes == 1:
        return
    yield _addresses(subnets, nodes, interfaces)
    if own_group is not None:
        yield guarded("group rights", lambda: group_rights(aws, own_group))
    else:
        has_efa = efa_interfaces(request) > 0
        yield guarded("group rules", lambda: group_rules(aws, request, subnets, has_efa=has_efa))


def _quotas(
    aws: AwsSession, wanted: Sequence[tuple[InstanceType, int]], market: str
) -> Iterator[HealthFinding]:
    """Yield a finding about each quota that the machines count against. wanted: types, each with a number of machines."""
    if market not in (ON_DEMAND, "spot"):
        said = f"the machines of a {market} were paid for in advance, so they are not compared with a quota"
        yield unknown("quota", said)
        return
    needs: dict[VcpuQuota, list[tuple[int, int]]] = {}
    for kind, nodes in wanted:
        if kind.vcpus is None:
            yield unknown("quota", f"EC2 does not say how many vCPUs {kind.name} has")
            continue
        try:
            quota = vcpu_quota(aws, kind.name, spot=market == "spot")
        except BaiError as error:
            denied = "these credentials may not read quotas (servicequotas:ListServiceQuotas)"
            yield unknown("quota", denied if is_denied(error) else str(error))
            return
        if quota is None:
            yield unknown("quota", f"the account has no known vCPU quota for {kind.name}")
            continue
        needs.setdefault(quota, []).append((nodes, kind.vcpus))
    for quota, parts in needs.items():
        yield _quota(quota, parts)


def _quota(quota: VcpuQuota, parts: Sequence[tuple[int, int]]) -> HealthFinding:
    """Return the finding about a quota. parts: pairs of a number of machines and the vCPUs of each of these
    machines."""
    vcpus = sum(nodes * each for nodes, each in parts)
    needed = f"{vcpus:,} ({' + '.join(f'{nodes:,} × {each}' for nodes, each in parts)})"
    said = (
        f'"{quota.name}": {quota.limit:,} vCPUs, of which {quota.used:,} are in use; the job needs {needed}'
    )
    if quota.used + vcpus <= quota.limit:
        return passed("quota", said)
    todo = "ask for more under Service Quotas › Amazon EC2, or take fewer or smaller machines"
    return failed("quota", said, todo)


def _placement(aws: AwsSession, placement: Mapping[str, Any], nodes: int) -> Iterator[HealthFinding]:
    """Yield a finding about the placement group, if the request names a placement group."""
    name, group_id = placement.get("GroupName"), placement.get("GroupId")
    if not name and not group_id:
        return
    wanted = f'"{name}"' if name else str(group_id)

    def look() -> HealthFinding:
        groups: Sequence[Any] = ()
        ec2: Any = aws.ec2()
        which = {"GroupNames": [name]} if name else {"GroupIds": [str(group_id)]}
        with tolerated("InvalidPlacementGroup"):
            groups = ec2.describe_placement_groups(**which)["PlacementGroups"]
        return _placement_group(groups, wanted, nodes, region=aws.region, name=name or "NAME")

    denied = f"{wanted}: these credentials may not read the group (ec2:DescribePlacementGroups)"
    yield guarded("placement", look, denied=denied)


def _placement_group(
    groups: Sequence[Any], wanted: str, nodes: int, *, region: str, name: str
) -> HealthFinding:
    if not groups:
        problem = f"the placement group {wanted} does not exist in {region}"
        todo = (
            "correct Placement in [aws.ec2.run_instances], or create the group: "
            f"aws ec2 create-placement-group --strategy cluster --group-name {name}"
        )
    elif (state := groups[0].get("State")) != "available":
        problem, todo = f"the placement group {wanted} is {state}", "name another placement group"
    elif (strategy := groups[0].get("Strategy")) == "spread" and nodes > _SPREAD_LIMIT:
        problem = f"the placement group {wanted} has the strategy spread, with at most {_SPREAD_LIMIT} machines in a zone, but the job has {nodes:,}"
        todo = "name a placement group with the strategy cluster"
    else:
        return passed("placement", f"{wanted}, {strategy}")
    return failed("placement", problem, todo, configuration=True)


def _efas(kinds: Sequence[InstanceType], wanted: int, nodes: int) -> Iterator[HealthFinding]:
    for kind in kinds:
        if wanted or (nodes > 1 and kind.efa_interfaces):
            yield _efa(kind, wanted)


def _efa(kind: InstanceType, wanted: int) -> HealthFinding:
    most = kind.efa_interfaces
    if not wanted:
        said = f'no EFA is requested; {kind.name} supports up to {most} ([aws.ec2] efa = "all"): docs/many-nodes.md, EFA'
        return passed("efa", said)
    if most and wanted <= most:
        return passed("efa", f"{wanted} of at most {most} EFA interfaces of {kind.name} are requested")
    takes = f"takes up to {most}" if most else "takes none"
    return failed(
        "efa",
        f"{wanted} EFA interfaces are requested, but {kind.name} {takes}",
        "correct NetworkInterfaces in [aws.ec2.run_instances], or take another hardware.instance_type",
        configuration=True,
    )


def _interfaces(
    aws: AwsSession, subnets: Sequence[Mapping[str, Any]], count: int, bucket_region: str
) -> HealthFinding:
    """Check whether machines with several network interfaces can reach S3, because EC2 assigns no public
    addresses to such machines."""
    cut_off = without_s3(aws, subnets, bucket_region=bucket_region)
    if not cut_off:
        return passed("interfaces", f"machines with {count} interfaces reach S3 without a public address")
    return failed("interfaces", cut_off_sentence(cut_off, interfaces=count), ENDPOINT_ADVICE)


def _addresses(
    subnets: Sequence[Mapping[str, Any]], nodes: int, interfaces: Sequence[Mapping[str, Any]]
) -> HealthFinding:
    # A network interface of type `efa-only` has no IP address.
    needed = nodes * sum(each.get("InterfaceType") != "efa-only" for each in interfaces)
    free = {each["SubnetId"]: each.get("AvailableIpAddressCount", 0) for each in subnets}
    small = [f"{subnet} has {count:,}" for subnet, count in free.items() if count < needed]
    if not small:
        return passed("addresses", f"each candidate subnet has {needed:,} free addresses")
    todo = "name larger `subnets`"
    sentence = f"the job needs {needed:,} free addresses in one subnet, but {', '.join(small)}"
    if len(small) < len(free):
        return warned("addresses", f"{sentence}; only the other subnets can be used", todo)
    return failed("addresses", sentence, todo)
