"""What `bai doctor FILE` tries of a launch: whether its machines, several ones above all, find room and each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from executor.backends.ec2.doctor.findings import Health, HealthFinding, guarded, refused
from executor.backends.ec2.doctor.groups import group_rights, group_rules
from executor.backends.ec2.doctor.quotas import vcpu_quota
from executor.backends.ec2.launch.images import InstanceType
from executor.backends.ec2.launch.resolve import Resolved
from executor.backends.ec2.routes import ENDPOINT_ADVICE, cut_off_sentence, without_s3
from executor.backends.ec2.session import DENIED, FAILURES, AwsSession, aws_error, code_of
from executor.descriptor.ec2_table import ON_DEMAND, efa_interfaces

_SPREAD_LIMIT = 7
"""Instances in one zone: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html"""


def node_findings(
    aws: AwsSession,
    resolved: Resolved,
    request: Mapping[str, Any],
    own_group: Mapping[str, Any] | None,
    *,
    bucket_region: str,
) -> Iterator[HealthFinding]:
    """Yield what was found of a launch by `request`.

    own_group: CreateSecurityGroup's parameters, where the machines get a group of their own.
    """
    nodes = request["MinCount"]
    kinds = {kind.name: kind for kind in resolved.kinds}
    for name, market in dict.fromkeys(each.kind for each in resolved.candidates):
        yield _quota(aws, kinds[name], nodes, market)
    if placement := request.get("Placement", {}):
        yield from _placement(aws, placement, nodes)
    efas = efa_interfaces(request)
    for kind in resolved.kinds:
        if efas or (nodes > 1 and kind.efa_interfaces):
            yield _efa(kind, efas)
    interfaces = request.get("NetworkInterfaces") or [{}]
    if nodes == 1 and len(interfaces) == 1:
        return
    try:
        ids = dict.fromkeys(each.subnet for each in resolved.candidates)
        found = aws.ec2().describe_subnets(SubnetIds=list(ids))
    except FAILURES as error:
        yield refused("addresses", error)
        return
    subnets: Sequence[Any] = found["Subnets"]
    if len(interfaces) > 1:
        yield guarded("interfaces", lambda: _interfaces(aws, subnets, len(interfaces), bucket_region))
    if nodes == 1:
        return
    yield _addresses(subnets, nodes, interfaces)
    if own_group is not None:
        yield guarded("group rights", lambda: group_rights(aws, own_group))
    else:
        yield guarded("group rules", lambda: group_rules(aws, request, subnets, has_efa=bool(efas)))


def _quota(aws: AwsSession, kind: InstanceType, nodes: int, market: str) -> HealthFinding:
    def unknown(why: str) -> HealthFinding:
        return HealthFinding("quota", Health.UNKNOWN, why)

    if market not in (ON_DEMAND, "spot"):
        return unknown(f"the machines of a {market} were paid for before, and are not compared with a quota")
    if kind.vcpus is None:
        return unknown(f"EC2 does not say how many vCPUs {kind.name} has")
    try:
        quota = vcpu_quota(aws, kind.name, spot=market == "spot")
    except ClientError as error:
        if code_of(error) in DENIED:
            return unknown("these credentials may not look at quotas (servicequotas:ListServiceQuotas)")
        return unknown(str(aws_error(error, doing="reading the quotas")))
    except FAILURES as error:
        return unknown(str(aws_error(error, doing="reading the quotas")))
    if quota is None:
        return unknown(f"the account has no vCPU quota that is known to be for {kind.name}")
    needed = f"{nodes * kind.vcpus:,} ({nodes:,} × {kind.vcpus})"
    is_enough = quota.used + nodes * kind.vcpus <= quota.limit
    return HealthFinding(
        "quota",
        Health.OK if is_enough else Health.FAILED,
        f'"{quota.name}": {quota.limit:,} vCPUs, of which {quota.used:,} are in use; the job needs {needed}',
        ""
        if is_enough
        else "ask for more under Service Quotas › Amazon EC2, or take fewer or smaller machines",
    )


def _placement(aws: AwsSession, placement: Mapping[str, Any], nodes: int) -> Iterator[HealthFinding]:
    """Yield whether the placement group is there, where one is named."""
    name, group_id = placement.get("GroupName"), placement.get("GroupId")
    if not name and not group_id:
        return
    wanted = f'"{name}"' if name else str(group_id)

    def failed(sentence: str, todo: str) -> HealthFinding:
        return HealthFinding("placement", Health.FAILED, sentence, todo, configuration=True)

    try:
        ec2 = aws.ec2()
        found = (
            ec2.describe_placement_groups(GroupNames=[name])
            if name
            else ec2.describe_placement_groups(GroupIds=[str(group_id)])
        )["PlacementGroups"]
    except ClientError as error:
        if code_of(error) in DENIED:
            denied = f"{wanted}: these credentials may not look at it (ec2:DescribePlacementGroups)"
            yield HealthFinding("placement", Health.UNKNOWN, denied)
            return
        if not code_of(error).startswith("InvalidPlacementGroup"):
            yield refused("placement", error)
            return
        found = []
    except FAILURES as error:
        yield refused("placement", error)
        return
    if not found:
        yield failed(
            f"the placement group {wanted} does not exist in {aws.region}",
            "correct Placement in [aws.ec2.run_instances], or make it: "
            f"aws ec2 create-placement-group --strategy cluster --group-name {name or 'NAME'}",
        )
        return
    state, strategy = found[0].get("State"), found[0].get("Strategy")
    if state != "available":
        yield failed(f"the placement group {wanted} is {state}", "name another one")
    elif strategy == "spread" and nodes > _SPREAD_LIMIT:
        yield failed(
            f"the placement group {wanted} spreads its machines, at most {_SPREAD_LIMIT} in a zone, and the job has {nodes:,}",
            "name one with the strategy cluster",
        )
    else:
        yield HealthFinding("placement", Health.OK, f"{wanted}, {strategy}")


def _efa(kind: InstanceType, wanted: int) -> HealthFinding:
    most = kind.efa_interfaces
    if not wanted:
        return HealthFinding(
            "efa",
            Health.OK,
            f'none is asked for; {kind.name} takes up to {most} ([aws.ec2] efa = "all"): docs/many-nodes.md, EFA',
        )
    if not most or wanted > most:
        takes = f"takes up to {most}" if most else "takes none"
        return HealthFinding(
            "efa",
            Health.FAILED,
            f"{wanted} EFA interfaces are asked for, and {kind.name} {takes}",
            "correct NetworkInterfaces in [aws.ec2.run_instances], or take another hardware.instance_type",
            configuration=True,
        )
    return HealthFinding("efa", Health.OK, f"{wanted} of up to {most} that {kind.name} takes")


def _interfaces(
    aws: AwsSession, subnets: Sequence[Mapping[str, Any]], count: int, bucket_region: str
) -> HealthFinding:
    """Look whether machines with several interfaces, to which EC2 gives no public address, reach S3."""
    cut_off = without_s3(aws, subnets, bucket_region=bucket_region)
    if not cut_off:
        return HealthFinding("interfaces", Health.OK, f"S3 is reached with {count} and no public address")
    return HealthFinding(
        "interfaces", Health.FAILED, cut_off_sentence(cut_off, interfaces=count), ENDPOINT_ADVICE
    )


def _addresses(
    subnets: Sequence[Mapping[str, Any]], nodes: int, interfaces: Sequence[Mapping[str, Any]]
) -> HealthFinding:
    # An interface that is nothing but an EFA has no address.
    needed = nodes * sum(each.get("InterfaceType") != "efa-only" for each in interfaces)
    free = {each["SubnetId"]: each.get("AvailableIpAddressCount", 0) for each in subnets}
    small = [f"{subnet} has {count:,}" for subnet, count in free.items() if count < needed]
    if not small:
        return HealthFinding("addresses", Health.OK, f"each candidate subnet has {needed:,} that are free")
    todo = "name larger `subnets`"
    sentence = f"the job needs {needed:,} free addresses in one subnet, and {', '.join(small)}"
    if len(small) < len(free):
        return HealthFinding("addresses", Health.WARNING, f"{sentence}; only the others are of use", todo)
    return HealthFinding("addresses", Health.FAILED, sentence, todo)
