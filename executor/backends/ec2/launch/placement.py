"""Where instances may be placed, and as what: candidates, to be tried in turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from executor.backends.ec2.session import FAILURES, AwsSession, aws_error
from executor.descriptor.ec2_table import ON_DEMAND
from executor.descriptor.model import Hardware
from executor.errors import UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import SubnetTypeDef


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A subnet, in its availability zone, and what is asked for there."""

    subnet: str
    zone: str
    type: str = ""
    """The instance type; empty where nobody has said."""
    market: str = ""
    """"on-demand", or EC2's MarketType; empty where nobody has said."""
    vpc: str = field(default="", compare=False)
    """Empty where it was not looked up."""

    @property
    def kind(self) -> tuple[str, str]:
        """What is asked for, wherever."""
        return self.type, self.market


def find_candidates(
    hardware: Hardware, types: Sequence[str], markets: Sequence[str], subnets: Sequence[str], aws: AwsSession
) -> tuple[Candidate, ...]:
    """Return what a launch may be tried with, in a stable order. Raises UsageError, AwsError.

    On the first market all types in their order, each in all subnets, then on the next one. The subnets are those named, in their
    order, else those of the default VPC by zone; only in the zone that the descriptor wants (its name wins over its id), and only
    where the type is offered.
    """
    found = _named(subnets, aws) if subnets else _default(aws)
    wanted = _in_wanted_zone(hardware, found, named=bool(subnets), region=aws.region)
    places = [place for each in types for place in _places(each, wanted, aws)]
    return tuple(replace(place, market=market) for market in markets for place in places)


def _places(instance_type: str, subnets: Sequence[SubnetTypeDef], aws: AwsSession) -> tuple[Candidate, ...]:
    """Return those of `subnets` in whose zone an instance type is offered. Raises UsageError where none is, AwsError."""
    offered = _zones_offering(instance_type, aws)
    places = tuple(
        Candidate(
            subnet=each.get("SubnetId", ""),
            zone=each.get("AvailabilityZone", ""),
            type=instance_type,
            vpc=each.get("VpcId", ""),
        )
        for each in subnets
        if each.get("AvailabilityZone") in offered
    )
    if not places:
        zones = ", ".join(sorted({each.get("AvailabilityZone", "") for each in subnets}))
        there = (
            f"; it is offered in {', '.join(sorted(offered))}" if offered else " nor anywhere in the region"
        )
        raise UsageError(f"{instance_type} is not offered in {zones}{there}. Take another zone or type")
    return places


def named(candidate: Candidate, among: Sequence[Candidate]) -> str:
    """Return what `candidate` is called for a person: its zone, and with what it differs in from others `among` them."""
    what = kind_name(candidate, among)
    return f"{what} in {candidate.zone}" if what else candidate.zone


def kind_name(candidate: Candidate, among: Sequence[Candidate]) -> str:
    """Return what of type and market there is more than one of: "g5.xlarge", "g5.xlarge on spot", or nothing."""
    types, markets = {each.type for each in among}, {each.market for each in among}
    market = f"on {'demand' if candidate.market == ON_DEMAND else candidate.market}"
    return " ".join([*([candidate.type] if len(types) > 1 else []), *([market] if len(markets) > 1 else [])])


def types_of(candidates: Iterable[Candidate]) -> str:
    """Return which types are asked for, for a person."""
    return " or ".join(dict.fromkeys(each.type for each in candidates))


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
