"""`bai setup` and `bai setup --remove` in an account with moto's CloudFormation."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cli_harness import CliHarness, CliResult
from moto.ec2.models import ec2_backends
from moto.ssm.models import ssm_backends
from moto_aws import HELLO, REGION, MotoAws
from pseudo_terminal import Terminal
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.control_plane.images import DEBIAN, register
from sandbox.fake_aws.control_plane.stacks import BUCKET_POLICIES, PLACEMENT_GROUPS, failing
from sandbox.fake_aws.iam.identities import SETUP

from executor.backends.ec2.setup.account_setup import account_setup
from executor.backends.ec2.watcher.archive import build_watcher, pack
from executor.configuration.config import read_settings
from executor.errors import AwsError
from executor.owned_folders import cache_folder

_CONFIG = """\
# what I use
client_id = "me"

[limits]
max_runtime = "2h" # enough
"""
_CHANGES = ("CreateChangeSet", "ExecuteChangeSet", "DeleteStack", "DeleteObjects", "CreateServiceLinkedRole")


@dataclass(frozen=True)
class Administrator(CliHarness):
    """Somebody who may do everything in an account in which there is nothing of `bai` yet."""

    aws: MotoAws = None  # type: ignore[assignment]

    @property
    def config(self) -> str:
        return (self.folder / "config.toml").read_text()

    @property
    def bucket(self) -> str:
        return f"bai-{self.aws.account}-{REGION}"

    def setup(self, *options: str, code: int = 0) -> CliResult:
        done = self.bai("setup", "--yes", *options)
        assert done.code == code, done.stdout + done.stderr
        return done

    def stacks(self) -> dict[str, str]:
        found = self.aws.client("cloudformation", SETUP).describe_stacks()["Stacks"]
        return {each["StackName"]: each["StackStatus"] for each in found}

    def reserved(self) -> str:
        """Return whether an execution is reserved for the watcher, by its stack's parameter: moto's functions do not have that."""
        found = self.aws.client("cloudformation", SETUP).describe_stacks(StackName="bai-watcher")["Stacks"]
        parameters = {each["ParameterKey"]: each["ParameterValue"] for each in found[0]["Parameters"]}
        return str(parameters["Reserved"])

    def left(self) -> dict[str, Any]:
        """Return what there is in the account, but for what each account has."""
        client = self.aws.client
        iam, ec2 = client("iam", SETUP), client("ec2", SETUP)
        groups = ec2.describe_security_groups()["SecurityGroups"]
        found = {
            "stacks": list(self.stacks()),
            "buckets": [each["Name"] for each in client("s3", SETUP).list_buckets()["Buckets"]],
            "roles": [each["RoleName"] for each in iam.list_roles()["Roles"]],
            "profiles": [
                each["InstanceProfileName"] for each in iam.list_instance_profiles()["InstanceProfiles"]
            ],
            "policies": [each["PolicyName"] for each in iam.list_policies(Scope="Local")["Policies"]],
            "groups": [each["GroupName"] for each in groups if each["GroupName"] != "default"],
            "endpoints": [
                each["VpcEndpointId"]
                for each in ec2.describe_vpc_endpoints()["VpcEndpoints"]
                if each["State"] != "deleted"
            ],
            "placement groups": list(PLACEMENT_GROUPS[self.aws.account]),
            "bucket policies": list(BUCKET_POLICIES[self.aws.account]),
        }
        return {kind: sorted(each) for kind, each in found.items() if each}

    def instance_policy(self) -> dict[str, Any]:
        iam = self.aws.client("iam", SETUP)
        document = iam.get_role_policy(RoleName="bai-instance", PolicyName="bai")["PolicyDocument"]
        found: dict[str, Any] = json.loads(document) if isinstance(document, str) else document
        return found


@pytest.fixture
def admin(moto_aws: MotoAws, tmp_path: Path) -> Administrator:
    moto_aws.client("s3", SETUP).delete_bucket(Bucket=moto_aws.bucket)
    environment = {
        **moto_aws.environment("administrator"),
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "BAI_CONFIG": str(tmp_path / "config.toml"),
        # The watcher's wheels are fetched once for all tests.
        "XDG_CACHE_HOME": str(cache_folder(os.environ).parent),
    }
    del environment["BAI_BUCKET"]
    (tmp_path / "config.toml").write_text(_CONFIG)
    return Administrator(tmp_path, environment, aws=moto_aws)


_ALL = {
    "stacks": ["bai-account", "bai-data"],
    "roles": ["bai-instance"],
    "profiles": ["bai-instance"],
    "policies": ["bai-executor", "bai-serve", "bai-user"],
}


def test_bai_setup_prepares_an_empty_account_with_one_command(admin: Administrator) -> None:
    done = admin.setup("--placement-group")

    left = admin.left()
    assert {key: left[key] for key in _ALL} == _ALL
    assert left["buckets"] == left["bucket policies"] == [admin.bucket]
    assert len(left["endpoints"]) == len(left["placement groups"]) == len(left["groups"]) == 1
    assert admin.config == _CONFIG.replace(
        'client_id = "me"\n',
        f'client_id = "me"\nbucket = "{admin.bucket}"\nregion = "{REGION}"\ninstance_profile = "bai-instance"\n',
    )
    assert f'+bucket = "{admin.bucket}"' in done.stdout
    assert "ok      profile          bai-instance, role bai-instance" in done.stdout
    assert "failed" not in done.stdout
    assert "each stored GB costs about 0.025 USD a month" in done.stderr
    assert left["placement groups"][0] in done.stderr


def test_instances_have_the_documented_policy_for_this_bucket(admin: Administrator) -> None:
    admin.setup("--data-bucket", "numbers", "--data-bucket", "words")

    documented = Path(__file__).parents[3] / "executor/backends/ec2/iam/instance.json"
    expected = json.loads(
        documented.read_text().replace("ACCOUNT", admin.aws.account).replace('"DATA_BUCKET', '"DATA')
    )
    found = admin.instance_policy()
    assert [each["Sid"] for each in found["Statement"]] == [each["Sid"] for each in expected["Statement"]]
    by_sid = {each["Sid"]: each["Resource"] for each in found["Statement"]}
    assert by_sid["ReadDataBuckets"] == ["arn:aws:s3:::numbers/*", "arn:aws:s3:::words/*"]
    assert f"arn:aws:s3:::{admin.bucket}/agent/*" in by_sid["ReadWhatWasSubmitted"]
    assert by_sid["ReadSecretParameters"] == [f"arn:aws:ssm:*:{admin.aws.account}:parameter/bai/*"]

    admin.setup()  # what was chosen is kept
    assert admin.instance_policy() == found
    admin.setup("--data-bucket", "")
    assert "numbers" not in json.dumps(admin.instance_policy())


def test_a_second_bai_setup_changes_nothing(admin: Administrator) -> None:
    admin.setup("--placement-group", "--data-bucket", "numbers", "--delete-jobs-after", "30")
    before, config = admin.left(), admin.config
    admin.aws.control_plane.forget_calls()

    done = admin.setup()

    assert "no change" in done.stderr
    assert (admin.left(), admin.config) == (before, config)
    assert not admin.aws.calls("ExecuteChangeSet")


def test_setup_removes_a_resource_that_is_deselected_later(admin: Administrator) -> None:
    admin.setup("--placement-group", "--endpoint")
    assert {"placement groups", "endpoints"} <= set(admin.left())

    done = admin.setup("--no-placement-group", "--no-endpoint", code=5)

    assert re.search(r"deletes  ClusterGroup .*AWS::EC2::PlacementGroup", done.stdout)
    assert not {"placement groups", "endpoints"} & set(admin.left())
    # moto's VPC has no other way to S3.
    assert "has no route out" in done.stdout


def test_a_stack_of_an_older_version_is_updated(admin: Administrator) -> None:
    admin.setup()
    cloudformation = admin.aws.client("cloudformation", SETUP)
    older = cloudformation.get_template(StackName="bai-account")["TemplateBody"]
    cut = older[: older.index("  ServicePolicy:")] + older[older.index("  SecurityGroup:\n    Type") :]
    cut = cut.replace("  ServicePolicy:\n    Value: !Ref ServicePolicy\n", "")
    [stack] = cloudformation.describe_stacks(StackName="bai-account")["Stacks"]
    cloudformation.delete_stack(StackName="bai-account")
    cloudformation.create_stack(StackName="bai-account", TemplateBody=cut, Parameters=stack["Parameters"])
    assert admin.left()["policies"] == ["bai-executor", "bai-user"]

    done = admin.setup()

    assert "makes    ServicePolicy (AWS::IAM::ManagedPolicy)" in done.stdout
    assert admin.stacks() == {"bai-data": "CREATE_COMPLETE", "bai-account": "UPDATE_COMPLETE"}
    assert admin.left()["policies"] == ["bai-executor", "bai-serve", "bai-user"]


def test_setup_creates_keeps_changes_and_removes_a_watcher(admin: Administrator) -> None:
    done = admin.setup("--watcher", "--watcher-types", "t3.*,c7i.large")

    assert admin.stacks()["bai-watcher"] == "CREATE_COMPLETE"
    assert "makes    Watcher (AWS::Lambda::Function)" in done.stdout
    assert "The watcher costs about half a USD a month." in done.stderr
    functions, s3 = admin.aws.client("lambda", SETUP), admin.aws.client("s3", SETUP)
    made = functions.get_function(FunctionName="bai-watcher")["Configuration"]
    variables = made["Environment"]["Variables"]
    assert variables["BAI_BUCKET"] == admin.bucket
    assert variables["BAI_WATCHER_PROFILE"] == "bai-instance"
    assert variables["BAI_WATCHER_TYPES"] == "t3.*,c7i.large"
    assert variables["BAI_WATCHER_OWNERS"] == f"amazon,{admin.aws.account}"
    assert set(variables["BAI_WATCHER_SUBNETS"].split(",")) == set(admin.aws.subnets.values())
    groups = admin.aws.client("ec2", SETUP).describe_security_groups()["SecurityGroups"]
    assert set(variables["BAI_WATCHER_GROUPS"].split(",")) == {each["GroupId"] for each in groups}
    [archive] = s3.list_objects_v2(Bucket=admin.bucket, Prefix="agent/watcher-")["Contents"]
    assert archive["Size"] < 45_000_000

    admin.aws.control_plane.forget_calls()
    assert "no change" in admin.setup().stderr
    assert not admin.aws.calls("ExecuteChangeSet")

    admin.setup("--watcher-usd-a-day", "7.5")
    made = functions.get_function(FunctionName="bai-watcher")["Configuration"]
    assert made["Environment"]["Variables"]["BAI_WATCHER_USD_A_DAY"] == "7.5"
    assert made["Environment"]["Variables"]["BAI_WATCHER_TYPES"] == "t3.*,c7i.large"
    assert admin.reserved() == "yes"

    assert "the watcher is removed" in admin.setup("--no-watcher").stderr
    assert functions.list_functions()["Functions"] == []
    assert "bai-watcher" not in admin.stacks()


def test_without_free_lambda_concurrency_the_watcher_gets_no_reserved_execution(admin: Administrator) -> None:
    admin.aws.quotas.executions = 100

    done = admin.setup("--watcher")

    assert "no concurrent execution is reserved for the watcher" in done.stderr
    assert f"AWS keeps 100 concurrent executions in {REGION}" in done.stderr
    assert admin.reserved() == "no"
    # As soon as there is room, the next call reserves one, and later ones keep it.
    admin.aws.quotas.executions = 1000
    said = admin.setup()
    assert admin.reserved() == "yes", said.stderr + said.stdout
    admin.aws.quotas.executions = 10
    assert "no change" in admin.setup().stderr


def test_a_watcher_is_created_although_the_lambda_concurrency_limit_is_unknown(admin: Administrator) -> None:
    admin.aws.fail("GetAccountSettings", code="AccessDeniedException", status=400, times=None)

    done = admin.setup("--watcher")

    assert "the account's limit is unknown" in done.stderr
    assert admin.stacks()["bai-watcher"] == "CREATE_COMPLETE"


def test_setup_overwrites_foreign_watcher_code_in_the_bucket(admin: Administrator) -> None:
    # Given somebody who may write into the bucket, and has put other code in the place of the archive
    admin.setup()
    s3 = admin.aws.client("s3", SETUP)
    archive = build_watcher(cache=cache_folder(os.environ))
    s3.put_object(Bucket=admin.bucket, Key=archive.key, Body=b"another one's")

    admin.setup("--watcher")

    uploaded = s3.get_object(Bucket=admin.bucket, Key=archive.key)["Body"].read()
    assert uploaded == archive.path.read_bytes()


def test_a_watcher_is_removed_if_its_code_was_replaced_before_deployment(admin: Administrator) -> None:
    # Given somebody who replaces the archive between its upload and its deployment
    admin.setup()
    archive = build_watcher(cache=cache_folder(os.environ))
    foreign = pack({"executor/backends/ec2/watcher/handler.py": b"import os"})

    def replaced(call: Call) -> bool:
        if call.action == "ExecuteChangeSet":
            admin.aws.client("s3", SETUP).put_object(Bucket=admin.bucket, Key=archive.key, Body=foreign)
        return False

    admin.aws.prevents = replaced
    done = admin.setup("--watcher", code=5)

    assert f"the watcher is removed, because the code in Lambda is not {archive.key}" in done.stderr
    assert f"the archive was replaced in the bucket {admin.bucket} after its upload" in done.stderr
    assert admin.aws.client("lambda", SETUP).list_functions()["Functions"] == []
    assert "bai-watcher" not in admin.stacks()

    # When nobody does so, also when it is set up already
    admin.aws.prevents = lambda call: False
    admin.setup("--watcher")
    admin.setup()
    assert admin.stacks()["bai-watcher"] == "CREATE_COMPLETE"


def test_setup_remove_also_removes_the_watcher(admin: Administrator) -> None:
    admin.setup("--watcher")

    admin.setup("--remove", "--delete-data")

    assert admin.left() == {}
    assert admin.aws.client("lambda", SETUP).list_functions()["Functions"] == []


def test_limits_of_a_watcher_are_refused_if_there_is_no_watcher(admin: Administrator) -> None:
    done = admin.setup("--watcher-types", "t3.*", code=2)

    assert "belong to --watcher" in done.stderr
    assert admin.stacks() == {}


def test_setup_remove_keeps_the_bucket_without_delete_data(admin: Administrator) -> None:
    admin.setup("--placement-group")
    s3 = admin.aws.client("s3", SETUP)
    s3.put_object(Bucket=admin.bucket, Key="jobs/one/job.toml", Body=b"x")
    s3.put_bucket_versioning(Bucket=admin.bucket, VersioningConfiguration={"Status": "Enabled"})
    s3.put_object(Bucket=admin.bucket, Key="jobs/one/job.toml", Body=b"y")
    s3.delete_object(Bucket=admin.bucket, Key="jobs/one/job.toml")
    s3.create_multipart_upload(Bucket=admin.bucket, Key="data/large")

    admin.setup("--remove")

    kept = {"stacks": ["bai-data"], "buckets": [admin.bucket], "bucket policies": [admin.bucket]}
    assert admin.left() == kept
    assert "instance_profile" not in admin.config
    assert f'bucket = "{admin.bucket}"' in admin.config

    admin.setup()
    assert admin.left()["buckets"] == [admin.bucket]
    admin.setup("--remove", "--delete-data")

    assert admin.left() == {}
    assert admin.config == _CONFIG.replace('"me"\n', f'"me"\nregion = "{REGION}"\n')
    assert "nothing of bai is set up" in admin.setup("--remove", "--delete-data").stderr


def test_setup_remove_is_refused_while_a_machine_of_a_job_runs(admin: Administrator) -> None:
    admin.setup()
    before, config = admin.left(), admin.config
    elsewhere = "us-west-2"
    admin.aws.client("s3", SETUP).put_object(Bucket=admin.bucket, Key=f"jobs/.regions/{elsewhere}", Body=b"")
    register(
        DEBIAN, ec2=ec2_backends[admin.aws.account][elsewhere], ssm=ssm_backends[admin.aws.account][elsewhere]
    )
    for region in (REGION, elsewhere):
        ec2 = admin.aws.client("ec2", SETUP, region=region)
        tags = [{"Key": "bai:job-id", "Value": "mine"}]
        launched = ec2.run_instances(
            ImageId=DEBIAN.image_id,
            InstanceType="t3.micro",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
        machine = launched["Instances"][0]["InstanceId"]

        done = admin.setup("--remove", "--delete-data", code=2)

        assert f"{machine} ({region}, job mine)" in done.stderr
        assert "bai cancel JOB --now" in done.stderr
        assert (admin.left(), admin.config) == (before, config)
        ec2.terminate_instances(InstanceIds=[machine])
    admin.setup("--remove", "--delete-data")
    assert admin.left() == {}


def test_setup_remove_stops_if_the_watcher_launched_a_machine_meanwhile(admin: Administrator) -> None:
    admin.setup("--watcher")
    config, ec2 = admin.config, admin.aws.client("ec2", SETUP)
    launched = []

    def launch(call: Call) -> None:
        if call.action == "DeleteStack" and "bai-watcher" in call.parameters["StackName"]:
            tags = [{"Key": "bai:job-id", "Value": "mine"}]
            answer = ec2.run_instances(
                ImageId=DEBIAN.image_id,
                InstanceType="t3.micro",
                MinCount=1,
                MaxCount=1,
                TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
            )
            launched.append(answer["Instances"][0]["InstanceId"])

    admin.aws.answered = launch

    done = admin.setup("--remove", "--delete-data", code=2)

    [machine] = launched
    assert f"{machine} ({REGION}, job mine)" in done.stderr
    assert list(admin.stacks()) == ["bai-data", "bai-account"]
    assert admin.config == config
    ec2.terminate_instances(InstanceIds=[machine])
    admin.setup("--remove", "--delete-data")
    assert admin.left() == {}


def test_a_policy_attached_to_users_is_detached_and_deleted(admin: Administrator) -> None:
    admin.setup()
    iam = admin.aws.client("iam", SETUP)
    iam.create_user(UserName="ada")
    policy = f"arn:aws:iam::{admin.aws.account}:policy/bai-user"
    iam.attach_user_policy(UserName="ada", PolicyArn=policy)

    done = admin.setup("--remove", "--delete-data")

    assert f"detached {policy} from user ada" in done.stderr
    assert iam.list_attached_user_policies(UserName="ada")["AttachedPolicies"] == []
    assert admin.left() == {}


def test_a_role_is_removed_although_policies_were_added_to_it(admin: Administrator) -> None:
    admin.setup()
    iam = admin.aws.client("iam", SETUP)
    document = (Path(__file__).parents[3] / "executor/backends/ec2/iam/cloudwatch.json").read_text()
    iam.put_role_policy(RoleName="bai-instance", PolicyName="cloudwatch", PolicyDocument=document)
    policy = iam.create_policy(PolicyName="mine", PolicyDocument=document)["Policy"]["Arn"]
    iam.attach_role_policy(RoleName="bai-instance", PolicyArn=policy)

    done = admin.setup("--remove", "--delete-data")

    assert "deleted the policy cloudwatch of role bai-instance" in done.stderr
    assert f"detached {policy} from role bai-instance" in done.stderr
    assert admin.left() == {"policies": ["mine"]}


def test_policies_that_somebody_takes_away_during_a_removal_do_not_stop_it(admin: Administrator) -> None:
    admin.setup()
    iam = admin.aws.client("iam", SETUP)
    document = (Path(__file__).parents[3] / "executor/backends/ec2/iam/cloudwatch.json").read_text()
    iam.put_role_policy(RoleName="bai-instance", PolicyName="cloudwatch", PolicyDocument=document)
    mine = iam.create_policy(PolicyName="mine", PolicyDocument=document)["Policy"]["Arn"]
    iam.attach_role_policy(RoleName="bai-instance", PolicyArn=mine)
    iam.create_user(UserName="ada")
    ours = f"arn:aws:iam::{admin.aws.account}:policy/bai-user"
    iam.attach_user_policy(UserName="ada", PolicyArn=ours)
    taken = []

    def take_away(call: Call) -> None:
        if call.identity != "administrator":
            return
        if call.action == "ListEntitiesForPolicy" and call.parameters["PolicyArn"] == ours:
            taken.append(iam.detach_user_policy(UserName="ada", PolicyArn=ours))
        elif call.action == "ListAttachedRolePolicies":
            taken.append(iam.delete_role_policy(RoleName="bai-instance", PolicyName="cloudwatch"))
            taken.append(iam.detach_role_policy(RoleName="bai-instance", PolicyArn=mine))

    admin.aws.answered = take_away

    done = admin.setup("--remove", "--delete-data")

    assert len(taken) == 3
    assert "cloudwatch" not in done.stderr
    assert "detached" not in done.stderr
    assert admin.left() == {"policies": ["mine"]}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--bucket", "s3://mine"), '--bucket: "s3://mine" is not the name of a bucket'),
        (("--data-bucket", "Mine"), '--data-bucket: "Mine" is not the name of a bucket'),
        (("--name", "My_Team"), '--name: "My_Team" is not a name'),
        (("--delete-data",), "--delete-data needs --remove"),
    ],
)
def test_impossible_options_are_refused_before_aws_is_asked(
    admin: Administrator, options: tuple[str, ...], sentence: str
) -> None:
    assert sentence in admin.setup(*options, code=2).stderr
    assert admin.aws.control_plane.calls == []


@pytest.mark.parametrize("options", [("--spot",), ("--remove", "--delete-data")], ids=["setup", "removal"])
def test_a_setup_killed_at_any_step_is_completed_by_the_next_one(
    admin: Administrator, options: tuple[str, ...]
) -> None:
    """Kill it after its first change, then after the next one, and so on, until one call comes to its end."""
    if "--remove" in options:
        admin.setup("--placement-group")
        admin.aws.client("s3", SETUP).put_object(Bucket=admin.bucket, Key="jobs/one/job.toml", Body=b"x")
    kills = 0
    seen: set[tuple[str, str]] = set()
    while True:
        started: list[Any] = []

        def kill(call: Call, started: list[Any] = started) -> None:
            step = (call.action, call.parameters.get("StackName", "").split("/")[0])
            if call.identity == "administrator" and call.action in _CHANGES and step not in seen:
                seen.add(step)
                started[0].kill()

        admin.aws.answered = kill
        with admin.start("setup", "--yes", *options) as process:
            started.append(process)
            out, err = process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert process.returncode == -9, out + err
        kills += 1
        assert kills < 10
    admin.aws.answered = lambda call: None
    if "--remove" in options:
        assert kills >= 3
        assert admin.left() == {}
    else:
        # Two changes are prepared and carried out, and those that were only prepared are made again.
        assert kills == 7
        left = admin.left()
        assert {key: left[key] for key in ("profiles", "policies")} == {
            key: _ALL[key] for key in ("profiles", "policies")
        }
        assert "no change" in admin.setup().stderr
        assert 'instance_profile = "bai-instance"' in admin.config


@pytest.mark.parametrize("action", ["CreateChangeSet", "ExecuteChangeSet"])
def test_a_stack_change_whose_response_is_lost_is_made_once(admin: Administrator, action: str) -> None:
    lost = admin.aws.fail(action, service="cloudformation", then="drop")

    admin.setup()

    assert lost.hits == 1
    assert len(admin.aws.calls(action)) == 3
    assert admin.stacks() == {"bai-data": "CREATE_COMPLETE", "bai-account": "CREATE_COMPLETE"}
    assert len(admin.left()["groups"]) == 1


def test_a_deletion_continues_if_its_answer_is_lost(admin: Administrator) -> None:
    admin.setup()
    lost = admin.aws.fail("DeleteStack", then="drop")

    admin.setup("--remove", "--delete-data")

    assert lost.hits == 1
    assert admin.left() == {}


def test_setup_without_credentials_says_so(admin: Administrator) -> None:
    done = admin.bai("setup", "--yes", env={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""})

    assert done.code == 2
    assert "there are no AWS credentials" in done.stderr
    assert "--print policy" not in done.stderr


def test_the_first_failure_is_reported_with_the_message_of_aws(admin: Administrator) -> None:
    with failing("UserPolicy", "Cannot exceed quota for PoliciesPerAccount: 1500"):
        done = admin.setup(code=5)

    assert (
        "the stack bai-account failed and is ROLLBACK_COMPLETE: "
        "UserPolicy (AWS::IAM::ManagedPolicy, not made): Cannot exceed quota for PoliciesPerAccount: 1500"
    ) in done.stderr
    assert "cancelled" not in done.stderr
    assert admin.config == _CONFIG
    assert "roles" not in admin.left()

    admin.setup()
    assert admin.stacks()["bai-account"] == "CREATE_COMPLETE"
    with failing("UserPolicy", "throttled"):
        assert "is UPDATE_ROLLBACK_COMPLETE: ClusterGroup" not in admin.setup("--placement-group").stderr


def test_a_bucket_that_is_not_empty_is_reported_and_removed_by_the_next_call(admin: Administrator) -> None:
    admin.setup()
    with failing("Bucket", "The bucket you tried to delete is not empty"):
        done = admin.setup("--remove", "--delete-data", code=5)

    assert "Bucket (AWS::S3::Bucket" in done.stderr
    assert "not empty" in done.stderr
    assert admin.stacks() == {"bai-data": "DELETE_FAILED"}
    assert "`bai setup --remove`" in admin.setup(code=5).stderr
    admin.setup("--remove", "--delete-data")
    assert admin.left() == {}


@pytest.mark.parametrize("who", ["setup", "doctor"])
def test_the_dry_run_launch_has_the_tags_that_the_executors_policy_requires(
    admin: Administrator, who: str
) -> None:
    # Given the executor's policy in force, which demands `bai:job-id` and `bai:expires` on machines and volumes
    admin.setup()
    policies = admin.aws.policies
    policies.around = replace(policies.around, roles={"bai-instance": "bai-instance"})
    policies.attach("administrator", policies.documented("executor", "user", "setup", BUCKET=admin.bucket))
    (admin.folder / "b.toml").write_text(HELLO)
    admin.aws.control_plane.forget_calls()

    done = admin.setup() if who == "setup" else admin.bai("doctor", "b.toml")

    assert done.code == 0, done.stdout + done.stderr
    [tried] = admin.aws.calls("RunInstances")
    assert (tried.error, tried.parameters["DryRun"]) == ("DryRunOperation", "true")
    sent = tried.parameters
    for number in ("1", "2"):
        keys = {
            value
            for key, value in sent.items()
            if re.fullmatch(rf"TagSpecification\.{number}\.Tag\.\d+\.Key", key)
        }
        assert {"bai:job-id", "bai:expires"} <= keys
    kinds = {value for key, value in sent.items() if key.endswith(".ResourceType")}
    assert {"instance", "volume"} <= kinds
    policies.check()


class TestRights:
    """With the policies that docs/iam.md names for who sets up, in force for the stacks' resources too."""

    @pytest.fixture
    def person(self, admin: Administrator) -> Administrator:
        policies = admin.aws.policies
        policies.around = replace(policies.around, roles={"bai-instance": "bai-instance"})
        policies.attach("administrator", policies.documented("setup", "user"))
        return admin

    def test_the_documented_policy_allows_every_setup_option(self, person: Administrator) -> None:
        bucket = ("--bucket", person.aws.bucket)
        person.setup("--placement-group", "--spot", "--file-system", *bucket)
        person.setup("--no-placement-group", "--data-bucket", "numbers")
        iam = person.aws.client("iam", SETUP)
        iam.create_group(GroupName="all")
        policy = f"arn:aws:iam::{person.aws.account}:policy/bai-user"
        iam.attach_group_policy(GroupName="all", PolicyArn=policy)
        person.setup("--remove", "--delete-data")

        left = person.left()
        # It is the account's own, and moto's name of it.
        assert left.pop("roles") == ["AWSServiceRoleForspot"]
        assert left == {}
        person.aws.policies.check()

    def test_a_missing_permission_is_reported_with_its_resource_and_the_needed_policy(
        self, person: Administrator
    ) -> None:
        policies = person.aws.policies
        policies.attach("administrator", policies.documented("setup", "user").without("MakeRolesAndPolicies"))

        done = person.setup("--bucket", person.aws.bucket, code=5)

        assert "InstanceRole (AWS::IAM::Role, not made): User: " in done.stderr
        assert "is not authorized to perform: iam:CreateRole" in done.stderr
        assert "`bai setup --print policy`" in done.stderr
        assert person.left()["stacks"] == ["bai-account", "bai-data"]
        assert "roles" not in person.left()

        policies.attach("administrator", policies.documented("setup", "user"))
        person.setup()
        assert person.left()["roles"] == ["bai-instance"]

    def test_without_permission_for_stacks_setup_creates_nothing(self, person: Administrator) -> None:
        policies = person.aws.policies
        policies.attach("administrator", policies.documented("user"))

        done = person.setup(code=5)

        assert "describing the stack bai-data is not allowed" in done.stderr
        assert "`bai setup --print policy`" in done.stderr
        assert person.left() == {}
        policies.take_refused()


def test_setup_waits_until_ec2_knows_the_new_instance_profile(admin: Administrator) -> None:
    unknown = admin.aws.fail(
        "RunInstances",
        code="InvalidParameterValue",
        message="Value (bai-instance) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name",
        status=400,
    )

    admin.setup()

    assert unknown.hits == 1
    assert [each.error for each in admin.aws.calls("RunInstances")] == [
        "InvalidParameterValue",
        "DryRunOperation",
    ]
    assert all(each.parameters["DryRun"] == "true" for each in admin.aws.calls("RunInstances"))


@pytest.mark.usefixtures("moto_environment")
def test_setup_stops_waiting_for_an_instance_profile_that_ec2_never_knows(moto_aws: MotoAws) -> None:
    moto_aws.policies.attach("user", moto_aws.policies.documented("setup", "user"))
    moto_aws.fail(
        "RunInstances",
        code="InvalidParameterValue",
        message="Invalid IAM Instance Profile name",
        status=400,
        times=None,
    )
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    setup = account_setup(read_settings(), "bai", lambda sentence: None)
    waiting = replace(setup, clock=lambda: now[0], sleep=sleep)

    with pytest.raises(AwsError, match="EC2 does not know the instance profile bai-instance yet"):
        waiting.wait_for_profile("bai-instance")

    assert 180 < now[0] < 190


def test_a_security_group_is_configured_if_the_vpcs_default_group_is_closed(admin: Administrator) -> None:
    ec2 = admin.aws.client("ec2", SETUP)
    for group in ec2.describe_security_groups()["SecurityGroups"]:
        ec2.revoke_security_group_egress(GroupId=group["GroupId"], IpPermissions=group["IpPermissionsEgress"])

    admin.setup()

    [group] = [
        each for each in ec2.describe_security_groups()["SecurityGroups"] if each["GroupName"] != "default"
    ]
    assert f'security_groups = ["{group["GroupId"]}"]' in admin.config
    assert group["IpPermissions"] == []
    admin.setup("--remove", "--delete-data")
    assert "security_groups" not in admin.config


def test_without_a_default_vpc_setup_creates_everything_but_the_network(admin: Administrator) -> None:
    ec2 = admin.aws.client("ec2", SETUP)
    for subnet in ec2.describe_subnets()["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])

    done = admin.setup(code=5)

    assert "there is no default VPC" in done.stderr
    assert "groups" not in admin.left()
    assert admin.left()["roles"] == ["bai-instance"]


def test_setup_without_a_terminal_needs_the_option_yes(admin: Administrator) -> None:
    done = admin.bai("setup")

    assert done.code == 2
    assert "add --yes" in done.stderr
    assert admin.left() == {}


def test_answering_no_to_the_last_question_creates_nothing(admin: Administrator) -> None:
    with Terminal("setup", "--name", "mine", cli=admin) as terminal:
        for question, answer in (
            (f"Region [{REGION}]:", ""),
            (f"Bucket [mine-{admin.aws.account}-{REGION}]:", "my-own-bucket"),
            ("Make a gateway endpoint for S3", "n"),
            ("Make a cluster placement group?", ""),
            ("Make a watcher, which checks all jobs each minute?", ""),
            ("Make the account's role for spot instances?", ""),
            (f"Make these changes in {REGION} of account {admin.aws.account}?", "n"),
        ):
            terminal.await_text(question)
            os.write(terminal.master, f"{answer}\n".encode())
        terminal.await_text("nothing was changed")
        assert terminal.wait() == 0

    assert "makes    Bucket (AWS::S3::Bucket)" in terminal.text
    assert "S3Endpoint" not in terminal.text
    assert admin.left() == {}
    assert admin.config == _CONFIG


def test_ctrl_c_at_the_last_question_creates_nothing(admin: Administrator) -> None:
    with Terminal("setup", "--name", "mine", "--no-endpoint", cli=admin) as terminal:
        for question in ("Region", "Bucket", "Make a cluster", "Make a watcher", "Make the account's role"):
            terminal.await_text(question)
            os.write(terminal.master, b"\n")
        terminal.await_text("Make these changes in")
        terminal.press_ctrl_c()
        assert terminal.wait() != 0

    assert admin.left() == {}


def test_changing_the_bucket_of_an_existing_setup_is_refused(admin: Administrator) -> None:
    admin.setup()

    done = admin.setup("--bucket", "another", code=2)

    assert f"bai has the bucket {admin.bucket}" in done.stderr
    assert "--name" in done.stderr


def test_a_file_system_is_reached_from_each_zone_and_stays_with_the_bucket(admin: Administrator) -> None:
    admin.setup()

    done = admin.setup("--file-system")

    efs = admin.aws.client("efs", SETUP)
    [system] = efs.describe_file_systems()["FileSystems"]
    name = system["FileSystemId"]
    mounts = efs.describe_mount_targets(FileSystemId=name)["MountTargets"]
    assert sorted(each["SubnetId"] for each in mounts) == sorted(admin.aws.subnets.values())
    assert system["Encrypted"]
    ec2 = admin.aws.client("ec2", SETUP)
    groups = ec2.describe_security_groups()["SecurityGroups"]
    [group] = [each for each in groups if each["Description"].startswith("NFS")]
    for each in mounts:
        answer = efs.describe_mount_target_security_groups(MountTargetId=each["MountTargetId"])
        assert answer["SecurityGroups"] == [group["GroupId"]]
    [rule] = group["IpPermissions"]
    [vpc] = ec2.describe_vpcs()["Vpcs"]
    assert (rule["FromPort"], rule["IpRanges"][0]["CidrIp"]) == (2049, vpc["CidrBlock"])
    assert (
        f'[[mounts]] type = "nfs", src = "{name}.efs.{REGION}.amazonaws.com:/", target = "/shared"'
        in done.stderr
    )
    assert "no change" in admin.setup().stderr

    admin.setup("--remove")
    assert len(efs.describe_file_systems()["FileSystems"]) == 1
    admin.setup("--remove", "--delete-data")
    assert efs.describe_file_systems()["FileSystems"] == []
    assert admin.left() == {}


def test_setup_prints_json_on_demand(admin: Administrator) -> None:
    first, second = admin.setup("--json").objects, admin.setup("--json").objects

    assert [each["stack"] for each in first if "stack" in each] == ["bai-data", "bai-account"]
    assert "makes    Bucket (AWS::S3::Bucket)" in first[0]["changes"]
    [written] = [each for each in first if "file" in each]
    assert f'+bucket = "{admin.bucket}"' in written["diff"]
    assert {each["check"] for each in second} >= {"credentials", "bucket", "profile"}
    assert not any("stack" in each or "file" in each for each in second)


def test_replacing_a_bucket_configured_by_hand_is_reported(admin: Administrator) -> None:
    (admin.folder / "config.toml").write_text('bucket = "by-hand"\n')

    done = admin.setup()

    assert f"the configuration's bucket by-hand will be replaced by {admin.bucket}" in done.stderr
    assert "`bai list --bucket by-hand` shows the old bucket's jobs" in done.stderr
    assert "by-hand" not in admin.setup().stderr


def test_removal_asks_for_confirmation_and_names_the_account(admin: Administrator) -> None:
    admin.setup()
    with Terminal("setup", "--remove", "--delete-data", "--name", "bai", cli=admin) as terminal:
        terminal.await_text("Region")
        os.write(terminal.master, b"\n")
        terminal.await_text(
            f"Remove bai from {REGION} of account {admin.aws.account}, and the bucket {admin.bucket}"
        )
        terminal.await_text("with all that is in it? [y/N]")
        os.write(terminal.master, b"\n")
        terminal.await_text("nothing was removed")
        assert terminal.wait() == 0
    assert admin.left()["stacks"] == ["bai-account", "bai-data"]


def test_two_setups_with_different_names_coexist_in_an_account(admin: Administrator) -> None:
    admin.setup()
    admin.setup("--name", "team")

    assert admin.left()["roles"] == ["bai-instance", "team-instance"]
    assert 'instance_profile = "team-instance"' in admin.config
    admin.setup("--remove", "--delete-data")
    assert admin.left()["stacks"] == ["team-account", "team-data"]
    # The other one's is configured.
    assert 'instance_profile = "team-instance"' in admin.config


def test_templates_and_policy_are_printed_without_an_account(tmp_path: Path) -> None:
    nobody = CliHarness(tmp_path, {"PATH": os.environ["PATH"], "HOME": str(tmp_path)})

    account = nobody.bai("setup", "--print", "account", "--data-bucket", "numbers")
    data = nobody.bai("setup", "--print", "data")
    policy = nobody.bai("setup", "--print", "policy", "--name", "team", "--region", "cn-north-1")
    wrong = nobody.bai("setup", "--print", "everything")

    assert "arn:${AWS::Partition}:s3:::numbers/*" in account.stdout
    assert "DATA_BUCKET" not in account.stdout
    assert "AWS::S3::Bucket" in data.stdout
    document = json.loads(policy.stdout)
    resources = [resource for each in document["Statement"] for resource in each["Resource"]]
    assert "arn:aws-cn:iam::ACCOUNT:role/team-instance" in resources
    assert "arn:aws-cn:s3:::team-ACCOUNT-cn-north-1" in resources
    assert wrong.code == 2
    assert "data, account, watcher, policy or watcher-policy" in wrong.stderr


def test_a_configuration_file_in_unusual_toml_is_not_changed(admin: Administrator) -> None:
    (admin.folder / "config.toml").write_text('bucket = """\nmine"""\n')

    done = admin.setup(code=2)

    assert f'by hand: bucket = "{admin.bucket}"; region = "{REGION}"' in done.stderr
    assert admin.config == 'bucket = """\nmine"""\n'
