"""What EC2 checks before it launches or says what a dry run would do; moto checks less, and later."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from moto.core.exceptions import ServiceException
from moto.ec2.exceptions import InvalidInstanceTypeError
from moto.iam.models import iam_backends

from sandbox.fake_aws.answers import Answer, error

USER_DATA_LIMIT = 16_384
"""Bytes, before base64: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html"""
TOKEN_LIMIT = 64
"""Characters: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html"""


def refusal(backend: Any, parameters: dict[str, str]) -> Answer | None:
    """Return EC2's refusal of a RunInstances, None where it would launch."""
    found = _wrong_size(parameters) or _missing(backend, parameters)
    return error("ec2", 400, *found) if found else None


def _wrong_size(parameters: dict[str, str]) -> tuple[str, str] | None:
    try:
        user_data = base64.b64decode(parameters.get("UserData", ""), validate=True)
    except binascii.Error:
        return "InvalidUserData.Malformed", "Invalid BASE64 encoding of user data."
    if len(user_data) > USER_DATA_LIMIT:
        return "InvalidParameterValue", f"User data is limited to {USER_DATA_LIMIT} bytes"
    if len(parameters.get("ClientToken", "")) > TOKEN_LIMIT:
        return "InvalidParameterValue", f"The client token is longer than {TOKEN_LIMIT} characters"
    return None


def _missing(backend: Any, parameters: dict[str, str]) -> tuple[str, str] | None:
    kind = parameters.get("InstanceType", "")
    try:
        backend.describe_images(ami_ids=[parameters.get("ImageId", "")])
        backend.describe_instance_types([kind])
        if "KeyName" in parameters:
            backend.describe_key_pairs(key_names=[parameters["KeyName"]])
        for name, value in parameters.items():
            if name == "SubnetId" or re.fullmatch(r"NetworkInterface\.\d+\.SubnetId", name):
                backend.get_subnet(value)
            group = re.fullmatch(r"(NetworkInterface\.\d+\.)?SecurityGroupId\.\d+", name)
            if group and backend.get_security_group_from_id(value) is None:
                return "InvalidGroup.NotFound", f"The security group '{value}' does not exist"
    except InvalidInstanceTypeError:
        return "InvalidParameterValue", f"Invalid value '{kind}' for InstanceType."
    except ServiceException as problem:
        return str(problem.code), str(problem.message)
    profiles = iam_backends[backend.account_id][backend.partition].instance_profiles.values()
    for name, known in (("Name", {each.name for each in profiles}), ("Arn", {each.arn for each in profiles})):
        wanted = parameters.get(f"IamInstanceProfile.{name}")
        if wanted is not None and wanted not in known:
            message = f"Value ({wanted}) for parameter iamInstanceProfile.{name.lower()} is invalid."
            return "InvalidParameterValue", message
    return None
