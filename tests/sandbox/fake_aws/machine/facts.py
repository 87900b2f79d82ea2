"""What the hypervisor knows of an instance."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Facts:
    instance_id: str
    account: str
    region: str
    zone: str
    zone_id: str
    image_id: str
    instance_type: str
    architecture: str
    launch_index: int
    reservation_id: str
    address: str
    mac: str
    subnet_id: str
    subnet_range: str
    vpc_id: str
    vpc_range: str
    interface_id: str
    security_groups: tuple[tuple[str, str], ...]
    """(id, name)"""
    root_device: str
    profile_arn: str | None
    role: str | None
    """Where the instance has a profile."""
    spot: bool
    tokens_required: bool
    """Whether IMDS refuses version 1."""
    user_data: bytes | None
    """As it was sent, decoded from base64."""

    @property
    def host_name(self) -> str:
        return f"ip-{self.address.replace('.', '-')}"
