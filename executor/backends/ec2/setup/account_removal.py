"""Removes the resources that `account_setup` created in an account. If a removal was interrupted, the next call
completes the removal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bai_agent.light_dataclass import replace
from executor.backends.ec2.bucket_store import bucket_store, named_regions
from executor.backends.ec2.instances import Instance, described
from executor.backends.ec2.session import aws_session, plain_errors, tolerated
from executor.backends.ec2.setup.account_setup import AccountSetup
from executor.backends.ec2.setup.templates import WATCHER
from executor.backends.ec2.tags import JOB_TAG
from executor.errors import AwsError, UsageError

_ROLE_POLICY = "bai"
"""Name of the role's policy in the template."""


def end_watcher(setup: AccountSetup) -> None:
    """Delete the watcher. The watcher must be deleted first, because the watcher uses all other resources. Raises
    UsageError if the watcher has launched a machine in the meantime."""
    if setup.remove_watcher():
        check_machines(setup)


def check_machines(setup: AccountSetup) -> None:
    """Raise UsageError if machines of jobs exist."""
    bucket = setup.outputs().get("BucketName")
    if living := list(_living_machines(setup, bucket)):
        names = ", ".join(f"{each.id} ({region}, job {each.job_id})" for region, each in living[:5])
        more = f" and {len(living) - 5} more" if len(living) > 5 else ""
        raise UsageError(
            f"machines of jobs are still on: {names}{more}; `bai cancel JOB --now` ends a job's machines, and `bai reap` ends machines past their deadline"
        )


def remove(setup: AccountSetup, *, delete_data: bool) -> None:
    """Delete the resources. The bucket and its content are deleted only if `delete_data` is true."""
    made = setup.outputs()
    for policy in ("UserPolicy", "ExecutorPolicy", "ServicePolicy"):
        if policy in made:
            _detach(setup, made[policy])
    if "InstanceRole" in made:
        _strip(setup, made["InstanceRole"])
    setup.stacks.delete(setup.stack("account"))
    if delete_data:
        if "BucketName" in made:
            _empty(setup, made["BucketName"])
        setup.stacks.delete(setup.stack("data"))


def clear(setup: AccountSetup) -> None:
    """Delete stacks without any resource. Stacks without resources are left if the user did not answer a
    question, or if the first call failed."""
    for name in (*setup.stack_names, setup.stack(WATCHER)):
        if setup.stacks.settled(name) is None:
            setup.stacks.delete(name)


def _living_machines(setup: AccountSetup, bucket: str | None) -> Iterator[tuple[str, Instance]]:
    """Yield the machines of jobs that EC2 has not terminated yet, with their regions. Machines are searched
    in this region, and in all regions of jobs in `bucket`."""
    regions = [setup.aws.region]
    if bucket is not None:
        regions += named_regions(bucket_store(replace(setup.settings, bucket=bucket)))
    for region in dict.fromkeys(regions):
        ec2 = aws_session(setup.settings, region=region).ec2()
        for each in described(ec2, [{"Name": "tag-key", "Values": [JOB_TAG]}]):
            if each.state != "terminated":
                yield region, each


def _detach(setup: AccountSetup, policy: str) -> None:
    """Detach a policy from all identities that have the policy, because otherwise IAM does not delete the
    policy."""
    iam: Any = setup.aws.iam()
    found: list[Any] = []
    with plain_errors(f"detaching the policy {policy}"):
        with tolerated("NoSuchEntity"):
            found = list(iam.get_paginator("list_entities_for_policy").paginate(PolicyArn=policy))
        for kind, detach in (
            ("User", iam.detach_user_policy),
            ("Role", iam.detach_role_policy),
            ("Group", iam.detach_group_policy),
        ):
            for each in (entity for page in found for entity in page[f"Policy{kind}s"]):
                with tolerated("NoSuchEntity"):
                    detach(PolicyArn=policy, **{f"{kind}Name": each[f"{kind}Name"]})
                    setup.say(f"detached {policy} from {kind.lower()} {each[f'{kind}Name']}")


def _strip(setup: AccountSetup, role: str) -> None:
    """Detach policies that are not part of the stack from the role, because otherwise IAM does not delete the
    role."""
    iam: Any = setup.aws.iam()
    inline: list[str] = []
    attached: list[Any] = []
    with plain_errors(f"removing policies from the role {role}"):
        with tolerated("NoSuchEntity"):
            inline = iam.list_role_policies(RoleName=role)["PolicyNames"]
            attached = iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]
        for name in inline:
            with tolerated("NoSuchEntity"):
                if name != _ROLE_POLICY:
                    iam.delete_role_policy(RoleName=role, PolicyName=name)
                    setup.say(f"deleted the policy {name} of role {role}")
        for each in attached:
            with tolerated("NoSuchEntity"):
                iam.detach_role_policy(RoleName=role, PolicyArn=each["PolicyArn"])
                setup.say(f"detached {each['PolicyArn']} from role {role}")


def _empty(setup: AccountSetup, bucket: str) -> None:
    """Delete the content of a bucket: objects with their versions, and unfinished uploads."""
    s3: Any = setup.aws.s3()
    count = 0
    with plain_errors(f"emptying the bucket {bucket}"), tolerated("NoSuchBucket"):
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
            objects = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
            count += len(objects)
            _delete(s3, bucket, objects)
        for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
            for each in page.get("Uploads", ()):
                s3.abort_multipart_upload(Bucket=bucket, Key=each["Key"], UploadId=each["UploadId"])
        setup.say(f"deleted {count:,} objects of {bucket}")


def _delete(s3: Any, bucket: str, objects: Sequence[Mapping[str, Any]]) -> None:
    if not objects:
        return
    named = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in objects]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": named, "Quiet": True})
    if errors := answer.get("Errors"):
        raise AwsError(
            f"{errors[0]['Key']} of {bucket} was not deleted: {errors[0].get('Message', errors[0].get('Code'))}"
        )
