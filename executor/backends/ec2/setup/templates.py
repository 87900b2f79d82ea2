"""Reads the templates of the CloudFormation stacks, and inserts the IAM policies of
`executor/backends/ec2/iam` into them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

TEMPLATES = ("data", "account")
"""Templates of the stacks, in the order in which the stacks are created. The second template refers to the
bucket of the first template."""
WATCHER = "watcher"
"""The template of the watcher's stack, which is optional. The code of the stack's function is in the bucket, and
the function launches machines with the account's profile and groups."""
_PLACE = re.compile(r"^( *)PolicyDocument: # (\w+)\.json$", re.MULTILINE)
_MOUNT = re.compile(r"^  MountTarget0:.*\n(?:    .*\n)*\n", re.MULTILINE)
_WORDS = {
    "arn:aws:": "arn:${AWS::Partition}:",
    "ACCOUNT": "${AWS::AccountId}",
    "BUCKET": "${BucketName}",
    "ROLE": "${Name}-instance",
    "NAME": "${Name}",
}
"""Word in capitals in a policy → CloudFormation expression that replaces the word."""
_LISTS = {"GROUPS": "Groups", "OWNERS": "Owners", "SUBNETS": "Subnets", "TYPES": "Types"}
"""Words in capitals that stand for lists → the template's parameters."""
_PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
"""Beginning of a region's name → the region's partition, if the partition is not "aws"."""
_DATA = "DATA_BUCKET"


def template(name: str, *, data_buckets: Sequence[str] = (), mounts: int = 1) -> str:
    """Return a template in CloudFormation's format.

    data_buckets: other buckets that instances read. mounts: the number of subnets that reach the file system.
    """
    text = (files(__package__) / f"{name}.yaml").read_text("utf-8")
    text = _MOUNT.sub(lambda one: "".join(one[0].replace("0", str(at)) for at in range(mounts)), text)

    def insert(place: re.Match[str]) -> str:
        indent, policy = place.groups()
        document = _substituted(_for_buckets(read_policy(policy), data_buckets))
        # A policy's JSON is valid as a YAML value if all its lines are indented further than the key.
        lines = json.dumps(document, indent=2).splitlines()
        return "\n".join([f"{indent}PolicyDocument:", *(f"{indent}  {line}" for line in lines)])

    return _PLACE.sub(insert, text)


def read_policy(name: str) -> dict[str, Any]:
    """Return a policy of `executor/backends/ec2/iam`. Words in capitals stand for the parts that differ
    between accounts."""
    text = (files("executor.backends.ec2") / "iam" / f"{name}.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def policy_text(name: str, words: Mapping[str, str], *, region: str) -> str:
    """Return a policy's JSON for a region. words: values for the words in capitals in the policy. Words
    without a value are not replaced."""
    text = json.dumps(read_policy(name), indent=2)
    partition = next((each for start, each in _PARTITIONS.items() if region.startswith(start)), "aws")
    for word, value in {"arn:aws:": f"arn:{partition}:", **words}.items():
        text = _replace(word, value, text)
    return text


def file_system_server(file_system: str, region: str) -> str:
    """Return the name of an EFS file system's NFS server."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"{file_system}.efs.{region}.{suffix}"


def _for_buckets(document: Mapping[str, Any], buckets: Sequence[str]) -> dict[str, Any]:
    """Return a policy in which DATA_BUCKET is replaced by each of `buckets`. Statements without any bucket
    are removed."""
    statements = []
    for each in document["Statement"]:
        resources = [
            _replace(_DATA, bucket, resource)
            for resource in each["Resource"]
            for bucket in (buckets if _DATA in resource else ("",))
        ]
        if resources:
            statements.append({**each, "Resource": resources})
    return {**document, "Statement": statements}


def _substituted(value: Any) -> Any:
    """Return part of a policy in which CloudFormation's functions replace the words in capitals."""
    if isinstance(value, dict):
        return {key: _substituted(each) for key, each in value.items()}
    if isinstance(value, list):
        if len(value) == 1 and value[0] in _LISTS:
            return {"Ref": _LISTS[value[0]]}
        return [_substituted(each) for each in value]
    text = value
    for word, meaning in _WORDS.items():
        text = _replace(word, meaning, text)
    return value if text == value else {"Fn::Sub": text}


def _replace(word: str, value: str, text: str) -> str:
    return re.sub(rf"\b{word}(?!\w)" if word.isupper() else re.escape(word), lambda _: value, text)
