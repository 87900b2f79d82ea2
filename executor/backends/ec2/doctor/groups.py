"""Checks whether the machines of a job can reach each other, by the rules of the configured security groups.
If no groups are configured, the module checks the right to create a group."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from executor.backends.ec2.doctor.doctor_findings import HealthFinding, failed, passed, unknown, warned
from executor.backends.ec2.launch.network import group_ids
from executor.backends.ec2.security_group import find_groups
from executor.backends.ec2.session import AwsSession, is_denied, tolerated

_ALL = "-1"
_TOPMOST_PORT = 65535
_PERMISSIONS = {"in": "IpPermissions", "out": "IpPermissionsEgress"}
_DIRECTIONS = {"in": "ingress", "out": "egress"}


def group_rights(aws: AwsSession, own_group: Mapping[str, Any]) -> HealthFinding:
    """Try in dry runs to create the job's security group, and to change and delete the group of an earlier
    job."""
    ec2: Any = aws.ec2()
    calls: dict[str, Callable[[], object]] = {
        "CreateSecurityGroup": lambda: ec2.create_security_group(**own_group, DryRun=True)
    }
    earlier = next(iter(find_groups(ec2, [])), None)
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
            with tolerated("DryRunOperation"):
                call()
        except ClientError as error:
            if not is_denied(error):
                raise
            denied.append(f"ec2:{name}")
    if denied:
        return failed(
            "group rights",
            f"several machines need a security group of their own, but {', '.join(denied)} is not allowed",
            "docs/iam.md has the policies; or configure `security_groups`",
        )
    untried = "" if earlier else "; the rights to change and delete groups are not known yet"
    return passed("group rights", f"these credentials may create a group in {own_group['VpcId']}{untried}")


def group_rules(
    aws: AwsSession, request: Mapping[str, Any], subnets: Sequence[Mapping[str, Any]], *, has_efa: bool
) -> HealthFinding:
    """Check whether the configured security groups let their members reach each other."""
    ids = sorted(set(group_ids(request)))
    if not ids:
        return unknown("group rules", "the security groups are given by name, not by id")
    groups: Sequence[Any] = aws.ec2().describe_security_groups(GroupIds=ids)["SecurityGroups"]
    missing = _missing_directions(groups, ids, subnets, has_efa=has_efa)
    names = ", ".join(ids)
    if not missing:
        return passed("group rules", f"{names}: members reach each other")
    rule = f"IpProtocol=-1,UserIdGroupPairs=[{{GroupId={ids[0]}}}]"
    todo = " and ".join(
        f"aws ec2 authorize-security-group-{_DIRECTIONS[each]} --group-id {ids[0]} --ip-permissions '{rule}'"
        for each in missing
    )
    return warned(
        "group rules",
        f"{names}: no rule lets all traffic of members {' and '.join(missing)}, but the machines of a job must reach each other",
        todo,
    )


def _missing_directions(
    groups: Sequence[Any], ids: Sequence[str], subnets: Sequence[Mapping[str, Any]], *, has_efa: bool
) -> list[str]:
    """Return the directions, "in" and "out", in which no rule allows all traffic between members."""
    nets = [ipaddress.ip_network(each["CidrBlock"]) for each in subnets]
    missing = []
    for each in ("in", "out") if has_efa else ("in",):
        rules = [rule for group in groups for rule in group.get(_PERMISSIONS[each], ())]
        if not _let_through(rules, ids, nets, has_efa=has_efa):
            missing.append(each)
    return missing


def _let_through(rules: Sequence[Any], ids: Sequence[str], nets: Sequence[Any], *, has_efa: bool) -> bool:
    general = [rule for rule in rules if _is_for_all(rule, has_efa=has_efa)]
    # EFA's traffic has no IP address that a range could cover, so with EFA the rules of both directions must
    # name the group. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html#efa-start-security
    return any(_names(rule, ids) or (not has_efa and _covers(rule, nets)) for rule in general)


def _is_for_all(rule: Mapping[str, Any], *, has_efa: bool) -> bool:
    """Return whether a rule allows all traffic. Without EFA, a rule for all TCP traffic is enough."""
    if rule.get("IpProtocol") == _ALL:
        return True
    is_all_tcp = rule.get("FromPort", 1) <= 1 and rule.get("ToPort", 0) >= _TOPMOST_PORT
    return not has_efa and rule.get("IpProtocol") == "tcp" and is_all_tcp


def _names(rule: Mapping[str, Any], groups: Sequence[str]) -> bool:
    return any(pair.get("GroupId") in groups for pair in rule.get("UserIdGroupPairs", ()))


def _covers(rule: Mapping[str, Any], nets: Sequence[Any]) -> bool:
    ranges = [ipaddress.ip_network(each["CidrIp"], strict=False) for each in rule.get("IpRanges", ())]
    return bool(nets) and all(any(net.subnet_of(each) for each in ranges) for net in nets)
