"""The sandbox as a test sees it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ssm.models import ssm_backends

from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.control_plane import access
from sandbox.fake_aws.control_plane.ec2_rules import Ec2Rules
from sandbox.fake_aws.control_plane.endpoint import ControlPlane
from sandbox.fake_aws.control_plane.faults import Fault, Faults, StillBirth
from sandbox.fake_aws.control_plane.fleet import Fleet
from sandbox.fake_aws.control_plane.images import IMAGES, register
from sandbox.fake_aws.control_plane.moto_accounts import forget_account
from sandbox.fake_aws.control_plane.price_list import price_list
from sandbox.fake_aws.control_plane.quotas import PlacementGroups, Quotas
from sandbox.fake_aws.control_plane.s3_rules import S3Rules
from sandbox.fake_aws.control_plane.stacks import Stacks, service_linked_roles
from sandbox.fake_aws.iam.identities import INSTANCE, SETUP, Identities
from sandbox.fake_aws.iam.permissions import Surroundings
from sandbox.fake_aws.iam.policies import Policies
from sandbox.fake_aws.machine import cgroups
from sandbox.fake_aws.machine.imds import MetadataService
from sandbox.fake_aws.machine.machine import Machine
from sandbox.fake_aws.machine.network import Network
from sandbox.fake_aws.machine.roots import EVERYDAY, root
from sandbox.fake_aws.machine.shape import MachineShape

REGION = "eu-central-1"
"""Not the one that defaults name; three availability zones."""
PROFILE = ROLE = "bai-instance"
LOG_GROUP = "/bai/metrics"
"""Where the policy for metrics in CloudWatch lets instances write; a test that wants it makes it."""


class FakeAws:
    """One account in one region, and the machines in it. Made by `open_fake_aws`."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.region = REGION
        self.account = f"2{secrets.randbelow(10**11):011d}"
        self.identities = Identities()
        self._faults = Faults()
        self._ec2 = ec2_backends[self.account][REGION]
        stack.callback(forget_account, self.account)
        self.network = Network(folder / "network")
        stack.callback(self.network.close)
        variants = {image.image_id: image.variant for image in IMAGES}
        self.fleet = Fleet(
            backend=self._ec2,
            network=self.network,
            identities=self.identities,
            faults=self._faults,
            folder=folder / "machines",
            variant_of=lambda image_id: variants.get(image_id, "bookworm"),
        )
        self.bucket, self.data_bucket = f"bai-exchange-{self.account}", f"data-{self.account}"
        around = Surroundings(account=self.account, region=REGION, roles={PROFILE: ROLE}, tags=self._ec2.tags)
        names = {
            "DATA_BUCKET": self.data_bucket,
            "BUCKET": self.bucket,
            "ACCOUNT": self.account,
            "ROLE": ROLE,
            "REGION": REGION,
            "LOG_GROUP": LOG_GROUP,
        }
        self.policies = Policies(around, names)
        """In force for instances; for others once they are attached to them."""
        self.policies.attach(INSTANCE)
        self.s3_rules = S3Rules()
        self.control_plane = ControlPlane(
            account=self.account,
            identities=self.identities,
            faults=self._faults,
            zone_of=self.fleet.zone_of,
            rules=[
                price_list,
                Quotas(),
                PlacementGroups(),
                self.s3_rules,
                Stacks(self.policies.allows_stack),
                service_linked_roles,
                Ec2Rules(self.fleet),
            ],
            permit=self.policies.refusal,
        )
        stack.callback(self.control_plane.close)
        self.endpoint = f"http://127.0.0.1:{self.control_plane.port}"
        """For AWS_ENDPOINT_URL, the same on the host and on the machines, where every service has it set."""
        self.expose(self.control_plane.port)
        self.fleet.environment["AWS_ENDPOINT_URL"] = self.endpoint
        listener = self.network.listen_for_metadata()
        metadata = MetadataService(listener, find=self.fleet.find, access_log=folder / "imds.log")
        stack.callback(metadata.close)
        stack.callback(self.fleet.close)
        self.subnets: dict[str, str] = {}
        """Availability zone → the default subnet in it."""
        self._furnish()

    # What a user of AWS has.

    def client(self, service: str, identity: str = "user", **settings: Any) -> Any:
        """Return a boto3 client that calls as `identity`."""
        mine = self.identities.of(identity)
        return access.client(service, mine, endpoint=self.endpoint, region=REGION, **settings)

    def environment(self, identity: str = "user") -> dict[str, str]:
        """Return the variables with which a program calls as `identity`, and has no other credentials."""
        mine = access.environment(self.identities.of(identity), endpoint=self.endpoint)
        return {**mine, "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION}

    def instance(self, instance_id: str) -> dict[str, Any]:
        """Return DescribeInstances' answer for one instance; the call is not counted."""
        answer = self.client("ec2", SETUP).describe_instances(InstanceIds=[instance_id])
        found: dict[str, Any] = answer["Reservations"][0]["Instances"][0]
        return found

    def state(self, instance_id: str) -> str:
        return str(self.instance(instance_id)["State"]["Name"])

    def wait_state(self, instance_id: str, state: str, *, seconds: float = 300) -> dict[str, Any]:
        """Wait until EC2 says that the instance is in `state`; return its description then."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.instance(instance_id)
            if found["State"]["Name"] == state:
                return found
            if time.monotonic() > deadline:
                console = str(self.machine(instance_id).console())[-3000:]
                raise TimeoutError(f"{instance_id} is {found['State']['Name']}, not {state}:\n{console}")
            time.sleep(0.05)

    # The machines.

    @property
    def machines(self) -> list[Machine]:
        """Return all machines so far, in the order of their launch."""
        return list(self.fleet.machines.values())

    def machine(self, instance_id: str) -> Machine:
        return self.fleet.machines[instance_id]

    def wait_for_machines(self, count: int, *, seconds: float = 300) -> list[Machine]:
        """Wait until so many machines have been launched, by whomever."""
        deadline = time.monotonic() + seconds
        while len(self.machines) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.machines)} machines, not {count}, after {seconds:.0f} s")
            time.sleep(0.05)
        return self.machines

    @property
    def shape(self) -> MachineShape:
        """How machines look that are launched from now on."""
        return self.fleet.shape

    @shape.setter
    def shape(self, shape: MachineShape) -> None:
        self.fleet.shape = shape

    def expose(self, port: int, target: int | None = None) -> None:
        """Let 127.0.0.1:`port` of all machines, present and future, lead to the host's 127.0.0.1:`target` (or `port`)."""
        self.fleet.forwards[port] = target or port
        for machine in self.machines:
            machine.forward(port, target or port)

    def hide(self, port: int) -> None:
        """Let nobody listen on 127.0.0.1:`port` of any machine."""
        self.fleet.forwards.pop(port, None)
        for machine in self.machines:
            machine.forward(port, None)

    # What goes wrong.

    def fail(self, action: str, **what: Any) -> Fault:
        """Let calls of `action` fail: see `Fault` for what can be said. Returns it; its `hits` can be looked at."""
        return self._faults.fail(action, **what)

    def no_capacity(self, zone: str, *, times: int | None = None) -> Fault:
        """Let launches into `zone` be refused, as EC2 does when it has no such machine left."""
        return self._faults.no_capacity(zone, times=times)

    def die_in_pending(self, launch_index: int, *, code: str, message: str) -> None:
        """Let that instance of the next launch go from pending to terminated, for the reason given."""
        self._faults.add_still_birth(StillBirth(launch_index=launch_index, code=code, message=message))

    def give_spot_notice(self, instance_id: str, *, after: timedelta) -> None:
        """Announce the end of a spot instance in its metadata. The end itself is `fleet.end`."""
        at = (datetime.now(timezone.utc) + after).strftime("%Y-%m-%dT%H:%M:%SZ")
        machine = self.machine(instance_id)
        machine.metadata["meta-data/spot/instance-action"] = f'{{"action":"terminate","time":"{at}"}}'
        machine.metadata["meta-data/spot/termination-time"] = at

    @property
    def calls(self) -> list[Call]:
        """Return every API call so far, with who made it; the fixture's own are left out."""
        return self.control_plane.calls

    def _furnish(self) -> None:
        ssm = ssm_backends[self.account][REGION]
        for image in IMAGES:
            register(image, ec2=self._ec2, ssm=ssm)
        for name in (self.bucket, self.data_bucket):
            self.client("s3", SETUP).create_bucket(
                Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION}
            )
        iam = self.client("iam", SETUP)
        trust = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}'
        iam.create_role(RoleName=ROLE, AssumeRolePolicyDocument=trust)
        iam.create_instance_profile(InstanceProfileName=PROFILE)
        iam.add_role_to_instance_profile(InstanceProfileName=PROFILE, RoleName=ROLE)
        for subnet in self._ec2.get_default_subnets().values():
            self.subnets[subnet.availability_zone] = subnet.id


@contextmanager
def open_fake_aws(folder: Path) -> Iterator[FakeAws]:
    """Make a aws with its files in `folder`; at the end its machines, links, mounts and groups are gone.

    They are gone too when this process is killed: all is held by processes that die with the calling thread.
    Raises when a machine could not be run for a reason of the sandbox's own, and AssertionError when somebody asked for
    what the policies of `bai` do not allow.
    """
    for variant in EVERYDAY:
        root(variant)
    cgroups.sweep()
    with ExitStack() as stack:
        aws = FakeAws(folder, stack)
        yield aws
    broken = [f"{machine.instance_id} {machine.error}" for machine in aws.machines if machine.error]
    if broken:
        raise OSError("; ".join(broken))
    aws.policies.check()
