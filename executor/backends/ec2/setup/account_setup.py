"""Sets an account up for jobs on EC2. If a setup was interrupted, the next call completes the setup.

The setup consists of two stacks in one region: `NAME-data` with the bucket, and `NAME-account` with
everything that needs the bucket. An optional third stack, `NAME-watcher`, has the function that checks all
jobs.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any

from botocore.exceptions import ClientError

from bai_agent.light_dataclass import dataclass, replace
from executor.backends.ec2.launch.error_classes import classify_error, is_unknown_profile
from executor.backends.ec2.routes import find_subnets, route_table, s3_routes
from executor.backends.ec2.session import FAILURES, AwsSession, aws_session, code_of, plain_errors
from executor.backends.ec2.setup.stacks import StackChange, Stacks
from executor.backends.ec2.setup.templates import TEMPLATES, WATCHER, template
from executor.backends.ec2.staging_bucket import staging_bucket
from executor.backends.ec2.tags import EXPIRES_TAG, JOB_TAG, tag_list, tag_time
from executor.backends.ec2.watcher.archive import WatcherArchive
from executor.configuration.config import Settings
from executor.errors import AwsError

_PROFILE_KNOWN_S = 180.0
"""Longest time until EC2 knows a new instance profile (seconds). EC2 usually needs ten seconds."""
_PROFILE_LOOK_S = 3.0
_IMAGE_PARAMETER = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
_TRIED_TYPE = "t3.micro"
_SPOT = "spot.amazonaws.com"
_UNRESERVED = 100
"""Number of concurrent executions that AWS Lambda always keeps for functions without a reservation:
https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html"""


@dataclass(frozen=True, kw_only=True)
class WatcherChoices:
    """The limits of the watcher, which are parameters of the watcher's stack."""

    types: str = "*"
    """Instance types, separated by commas; `*` and `?` are allowed."""
    owners: str = "amazon"
    """Allowed owners of images, separated by commas."""
    dollars_a_day: str = "50"
    reserved: bool = True
    """Whether one concurrent execution of the function is reserved."""

    def parameters(
        self, choices: Choices, *, code: str, groups: Sequence[str], subnets: Sequence[str]
    ) -> dict[str, str]:
        """Return the parameters of the watcher's template. code: the archive's key in the bucket."""
        return {
            "Name": choices.name,
            "BucketName": choices.bucket,
            "CodeKey": code,
            "Groups": ",".join(groups),
            "Subnets": ",".join(subnets),
            "Owners": self.owners,
            "Types": self.types,
            "DollarsADay": self.dollars_a_day,
            "Reserved": "yes" if self.reserved else "no",
        }


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The user's choices for the setup. The stacks store all choices as their parameters, and the next `bai setup`
    reads the choices from the stacks."""

    name: str
    """Prefix of the names of all resources."""
    bucket: str
    job_days: str = ""
    """Days after which jobs are deleted from the bucket; if empty, jobs are never deleted."""
    data_buckets: tuple[str, ...] = ()
    """Other buckets that instances may read."""
    vpc: str = ""
    route_tables: tuple[str, ...] = ()
    """Route tables that get an endpoint for S3."""
    placement_group: bool = False
    file_vpc: str = ""
    """The VPC of the file system; empty if there is no file system."""
    file_cidr: str = "172.31.0.0/16"
    """Addresses that can reach the file system."""
    file_subnets: tuple[str, ...] = ()
    """One subnet for each zone that can reach the file system."""
    watcher: WatcherChoices | None = None
    """The limits of the watcher; None if there is no watcher."""

    def parameters(self, which: str) -> dict[str, str]:
        """Return the parameters of one of `TEMPLATES`."""
        if which == "data":
            return {
                "BucketName": self.bucket,
                "JobDays": self.job_days,
                "FileSystemVpc": self.file_vpc,
                "FileSystemCidr": self.file_cidr,
                "FileSystemSubnets": ",".join(self.file_subnets),
            }
        return {
            "Name": self.name,
            "BucketName": self.bucket,
            "DataBuckets": ",".join(self.data_buckets),
            "VpcId": self.vpc,
            "RouteTables": ",".join(self.route_tables),
            "PlacementGroup": "yes" if self.placement_group else "no",
        }


@dataclass(frozen=True, kw_only=True)
class Network:
    """The VPC of the configured subnets, or the default VPC."""

    vpc: str = ""
    """Id of the VPC; empty if there is no VPC, or if the subnets are in several VPCs."""
    route_tables: tuple[str, ...] = ()
    """Route tables without an endpoint for S3."""
    needs_endpoint: bool = False
    """Whether machines in the VPC reach S3 only at a cost, or not at all."""
    closed: bool = False
    """Whether the VPC's default group blocks all outgoing traffic."""
    cidr: str = ""
    """Address range of the VPC."""
    subnets: tuple[str, ...] = ()
    """One subnet of each zone."""
    all_subnets: tuple[str, ...] = ()
    """All subnets in which machines are launched."""
    default_group: str = ""
    """The VPC's default group, which machines get if no group is named."""


@dataclass(frozen=True, kw_only=True)
class AccountSetup:
    """The setup with the name `name` in one region. All methods raise BaiError."""

    settings: Settings
    name: str
    stacks: Stacks
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @cached_property
    def aws(self) -> AwsSession:
        return aws_session(self.settings)

    def stack(self, which: str) -> str:
        """Return the name of the stack that is made from the template `which`."""
        return f"{self.name}-{which}"

    @property
    def stack_names(self) -> list[str]:
        return [self.stack(which) for which in TEMPLATES]

    def present(self) -> Choices | None:
        """Return the choices of an earlier setup; None if nothing is set up."""
        found = {which: self.stacks.settled(self.stack(which)) for which in TEMPLATES}
        given: dict[str, str] = {}
        for state in found.values():
            given.update(state.parameters if state else {})
        if not given:
            return None
        return Choices(
            name=self.name,
            bucket=given["BucketName"],
            job_days=given.get("JobDays", ""),
            data_buckets=_items(given.get("DataBuckets", "")),
            vpc=given.get("VpcId", ""),
            route_tables=_items(given.get("RouteTables", "")),
            placement_group=given.get("PlacementGroup") == "yes",
            file_vpc=given.get("FileSystemVpc", ""),
            file_cidr=given.get("FileSystemCidr", Choices.file_cidr),
            file_subnets=_items(given.get("FileSystemSubnets", "")),
            watcher=self._present_watcher(),
        )

    def _present_watcher(self) -> WatcherChoices | None:
        state = self.stacks.settled(self.stack(WATCHER))
        if state is None:
            return None
        given = state.parameters
        return WatcherChoices(
            types=given["Types"],
            owners=given["Owners"],
            dollars_a_day=given["DollarsADay"],
            reserved=given.get("Reserved", "yes") == "yes",
        )

    @cached_property
    def account(self) -> str:
        """The id of the account of the credentials."""
        with plain_errors("asking for the account"):
            return str(self.aws.sts().get_caller_identity()["Account"])

    def first_bucket(self) -> str:
        """Return a bucket name that is unlikely to exist already."""
        return f"{self.name}-{self.account}-{self.aws.region}"

    def network(self) -> Network:
        """Examine the network of the instances."""
        ec2: Any = self.aws.ec2()
        with plain_errors("describing the subnets"):
            found = find_subnets(self.aws, self.settings.subnets)
            vpcs = {each["VpcId"] for each in found}
            if len(vpcs) != 1:
                return Network()
            (vpc,) = vpcs
            routes = s3_routes(
                self.aws, found, public_ip=self.settings.public_ip, bucket_region=self.aws.region
            )
            inside = [{"Name": "vpc-id", "Values": [vpc]}]
            tables = ec2.describe_route_tables(Filters=inside)["RouteTables"]
            default = [{"Name": "group-name", "Values": ["default"]}]
            groups = ec2.describe_security_groups(Filters=[*inside, *default])["SecurityGroups"]
            cidr = ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"][0]["CidrBlock"]
        used = [route_table(each, tables) for each in found]
        ids = [str(each["RouteTableId"]) for each in used if each is not None and not _has_endpoint(each)]
        return Network(
            vpc=vpc,
            route_tables=tuple(dict.fromkeys(ids)),
            needs_endpoint=any(not each.reaches or each.todo for each in routes),
            cidr=cidr,
            subnets=tuple({each["AvailabilityZone"]: str(each["SubnetId"]) for each in found}.values()),
            closed=not any(each.get("IpPermissionsEgress") for each in groups),
            all_subnets=tuple(str(each["SubnetId"]) for each in found),
            default_group=next((str(each["GroupId"]) for each in groups), ""),
        )

    def propose(self, choices: Choices) -> list[StackChange]:
        """Compute the changes of the stacks that lead to `choices`, without executing these changes."""
        changes = [
            self.stacks.propose(
                self.stack(which),
                template(which, data_buckets=choices.data_buckets, mounts=max(1, len(choices.file_subnets))),
                choices.parameters(which),
            )
            for which in TEMPLATES
        ]
        return [each for each in changes if each is not None]

    def propose_watcher(
        self, choices: Choices, network: Network, archive: WatcherArchive
    ) -> StackChange | None:
        """Compute the change that makes or updates the watcher, after the other stacks exist; None if nothing
        would change."""
        if choices.watcher is None:
            return None
        made = self.outputs()
        groups = [*self.settings.security_groups, network.default_group, made.get("SecurityGroup", "")]
        parameters = choices.watcher.parameters(
            choices,
            code=archive.key,
            groups=list(dict.fromkeys(filter(None, groups))),
            subnets=network.all_subnets,
        )
        return self.stacks.propose(self.stack(WATCHER), template(WATCHER), parameters)

    def upload_archive(self, choices: Choices, archive: WatcherArchive) -> None:
        """Upload the watcher's archive into the bucket, even if the object exists, because other users may
        write there."""
        bucket = staging_bucket(replace(self.settings, bucket=choices.bucket))
        self.say("uploading the watcher's code")
        bucket.put_file(archive.key, archive.path)

    def check_code(self, archive: WatcherArchive) -> None:
        """Remove the watcher's function and raise AwsError if the function's code differs from the archive.

        Anyone with write access to the bucket can replace the archive of the function's code before Lambda reads
        the archive.
        """
        function, ours = self.stack(WATCHER), base64.b64encode(bytes.fromhex(archive.sha256)).decode()
        with plain_errors(f"reading the function {function}"):
            found = self.aws.functions().get_function(FunctionName=function)["Configuration"]["CodeSha256"]
        if found == ours:
            return
        self.remove_watcher()
        raise AwsError(
            f"the watcher is removed, because the code in Lambda is not {archive.key} (sha256 in base64: {found}, expected {ours}): "
            f"the archive was replaced in the bucket {self.outputs().get('BucketName')} after its upload. Find out who replaced the archive, and then set the "
            "watcher up again, with its limits"
        )

    def why_unreserved(self) -> str | None:
        """Return the reason why no concurrent execution can be reserved for the watcher's function; None if an
        execution can be reserved. Without a reservation, two executions of the watcher may run at a time. Two
        executions of the watcher at a time cost nothing, and do not launch a machine twice."""
        why = f"AWS keeps {_UNRESERVED} concurrent executions in {self.aws.region} unreserved"
        try:
            limits = self.aws.functions().get_account_settings()["AccountLimit"]
            free = limits["UnreservedConcurrentExecutions"]
            if free > _UNRESERVED:
                return None
            why = f"{why}, and only {free:,} are unreserved"
        except FAILURES as error:
            why = f"{why}, and the account's limit is unknown ({error})"
        return f"no concurrent execution is reserved for the watcher, so two executions may run at a time, which is harmless: {why}"

    def remove_watcher(self) -> bool:
        """Delete the watcher; return whether the watcher existed."""
        return self.stacks.delete(self.stack(WATCHER))

    def outputs(self) -> Mapping[str, str]:
        """Return the ids and ARNs of the resources that the stacks created."""
        found: dict[str, str] = {}
        for which in TEMPLATES:
            state = self.stacks.settled(self.stack(which))
            found.update(state.outputs if state else {})
        return found

    def make_spot_role(self) -> bool:
        """Make the account's role for spot instances; return whether the role was missing."""
        with plain_errors("making the role for spot instances"):
            try:
                self.aws.iam().create_service_linked_role(AWSServiceName=_SPOT)
            except ClientError as error:
                if code_of(error) == "InvalidInput" and "has been taken" in str(error):
                    return False
                raise
        return True

    def wait_for_profile(self, profile: str) -> None:
        """Wait until a dry run of RunInstances accepts the instance profile, because EC2 learns of a new
        profile later than IAM."""
        deadline = self.clock() + _PROFILE_KNOWN_S
        try:
            image = self.aws.ssm().get_parameter(Name=_IMAGE_PARAMETER)["Parameter"]["Value"]
        except FAILURES as error:
            self.say(f"no check whether EC2 knows the instance profile {profile} was possible: {error}")
            return
        while (refusal := self._refusal(profile, image)) is not None:
            if not is_unknown_profile(classify_error(refusal)):
                self.say(f"no check whether EC2 knows the instance profile {profile} was possible: {refusal}")
                return
            if self.clock() > deadline:
                raise AwsError(f"EC2 does not know the instance profile {profile} yet: {refusal}")
            self.sleep(_PROFILE_LOOK_S)

    def _refusal(self, profile: str, image: str) -> ClientError | None:
        tags = {JOB_TAG: "setup", EXPIRES_TAG: tag_time(datetime.now(timezone.utc) + timedelta(hours=1))}
        request: dict[str, Any] = {
            "ImageId": image,
            "InstanceType": _TRIED_TYPE,
            "MinCount": 1,
            "MaxCount": 1,
            "IamInstanceProfile": {"Name": profile},
            "TagSpecifications": [
                {"ResourceType": each, "Tags": tag_list(tags)} for each in ("instance", "volume")
            ],
            **({"SubnetId": self.settings.subnets[0]} if self.settings.subnets else {}),
        }
        with plain_errors("trying the instance profile"):
            try:
                self.aws.no_retry_client().run_instances(**request, DryRun=True)
            except ClientError as error:
                return None if code_of(error) == "DryRunOperation" else error
        return None


def account_setup(settings: Settings, name: str, say: Callable[[str], None]) -> AccountSetup:
    """Return the setup of `name` in the configured region. Raises UsageError."""
    stacks = Stacks(
        cloudformation=aws_session(settings).cloudformation(),
        draw_name=lambda: f"bai-{uuid.uuid4().hex}",
        on_wait=say,
    )
    return AccountSetup(settings=settings, name=name, stacks=stacks, say=say)


def _items(text: str) -> tuple[str, ...]:
    return tuple(each for each in text.split(",") if each)


def _has_endpoint(table: Mapping[str, Any]) -> bool:
    return any(str(each.get("GatewayId", "")).startswith("vpce-") for each in table.get("Routes", ()))
