"""`bai setup`: sets up an AWS account for jobs on EC2, or removes what was set up."""

from __future__ import annotations

import re

from bai_agent.errors import BaiError
from executor.commands.account_dialogue import NAME, PRINTED, SetupDialogue, SetupOptions
from executor.commands.job_options import check_choice
from executor.commands.options import JsonOption
from executor.documents.text import tell
from executor.errors import UsageError
from executor.program import command

_NAMES = re.compile(r"[a-z][a-z0-9-]{0,30}")
_BUCKETS = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
"""https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html"""
_POLICIES = {"policy": "setup", "watcher-policy": "setup-watcher"}


def setup(given: SetupOptions, json_: JsonOption = False) -> None:
    """Set an AWS account up for jobs on EC2, or undo that.

    Creates bucket, role, instance profile, policies and security group, as two CloudFormation stacks. Then
    writes the configuration and runs `bai doctor`. A second call completes an interrupted setup, updates
    resources that an older version created, and otherwise changes nothing.
    """
    if given.delete_data and not given.remove:
        raise UsageError("--delete-data needs --remove")
    _check_names(given)
    if given.print_ is not None:
        _print(given.print_, given)
        return
    dialogue = SetupDialogue(given, json_)
    try:
        if given.remove:
            dialogue.remove()
        else:
            dialogue.run()
    except BaiError as error:
        raise _with_policy(error, given.name) from error


def _check_names(given: SetupOptions) -> None:
    if given.name is not None and not _NAMES.fullmatch(given.name):
        raise UsageError(
            f'--name: "{given.name}" is not a name; write up to 31 small letters, digits and "-"'
        )
    named = [("--data-bucket", each) for each in given.data_buckets or ()]
    for option, each in (("--bucket", given.bucket), *named):
        if each is not None and not _BUCKETS.fullmatch(each):
            raise UsageError(
                f'{option}: "{each}" is not the name of a bucket; write only the name, as my-bucket'
            )


def _print(what: str, given: SetupOptions) -> None:
    from executor.backends.ec2.setup.templates import policy_text, template
    from executor.configuration.config import read_settings

    check_choice("--print", what, PRINTED)
    if what in _POLICIES:
        name, there = given.name or NAME, read_settings({"region": given.region}).region or "REGION"
        words = {"NAME": name, "BUCKET": given.bucket or f"{name}-ACCOUNT-{there}"}
        tell(policy_text(_POLICIES[what], words, region=there))
    else:
        tell(template(what, data_buckets=given.data_buckets or ()), end="")


def _with_policy(error: BaiError, name: str | None) -> BaiError:
    """Return the error. If AWS rights are missing, the error's message also names the command that prints the
    needed policy."""
    from executor.backends.ec2.setup.stacks import lacks_rights
    from executor.errors import AwsError

    if not lacks_rights(error):
        return error
    asked = command("setup", "--print", "policy", *(("--name", name) if name else ()))
    return AwsError(
        f"{error}; an administrator can attach the policy that `{asked}` prints to these credentials' user or role"
    )
