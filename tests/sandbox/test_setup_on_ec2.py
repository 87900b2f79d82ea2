"""From an account with nothing of `bai` in it to a job on a machine, and back: with the rights that the set-up gave."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from sandbox.ends import planned_seconds, seconds_on
from sandbox.fake_aws import FakeAws
from sandbox.fake_aws.iam.identities import INSTANCE, SETUP
from sandbox.fake_aws.iam.policy import read_policy
from sandbox.sandbox_cli import sandbox_cli


def test_an_account_is_set_up_runs_a_job_and_is_left_empty(aws: FakeAws, tmp_path: Path) -> None:
    cli = sandbox_cli(aws, tmp_path / "cli")
    config = cli.folder / "config.toml"
    config.write_text(f's3_endpoint = "{aws.endpoint}"\nclient_id = "tester"\n')
    before = config.read_text()
    administrator = replace(cli, environment={**cli.environment, **aws.environment("administrator")})

    done = administrator.bai("setup", "--yes", "--name", "mine")

    assert done.code == 0, done.stdout + done.stderr
    bucket = f"mine-{aws.account}-{aws.region}"
    assert f'bucket = "{bucket}"' in config.read_text()
    # From here on nobody has other rights than those that were made.
    iam = aws.client("iam", SETUP)
    role = iam.get_role_policy(RoleName="mine-instance", PolicyName="bai")["PolicyDocument"]
    aws.policies.attach(INSTANCE, read_policy(json.dumps(role)))
    arn = f"arn:aws:iam::{aws.account}:policy/mine-user"
    version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
    user = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
    aws.policies.attach("user", read_policy(json.dumps(user)))
    aws.policies.around = replace(aws.policies.around, roles={"mine-instance": "mine-instance"})

    file = cli.descriptor("until [ -e /var/go ]; do sleep 0.1; done\necho done")
    machine = cli.submit(file)
    machine.wait_for("agent start 1")
    refused = administrator.bai("setup", "--remove", "--yes", "--name", "mine", "--delete-data")
    assert refused.code == 2
    assert machine.instance_id in refused.stderr
    machine.write("/var/go", "")
    machine.wait_off()
    assert cli.status()["status"] == "SUCCEEDED"
    assert "done" in cli.bai("logs", "job").stdout
    assert seconds_on([machine]) <= planned_seconds(cli, file)

    removed = administrator.bai("setup", "--remove", "--yes", "--name", "mine", "--delete-data")

    assert removed.code == 0, removed.stderr
    assert aws.client("cloudformation", SETUP).describe_stacks()["Stacks"] == []
    assert bucket not in [each["Name"] for each in aws.client("s3", SETUP).list_buckets()["Buckets"]]
    assert [each["RoleName"] for each in iam.list_roles()["Roles"]] == ["bai-instance"]
    assert iam.list_policies(Scope="Local")["Policies"] == []
    assert config.read_text() == before + f'region = "{aws.region}"\n'
