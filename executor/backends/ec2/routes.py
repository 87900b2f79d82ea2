"""Whether a machine in a subnet reaches S3, judged from what EC2 says of the subnet's routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor.backends.ec2.session import AwsSession

ENDPOINT_ADVICE = "add a gateway endpoint for S3 to its VPC (it costs nothing)"


@dataclass(frozen=True)
class Route:
    """How S3 is reached, or why it is not."""

    reaches: bool
    sentence: str
    todo: str = ""


def s3_routes(
    aws: AwsSession, subnets: Sequence[Mapping[str, Any]], *, public_ip: bool | None, bucket_region: str
) -> list[Route]:
    """Return how S3 is reached from each of `subnets`, as `route_to_s3` does. Raises what AWS's library does.

    An endpoint leads to buckets of its own region only.
    """
    vpcs = sorted({each["VpcId"] for each in subnets})
    if not vpcs:
        return []
    ec2: Any = aws.ec2()
    in_them = [{"Name": "vpc-id", "Values": vpcs}]
    service = {"Name": "service-name", "Values": [f"com.amazonaws.{aws.region}.s3"]}
    tables = ec2.describe_route_tables(Filters=in_them)["RouteTables"]
    endpoints = (
        ec2.describe_vpc_endpoints(Filters=[*in_them, service])["VpcEndpoints"]
        if bucket_region == aws.region
        else []
    )
    return [
        route_to_s3(
            subnet,
            [each for each in tables if each["VpcId"] == subnet["VpcId"]],
            [each for each in endpoints if each.get("VpcId") == subnet["VpcId"]],
            public_ip=public_ip,
            region=aws.region,
        )
        for subnet in subnets
    ]


def without_s3(aws: AwsSession, subnets: Sequence[Mapping[str, Any]], *, bucket_region: str) -> list[str]:
    """Return the ids of those `subnets` whose machines do not reach S3 without a public address. Raises what AWS's library does."""
    routes = s3_routes(aws, subnets, public_ip=False, bucket_region=bucket_region)
    return [
        str(subnet["SubnetId"]) for subnet, route in zip(subnets, routes, strict=True) if not route.reaches
    ]


def cut_off_sentence(subnets: Sequence[str], *, interfaces: int) -> str:
    """Return what is wrong with a launch of machines with several `interfaces` into subnets `without_s3`."""
    return f"a machine with {interfaces} network interfaces gets no public address, without which {', '.join(subnets)} does not reach S3"


def table_of(subnet: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the route table that holds for a subnet: its own, else its VPC's main one."""
    main = None
    for table in tables:
        for each in table.get("Associations", ()):
            if each.get("SubnetId") == subnet.get("SubnetId"):
                return table
            if each.get("Main") and table.get("VpcId") == subnet.get("VpcId"):
                main = table
    return main


def route_to_s3(
    subnet: Mapping[str, Any],
    tables: Sequence[Mapping[str, Any]],
    endpoints: Sequence[Mapping[str, Any]],
    *,
    public_ip: bool | None,
    region: str,
) -> Route:
    """Return how S3 is reached from `subnet`.

    tables, endpoints: the route tables, and the VPC endpoints for S3, of its VPC. public_ip: what the configuration says
    of public addresses; None: the subnet decides.
    """
    table = table_of(subnet, tables)
    if table is None:
        return Route(False, "has no route table", "name another subnet")
    for each in endpoints:
        if each.get("State", "").lower() != "available":
            continue
        if each.get("VpcEndpointType") == "Gateway" and table.get("RouteTableId") in each.get(
            "RouteTableIds", ()
        ):
            return Route(True, f"reaches S3 through the gateway endpoint {each.get('VpcEndpointId')}")
        if each.get("VpcEndpointType") == "Interface" and each.get("PrivateDnsEnabled"):
            return Route(True, f"reaches S3 through the interface endpoint {each.get('VpcEndpointId')}")
    advice = ENDPOINT_ADVICE
    default = next(
        (each for each in table.get("Routes", ()) if each.get("DestinationCidrBlock") == "0.0.0.0/0"), None
    )
    if default is None:
        return Route(False, "has no route out", advice)
    if default.get("State") == "blackhole":
        return Route(False, "has a default route whose target is gone", f"repair it, or {advice}")
    if not str(default.get("GatewayId", "")).startswith("igw-"):
        target = (
            default.get("NatGatewayId")
            or default.get("TransitGatewayId")
            or default.get("InstanceId")
            or "its gateway"
        )
        if default.get("NatGatewayId"):
            return Route(
                True,
                f"reaches S3 through the NAT gateway {target}, and each GB of it is paid for; a gateway endpoint costs nothing",
                f"aws ec2 create-vpc-endpoint --region {region} --vpc-id {subnet.get('VpcId')} --service-name "
                f"com.amazonaws.{region}.s3 --route-table-ids {table.get('RouteTableId')}",
            )
        return Route(True, f"reaches S3 through {target}")
    if public_ip if public_ip is not None else subnet.get("MapPublicIpOnLaunch"):
        return Route(True, "reaches S3 through its internet gateway, with public addresses")
    return Route(
        False,
        "has an internet gateway, and its machines would have no public address",
        f"set public_ip = true, or {advice}",
    )
