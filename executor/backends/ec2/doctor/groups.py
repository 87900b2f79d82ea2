"""Whether the machines of a job reach each other: the right to make them a security group, or the rules of configured ones."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from executor.backends.ec2.doctor.findings import Health, HealthFinding
from executor.backends.ec2.security_group import groups_of
from executor.backends.ec2.session import DENIED, AwsSession, code_of

_ALL = "-1"
_TOPMOST_PORT = 65535


def group_rights(aws: AwsSession, own_group: Mapping[str, Any]) -> HealthFinding:
    """Try, as dry runs, to make the job's security group, and to change and delete one of an earlier job."""
    ec2: Any = aws.ec2()
    calls: dict[str, Callable[[], object]] = {
        "CreateSecurityGroup": lambda: ec2.create_security_group(**own_group, DryRun=True)
    }
    earlier = next(iter(groups_of(ec2, [])), None)
    if earlier is not None:
        rule = [{"IpProtocol": _ALL, "UserIdGroupPairs": [{"GroupId": earlier}]}]
        on_it = {"GroupId": earlier, "DryRun": True}
        calls |= {
            "AuthorizeSecurityGroupIngress": lambda: ec2.authorize_security_group_ingress(
                **on_it, IpPermissions=rule
            ),
            "AuthorizeSecurityGroupEgress": lambda: ec2.authorize_security_group_egress(
                **on_it, IpPermissions=rule
            ),
            "DeleteSecurityGroup": lambda: ec2.delete_security_group(**on_it),
        }
    denied = []
    for name, call in calls.items():
        try:
            call()
        except ClientError as error:
            if code_of(error) in DENIED:
                denied.append(f"ec2:{name}")
            elif code_of(error) != "DryRunOperation":
                raise
    if denied:
        return HealthFinding(
            "group rights",
            Health.FAILED,
            f"several machines need a security group of their own, and {', '.join(denied)} is not allowed",
            "docs/iam has the policies; or configure `security_groups`",
        )
    untried = "" if earlier else "; changing and deleting it can be tried once there is one"
    vpc = own_group["VpcId"]
    return HealthFinding("group rights", Health.OK, f"a group for the job may be made in {vpc}{untried}")


def group_rules(
    aws: AwsSession, request: Mapping[str, Any], subnets: Sequence[Mapping[str, Any]], *, has_efa: bool
) -> HealthFinding:
    """Look whether the configured groups let their members reach each other."""
    interfaces = request.get("NetworkInterfaces") or [{}]
    ids = sorted(
        {
            *request.get("SecurityGroupIds", ()),
            *(group for each in interfaces for group in each.get("Groups", ())),
        }
    )
    if not ids:
        return HealthFinding("group rules", Health.UNKNOWN, "the groups are named by their names, not by ids")
    groups: Sequence[Any] = aws.ec2().describe_security_groups(GroupIds=ids)["SecurityGroups"]
    nets = [ipaddress.ip_network(each["CidrBlock"]) for each in subnets]
    names = ", ".join(ids)

    def lets_through(direction: str, *, to_members: bool) -> bool:
        rules = (rule for group in groups for rule in group.get(direction, ()))
        return any(
            _is_for_all(rule, has_efa=has_efa)
            and (_names(rule, ids) or (not to_members and _covers(rule, nets)))
            for rule in rules
        )

    missing = []
    # What EFA sends has no address that a range could cover: both directions name the group.
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html#efa-start-security
    if not lets_through("IpPermissions", to_members=has_efa):
        missing.append("in")
    if has_efa and not lets_through("IpPermissionsEgress", to_members=True):
        missing.append("out")
    if not missing:
        return HealthFinding("group rules", Health.OK, f"{names}: members reach each other")
    rule = f"IpProtocol=-1,UserIdGroupPairs=[{{GroupId={ids[0]}}}]"
    words = {"in": "ingress", "out": "egress"}
    todo = " and ".join(
        f"aws ec2 authorize-security-group-{words[each]} --group-id {ids[0]} --ip-permissions '{rule}'"
        for each in missing
    )
    return HealthFinding(
        "group rules",
        Health.WARNING,
        f"{names}: no rule lets all traffic of members {' and '.join(missing)}, and the machines of a job must reach each other",
        todo,
    )


def _is_for_all(rule: Mapping[str, Any], *, has_efa: bool) -> bool:
    """Return whether a rule is about all traffic; TCP alone is enough without EFA."""
    if rule.get("IpProtocol") == _ALL:
        return True
    is_all_tcp = rule.get("FromPort", 1) <= 1 and rule.get("ToPort", 0) >= _TOPMOST_PORT
    return not has_efa and rule.get("IpProtocol") == "tcp" and is_all_tcp


def _names(rule: Mapping[str, Any], groups: Sequence[str]) -> bool:
    return any(pair.get("GroupId") in groups for pair in rule.get("UserIdGroupPairs", ()))


def _covers(rule: Mapping[str, Any], nets: Sequence[Any]) -> bool:
    ranges = [ipaddress.ip_network(each["CidrIp"], strict=False) for each in rule.get("IpRanges", ())]
    return bool(nets) and all(any(net.subnet_of(each) for each in ranges) for net in nets)
