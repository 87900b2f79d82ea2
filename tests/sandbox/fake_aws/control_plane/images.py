"""The AMIs of the sandbox's region, and the public parameters that name them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from moto.ec2.models.amis import Ami
from moto.ssm.models import Parameter

# To make the thousand images of its own takes moto half a second for each account, and again when the account is emptied.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"


@dataclass(frozen=True, kw_only=True)
class MachineImage:
    image_id: str
    variant: str
    """Which root a machine of it boots from."""
    name: str
    root_device: str
    gigabytes: int
    architecture: str = "x86_64"
    parameters: tuple[str, ...] = ()
    """Public SSM parameters with its id."""


BULLSEYE = MachineImage(
    image_id="ami-0deb1100000000001",
    variant="bullseye",
    name="debian-11-amd64-20251110-2293",
    root_device="/dev/xvda",
    gigabytes=8,
    parameters=("/aws/service/debian/release/11/latest/amd64",),
)
DEBIAN = MachineImage(
    image_id="ami-0deb1200000000001",
    variant="bookworm",
    name="debian-12-amd64-20251110-2293",
    root_device="/dev/xvda",
    gigabytes=8,
    parameters=("/aws/service/debian/release/12/latest/amd64",),
)
TRIXIE = MachineImage(
    image_id="ami-0deb1300000000001",
    variant="trixie",
    name="debian-13-amd64-20251117-2299",
    root_device="/dev/xvda",
    gigabytes=8,
    parameters=("/aws/service/debian/release/13/latest/amd64",),
)
DEEP_LEARNING = MachineImage(
    image_id="ami-0d1a0000000000001",
    variant="bookworm",
    name="Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.12 (Ubuntu 24.04) 20260822",
    root_device="/dev/sda1",
    gigabytes=35,
    parameters=(
        "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.12-ubuntu-24.04/latest/ami-id",
    ),
)
BASE = MachineImage(
    image_id="ami-0d1a0000000000002",
    variant="trixie",
    name="Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20251114",
    root_device="/dev/sda1",
    gigabytes=75,
    parameters=(
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
    ),
)
ARM = MachineImage(
    image_id="ami-0d1a0000000000003",
    variant="bookworm",
    name="Deep Learning ARM64 Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20251114",
    root_device="/dev/sda1",
    gigabytes=75,
    architecture="arm64",
    parameters=("/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",),
)
AMAZON_LINUX = MachineImage(
    image_id="ami-0a120230000000001",
    variant="bookworm",
    name="al2023-ami-2023.9.20251105.0-kernel-6.1-x86_64",
    root_device="/dev/xvda",
    gigabytes=8,
    parameters=("/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",),
)
"""Only looked at: what boots is Debian."""
IMAGES = (AMAZON_LINUX, BULLSEYE, DEBIAN, TRIXIE, DEEP_LEARNING, BASE, ARM)


class _Ami(Ami):
    """moto's has one size of disk for all images."""

    gigabytes = 8

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        ebs = {
            "SnapshotId": self.ebs_snapshot.id,
            "VolumeSize": self.gigabytes,
            "DeleteOnTermination": True,
            "VolumeType": "gp3",
            "Encrypted": False,
        }
        return [{"DeviceName": self.root_device_name, "Ebs": ebs}]


def register(image: MachineImage, *, ec2: Any, ssm: Any) -> None:
    """Put the image and its parameters into moto's backends; the API does not allow to put public parameters."""
    ami = _Ami(
        ec2,
        image.image_id,
        name=image.name,
        owner_id="898082745236",
        owner_alias="amazon",
        public=True,
        virtualization_type="hvm",
        architecture=image.architecture,
        hypervisor="xen",
        root_device_type="ebs",
        root_device_name=image.root_device,
        region_name=f"{ec2.region_name}a",
    )
    ami.gigabytes = image.gigabytes
    ec2.amis[image.image_id] = ami
    for name in image.parameters:
        ssm._parameters[name].append(
            Parameter(  # type: ignore[abstract]
                account_id=ssm.account_id,
                name=name,
                value=image.image_id,
                parameter_type="String",
                description=None,
                allowed_pattern=None,
                keyid=None,
                last_modified_date=datetime.now(timezone.utc),
                version=1,
                data_type="aws:ec2:image",
            )
        )
