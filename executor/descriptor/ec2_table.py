"""The `[aws.ec2]` table: how the instances are launched."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, time
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from executor.descriptor.values import Duration, Table, wrong

OWNED = frozenset(
    {"MinCount", "MaxCount", "ClientToken", "InstanceInitiatedShutdownBehavior", "UserData", "DryRun"}
    | {"ImageId", "InstanceType", "SubnetId", "LaunchTemplate"}
)
"""Parameters of RunInstances that decide whether a job runs once and ends, or that have a key of their own. A launch template
could set any of them, and be changed between two tries of one launch."""


ON_DEMAND = "on-demand"
"""The market of machines that are paid for by the hour; EC2's MarketType has no word for it."""
CAPACITY_BLOCK = "capacity-block"
"""The MarketType of machines that were reserved, and paid for, ahead of time:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html"""

_LISTS = {
    "BlockDeviceMappings": "DeviceName",
    "NetworkInterfaces": None,
    "TagSpecifications": "ResourceType",
}
"""Parameters that are merged item by item, and the key by which an item is known."""


def _not_owned(request: dict[str, Any]) -> dict[str, Any]:
    taken = sorted(OWNED & request.keys())
    if taken:
        raise wrong(
            f"sets {', '.join(taken)}, which the launcher decides itself",
            "leave it out; image, subnets, hardware.instance_type and num_instances have keys of their own, and what a launch "
            "template says can be written here",
        )
    for name, key in _LISTS.items():
        items = request.get(name, [])
        if not isinstance(items, list) or not all(_is_item(each, key) for each in items):
            raise wrong(
                f"{name} is not a list of tables" + (f" that each have a {key}" if key else ""),
                f"write [[aws.ec2.run_instances.{name}]]" + (f' and {key} = "…" below it' if key else ""),
            )
    for device in request.get("BlockDeviceMappings", []):
        if _table(device, "Ebs").get("DeleteOnTermination") is False:
            raise wrong(
                "keeps a volume that nobody would delete (DeleteOnTermination)",
                "leave DeleteOnTermination out; [output] artifacts keeps files",
            )
    if (
        _table(_table(request, "InstanceMarketOptions"), "SpotOptions").get("SpotInstanceType")
        == "persistent"
    ):
        raise wrong(
            "asks for a persistent spot request, which starts another machine whenever one has ended",
            'leave SpotInstanceType out, or write "one-time"',
        )
    if market_of(request) == CAPACITY_BLOCK and not reservation_of(request):
        raise wrong(
            "asks for machines of a capacity block, and does not say of which one (CapacityReservationSpecification)",
            "write CapacityReservationSpecification = { CapacityReservationTarget = "
            '{ CapacityReservationId = "cr-…" } }',
        )
    if request.get("DisableApiTermination") is True:
        raise wrong(
            "forbids to terminate the machines (DisableApiTermination), so that `bai cancel --now` and `bai reap` could not",
            "leave it out",
        )
    return request


def market_of(request: Mapping[str, Any]) -> str:
    """Return on which market machines are asked for by RunInstances' parameters: `MarketType`, or ON_DEMAND."""
    return str(_table(dict(request), "InstanceMarketOptions").get("MarketType") or ON_DEMAND)


def reservation_of(request: Mapping[str, Any]) -> str:
    """Return the id of the capacity reservation that RunInstances' parameters name; empty where they name none."""
    target = _table(_table(dict(request), "CapacityReservationSpecification"), "CapacityReservationTarget")
    return str(target.get("CapacityReservationId") or "")


def efa_interfaces(request: Mapping[str, Any]) -> int:
    """Return how many Elastic Fabric Adapters each machine gets by RunInstances' parameters, or by `[aws.ec2.run_instances]`.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceNetworkInterfaceSpecification.html
    """
    interfaces = request.get("NetworkInterfaces", ())
    return sum(str(each.get("InterfaceType", "")).startswith("efa") for each in interfaces)


def _as_json(value: Any) -> Any:
    """Return `value` with TOML's dates as the texts that AWS takes for them: a request is kept as JSON."""
    if isinstance(value, dict):
        return {key: _as_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    return value.isoformat() if isinstance(value, (date, time)) else value


def _is_item(item: Any, key: str | None) -> bool:
    return isinstance(item, dict) and (key is None or isinstance(item.get(key), str))


def _table(table: dict[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key)
    return value if isinstance(value, dict) else {}


class Volume(Table):
    """The root volume (gp3)."""

    size: int | None = Field(default=None, ge=1, examples=[200])
    """GiB. Unset: what the image needs, plus the data and a margin."""
    throughput: int | None = Field(default=None, ge=125, examples=[500])
    """MiB/s."""
    iops: int | None = Field(default=None, ge=3000, examples=[4000])
    """Operations per second, at least four for each MiB/s of throughput."""
    initialization_rate: int | None = Field(default=None, ge=100, le=300, examples=[300])
    """MiB/s at which the fresh volume is filled from its snapshot (paid). Without it first reads are many times slower."""


class Ec2(Table):
    """How EC2 instances are launched. Read where the benchmark runs on EC2."""

    image: str | None = Field(default=None, min_length=1, examples=["ami-0123456789abcdef0"])
    """The AMI: an id, or a public parameter `ssm:/aws/service/…`. Wins over `[env] image` and `[env] docker_image`."""
    region: str | None = Field(default=None, min_length=1, examples=["us-east-1"])
    """The AWS region. Unset: the configuration's."""
    instance_types: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, max_length=10, examples=[["g5.xlarge", "g6.xlarge"]]
    )
    """Types that will do as well: where no zone has room for `hardware.instance_type`, which comes first, these are asked for in turn."""
    on_demand_after_spot: bool = False
    """Whether machines on demand are asked for where no type has room on spot (`InstanceMarketOptions` in `run_instances`)."""
    subnets: list[str] = Field(default_factory=list, examples=[["subnet-0123456789abcdef0"]])
    """Candidate subnets, tried in turn. Unset: the configuration's, else the default VPC's."""
    security_groups: list[str] = Field(default_factory=list, examples=[["sg-0123456789abcdef0"]])
    """Security groups' ids. Unset: the configuration's."""
    instance_profile: str | None = Field(default=None, min_length=1, examples=["bai-instance"])
    """The instance profile's name or ARN: what the benchmark may do in AWS."""
    public_ip: bool | None = None
    """Whether the instances get a public address. Unset: the configuration's, else the subnet's default."""
    efa: Literal["all"] | None = Field(default=None, examples=["all"])
    """`"all"`: the machines get every Elastic Fabric Adapter of their type. With more than one network interface they get no public
    address. Unset: none, unless `run_instances` has NetworkInterfaces."""
    volume: Volume | None = None
    keep_on_failure: Duration | None = Field(default=None, examples=["30m"])
    """How long a failed job's instances are kept to be looked into. Unset: not at all."""
    init_commands: list[str] = Field(default_factory=list, examples=[["apt-get install -y libopenmpi-dev"]])
    """Shell commands that run as root on each instance before the benchmark."""
    run_instances: Annotated[dict[str, Any], AfterValidator(_not_owned), AfterValidator(_as_json)] = Field(
        default_factory=dict, examples=[{"KeyName": "my-key"}]
    )
    """Merged into the RunInstances request as it is: network interfaces, placement, key, reservations, market and CPU options.
    Parameters that decide whether the job runs once and ends, or that have a key of their own, are refused: `ClientToken`, `DryRun`,
    `ImageId`, `InstanceInitiatedShutdownBehavior`, `InstanceType`, `LaunchTemplate`, `MaxCount`, `MinCount`, `SubnetId`, `UserData`."""
