"""An AWS account with real APIs on a real socket. Its instances exist only in moto, and never boot.

The control plane is the sandbox's, with permissions, tokens, capacity errors, lost answers, and 403 for
missing keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from light_bundles import light_cache
from moto.ec2.models import ec2_backends
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix
from moto.ssm.models import ssm_backends
from sandbox.fake_aws.answers import Answer, error
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.control_plane import access
from sandbox.fake_aws.control_plane.ec2_rules import Ec2Rules
from sandbox.fake_aws.control_plane.endpoint import ControlPlane
from sandbox.fake_aws.control_plane.faults import Fault, Faults
from sandbox.fake_aws.control_plane.images import IMAGES, register
from sandbox.fake_aws.control_plane.moto_accounts import forget_account
from sandbox.fake_aws.control_plane.price_list import price_list
from sandbox.fake_aws.control_plane.quotas import CapacityBlocks, PlacementGroups, Quotas
from sandbox.fake_aws.control_plane.s3_rules import S3Rules
from sandbox.fake_aws.control_plane.stacks import Stacks, service_linked_roles
from sandbox.fake_aws.iam.identities import SETUP, Identities
from sandbox.fake_aws.iam.permissions import Surroundings
from sandbox.fake_aws.iam.policies import Policies

REGION = "eu-central-1"
HELLO = """\
spec_version = "0.1.0"
[info]
description = "Says hello"
execution_engine = "aws.ec2"
[hardware]
instance_type = "t3.small"
[ml]
benchmark_code = "echo hello"
[aws.ec2]
image = "ami-0deb1200000000001"
"""
"""A benchmark descriptor that this account can launch."""


class _Fleet:
    """Records the launches. The consoles stay empty, unless a test chooses their content."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.console = b""

    def launch(self, instance_ids: list[str], parameters: dict[str, str]) -> None:
        return

    def knows(self, instance_id: str) -> bool:
        return any(each.id == instance_id for each in self.backend.all_instances())

    def is_nitro(self, instance_id: str) -> bool:
        return True

    def console_output(self, instance_id: str, *, latest: bool) -> bytes:
        return self.console

    def zone_of(self, call: Call) -> str | None:
        subnet = call.parameters.get("SubnetId") or call.parameters.get("NetworkInterface.1.SubnetId")
        found = [each for each in self.backend.describe_subnets() if each.id == subnet]
        return str(found[0].availability_zone) if found else None


def _find_tags_by_id(backend: Any) -> None:
    """Make moto look up tags by a resource's id, instead of comparing it with every tag of the account."""
    describe_tags = backend.describe_tags

    def describe(filters: dict[str, list[str]] | None = None) -> list[dict[str, str]]:
        ids = (filters or {}).get("resource-id", [])
        if (
            filters is None
            or list(filters) != ["resource-id"]
            or any("*" in each or "?" in each for each in ids)
        ):
            found: list[dict[str, str]] = describe_tags(filters)
            return found
        return [
            {"resource_id": each, "key": key, "value": value, "resource_type": _type_of(each)}
            for each in ids
            for key, value in backend.tags.get(each, {}).copy().items()
        ]

    backend.describe_tags = describe


def _type_of(resource_id: str) -> str:
    return str(EC2_PREFIX_TO_RESOURCE.get(get_prefix(resource_id), ""))


class MotoAws:
    """An account in one region, with a bucket, the default VPC and the sandbox's images."""

    def __init__(self) -> None:
        self.answered: Callable[[Call], None] = lambda call: None
        """Function that is called after a call was carried out, and before it is answered."""
        self.prevents: Callable[[Call], bool] = lambda call: False
        """Function that is called before a call is carried out, and returns whether to prevent the call."""
        self.account = f"3{secrets.randbelow(10**11):011d}"
        self.identities, self.faults = Identities(), Faults()
        self.bucket = f"bai-{self.account}"
        self._ec2 = ec2_backends[self.account][REGION]
        _find_tags_by_id(self._ec2)
        around = Surroundings(account=self.account, region=REGION, roles={}, tags=self._ec2.tags)
        names = {"BUCKET": self.bucket, "ACCOUNT": self.account, "NAME": "bai", "ROLE": "bai-instance"}
        self.policies = Policies(around, names)
        self.policies.attach("user")
        fleet: Any = _Fleet(self._ec2)
        self._fleet = fleet
        self.quotas, self.placement_groups = Quotas(), PlacementGroups()
        self.capacity_blocks = CapacityBlocks()
        self._ec2_rules = Ec2Rules(fleet)
        self.control_plane = ControlPlane(
            account=self.account,
            identities=self.identities,
            faults=self.faults,
            zone_of=fleet.zone_of,
            rules=[
                self._watched,
                price_list,
                self.quotas,
                self.placement_groups,
                self.capacity_blocks,
                S3Rules(),
                Stacks(self.policies.allows_stack),
                service_linked_roles,
                self._ec2_rules,
            ],
            permit=self.policies.refusal,
        )
        self.endpoint = f"http://127.0.0.1:{self.control_plane.port}"
        for image in IMAGES:
            register(image, ec2=self._ec2, ssm=ssm_backends[self.account][REGION])
        self.client("s3", SETUP).create_bucket(
            Bucket=self.bucket, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        self.subnets = {each.availability_zone: each.id for each in self._ec2.get_default_subnets().values()}

    def client(self, service: Any, identity: str = "user", *, region: str = REGION) -> Any:
        return access.client(service, self.identities.of(identity), endpoint=self.endpoint, region=region)

    def environment(self, identity: str = "user") -> dict[str, str]:
        """Return the variables with which `bai` uses this account, and no other credentials."""
        mine = access.environment(self.identities.of(identity), endpoint=self.endpoint)
        # No machine here boots with the bundle that it gets.
        bundle = {"XDG_CACHE_HOME": light_cache()} if identity == "user" else {}
        return {**mine, **bundle, "BAI_REGION": REGION, "BAI_BUCKET": self.bucket, "BAI_CONFIG": "/dev/null"}

    def fail(self, action: str, **what: Any) -> Fault:
        """Make calls of `action` fail: see `Fault`."""
        return self.faults.fail(action, **what)

    def no_capacity(self, zone: str, *, times: int | None = None) -> Fault:
        return self.faults.no_capacity(zone, times=times)

    def room(self, machines: int) -> None:
        """Limit each launch to `machines` machines, or to the minimum that it needs."""
        self._ec2_rules.room = machines

    def charge_for_images(self, operation: str, *, is_sold: bool = False) -> None:
        """Give all images this UsageOperation (code of charges). is_sold: sold on the Marketplace."""
        self._ec2_rules.operation, self._ec2_rules.is_sold = operation, is_sold

    def _watched(self, call: Call, ask: Callable[[], Answer]) -> Answer:
        if call.identity != SETUP and self.prevents(call):
            return error(call.service, 503, "ServiceUnavailable", "The caller is gone.")
        answer = ask()
        if call.identity != SETUP:
            self.answered(call)
        return answer

    def instances(self, *filters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the instances of DescribeInstances that have not ended. filters: EC2's filters."""
        there = {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
        answer = self.client("ec2", SETUP).describe_instances(Filters=[there, *filters])
        return [each for reservation in answer["Reservations"] for each in reservation["Instances"]]

    def hang(self, console: bytes, ages: Mapping[str, timedelta]) -> None:
        """Make all consoles show `console`. ages: age of new machines, by the machines' job."""
        self.show_console(console)

        def grow_old(call: Call) -> None:
            if call.action == "RunInstances":
                for each in self._ec2.all_instances():
                    job_id = next(tag["value"] for tag in each.get_tags() if tag["key"] == "bai:job-id")
                    each.launch_time = datetime.now(timezone.utc) - ages[job_id]

        self.answered = grow_old

    def cut_off(self, instance_id: str, *, since: datetime) -> None:
        """Make EC2's own status check fail to reach a machine."""
        self._ec2_rules.unreachable[instance_id] = since

    def show_console(self, console: bytes) -> None:
        """Make all consoles show `console`."""
        self._fleet.console = console

    def age(self, by: timedelta) -> None:
        """Make all machines older by `by`."""
        for each in self._ec2.all_instances():
            each.launch_time -= by

    def calls(self, action: str) -> list[Call]:
        return [each for each in self.control_plane.calls if each.action == action]


@contextmanager
def open_moto_aws() -> Iterator[MotoAws]:
    """Make an account, which is deleted at the end."""
    aws = MotoAws()
    try:
        yield aws
        aws.policies.check()
    finally:
        aws.control_plane.close()
        forget_account(aws.account)
