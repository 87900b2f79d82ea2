"""What an answer of RunInstances, or none, means for a launch."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

from bai_agent.job.outcome import Outcome
from executor.backends.ec2.launch.error_classes import RetryAction, classify_error
from executor.backends.ec2.session import aws_error


def answer(
    code: str, status: int = 400, operation: str = "RunInstances", *, message: str = "", date: str = ""
) -> ClientError:
    response = {"Error": {"Code": code, "Message": message or f"AWS's words on {code}."}}
    headers = {"date": date} if date else {}
    about = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return ClientError({**response, "ResponseMetadata": about}, operation)  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("InsufficientInstanceCapacity", 500),
        ("InsufficientFreeAddressesInSubnet", 400),
        ("InsufficientAddressCapacity", 503),
        ("InsufficientVolumeCapacity", 500),
        ("InsufficientSomethingNew", 500),
        ("Unsupported", 400),
    ],
)
def test_a_shortage_in_one_zone_leads_to_the_next_zone(code: str, status: int) -> None:
    assert classify_error(answer(code, status)).next is RetryAction.NEXT_SUBNET


@pytest.mark.parametrize(
    ("code", "outcome", "advice"),
    [
        ("VcpuLimitExceeded", Outcome.QUOTA, "Service Quotas"),
        ("MaxSpotInstanceCountExceeded", Outcome.QUOTA, "on demand"),
        ("PendingVerification", Outcome.LAUNCH_FAILED, "verifying"),
        ("OptInRequired", Outcome.LAUNCH_FAILED, "Marketplace"),
        ("UnauthorizedOperation", Outcome.LAUNCH_FAILED, "docs/iam"),
        ("InvalidAMIID.NotFound", Outcome.LAUNCH_FAILED, "one region"),
        ("InvalidKeyPair.NotFound", Outcome.LAUNCH_FAILED, "KeyName"),
        ("VPCIdNotSpecified", Outcome.LAUNCH_FAILED, "default VPC"),
        ("SomethingNew", Outcome.LAUNCH_FAILED, "refused"),
    ],
)
def test_an_error_that_retrying_cannot_fix_has_advice(code: str, outcome: Outcome, advice: str) -> None:
    found = classify_error(answer(code))

    assert (found.next, found.outcome, found.code) == (RetryAction.STOP, outcome, code)
    assert advice in found.sentence
    assert f"AWS's words on {code}" in found.sentence


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (answer("InternalError", 500), RetryAction.AMBIGUOUS),
        (answer("Unavailable", 503), RetryAction.AMBIGUOUS),
        (ReadTimeoutError(endpoint_url="e"), RetryAction.AMBIGUOUS),
        (ConnectionClosedError(endpoint_url="e"), RetryAction.AMBIGUOUS),
        (ResponseParserError("no XML"), RetryAction.AMBIGUOUS),
        (answer("RequestLimitExceeded", 503), RetryAction.BACK_OFF),
        (EndpointConnectionError(endpoint_url="e"), RetryAction.BACK_OFF),
        (ConnectTimeoutError(endpoint_url="e"), RetryAction.BACK_OFF),
        (answer("RequestExpired"), RetryAction.GIVE_UP),
        (answer("AccessDenied", 403, operation="AssumeRole"), RetryAction.GIVE_UP),
        (NoCredentialsError(), RetryAction.GIVE_UP),
        (ParamValidationError(report="r"), RetryAction.GIVE_UP),
    ],
)
def test_errors_after_a_possible_launch_are_distinguished_from_unsent_requests(
    error: ClientError | BotoCoreError | ResponseParserError, expected: RetryAction
) -> None:
    assert classify_error(error).next is expected


LONG_AGO = "Fri, 20 Nov 2015 22:00:00 GMT"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("RequestExpired", ""),
        ("RequestTimeTooSkewed", ""),
        ("SignatureDoesNotMatch", "Signature expired: 20261120T220000Z is now earlier than 20261120T221500Z"),
        ("InvalidSignatureException", "Signature not yet current: 20261120T220000Z is still later than"),
    ],
)
def test_a_signature_error_caused_by_a_wrong_clock_names_the_clock(code: str, message: str) -> None:
    error = answer(code, message=message, date=LONG_AGO)

    assert classify_error(error).next is RetryAction.GIVE_UP
    for sentence in (classify_error(error).sentence, str(aws_error(error, doing="asking"))):
        assert "this machine's clock is off" in sentence
        assert LONG_AGO in sentence
        assert "credentials" not in sentence


@pytest.mark.parametrize(
    ("code", "has_date", "told"),
    [
        ("RequestExpired", True, "credentials have expired"),
        ("RequestExpired", False, "or the AWS credentials have expired"),
        ("SignatureDoesNotMatch", True, "credentials"),
    ],
)
def test_with_a_correct_clock_the_credentials_are_named(code: str, has_date: bool, told: str) -> None:
    error = answer(code, date=formatdate(usegmt=True)) if has_date else answer(code)

    assert told in classify_error(error).sentence
    assert "credentials" in str(aws_error(error, doing="asking"))


def test_the_free_plan_is_recognised_by_awss_message() -> None:
    words = "The specified instance type is not eligible for Free Tier. For a list of Free Tier instance types, run ..."
    found = classify_error(answer("InvalidParameterCombination", message=words))

    assert found.next is RetryAction.STOP
    assert "free plan" in found.sentence
    assert "free-tier-eligible" in found.sentence
