"""Clients of AWS services with a region, timeouts, and the credentials of the configured profile."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    InvalidConfigError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    SSOError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

from bai_agent.errors import BaiError
from bai_agent.light_dataclass import dataclass, field
from executor.backends.ec2.shared import once
from executor.backends.terminal import is_unattended
from executor.configuration.config import Settings
from executor.errors import AwsCredentialsError, AwsError, UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_ssm import SSMClient
    from mypy_boto3_sts import STSClient

_CONNECT, _READ = 10, 30
_USUAL = Config(
    connect_timeout=_CONNECT, read_timeout=_READ, retries={"mode": "standard", "total_max_attempts": 4}
)
# RunInstances reports "no capacity" with HTTP status 500. botocore would repeat such a request in the same
# availability zone.
_ONCE = Config(connect_timeout=_CONNECT, read_timeout=_READ, retries={"total_max_attempts": 1})
_QUICK = Config(connect_timeout=2, read_timeout=4, retries={"total_max_attempts": 1})
_PRICE_LIST_REGION = "us-east-1"
"""https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html"""

Failure = ClientError | BotoCoreError | ResponseParserError
FAILURES = (ClientError, BotoCoreError, ResponseParserError)
"""Errors of requests to AWS: AWS refused the request, did not answer, or a proxy answered."""

_NO_CREDENTIALS = (
    "there are no AWS credentials; run `aws configure sso` or `aws configure`, "
    "or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with --profile"
)


@dataclass(frozen=True)
class AwsSession:
    """AWS in one region, with one profile's credentials."""

    region: str
    profile: str | None = None
    _clients: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Clients by their purpose. Creating a client takes a tenth of a second, and several threads may use the
    same client."""

    @cached_property
    def session(self) -> boto3.Session:
        return once(("session", self.region, self.profile), self._new_session)

    def _new_session(self) -> boto3.Session:
        try:
            session = boto3.Session(profile_name=self.profile, region_name=self.region)
        except ProfileNotFound as error:
            raise _unusable(error) from error
        if is_unattended():
            _ask_nobody(session)
        return session

    def ec2(self) -> EC2Client:
        client: EC2Client = self._client("ec2", _USUAL)
        return client

    def no_retry_client(self) -> EC2Client:
        """Return a client without retries for RunInstances, because only bai's own code may repeat that
        request."""
        client: EC2Client = self._client("ec2", _ONCE)
        return client

    def quick_client(self) -> EC2Client:
        """Return a client with short timeouts, for requests that may fail."""
        client: EC2Client = self._client("ec2", _QUICK)
        return client

    def iam(self) -> IAMClient:
        client: IAMClient = self._client("iam", _USUAL)
        return client

    def s3(self) -> S3Client:
        client: S3Client = self._client("s3", _USUAL)
        return client

    def ssm(self) -> SSMClient:
        client: SSMClient = self._client("ssm", _USUAL)
        return client

    def sts(self) -> STSClient:
        client: STSClient = self._client("sts", _USUAL)
        return client

    def cloudformation(self) -> Any:
        return self._client("cloudformation", _USUAL)

    def sqs(self) -> Any:
        """Return a client for queues. The client's timeout is longer than the longest wait for a message."""
        return self._client("sqs", _USUAL)

    def functions(self) -> Any:
        """Return a client of Lambda."""
        return self._client("lambda", _USUAL)

    def service_quotas(self) -> Any:
        """Return a client for the account's quotas with short timeouts, because the answer is optional."""
        return self._client("service-quotas", _QUICK)

    def pricing(self) -> PricingClient:
        """Return a client for the price list with short timeouts, because the answer is optional."""
        client: PricingClient = self._client("pricing", _QUICK, region_name=_PRICE_LIST_REGION)
        return client

    def credentials(self) -> Any:
        """Return botocore's credentials, valid now and renewed automatically. Raises AwsCredentialsError."""
        try:
            found = self.session.get_credentials()
            if found is not None:
                # botocore fetches credentials of a single sign-on or of a role only when they are used.
                # Fetching them here makes a failure appear now, with a message that names the remedy.
                found.get_frozen_credentials()
        except FAILURES as error:
            raise _unusable(error) from error
        except EOFError as error:
            raise unasked() from error
        if found is None:
            raise AwsCredentialsError(_NO_CREDENTIALS)
        return found

    def _client(self, service: Any, config: Config, **options: Any) -> Any:
        wanted = (service, id(config), *sorted(options.items()))
        if wanted in self._clients:
            return self._clients[wanted]
        try:
            client = once(
                ("client", self.region, self.profile, *wanted),
                lambda: self.session.client(service, config=config, **options),
            )
        except (CredentialRetrievalError, InvalidConfigError, ProfileNotFound) as error:
            raise _unusable(error) from error
        except (BotoCoreError, ValueError) as error:
            raise UsageError(f"{service} cannot be used in region {self.region}: {error}") from error
        self._clients[wanted] = client
        return client


def aws_session(settings: Settings, *, region: str | None = None) -> AwsSession:
    """Return the session of AWS with the configured profile, in `region` or in the configured region. Raises
    UsageError if no region is known."""
    return AwsSession(region or settings.need_region(), settings.aws_profile)


def aws_sessions(settings: Settings) -> Callable[[str | None], AwsSession]:
    """Return a function that returns the AWS session of a region, with the configured profile (None: the configured
    region). Each region has one session."""

    @cache
    def aws(region: str | None) -> AwsSession:
        return aws_session(settings, region=region)

    return aws


@contextmanager
def plain_errors(doing: str, *, region: str = "") -> Iterator[None]:
    """Convert errors of AWS's library into a BaiError: "<doing> in <region> failed: …"."""
    try:
        yield
    except FAILURES as error:
        raise aws_error(error, doing=doing, region=region) from error


@contextmanager
def tolerated(*codes: str) -> Iterator[None]:
    """Ignore a refusal of AWS whose code begins with one of `codes`."""
    try:
        yield
    except ClientError as error:
        if not code_of(error).startswith(codes):
            raise


def aws_error(error: Failure, *, doing: str, region: str = "") -> BaiError:
    """Return `error` as a sentence for the user. doing: the attempted action, for example "describing the
    image ami-1"."""
    where = f" in {region}" if region else ""
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return AwsCredentialsError(_NO_CREDENTIALS)
    if isinstance(error, (SSOError, TokenRetrievalError, CredentialRetrievalError, InvalidConfigError)):
        return _unusable(error)
    if isinstance(error, ClientError):
        code = code_of(error)
        if (clock := clock_problem(error)) is not None:
            return AwsCredentialsError(f"{clock} ({code})")
        if code in NOT_ACCEPTED:
            return AwsCredentialsError(
                f"the AWS credentials have expired or are unknown ({code}); renew them"
            )
        if code in DENIED:
            return AwsError(
                f"{doing}{where} is not allowed ({code}): {message_of(error)}; docs/iam.md has the policies",
                code=code,
            )
        return AwsError(f"{doing}{where} failed: {message_of(error)} ({code})", code=code)
    if isinstance(error, (EndpointConnectionError, ConnectTimeoutError, ReadTimeoutError)):
        return AwsError(f"{doing}{where} failed: AWS does not answer; check the network and the region")
    if isinstance(error, ResponseParserError):
        return AwsError(
            f"{doing}{where} failed: the server that answered is not AWS; check the region, the proxy and AWS_ENDPOINT_URL"
        )
    return AwsError(f"{doing}{where} failed: {error}")


def unasked() -> AwsCredentialsError:
    """Return the error to raise after an EOFError of AWS's library. The EOFError means that the library tried to
    prompt for an MFA code."""
    return AwsCredentialsError(
        "the AWS profile needs an MFA code, and there is no terminal for the prompt; "
        "run the command at a terminal, or with session credentials (`aws sts get-session-token`)"
    )


def _ask_nobody(session: boto3.Session) -> None:
    """Make the session refuse a role that needs an MFA code, instead of prompting for the code."""

    def refuse(prompt: str) -> str:
        raise EOFError(prompt)

    # botocore prompts with a function in an attribute of its role provider. A session offers no public access
    # to that attribute.
    resolver = session._session.get_component("credential_provider")
    resolver.get_provider("assume-role")._prompter = refuse


def _unusable(error: Failure) -> AwsCredentialsError:
    """Return the reason why the existing credentials cannot be used."""
    if isinstance(error, (SSOError, TokenRetrievalError)):
        return AwsCredentialsError("the AWS single sign-on has expired; run `aws sso login`")
    if isinstance(error, ProfileNotFound):
        return AwsCredentialsError(
            f'the AWS configuration has no profile "{error.kwargs["profile"]}"; `aws configure list-profiles` shows them'
        )
    return AwsCredentialsError(f"the AWS credentials cannot be used: {str(error).strip().rstrip(':.')}")


def clock_problem(error: ClientError) -> str | None:
    """Return part of a sentence about this machine's clock if AWS refused a request because of the request's
    time; None for any other error.

    RequestExpired: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html; AWS also
    returns this code for expired temporary credentials. RequestTimeTooSkewed is a code of S3; other services
    refuse the signature and give the reason in the message.
    """
    code = code_of(error)
    if code not in _UNTIMELY and not (code in _SIGNATURE and _UNTIMELY_SIGNATURE.search(message_of(error))):
        return None
    date = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    off = _seconds_off(date)
    if off is not None and abs(off) < _CLOCK_TOLERANCE_S and code == "RequestExpired":
        return "the AWS credentials have expired; renew them"
    by = "" if off is None else f": AWS's says {date}"
    hint = "" if code != "RequestExpired" or off is not None else ", or the AWS credentials have expired"
    return f"this machine's clock is off by more than AWS tolerates; set it{by}{hint}"


def _seconds_off(date: str | None) -> float | None:
    """Return how far AWS's clock is ahead of this machine's (seconds); None if AWS does not report its
    time."""
    try:
        return parsedate_to_datetime(date).timestamp() - time.time() if date else None
    except ValueError:
        return None


def code_of(error: ClientError) -> str:
    """Return AWS's code for an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def message_of(error: ClientError) -> str:
    """Return AWS's message of an error, without its final dot."""
    return str(error.response.get("Error", {}).get("Message", "")).strip().rstrip(".")


def is_denied(error: Exception) -> bool:
    """Return whether AWS refused a request for lack of rights."""
    code = code_of(error) if isinstance(error, ClientError) else getattr(error, "code", "")
    return code in DENIED


DENIED = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "403"})
_UNTIMELY = frozenset(
    {"RequestExpired", "RequestTimeTooSkewed", "RequestTimeTooSkewedException", "RequestInTheFuture"}
)
_SIGNATURE = frozenset({"SignatureDoesNotMatch", "InvalidSignatureException", "AuthFailure"})
_UNTIMELY_SIGNATURE = re.compile(r"signature (expired|not yet current)", re.IGNORECASE)
_CLOCK_TOLERANCE_S = 240.0
"""Smallest difference between AWS's clock and this machine's clock that is reported as a problem (seconds).
AWS's services allow different clock differences; the smallest is five minutes."""
NOT_ACCEPTED = frozenset(
    {"AuthFailure", "ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId"}
    | {"UnrecognizedClientException", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"}
)
