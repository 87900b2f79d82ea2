"""Reads off moto's instance what the hypervisor has to know."""

from __future__ import annotations

import base64
from typing import Any

from moto.iam.models import iam_backends

from sandbox.fake_aws.machine.facts import Facts


def read_facts(backend: Any, instance: Any) -> Facts:
    interface = instance.nics[0]
    subnet = backend.get_subnet(instance.subnet_id)
    reservation = next(each for each in backend.reservations.values() if instance in each.instances)
    profile_arn = instance.iam_instance_profile["Arn"] if instance.iam_instance_profile else None
    user_data = str(instance.user_data) if instance.user_data else None
    return Facts(
        instance_id=instance.id,
        account=backend.account_id,
        region=backend.region_name,
        zone=subnet.availability_zone,
        zone_id=subnet.availability_zone_id,
        image_id=instance.image_id,
        instance_type=instance.instance_type,
        architecture=instance.architecture,
        launch_index=instance.ami_launch_index,
        reservation_id=reservation.id,
        address=interface.private_ip_address,
        mac=interface.mac_address,
        subnet_id=subnet.id,
        subnet_range=subnet.cidr_block,
        vpc_id=subnet.vpc_id,
        vpc_range=backend.get_vpc(subnet.vpc_id).cidr_block,
        interface_id=interface.id,
        security_groups=tuple((group.id, group.name) for group in interface.group_set),
        root_device=instance.root_device_name,
        profile_arn=profile_arn,
        role=_role(backend, profile_arn),
        spot=instance.lifecycle == "spot",
        tokens_required=instance.metadata_options.http_tokens == "required",
        user_data=base64.b64decode(user_data) if user_data else None,
    )


def _role(backend: Any, profile_arn: str | None) -> str | None:
    if profile_arn is None:
        return None
    profile = iam_backends[backend.account_id][backend.partition].get_instance_profile_by_arn(profile_arn)
    return str(profile.roles[0].name) if profile.roles else None
