"""What must be looked up before a job can be launched: image, type, subnets. Only reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from executor.backends.ec2.launch.placement import Candidate, find_candidates
from executor.backends.ec2.session import AwsSession
from executor.config import Settings
from executor.descriptor import Descriptor
from executor.descriptor.ec2_table import ON_DEMAND, Ec2, market_of


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """All that a launch needs and that the descriptor does not hold."""

    region: str
    image: Image
    kind: InstanceType
    """The first candidates'."""
    candidates: tuple[Candidate, ...]
    """Tried in turn."""
    security_groups: tuple[str, ...]
    instance_profile: str | None
    public_ip: bool | None
    vpcs: tuple[str, ...] = ()
    """Of the candidates."""
    other_kinds: tuple[InstanceType, ...] = ()
    """The other candidates'."""

    @property
    def kinds(self) -> tuple[InstanceType, ...]:
        """All types that may be launched, in the order in which they are tried."""
        return (self.kind, *self.other_kinds)


def resolve(descriptor: Descriptor, settings: Settings, aws: AwsSession) -> Resolved:
    """Look everything up. Raises UsageError where the descriptor or the configuration is wrong, AwsError where AWS is."""
    ec2 = ec2_table(descriptor)
    image = find_image(image_reference(descriptor), aws)
    types = instance_types(descriptor)
    kinds = [find_type(name, aws, key=key) for name, key in types.items()]
    for kind in kinds:
        check_fit(image, kind, key=types[kind.name])
    check_processes(descriptor.hardware, kinds)
    candidates = find_candidates(
        descriptor.hardware, tuple(types), markets(ec2), ec2.subnets or settings.subnets, aws
    )
    return Resolved(
        image=image,
        kind=kinds[0],
        other_kinds=tuple(kinds[1:]),
        candidates=candidates,
        vpcs=tuple(sorted({each.vpc for each in candidates})),
        **_named(descriptor, settings, aws.region),
    )


def unresolved(descriptor: Descriptor, settings: Settings, region: str | None) -> Resolved:
    """Return what is known without asking AWS; the rest reads "<resolved at submission: …>". Raises UsageError."""
    reference = image_reference(descriptor)
    ec2 = ec2_table(descriptor)
    kinds = [
        InstanceType(name=name, architectures=(), ebs_mib_per_second=None, gpus=gpus_by_name(name))
        for name in instance_types(descriptor)
    ]
    check_processes(descriptor.hardware, kinds)
    subnets = ec2.subnets or settings.subnets
    zone = descriptor.hardware.availability_zone or descriptor.hardware.aws_zone_id
    places = [(each, placeholder("its zone")) for each in subnets] or [
        (placeholder("the default subnets"), zone or placeholder("each zone in turn"))
    ]
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
            for subnet, where in places
        ),
        vpcs=(placeholder("the VPC of the subnets"),),
        **_named(descriptor, settings, region or placeholder("the region")),
    )


def instance_types(descriptor: Descriptor) -> dict[str, str]:
    """Return the types that may be launched, in the order in which they are tried, each with the key that names it."""
    others = dict.fromkeys(ec2_table(descriptor).instance_types, "aws.ec2.instance_types")
    # Named in both, a type is tried where it comes first.
    return {descriptor.hardware.instance_type: "hardware.instance_type"} | {
        name: key for name, key in others.items() if name != descriptor.hardware.instance_type
    }


def markets(ec2: Ec2) -> tuple[str, ...]:
    """Return the markets on which machines are asked for, in turn."""
    first = market_of(ec2.run_instances)
    return (first, ON_DEMAND) if ec2.on_demand_after_spot and first != ON_DEMAND else (first,)


def ec2_table(descriptor: Descriptor) -> Ec2:
    """Return the descriptor's `[aws.ec2]`, or an empty one."""
    return descriptor.aws.ec2 or Ec2()


def region_of(descriptor: Descriptor, settings: Settings) -> str | None:
    """Return where the instances are launched: a flag's region, else the descriptor's, else the configuration's."""
    if settings.origins.get("region") == "--region":
        return settings.region
    return ec2_table(descriptor).region or settings.region


def _named(descriptor: Descriptor, settings: Settings, region: str) -> dict[str, Any]:
    ec2 = ec2_table(descriptor)
    return {
        "region": region,
        "security_groups": tuple(ec2.security_groups) or settings.security_groups,
        "instance_profile": ec2.instance_profile or settings.instance_profile,
        "public_ip": ec2.public_ip if ec2.public_ip is not None else settings.public_ip,
    }
