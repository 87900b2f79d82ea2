"""What must be looked up before a job can be launched: image, type, subnets. Only reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from executor.backends.ec2.launch.images import (
    Image,
    InstanceType,
    check_fit,
    find_image,
    find_type,
    image_reference,
    placeholder,
)
from executor.backends.ec2.launch.placement import Candidate, find_candidates
from executor.backends.ec2.session import AwsSession
from executor.config import Settings
from executor.descriptor import Descriptor
from executor.descriptor.ec2_table import Ec2


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """All that a launch needs and that the descriptor does not hold."""

    region: str
    image: Image
    kind: InstanceType
    candidates: tuple[Candidate, ...]
    """Tried in turn."""
    security_groups: tuple[str, ...]
    instance_profile: str | None
    public_ip: bool | None


def resolve(descriptor: Descriptor, settings: Settings, aws: AwsSession) -> Resolved:
    """Look everything up. Raises UsageError where the descriptor or the configuration is wrong, AwsError where AWS is."""
    ec2 = ec2_table(descriptor)
    image = find_image(image_reference(descriptor), aws)
    kind = find_type(descriptor.hardware.instance_type, aws)
    check_fit(image, kind)
    return Resolved(
        image=image,
        kind=kind,
        candidates=find_candidates(descriptor.hardware, ec2.subnets or settings.subnets, aws),
        **_named(descriptor, settings, aws.region),
    )


def unresolved(descriptor: Descriptor, settings: Settings, region: str | None) -> Resolved:
    """Return what is known without asking AWS; the rest reads "<resolved at submission: …>"."""
    reference = image_reference(descriptor)
    subnets = ec2_table(descriptor).subnets or settings.subnets
    zone = descriptor.hardware.availability_zone or descriptor.hardware.aws_zone_id
    return Resolved(
        image=Image(
            id=reference if reference.startswith("ami-") else placeholder(f"the AMI that {reference} names"),
            architecture=placeholder("the image's architecture"),
            root_device=placeholder("the image's root device"),
            root_gib=None,
        ),
        kind=InstanceType(name=descriptor.hardware.instance_type, architectures=(), ebs_mib_per_second=None),
        candidates=tuple(Candidate(subnet=each, zone=placeholder("its zone")) for each in subnets)
        or (
            Candidate(
                subnet=placeholder("the default subnets"), zone=zone or placeholder("each zone in turn")
            ),
        ),
        **_named(descriptor, settings, region or placeholder("the region")),
    )


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
