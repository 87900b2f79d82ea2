"""What an error of RunInstances means for a launch, by its code.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError

from bai_agent.job.outcome import Outcome
from executor.backends.ec2.session import NOT_ACCEPTED, Failure, clock_problem


class RetryAction(Enum):
    """What to do after an error."""

    NEXT_SUBNET = "another availability zone may have what this one lacks"
    STOP = "no other zone and no waiting helps: a person has to change something"
    BACK_OFF = "the same again, later: nothing was launched"
    GIVE_UP = "nothing was asked of EC2, or not in a name that it knows: this launch is still to be made"
    AMBIGUOUS = (
        "it may have been launched: the same request to the same zone again, until the answer is definite"
    )


@dataclass(frozen=True)
class ErrorClass:
    """What one error means."""

    next: RetryAction
    outcome: Outcome
    code: str
    sentence: str
    """Said to a person where the launch ends with this error: what it was, and what to do."""


def classify_error(error: Failure) -> ErrorClass:
    """Return what `error`, an answer to RunInstances or none, means."""
    if not isinstance(error, ClientError):
        return _without_answer(error)
    code = str(error.response.get("Error", {}).get("Code", ""))
    message = str(error.response.get("Error", {}).get("Message", "")).strip().rstrip(".")
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    answer = f"{message} ({code})"
    failed = Outcome.LAUNCH_FAILED
    if error.operation_name != "RunInstances":
        return ErrorClass(RetryAction.GIVE_UP, failed, code, f"the AWS credentials cannot be had: {answer}")
    if code in _CAPACITY or code.startswith(_INSUFFICIENT):
        return ErrorClass(RetryAction.NEXT_SUBNET, Outcome.CAPACITY, code, answer)
    if code in _THROTTLED:
        return ErrorClass(RetryAction.BACK_OFF, failed, code, f"AWS asks to slow down: {answer}")
    if (clock := clock_problem(error)) is not None:
        return ErrorClass(RetryAction.GIVE_UP, failed, code, f"{clock}: {answer}")
    if code in NOT_ACCEPTED:
        return ErrorClass(
            RetryAction.GIVE_UP, failed, code, f"the AWS credentials are not accepted; renew them: {answer}"
        )
    if _FREE_PLAN in message.lower():
        return ErrorClass(RetryAction.STOP, failed, code, f"{_FREE_PLAN_ADVICE}: {answer}")
    for known, (outcome, what) in _STOPS.items():
        if code == known or (known.endswith(".") and code.startswith(known)):
            return ErrorClass(RetryAction.STOP, outcome, code, f"{what}: {answer}")
    if status >= 500 or not code:
        return ErrorClass(RetryAction.AMBIGUOUS, failed, code, answer)
    return ErrorClass(RetryAction.STOP, failed, code, f"EC2 refused the launch: {answer}")


def is_unknown_profile(answer: ErrorClass) -> bool:
    """Return whether EC2 does not know the instance profile; nothing was launched."""
    return answer.code == "InvalidParameterValue" and "Invalid IAM Instance Profile" in answer.sentence


def _without_answer(error: BotoCoreError | ResponseParserError) -> ErrorClass:
    name = type(error).__name__
    if isinstance(error, NoConnectionError):
        following = RetryAction.BACK_OFF  # no connection came about, so nothing was asked
    elif isinstance(error, (HTTPClientError, IncompleteReadError, ResponseParserError)):
        following = RetryAction.AMBIGUOUS
    else:
        following = RetryAction.GIVE_UP  # what botocore finds wrong by itself is never sent
    return ErrorClass(following, Outcome.LAUNCH_FAILED, name, f"{error} ({name})")


_INSUFFICIENT = "Insufficient"
"""How all codes begin that name a lack (of instances, hosts, addresses, volumes): nothing was launched, whatever the status.
Spot has none of its own: RunInstances answers InsufficientInstanceCapacity there too."""
_CAPACITY = frozenset({"Unsupported", "SpotMaxPriceTooLow", "ReservationCapacityExceeded"})
_THROTTLED = frozenset({"RequestLimitExceeded", "Throttling", "ThrottlingException"})

_FREE_PLAN = "not eligible for free tier"
"""The words of an account on AWS's free plan; the code, InvalidParameterCombination, says something else:
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/free-tier-plans.html"""
_FREE_PLAN_ADVICE = (
    "the account is on AWS's free plan, which takes few instance types; upgrade the plan under Billing, or take a type that "
    "`aws ec2 describe-instance-types --filters Name=free-tier-eligible,Values=true` lists"
)

_QUOTA = Outcome.QUOTA
_FAILED = Outcome.LAUNCH_FAILED
_STOPS: dict[str, tuple[Outcome, str]] = {
    "VcpuLimitExceeded": (
        _QUOTA,
        "the account's vCPU quota for this kind of instance is used up (new accounts have 0 for G and P types); "
        "ask for more under Service Quotas › Amazon EC2, or take a smaller type",
    ),
    "InstanceLimitExceeded": (
        _QUOTA,
        "the account may run no more instances; ask for more under Service Quotas",
    ),
    "MaxSpotInstanceCountExceeded": (
        _QUOTA,
        "the account's quota of spot instances is used up; ask for more under Service Quotas, or run on demand",
    ),
    "VolumeLimitExceeded": (_QUOTA, "the account may have no more volumes; delete some, or ask for more"),
    "MaxIOPSLimitExceeded": (
        _QUOTA,
        "the account's quota of volume IOPS is used up; lower [aws.ec2.volume] iops",
    ),
    "AddressLimitExceeded": (_QUOTA, "the account may have no more addresses"),
    "PendingVerification": (
        _FAILED,
        "AWS is still verifying this account for this region; it writes an e-mail when it is done, mostly within hours",
    ),
    "OptInRequired": (
        _FAILED,
        "the image's terms must be accepted in the AWS Marketplace, or the region enabled, once for the account",
    ),
    "Blocked": (_FAILED, "AWS has blocked this account; contact AWS Support"),
    "UnauthorizedOperation": (
        _FAILED,
        "the credentials may not launch this; docs/iam has the policies (`aws sts decode-authorization-message` tells more)",
    ),
    "InvalidAMIID.": (
        _FAILED,
        "the image cannot be used; AMIs belong to one region, so check [aws.ec2] region, and that it is shared with you",
    ),
    "InvalidKeyPair.NotFound": (
        _FAILED,
        "the key pair does not exist in this region; correct KeyName in [aws.ec2.run_instances]",
    ),
    "InvalidSubnetID.NotFound": (_FAILED, "the subnet does not exist in this region; correct `subnets`"),
    "InvalidSubnet": (_FAILED, "the subnet cannot be used; correct `subnets`"),
    "InvalidGroup.NotFound": (
        _FAILED,
        "the security group does not exist in the subnet's VPC; correct `security_groups`",
    ),
    "InvalidSecurityGroupID.NotFound": (
        _FAILED,
        "the security group does not exist in this region; correct `security_groups`",
    ),
    "InvalidParameterCombination": (
        _FAILED,
        "EC2 does not take these parameters together; see [aws.ec2.run_instances]",
    ),
    "InvalidBlockDeviceMapping": (
        _FAILED,
        "the volume is not possible with this image; see [aws.ec2.volume]",
    ),
    "InvalidInstanceType": (
        _FAILED,
        "there is no such instance type in this region; correct hardware.instance_type",
    ),
    "IdempotentParameterMismatch": (
        _FAILED,
        "EC2 has seen this launch with other parameters; submit again without --job-id",
    ),
    "VPCIdNotSpecified": (
        _FAILED,
        "there is no default VPC in this region; name `subnets` in the configuration",
    ),
    "DefaultVpcDoesNotExist": (
        _FAILED,
        "there is no default VPC in this region; name `subnets` in the configuration",
    ),
    "MissingInput": (_FAILED, "there is no default subnet; name `subnets` in the configuration"),
}
