"""Takes away what a proof made, also an earlier one that was killed: all of it is found by its name or its owner's tag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

from botocore.exceptions import ClientError

from on_aws.account import NAME, OWNER_TAG, Account

_STEP = "removed"
_OWNED = [{"Name": f"tag:{OWNER_TAG}", "Values": [NAME]}]
_ROLE = f"{NAME}-fis"
"""Role with which AWS's fault injection interrupts a spot machine."""


def clean(account: Account, say: Callable[[str], None], *, minutes: float = 15) -> list[str]:
    """Take all away, and return what is still there, by asking the account. It is never interrupted."""
    (account.folder / "config.toml").touch()
    deadline = monotonic() + minutes * 60
    pause = 1.0 if account.emulated else 15.0
    for bucket in _buckets(account):
        for job in _unfinished(account, bucket):
            # A `bai run` that outlived its start must not launch a replacement.
            account.bai(_STEP, "cancel", job, "--now", "--bucket", bucket, to_the_end=True)
    while True:
        _terminate(account, say)
        sleep(pause)
        # A machine that was asked for right before the end is seen a moment later.
        if not _living(account) or monotonic() > deadline:
            break
    _remove_fault_injection(account)
    while not _remove_groups(account) and monotonic() < deadline:
        sleep(pause)
    say("removing the set-up")
    account.bai(
        _STEP, "setup", "--remove", "--delete-data", "--yes", "--name", NAME, "--region", account.region,
        minutes=30, to_the_end=True,
    )  # fmt: skip
    for name in _logs(account):
        # A call of the watcher that ends after its log was deleted makes it anew.
        account.client("logs").delete_log_group(logGroupName=name)
    while (remains := left(account)) and monotonic() < deadline:
        # Volumes and buckets are listed a little longer than they exist.
        sleep(pause)
    return remains


def left(account: Account) -> list[str]:
    """Return all that is there of a proof, for a person."""
    found = [f"machine {each['InstanceId']}, {each['State']['Name']}" for each in _living(account)]
    ec2, iam = account.client("ec2"), account.client("iam")
    found += [
        f"volume {each['VolumeId']}" for each in _all(ec2, "describe_volumes", "Volumes", Filters=_OWNED)
    ]
    found += [f"security group {each['GroupId']}" for each in _groups(account)]
    found += [f"stack {name}" for name in _stacks(account)]
    found += [f"bucket {name}" for name in _buckets(account)]
    found += [f"role {each['RoleName']}" for each in _named(iam, "list_roles", "Roles", "RoleName")]
    found += [
        f"policy {each['PolicyName']}"
        for each in _named(iam, "list_policies", "Policies", "PolicyName", Scope="Local")
    ]
    profiles = _named(iam, "list_instance_profiles", "InstanceProfiles", "InstanceProfileName")
    found += [f"instance profile {each['InstanceProfileName']}" for each in profiles]
    found += [f"log group {name}" for name in _logs(account)]
    return found


def other_machines(account: Account) -> list[str]:
    """Return living machines of other people's jobs in the region, which would hold up the removal."""
    filters = [{"Name": "tag-key", "Values": ["bai:job-id"]}]
    return [
        each["InstanceId"]
        for each in _instances(account, filters)
        if {"Key": OWNER_TAG, "Value": NAME} not in each.get("Tags", [])
    ]


def _living(account: Account) -> list[dict[str, Any]]:
    return list(_instances(account, _OWNED))


def _instances(account: Account, filters: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    found = _all(account.client("ec2"), "describe_instances", "Reservations", Filters=filters)
    for reservation in found:
        for each in reservation["Instances"]:
            if each["State"]["Name"] != "terminated":
                account.redactor.learn_answer(each)
                yield each


def _terminate(account: Account, say: Callable[[str], None]) -> None:
    living = [each["InstanceId"] for each in _living(account) if each["State"]["Name"] != "shutting-down"]
    if living:
        say(f"terminating {', '.join(living)}")
        account.client("ec2").terminate_instances(InstanceIds=living)


def _groups(account: Account) -> list[dict[str, Any]]:
    return list(_all(account.client("ec2"), "describe_security_groups", "SecurityGroups", Filters=_OWNED))


def _remove_groups(account: Account) -> bool:
    """Delete the groups of the proof; return whether all are gone. EC2 refuses while a network interface uses one."""
    done = True
    for each in _groups(account):
        try:
            account.client("ec2").delete_security_group(GroupId=each["GroupId"])
        except ClientError as error:
            done = done and _code(error) == "InvalidGroup.NotFound"
    return done


def _remove_fault_injection(account: Account) -> None:
    if account.emulated:
        return
    fis, iam = account.client("fis"), account.client("iam")
    for each in _all(fis, "list_experiment_templates", "experimentTemplates"):
        if each.get("tags", {}).get(OWNER_TAG) == NAME:
            fis.delete_experiment_template(id=each["id"])
    for call in (iam.delete_role_policy, iam.delete_role):
        try:
            call(RoleName=_ROLE, **({"PolicyName": NAME} if call == iam.delete_role_policy else {}))
        except ClientError as error:
            if _code(error) != "NoSuchEntity":
                raise


def _logs(account: Account) -> list[str]:
    prefix = f"/aws/lambda/{NAME}-"
    found = _all(account.client("logs"), "describe_log_groups", "logGroups", logGroupNamePrefix=prefix)
    return [each["logGroupName"] for each in found]


def _stacks(account: Account) -> list[str]:
    found = _all(account.client("cloudformation"), "describe_stacks", "Stacks")
    return [
        each["StackName"]
        for each in found
        if each["StackName"].startswith(f"{NAME}-") and each["StackStatus"] != "DELETE_COMPLETE"
    ]


def _buckets(account: Account) -> list[str]:
    """Return the buckets of proofs in this account."""
    found = account.client("s3").list_buckets()["Buckets"]
    return [each["Name"] for each in found if each["Name"].startswith(f"{NAME}-")]


def _unfinished(account: Account, bucket: str) -> list[str]:
    """Return the jobs in a bucket that have no result."""
    s3 = account.client("s3")
    try:
        folders = _all(
            s3,
            "list_objects_v2",
            "CommonPrefixes",
            Bucket=bucket,
            Prefix="jobs/prove-",
            Delimiter="/",
        )
        names = [each["Prefix"] for each in folders]
    except ClientError as error:
        if _code(error) in ("NoSuchBucket", "404"):
            return []
        raise
    results = {
        name: s3.list_objects_v2(Bucket=bucket, Prefix=f"{name}result.json", MaxKeys=1)["KeyCount"]
        for name in names
    }
    return [name.split("/")[1] for name, count in results.items() if not count]


def _named(client: Any, call: str, key: str, name: str, **parameters: Any) -> list[dict[str, Any]]:
    return [each for each in _all(client, call, key, **parameters) if each[name].startswith(f"{NAME}-")]


def _all(client: Any, call: str, key: str, **parameters: Any) -> Iterator[dict[str, Any]]:
    for page in client.get_paginator(call).paginate(**parameters):
        yield from page.get(key, [])


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
