"""Looks up what a launch needs: the image, the instance type, and the candidates, which are requested one
after the other. The look-ups change nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bai_agent.light_dataclass import dataclass, field, replace
from executor.backends.ec2.launch.capacity_block import CapacityBlock, find_block
from executor.backends.ec2.launch.images import (
    Image,
    InstanceType,
    check_fit,
    check_processes,
    find_image,
    find_type,
    gpus_by_name,
    image_reference,
    placeholder,
)
from executor.backends.ec2.routes import find_subnets
from executor.backends.ec2.session import AwsSession, plain_errors
from executor.configuration.config import Settings
from executor.descriptor import Descriptor
from executor.descriptor.ec2_table import ON_DEMAND, Ec2, read_market
from executor.descriptor.model import Hardware
from executor.errors import UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import SubnetTypeDef


_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
"""Form of every instance type: https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html"""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A subnet with its availability zone, and the instance type and market to request there."""

    subnet: str
    zone: str
    type: str = ""
    """Instance type; empty if unknown."""
    market: str = ""
    """"on-demand", or EC2's MarketType, such as "spot"; empty if unknown."""
    vpc: str = field(default="", compare=False)
    """VPC of the subnet; empty if the VPC was not looked up."""

    @property
    def kind(self) -> tuple[str, str]:
        """Type and market of the candidate."""
        return self.type, self.market


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """Everything that a launch needs in addition to the descriptor."""

    region: str
    image: Image
    kind: InstanceType
    """Instance type that is requested first."""
    candidates: tuple[Candidate, ...]
    """Candidates in the order in which they are tried."""
    security_groups: tuple[str, ...]
    instance_profile: str | None
    public_ip: bool | None
    vpcs: tuple[str, ...] = ()
    """VPCs of the candidates."""
    other_kinds: tuple[InstanceType, ...] = ()
    """Instance types that are requested after `kind`."""
    server: InstanceType | None = None
    """Instance type of the server, if the job has one."""
    block: CapacityBlock | None = None
    """Capacity block of the machines; None if the machines have no block, or the block was not looked up."""

    @property
    def kinds(self) -> tuple[InstanceType, ...]:
        """All types that may be launched, in the order in which they are tried."""
        return (self.kind, *self.other_kinds)

    @property
    def kinds_of_image(self) -> tuple[InstanceType, ...]:
        """All instance types that boot the image: the types of `kinds`, and the server's type."""
        return self.kinds if self.server is None else (*self.kinds, self.server)


def resolve(descriptor: Descriptor, settings: Settings, aws: AwsSession) -> Resolved:
    """Look up everything that a launch needs. Raises UsageError for a mistake in the descriptor or the
    configuration, AwsError if AWS fails."""
    ec2 = ec2_table(descriptor)
    types = instance_types(descriptor)
    kinds = [find_type(name, aws, key=key) for name, key in types.items()]
    servers = {key: find_type(name, aws, key=key) for name, key in server_type(descriptor).items()}
    image = find_image(image_reference(descriptor, [*kinds, *servers.values()]), aws)
    for kind in kinds:
        check_fit(image, kind, key=types[kind.name])
    for key, each in servers.items():
        check_fit(image, each, key=key)
    check_processes(descriptor.hardware, kinds)
    server = next(iter(servers.values()), None)
    candidates = find_candidates(
        _hardware(descriptor),
        tuple(types),
        markets(ec2),
        ec2.subnets or settings.subnets,
        aws,
        server=None if server is None else server.name,
    )
    return Resolved(
        image=image,
        kind=kinds[0],
        other_kinds=tuple(kinds[1:]),
        candidates=candidates,
        vpcs=tuple(sorted({each.vpc for each in candidates})),
        server=server,
        block=find_block(ec2, aws),
        **_named(descriptor, settings, aws.region),
    )


def unresolved(descriptor: Descriptor, settings: Settings, region: str | None) -> Resolved:
    """Return the values of a launch that are known without querying AWS, with placeholders for all other
    values. Raises UsageError."""
    ec2 = ec2_table(descriptor)
    kinds = [_unresolved_type(name) for name in instance_types(descriptor)]
    servers = [_unresolved_type(name) for name in server_type(descriptor)]
    reference = image_reference(descriptor, [*kinds, *servers])
    check_processes(descriptor.hardware, kinds)
    return Resolved(
        image=Image(
            id=reference if reference.startswith("ami-") else placeholder(f"the AMI that {reference} names"),
            architecture=placeholder("the image's architecture"),
            root_device=placeholder("the image's root device"),
            root_gib=None,
        ),
        kind=kinds[0],
        other_kinds=tuple(kinds[1:]),
        candidates=tuple(
            Candidate(subnet=subnet, zone=where, type=kind.name, market=market)
            for market in markets(ec2)
            for kind in kinds
            for subnet, where in _unresolved_places(_hardware(descriptor), ec2.subnets or settings.subnets)
        ),
        server=next(iter(servers), None),
        vpcs=(placeholder("the VPC of the subnets"),),
        **_named(descriptor, settings, region or placeholder("the region")),
    )


def _unresolved_type(name: str) -> InstanceType:
    return InstanceType(name=name, architectures=(), ebs_mib_per_second=None, gpus=gpus_by_name(name))


def _unresolved_places(hardware: Hardware, subnets: Sequence[str]) -> list[tuple[str, str]]:
    """Return subnets with their zones."""
    zone = hardware.availability_zone or hardware.aws_zone_id or placeholder("each zone in turn")
    default = [(placeholder("the default subnets"), zone)]
    return [(each, placeholder("its zone")) for each in subnets] or default


def instance_types(descriptor: Descriptor) -> dict[str, str]:
    """Return the types that may be launched, in the order in which they are tried, each with the key that names it. Raises UsageError."""
    others = dict.fromkeys(ec2_table(descriptor).instance_types, "aws.ec2.instance_types")
    # An instance type that both keys name keeps its first place in the order.
    found = {descriptor.hardware.instance_type: "hardware.instance_type"} | {
        name: key for name, key in others.items() if name != descriptor.hardware.instance_type
    }
    for name, key in found.items():
        if _TYPE.fullmatch(name) is None:
            raise UsageError(
                f'{key}: "{name}" is not an EC2 instance type; write one like "c7i.xlarge"'
                + ("" if name != "local" else ', or write instance_type = "…" into the configuration')
            )
    return found


def server_type(descriptor: Descriptor) -> dict[str, str]:
    """Return the type of the server with the key that names it; empty if the job has no server. Raises UsageError."""
    if (server := descriptor.used_server) is None:
        return {}
    name, key = server.hardware.instance_type, "server.hardware.instance_type"
    if _TYPE.fullmatch(name) is None:
        raise UsageError(f'{key}: "{name}" is not an EC2 instance type; write one like "c7i.xlarge"')
    return {name: key}


def _hardware(descriptor: Descriptor) -> Hardware:
    """Return `[hardware]`. If the table names only the server's zone, the client is also launched in that
    zone, because client and server are in one subnet."""
    hardware = descriptor.hardware
    server = descriptor.used_server
    if server is None or hardware.availability_zone or hardware.aws_zone_id:
        return hardware
    own = server.hardware
    zones = {"availability_zone": own.availability_zone, "aws_zone_id": own.aws_zone_id}
    return hardware.model_copy(update=zones)


def markets(ec2: Ec2) -> tuple[str, ...]:
    """Return the markets on which machines are requested, in the order of the requests."""
    first = read_market(ec2.run_instances)
    return (first, ON_DEMAND) if ec2.on_demand_after_spot and first != ON_DEMAND else (first,)


def ec2_table(descriptor: Descriptor) -> Ec2:
    """Return the descriptor's `[aws.ec2]`; without that table, an empty one."""
    return descriptor.aws.ec2 or Ec2()


def launch_region(descriptor: Descriptor, settings: Settings) -> str | None:
    """Return the region of the instances: the region that an option names, otherwise the descriptor's,
    otherwise the configuration's."""
    if settings.origins.get("region") == "--region":
        return settings.region
    return ec2_table(descriptor).region or settings.region


def find_candidates(
    hardware: Hardware,
    types: Sequence[str],
    markets: Sequence[str],
    subnets: Sequence[str],
    aws: AwsSession,
    *,
    server: str | None = None,
) -> tuple[Candidate, ...]:
    """Return the candidates of a launch in a stable order. Raises UsageError, AwsError.

    The candidates are sorted by market, then by type, then by subnet. Subnets are the named subnets in their
    order; if none is named, the default VPC's subnets by zone. A subnet is a candidate only if its zone
    offers the type. If the descriptor names a zone, the subnet must be in that zone; the zone's name takes
    precedence over its id. server: type of a server that is launched in the same subnet.
    """
    found = _find_subnets(subnets, aws)
    wanted = _in_wanted_zone(hardware, found, named=bool(subnets), region=aws.region)
    if server is not None:
        offered = {each.zone for each in _places(server, wanted, aws)}
        wanted = [each for each in wanted if each.get("AvailabilityZone") in offered]
    places = [place for each in types for place in _places(each, wanted, aws)]
    return tuple(replace(place, market=market) for market in markets for place in places)


def named(candidate: Candidate, among: Sequence[Candidate]) -> str:
    """Return the name of `candidate` for messages: the candidate's zone, and its type and market if the
    candidates differ in type or market."""
    what = kind_name(candidate, among)
    return f"{what} in {candidate.zone}" if what else candidate.zone


def kind_name(candidate: Candidate, among: Sequence[Candidate]) -> str:
    """Return the type if there are several types, and the market if there are several markets: "g5.xlarge",
    "g5.xlarge on spot", or ""."""
    types, markets = {each.type for each in among}, {each.market for each in among}
    market = f"on {'demand' if candidate.market == ON_DEMAND else candidate.market}"
    return " ".join([*([candidate.type] if len(types) > 1 else []), *([market] if len(markets) > 1 else [])])


def type_names(candidates: Iterable[Candidate]) -> str:
    """Return the types as text for the user."""
    return " or ".join(dict.fromkeys(each.type for each in candidates))


def _named(descriptor: Descriptor, settings: Settings, region: str) -> dict[str, Any]:
    return {"region": region, **named_settings(ec2_table(descriptor), settings)}


def named_settings(ec2: Ec2, settings: Settings) -> dict[str, Any]:
    """Return security groups, instance profile and public address of a launch: the descriptor's settings,
    otherwise the configuration's."""
    return {
        "security_groups": tuple(ec2.security_groups) or settings.security_groups,
        "instance_profile": ec2.instance_profile or settings.instance_profile,
        "public_ip": ec2.public_ip if ec2.public_ip is not None else settings.public_ip,
    }


def _places(instance_type: str, subnets: Sequence[SubnetTypeDef], aws: AwsSession) -> tuple[Candidate, ...]:
    """Return those `subnets` whose zones offer an instance type. Raises AwsError, and UsageError if no zone offers
    the type."""
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
            f"; it is offered in {', '.join(sorted(offered))}" if offered else " or elsewhere in the region"
        )
        raise UsageError(f"{instance_type} is not offered in {zones}{there}. Take another zone or type")
    return places


def _find_subnets(subnets: Sequence[str], aws: AwsSession) -> list[SubnetTypeDef]:
    """Return the named subnets in their order; if no subnet is named, the default VPC's subnets by zone.
    Raises UsageError, AwsError."""
    what = f"subnets {', '.join(subnets)}" if subnets else "default subnets"
    with plain_errors(f"describing the {what}", region=aws.region):
        found = find_subnets(aws, subnets)
    if subnets:
        order = {subnet: place for place, subnet in enumerate(subnets)}
        return sorted(found, key=lambda each: order.get(each.get("SubnetId", ""), len(order)))
    if not found:
        raise UsageError(
            f"there is no default VPC in {aws.region}; name `subnets` in the configuration or in [aws.ec2]"
        )
    return sorted(found, key=lambda each: (each.get("AvailabilityZone", ""), each.get("SubnetId", "")))


def _in_wanted_zone(
    hardware: Hardware, subnets: list[SubnetTypeDef], *, named: bool, region: str
) -> list[SubnetTypeDef]:
    if hardware.availability_zone:
        key, field, value = "availability_zone", "AvailabilityZone", hardware.availability_zone
    elif hardware.aws_zone_id:
        key, field, value = "aws_zone_id", "AvailabilityZoneId", hardware.aws_zone_id
    else:
        return subnets
    found = [each for each in subnets if each.get(field) == value]
    if not found:
        there = ", ".join(
            f"{each.get('AvailabilityZone')} ({each.get('AvailabilityZoneId')})" for each in subnets
        )
        which = "the configured subnets are" if named else f"the default subnets of {region} are"
        raise UsageError(f'hardware.{key}: no subnet is in "{value}"; {which} in {there}')
    return found


def _zones_offering(instance_type: str, aws: AwsSession) -> set[str]:
    with plain_errors(f"asking where {instance_type} is offered", region=aws.region):
        answer = aws.ec2().describe_instance_type_offerings(
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": [instance_type]}]
        )
    return {each.get("Location", "") for each in answer["InstanceTypeOfferings"]}
