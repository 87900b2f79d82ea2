"""User data written by hand, and launches with it: what the sandbox's own tests submit."""

from __future__ import annotations

import gzip
from typing import Any

from sandbox.fake_aws import FakeAws, Machine
from sandbox.fake_aws.control_plane.images import DEBIAN
from sandbox.fake_aws.fake_aws import PROFILE

_BOUNDARY = "sandbox"


def user_data(*, boothook: str = "", runcmd: str = "") -> bytes:
    """Return gzip'ed MIME with a boothook and a cloud-config that starts `runcmd`."""
    parts = []
    if boothook:
        parts.append(("cloud-boothook", f"#!/bin/sh\n{boothook}"))
    if runcmd:
        lines = "".join(f"    {line}\n" for line in runcmd.splitlines())
        parts.append(("cloud-config", f"#cloud-config\nruncmd:\n- - sh\n  - -c\n  - |\n{lines}"))
    text = f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"\nMIME-Version: 1.0\n\n'
    for kind, content in parts:
        text += f"--{_BOUNDARY}\nContent-Type: text/{kind}; charset=utf-8\nMIME-Version: 1.0\n\n{content}\n"
    return gzip.compress(f"{text}--{_BOUNDARY}--\n".encode(), mtime=0)


def request(aws: FakeAws, **changes: Any) -> dict[str, Any]:
    """Return the arguments of a RunInstances that is as ours are."""
    usual = {
        "ImageId": DEBIAN.image_id,
        "InstanceType": "t3.small",
        "MinCount": 1,
        "MaxCount": 1,
        "SubnetId": aws.subnets["eu-central-1a"],
        "IamInstanceProfile": {"Name": PROFILE},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required"},
    }
    return {**usual, **changes}


def launch(aws: FakeAws, **changes: Any) -> list[Machine]:
    """Run instances as the executor, and return their machines in the order of their launch index."""
    answer = aws.client("ec2", "executor").run_instances(**request(aws, **changes))
    return [aws.machine(instance["InstanceId"]) for instance in answer["Instances"]]
