"""Makes the network interfaces of a launch's request, and moves the request's security groups and public address
into the interfaces. The module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from executor.backends.ec2.launch.images import InstanceType, placeholder
from executor.descriptor.ec2_table import efa_interfaces
from executor.errors import UsageError


def all_efas(kinds: Sequence[InstanceType]) -> list[dict[str, Any]]:
    """Return the interfaces that give machines of `kinds` all Elastic Fabric Adapters of their type.

    The first interface has an IP address, because a machine needs one. All other adapters have no address
    (`efa-only`). Adapters without an address save addresses of the subnet, and keep Linux from sending through the
    wrong interface (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html). Raises UsageError
    if a type has no EFA. One request serves all types, so UsageError is also raised if the types need different
    interfaces.
    """
    first, *others = kinds
    wanted = _efa_interfaces(first)
    for kind in others:
        if _efa_interfaces(kind) != wanted:
            raise UsageError(
                f'aws.ec2.efa: {kind.name} and {first.name} have different network cards, but efa = "all" needs the same cards '
                "in all types; keep types with the same cards in aws.ec2.instance_types"
            )
    return wanted


def _efa_interfaces(kind: InstanceType) -> list[dict[str, Any]]:
    if kind.efa_interfaces is None:
        return [{"DeviceIndex": 0, "InterfaceType": placeholder(f"all EFAs of {kind.name}")}]
    if kind.efa_interfaces == 0:
        raise UsageError(
            f"aws.ec2.efa: {kind.name} has no Elastic Fabric Adapter; leave efa out, or take another hardware.instance_type"
        )
    found = _first_card(kind)
    left = kind.efa_interfaces - efa_interfaces({"NetworkInterfaces": found})
    others = [card.index for card in kind.network_cards[1:] if card.takes_efa]
    return [*found, *(_interface(index, 0, "efa-only") for index in others[:left])]


def _first_card(kind: InstanceType) -> list[dict[str, Any]]:
    card = kind.network_cards[0] if kind.network_cards else None
    # A machine can have a public address only if it has a single interface. Some network cards also accept
    # only one interface.
    if card is None or (card.takes_efa and 1 in (kind.efa_interfaces, card.most_interfaces)):
        return [_interface(0, 0, "efa")]
    first = _interface(0, 0, "interface")
    return [first, _interface(0, 1, "efa-only")] if card.takes_efa else [first]


def _interface(card: int, device: int, kind: str) -> dict[str, Any]:
    return {"NetworkCardIndex": card, "DeviceIndex": device, "InterfaceType": kind}


def connect(request: dict[str, Any], *, public_ip: bool | None) -> None:
    """Move the request's security groups and public address into its network interfaces. If a request has network
    interfaces, EC2 accepts security groups and public address only in the interfaces."""
    interfaces = request.get("NetworkInterfaces")
    if not interfaces:
        if public_ip is None:
            return
        interfaces = request["NetworkInterfaces"] = [{"DeviceIndex": 0}]
    groups = request.pop("SecurityGroupIds", None)
    for each in interfaces:
        if groups:
            each.setdefault("Groups", groups)
        each.setdefault("DeleteOnTermination", True)
    # EC2 gives a public address to a single interface only.
    if public_ip is not None and len(interfaces) == 1:
        interfaces[0].setdefault("AssociatePublicIpAddress", public_ip)


def group_ids(request: Mapping[str, Any]) -> list[str]:
    """Return the ids of the security groups that a request names, including the groups of the request's
    interfaces."""
    of_interfaces = (
        group for each in request.get("NetworkInterfaces", ()) for group in each.get("Groups", ())
    )
    return [*request.get("SecurityGroupIds", ()), *of_interfaces]


def names_groups(request: Mapping[str, Any]) -> bool:
    """Return whether a request names security groups."""
    return bool(group_ids(request) or request.get("SecurityGroups"))


def in_group(request: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return `request` with this security group for its machines."""
    if interfaces := request.get("NetworkInterfaces"):
        return {**request, "NetworkInterfaces": [{**each, "Groups": [group]} for each in interfaces]}
    return {**request, "SecurityGroupIds": [group]}
