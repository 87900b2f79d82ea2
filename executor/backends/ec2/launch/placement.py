"""Where instances may be placed: candidate subnets, to be tried in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.backends.ec2.session import FAILURES, AwsSession, aws_error
from executor.descriptor.model import Hardware
from executor.errors import UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import SubnetTypeDef


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A subnet, in its availability zone."""

    subnet: str
    zone: str


def find_candidates(hardware: Hardware, subnets: Sequence[str], aws: AwsSession) -> tuple[Candidate, ...]:
    """Return the subnets in which a launch may be tried, in a stable order. Raises UsageError, AwsError.

    Those named, in their order, else those of the default VPC by zone; only in the zone that the descriptor wants
    (its name wins over its id), and only where the instance type is offered.
    """
    found = _named(subnets, aws) if subnets else _default(aws)
    wanted = _in_wanted_zone(hardware, found, named=bool(subnets), region=aws.region)
    offered = _zones_offering(hardware.instance_type, aws)
    candidates = tuple(
        Candidate(subnet=each.get("SubnetId", ""), zone=each.get("AvailabilityZone", ""))
        for each in wanted
        if each.get("AvailabilityZone") in offered
    )
    if not candidates:
        zones = ", ".join(sorted({each.get("AvailabilityZone", "") for each in wanted}))
        there = (
            f"; it is offered in {', '.join(sorted(offered))}" if offered else " nor anywhere in the region"
        )
        raise UsageError(
            f"{hardware.instance_type} is not offered in {zones}{there}. Take another zone or type"
        )
    return candidates


def _named(subnets: Sequence[str], aws: AwsSession) -> list[SubnetTypeDef]:
    doing = f"describing the subnets {', '.join(subnets)}"
    try:
        answer = aws.ec2().describe_subnets(SubnetIds=list(subnets))["Subnets"]
    except FAILURES as error:
        raise aws_error(error, doing=doing, region=aws.region) from error
    order = {subnet: place for place, subnet in enumerate(subnets)}
    return sorted(answer, key=lambda each: order.get(each.get("SubnetId", ""), len(order)))


def _default(aws: AwsSession) -> list[SubnetTypeDef]:
    try:
        answer = aws.ec2().describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])[
            "Subnets"
        ]
    except FAILURES as error:
        raise aws_error(error, doing="describing the default subnets", region=aws.region) from error
    if not answer:
        raise UsageError(
            f"there is no default VPC in {aws.region}; name `subnets` in the configuration or in [aws.ec2]"
        )
    return sorted(answer, key=lambda each: (each.get("AvailabilityZone", ""), each.get("SubnetId", "")))


def _in_wanted_zone(
    hardware: Hardware, subnets: list[SubnetTypeDef], *, named: bool, region: str
) -> list[SubnetTypeDef]:
    name, zone_id = hardware.availability_zone, hardware.aws_zone_id
    if name:
        found = [each for each in subnets if each.get("AvailabilityZone") == name]
    elif zone_id:
        found = [each for each in subnets if each.get("AvailabilityZoneId") == zone_id]
    else:
        return subnets
    if not found:
        key, value = ("availability_zone", name) if name else ("aws_zone_id", zone_id)
        there = ", ".join(
            f"{each.get('AvailabilityZone')} ({each.get('AvailabilityZoneId')})" for each in subnets
        )
        which = "the configured subnets are" if named else f"the default subnets of {region} are"
        raise UsageError(f'hardware.{key}: no subnet is in "{value}"; {which} in {there}')
    return found


def _zones_offering(instance_type: str, aws: AwsSession) -> set[str]:
    doing = f"asking where {instance_type} is offered"
    try:
        answer = aws.ec2().describe_instance_type_offerings(
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": [instance_type]}]
        )
    except FAILURES as error:
        raise aws_error(error, doing=doing, region=aws.region) from error
    return {each.get("Location", "") for each in answer["InstanceTypeOfferings"]}
