"""The `[aws.ec2]` table: how the instances are launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, time
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from bai_agent.job.schema.declared import wrong
from bai_agent.job.schema.field_types import Duration
from executor.configuration.job_tables import Volume
from executor.descriptor.raw_table import at
from executor.descriptor.values import DescriptorTable

OWNED = frozenset(
    {"MinCount", "MaxCount", "ClientToken", "InstanceInitiatedShutdownBehavior", "UserData", "DryRun"}
    | {"ImageId", "InstanceType", "SubnetId", "LaunchTemplate"}
)
"""Parameters of RunInstances that decide whether a job runs once and ends, or that have a key of their own.
`LaunchTemplate` is included, because a launch template could set any of these parameters. A launch template
could also change between two attempts of one launch."""


ON_DEMAND = "on-demand"
"""Market of on-demand machines. EC2's MarketType has no value for on-demand machines."""
CAPACITY_BLOCK = "capacity-block"
"""MarketType of machines that were reserved and paid for in advance:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html"""

_LISTS = {
    "BlockDeviceMappings": "DeviceName",
    "NetworkInterfaces": None,
    "TagSpecifications": "ResourceType",
}
"""Parameters that are merged item by item, each with the key that identifies an item; None if no key does."""


def _not_owned(request: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of RunInstances unchanged. Raises MistakeError if a parameter is refused."""
    if taken := sorted(OWNED & request.keys()):
        raise wrong(
            f"sets {', '.join(taken)}, which the launcher decides itself",
            "leave it out; use image, subnets, hardware.instance_type or num_instances, and write the values of a launch "
            "template here",
        )
    for name, key in _LISTS.items():
        items = request.get(name, [])
        if not isinstance(items, list) or not all(_is_item(each, key) for each in items):
            raise wrong(
                f"{name} is not a list of tables" + (f" that each have a {key}" if key else ""),
                f"write [[aws.ec2.run_instances.{name}]]" + (f' and {key} = "…" below it' if key else ""),
            )
    for applies, problem, fix in _REFUSED:
        if applies(request):
            raise wrong(problem, fix)
    return request


def _keeps_volume(request: dict[str, Any]) -> bool:
    devices = request.get("BlockDeviceMappings", [])
    return any(at(device, "Ebs").get("DeleteOnTermination") is False for device in devices)


def _is_persistent(request: dict[str, Any]) -> bool:
    options = at(request, "InstanceMarketOptions", "SpotOptions")
    return options.get("SpotInstanceType") == "persistent"


def read_market(request: Mapping[str, Any]) -> str:
    """Return `MarketType` in the parameters of RunInstances; ON_DEMAND if the parameters do not contain it."""
    return str(at(request, "InstanceMarketOptions").get("MarketType") or ON_DEMAND)


def read_reservation(request: Mapping[str, Any]) -> str:
    """Return the id of the capacity reservation in the parameters of RunInstances; "" if none is named."""
    target = at(request, "CapacityReservationSpecification", "CapacityReservationTarget")
    return str(target.get("CapacityReservationId") or "")


def efa_interfaces(request: Mapping[str, Any]) -> int:
    """Return the number of Elastic Fabric Adapters of each machine, from the parameters of RunInstances or
    from `[aws.ec2.run_instances]`.

    EC2 names an adapter by `InterfaceType`:
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceNetworkInterfaceSpecification.html
    """
    interfaces = request.get("NetworkInterfaces", ())
    return sum(str(each.get("InterfaceType", "")).startswith("efa") for each in interfaces)


def _as_json(value: Any) -> Any:
    """Return `value` with dates converted to texts that AWS accepts, because a request is stored as JSON."""
    if isinstance(value, dict):
        return {key: _as_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    return value.isoformat() if isinstance(value, (date, time)) else value


def _is_item(item: Any, key: str | None) -> bool:
    return isinstance(item, dict) and (key is None or isinstance(item.get(key), str))


_REFUSED: tuple[tuple[Callable[[dict[str, Any]], bool], str, str], ...] = (
    (
        _keeps_volume,
        "sets DeleteOnTermination to false, so the volume would never be deleted",
        "leave DeleteOnTermination out; [output] artifacts keeps files",
    ),
    (
        _is_persistent,
        "asks for a persistent spot request, which starts another machine whenever one has ended",
        'leave SpotInstanceType out, or write "one-time"',
    ),
    (
        lambda request: read_market(request) == CAPACITY_BLOCK and not read_reservation(request),
        "asks for machines of a capacity block, but does not name the block (CapacityReservationSpecification)",
        "write CapacityReservationSpecification = { CapacityReservationTarget = "
        '{ CapacityReservationId = "cr-…" } }',
    ),
    (
        lambda request: request.get("DisableApiTermination") is True,
        "keeps `bai cancel --now` and `bai reap` from terminating the machines (DisableApiTermination)",
        "leave it out",
    ),
)
"""Checks for refused parameters, each with its problem and fix. A check returns whether `run_instances` is refused."""


class Ec2(DescriptorTable):
    """How EC2 instances are launched. Only benchmarks on EC2 use this table."""

    image: str | None = Field(default=None, min_length=1, examples=["ami-0123456789abcdef0"])
    """The AMI: an id, a public parameter `ssm:/aws/service/…`, or `auto`. `auto` is the deep learning image for the
    instance type. This key overrides `[env] image` and `[env] docker_image`. If all three keys are unset, `bai`
    uses the configuration's image, or `auto` if the configuration has no image."""
    region: str | None = Field(default=None, min_length=1, examples=["us-east-1"])
    """The AWS region. Unset: the configuration's region."""
    instance_types: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, max_length=10, examples=[["g5.xlarge", "g6.xlarge"]]
    )
    """Other acceptable instance types. `bai` requests these types, in this order, if no zone has capacity for
    `hardware.instance_type`."""
    spot: bool | None = None
    """Whether spot instances are requested. `InstanceMarketOptions` in `run_instances` and a capacity
    reservation override `spot`. Unset: the configuration's setting, or on demand if the configuration has none."""
    on_demand_after_spot: bool = False
    """Whether on-demand machines are requested if no type has spot capacity. This key needs `spot`, or
    `InstanceMarketOptions` in `run_instances`."""
    subnets: list[str] = Field(default_factory=list, examples=[["subnet-0123456789abcdef0"]])
    """Candidate subnets, tried in turn. Unset: the subnets of the configuration, else those of the default
    VPC."""
    security_groups: list[str] = Field(default_factory=list, examples=[["sg-0123456789abcdef0"]])
    """Ids of the security groups. Unset: the configuration's security groups."""
    instance_profile: str | None = Field(default=None, min_length=1, examples=["bai-instance"])
    """Name or ARN of the instance profile, which decides what the benchmark may do in AWS."""
    public_ip: bool | None = None
    """Whether the instances get a public address. Unset: the configuration's setting, or the subnet's setting if
    the configuration has none."""
    efa: Literal["all"] | None = Field(default=None, examples=["all"])
    """`"all"` requests all Elastic Fabric Adapters that the instance type supports. Machines with several network
    interfaces get no public address. Unset: no adapters, except those in NetworkInterfaces of `run_instances`."""
    volume: Volume | None = None
    keep_on_failure: Duration | None = Field(default=None, examples=["30m"])
    """Time for which a failed job's instances are kept for inspection. Unset: not at all."""
    keep_after: Duration | None = Field(default=None, examples=["30m"])
    """Time for which the instances of any job that was not cancelled are kept, even after a success. After a
    failure, the longer of `keep_on_failure` and `keep_after` counts. Unset: not at all."""
    init_commands: list[str] = Field(default_factory=list, examples=[["apt-get install -y libopenmpi-dev"]])
    """Shell commands that run as root on each instance before the benchmark starts."""
    run_instances: Annotated[dict[str, Any], AfterValidator(_not_owned), AfterValidator(_as_json)] = Field(
        default_factory=dict, examples=[{"KeyName": "my-key"}]
    )
    """Parameters that are merged unchanged into the RunInstances request: network interfaces, placement, key,
    reservations, market and CPU options. `bai` refuses parameters that `bai` or another key sets, and
    parameters that decide whether a machine ends after the job: `ClientToken`, `DryRun`, `ImageId`,
    `InstanceInitiatedShutdownBehavior`, `InstanceType`, `LaunchTemplate`, `MaxCount`, `MinCount`, `SubnetId`,
    `UserData`."""
