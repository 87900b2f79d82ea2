"""Finds the subnets of a launch, and checks whether their route tables lead to S3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.session import AwsSession

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import SubnetTypeDef

ENDPOINT_ADVICE = "add a gateway endpoint for S3 to the VPC (free of charge)"


@dataclass(frozen=True)
class Route:
    """The route from a subnet to S3, or the reason why the subnet has no route to S3."""

    reaches: bool
    sentence: str
    todo: str = ""


def find_subnets(aws: AwsSession, ids: Sequence[str]) -> list[SubnetTypeDef]:
    """Return the subnets with these ids; without ids, the subnets of the default VPC. Raises the errors of
    AWS's library."""
    ec2 = aws.ec2()
    if ids:
        return ec2.describe_subnets(SubnetIds=list(ids))["Subnets"]
    return ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]


def s3_routes(
    aws: AwsSession, subnets: Sequence[Mapping[str, Any]], *, public_ip: bool | None, bucket_region: str
) -> list[Route]:
    """Return the route to S3 from each of `subnets`. Raises the errors of AWS's library.

    A VPC endpoint for S3 leads only to buckets in its own region.
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
    """Return the ids of the `subnets` whose machines do not reach S3 without a public address. Raises the errors of AWS's library."""
    routes = s3_routes(aws, subnets, public_ip=False, bucket_region=bucket_region)
    return [
        str(subnet["SubnetId"]) for subnet, route in zip(subnets, routes, strict=True) if not route.reaches
    ]


def cut_off_sentence(subnets: Sequence[str], *, interfaces: int) -> str:
    """Return a sentence about the problem of machines with several `interfaces` in subnets that `without_s3`
    returned."""
    return f"a machine with {interfaces} network interfaces gets no public address, and without a public address {', '.join(subnets)} does not reach S3"


def route_table(subnet: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the route table of a subnet: the subnet's own route table, otherwise the VPC's main route
    table."""
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
    """Return the route to S3 from `subnet`.

    tables, endpoints: route tables and endpoints for S3 of the subnet's VPC. public_ip: the configuration's
    setting of public addresses; if None, the subnet's setting is used.
    """
    table = route_table(subnet, tables)
    if table is None:
        return Route(False, "has no route table", "name another subnet")
    if (endpoint := _endpoint(table, endpoints)) is not None:
        return endpoint
    routes = table.get("Routes", ())
    default = next((each for each in routes if each.get("DestinationCidrBlock") == "0.0.0.0/0"), None)
    if default is None:
        return Route(False, "has no route out", ENDPOINT_ADVICE)
    if default.get("State") == "blackhole":
        return Route(False, "has a default route without a target", f"repair the route, or {ENDPOINT_ADVICE}")
    if not str(default.get("GatewayId", "")).startswith("igw-"):
        return _gateway(default, subnet, table, region)
    if public_ip if public_ip is not None else subnet.get("MapPublicIpOnLaunch"):
        return Route(True, "reaches S3 through its internet gateway, with public addresses")
    sentence = "has an internet gateway, and its machines would have no public address"
    return Route(False, sentence, f"set public_ip = true, or {ENDPOINT_ADVICE}")


def _endpoint(table: Mapping[str, Any], endpoints: Sequence[Mapping[str, Any]]) -> Route | None:
    """Return the route to S3 through a VPC endpoint; None if there is no endpoint."""
    for each in endpoints:
        kind, name = each.get("VpcEndpointType"), each.get("VpcEndpointId")
        if each.get("State", "").lower() != "available":
            continue
        if kind == "Gateway" and table.get("RouteTableId") in each.get("RouteTableIds", ()):
            return Route(True, f"reaches S3 through the gateway endpoint {name}")
        if kind == "Interface" and each.get("PrivateDnsEnabled"):
            return Route(True, f"reaches S3 through the interface endpoint {name}")
    return None


def _gateway(
    default: Mapping[str, Any], subnet: Mapping[str, Any], table: Mapping[str, Any], region: str
) -> Route:
    """Return the route to S3 through a default route whose target is not an internet gateway."""
    if nat := default.get("NatGatewayId"):
        return Route(
            True,
            f"reaches S3 through the NAT gateway {nat}, and AWS charges for each GB; a gateway endpoint is free of charge",
            f"aws ec2 create-vpc-endpoint --region {region} --vpc-id {subnet.get('VpcId')} --service-name "
            f"com.amazonaws.{region}.s3 --route-table-ids {table.get('RouteTableId')}",
        )
    target = default.get("TransitGatewayId") or default.get("InstanceId") or "its gateway"
    return Route(True, f"reaches S3 through {target}")
