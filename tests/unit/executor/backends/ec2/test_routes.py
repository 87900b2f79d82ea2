"""Whether S3 can be reached from a subnet."""

from __future__ import annotations

from typing import Any

import pytest

from executor.backends.ec2.routes import route_to_s3

SUBNET = {"SubnetId": "subnet-1", "VpcId": "vpc-1", "MapPublicIpOnLaunch": False}
PUBLIC = {**SUBNET, "MapPublicIpOnLaunch": True}
GATEWAY = {
    "VpcEndpointId": "vpce-1",
    "VpcEndpointType": "Gateway",
    "State": "available",
    "RouteTableIds": ["rtb-1"],
}
INTERFACE = {
    "VpcEndpointId": "vpce-2",
    "VpcEndpointType": "Interface",
    "State": "Available",
    "PrivateDnsEnabled": True,
}


def table(*, main: bool = False, subnet: str = "subnet-1", **route: str) -> dict[str, Any]:
    association: dict[str, Any] = {"Main": True} if main else {"SubnetId": subnet}
    routes = [{"DestinationCidrBlock": "10.0.0.0/16", "GatewayId": "local"}]
    if route:
        routes.append({"DestinationCidrBlock": "0.0.0.0/0", **route})
    return {"RouteTableId": "rtb-1", "VpcId": "vpc-1", "Associations": [association], "Routes": routes}


@pytest.mark.parametrize(
    ("subnet", "tables", "endpoints", "public_ip", "reaches", "word"),
    [
        (SUBNET, [table()], [GATEWAY], None, True, "vpce-1"),
        (SUBNET, [table()], [INTERFACE], None, True, "vpce-2"),
        (SUBNET, [table()], [{**INTERFACE, "PrivateDnsEnabled": False}], None, False, "no route out"),
        (SUBNET, [table()], [{**GATEWAY, "State": "pending"}], None, False, "no route out"),
        (SUBNET, [table()], [{**GATEWAY, "RouteTableIds": ["rtb-2"]}], None, False, "no route out"),
        (SUBNET, [table(NatGatewayId="nat-1")], [], None, True, "nat-1"),
        (SUBNET, [table(NatGatewayId="nat-1", State="blackhole")], [], None, False, "without a target"),
        (SUBNET, [table(TransitGatewayId="tgw-1")], [], None, True, "tgw-1"),
        (SUBNET, [table(GatewayId="igw-1")], [], None, False, "no public address"),
        (PUBLIC, [table(GatewayId="igw-1")], [], None, True, "public addresses"),
        (SUBNET, [table(GatewayId="igw-1")], [], True, True, "public addresses"),
        (PUBLIC, [table(GatewayId="igw-1")], [], False, False, "no public address"),
        (PUBLIC, [table(main=True, GatewayId="igw-1")], [], None, True, "public addresses"),
        (PUBLIC, [table(main=True, GatewayId="igw-1"), table()], [], None, False, "no route out"),
        (PUBLIC, [table(subnet="subnet-2", GatewayId="igw-1")], [], None, False, "no route table"),
    ],
)  # fmt: skip
def test_the_route_to_s3_or_the_missing_part_is_named(
    subnet: Any, tables: Any, endpoints: Any, public_ip: bool | None, reaches: bool, word: str
) -> None:
    route = route_to_s3(subnet, tables, endpoints, public_ip=public_ip, region="eu-central-1")

    assert route.reaches is reaches
    assert word in route.sentence
    # What costs can be done better as well.
    assert bool(route.todo) is (not reaches or "NatGatewayId" in str(tables))


def test_for_a_route_through_a_nat_gateway_the_free_endpoint_is_suggested() -> None:
    route = route_to_s3(SUBNET, [table(NatGatewayId="nat-1")], [], public_ip=None, region="eu-central-1")

    assert "AWS charges for each GB" in route.sentence
    assert route.todo == (
        "aws ec2 create-vpc-endpoint --region eu-central-1 --vpc-id vpc-1 --service-name com.amazonaws.eu-central-1.s3 "
        "--route-table-ids rtb-1"
    )
