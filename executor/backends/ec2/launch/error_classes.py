"""Classifies errors of RunInstances by their codes: what the error means for the launch, and what bai does
next.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
"""

from __future__ import annotations

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
from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.session import NOT_ACCEPTED, Failure, clock_problem, code_of, message_of


class RetryAction(Enum):
    """What bai does next after an error of RunInstances."""

    NEXT_SUBNET = "another availability zone may have capacity"
    STOP = "other zones and waiting do not help: a user has to change something"
    BACK_OFF = "nothing was launched: repeat the same request later"
    GIVE_UP = "EC2 got no request, or one without valid credentials: nothing was launched"
    AMBIGUOUS = "EC2 may have launched machines: repeat the same request in the same zone until the answer is definite"


@dataclass(frozen=True)
class ErrorClass:
    """The meaning of one error."""

    next: RetryAction
    outcome: Outcome
    code: str
    sentence: str
    """Problem and advice for the user, shown if the launch fails with this error."""


def classify_error(error: Failure) -> ErrorClass:
    """Return the class of `error`, which is an answer of RunInstances or the reason why there was no answer."""
    if not isinstance(error, ClientError):
        return _without_answer(error)
    code, message = code_of(error), message_of(error)
    action, outcome, meaning = _classify(error, code, message)
    answer = f"{message} ({code})"
    return ErrorClass(action, outcome, code, f"{meaning}: {answer}" if meaning else answer)


def _classify(error: ClientError, code: str, message: str) -> tuple[RetryAction, Outcome, str]:
    """Return the action to take after an error, the job's outcome, and a sentence for the user."""
    failed = Outcome.LAUNCH_FAILED
    if (unsigned := _unsigned(error, code)) is not None:
        return RetryAction.GIVE_UP, failed, unsigned
    if code in _CAPACITY or code.startswith(_INSUFFICIENT):
        return RetryAction.NEXT_SUBNET, Outcome.CAPACITY, ""
    if code in _THROTTLED:
        return RetryAction.BACK_OFF, failed, "AWS throttles the requests"
    if code in _QUOTAS:
        return RetryAction.STOP, Outcome.QUOTA, _QUOTAS[code]
    meaning = _refusal(code, message)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if meaning is None and (status >= 500 or not code):
        return RetryAction.AMBIGUOUS, failed, ""
    return RetryAction.STOP, failed, meaning or "EC2 refused the launch"


def _refusal(code: str, message: str) -> str | None:
    if _FREE_PLAN in message.lower():
        return _FREE_PLAN_ADVICE
    return _REFUSALS.get(code) or _REFUSALS.get(f"{code.partition('.')[0]}.")


def _unsigned(error: ClientError, code: str) -> str | None:
    """Return the reason why EC2 received no request with a valid signature; None if EC2 received such a
    request."""
    if error.operation_name != "RunInstances":
        return "the AWS credentials are not available"
    if code in NOT_ACCEPTED:
        return clock_problem(error) or "the AWS credentials are not accepted; renew them"
    return clock_problem(error)


def is_unknown_profile(answer: ErrorClass) -> bool:
    """Return whether EC2 refused the request because EC2 does not know the instance profile. A request with
    an unknown instance profile launches nothing."""
    return answer.code == "InvalidParameterValue" and "Invalid IAM Instance Profile" in answer.sentence


def _without_answer(error: BotoCoreError | ResponseParserError) -> ErrorClass:
    name = type(error).__name__
    if isinstance(error, NoConnectionError):
        following = RetryAction.BACK_OFF  # botocore had no connection to EC2, so it sent no request.
    elif isinstance(error, (HTTPClientError, IncompleteReadError, ResponseParserError)):
        following = RetryAction.AMBIGUOUS
    else:
        # botocore itself refused the request as invalid, so it sent no request.
        following = RetryAction.GIVE_UP
    return ErrorClass(following, Outcome.LAUNCH_FAILED, name, f"{error} ({name})")


_INSUFFICIENT = "Insufficient"
"""Beginning of all codes of a shortage (of instances, hosts, addresses, volumes). An error with such a code means
that nothing was launched, whatever the HTTP status is. RunInstances answers InsufficientInstanceCapacity for spot
instances as well."""
_CAPACITY = frozenset({"Unsupported", "SpotMaxPriceTooLow", "ReservationCapacityExceeded"})
_THROTTLED = frozenset({"RequestLimitExceeded", "Throttling", "ThrottlingException"})

_FREE_PLAN = "not eligible for free tier"
"""Text in the error message that EC2 returns to an account on AWS's free plan. The error's code,
InvalidParameterCombination, also has another meaning:
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/free-tier-plans.html"""
_FREE_PLAN_ADVICE = (
    "the account is on AWS's free plan, which allows few instance types; upgrade the plan under Billing, or use a type that "
    "`aws ec2 describe-instance-types --filters Name=free-tier-eligible,Values=true` lists"
)

_QUOTAS = {
    "VcpuLimitExceeded": (
        "the account's vCPU quota for this kind of instance is used up (new accounts have 0 for G and P types); "
        "ask for more under Service Quotas › Amazon EC2, or take a smaller type"
    ),
    "InstanceLimitExceeded": "the account's quota of instances is used up; ask for more under Service Quotas",
    "MaxSpotInstanceCountExceeded": "the account's quota of spot instances is used up; ask for more under Service Quotas, or run on demand",
    "VolumeLimitExceeded": "the account's quota of volumes is used up; delete volumes, or ask for more",
    "MaxIOPSLimitExceeded": "the account's quota of volume IOPS is used up; lower [aws.ec2.volume] iops",
    "AddressLimitExceeded": "the account's quota of addresses is used up",
}
_REFUSALS = {
    "PendingVerification": "AWS is still verifying this account for this region; AWS sends an e-mail after the verification, mostly within hours",
    "OptInRequired": "the image's terms must be accepted in the AWS Marketplace, or the region enabled, once for the account",
    "Blocked": "AWS has blocked this account; contact AWS Support",
    "UnauthorizedOperation": "the credentials do not allow the launch; docs/iam.md has the policies (`aws sts decode-authorization-message` shows details)",
    "InvalidAMIID.": "the image cannot be used; an AMI belongs to one region, so check [aws.ec2] region, and whether the AMI is shared with you",
    "InvalidKeyPair.NotFound": "the key pair does not exist in this region; correct KeyName in [aws.ec2.run_instances]",
    "InvalidSubnetID.NotFound": "the subnet does not exist in this region; correct `subnets`",
    "InvalidSubnet": "the subnet cannot be used; correct `subnets`",
    "InvalidGroup.NotFound": "the security group does not exist in the subnet's VPC; correct `security_groups`",
    "InvalidSecurityGroupID.NotFound": "the security group does not exist in this region; correct `security_groups`",
    "InvalidParameterCombination": "EC2 does not take these parameters together; see [aws.ec2.run_instances]",
    "InvalidBlockDeviceMapping": "the volume is not possible with this image; see [aws.ec2.volume]",
    "InvalidInstanceType": "there is no such instance type in this region; correct hardware.instance_type",
    "IdempotentParameterMismatch": "EC2 has seen this launch with other parameters; submit again without --job-id",
    "VPCIdNotSpecified": "there is no default VPC in this region; name `subnets` in the configuration",
    "DefaultVpcDoesNotExist": "there is no default VPC in this region; name `subnets` in the configuration",
    "MissingInput": "there is no default subnet; name `subnets` in the configuration",
}
"""Error code, or the part of the code before its dot → the meaning and the advice."""
