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

from bai_agent.outcome import Outcome
from executor.ec2.errors import Next, meaning
from executor.ec2.session import said


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
def test_another_zone_is_tried_where_this_one_lacks_something(code: str, status: int) -> None:
    assert meaning(answer(code, status)).next is Next.NEXT_SUBNET


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
def test_a_person_is_told_what_to_do_where_nothing_else_helps(
    code: str, outcome: Outcome, advice: str
) -> None:
    found = meaning(answer(code))

    assert (found.next, found.outcome, found.code) == (Next.STOP, outcome, code)
    assert advice in found.sentence
    assert f"AWS's words on {code}" in found.sentence


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (answer("InternalError", 500), Next.AMBIGUOUS),
        (answer("Unavailable", 503), Next.AMBIGUOUS),
        (ReadTimeoutError(endpoint_url="e"), Next.AMBIGUOUS),
        (ConnectionClosedError(endpoint_url="e"), Next.AMBIGUOUS),
        (ResponseParserError("no XML"), Next.AMBIGUOUS),
        (answer("RequestLimitExceeded", 503), Next.BACK_OFF),
        (EndpointConnectionError(endpoint_url="e"), Next.BACK_OFF),
        (ConnectTimeoutError(endpoint_url="e"), Next.BACK_OFF),
        (answer("RequestExpired"), Next.GIVE_UP),
        (answer("AccessDenied", 403, operation="AssumeRole"), Next.GIVE_UP),
        (NoCredentialsError(), Next.GIVE_UP),
        (ParamValidationError(report="r"), Next.GIVE_UP),
    ],
)
def test_what_may_have_been_launched_differs_from_what_was_not_asked(
    error: ClientError | BotoCoreError | ResponseParserError, expected: Next
) -> None:
    assert meaning(error).next is expected


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
def test_a_wrong_clock_is_called_that(code: str, message: str) -> None:
    error = answer(code, message=message, date=LONG_AGO)

    assert meaning(error).next is Next.GIVE_UP
    for sentence in (meaning(error).sentence, str(said(error, doing="asking"))):
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
def test_credentials_are_named_where_the_clock_is_right(code: str, has_date: bool, told: str) -> None:
    error = answer(code, date=formatdate(usegmt=True)) if has_date else answer(code)

    assert told in meaning(error).sentence
    assert "credentials" in str(said(error, doing="asking"))
