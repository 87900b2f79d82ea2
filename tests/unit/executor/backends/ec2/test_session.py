"""Credentials that exist and cannot be used: each caller reports what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.exceptions import TokenRetrievalError

from executor.backends.ec2.bucket_store import bucket_store
from executor.backends.ec2.instances import described
from executor.backends.ec2.session import AwsSession, aws_error, aws_session
from executor.backends.ec2.staging_bucket import staging_bucket
from executor.configuration.config import Settings, read_settings
from executor.errors import AwsCredentialsError

_CONFIG = """\
[profile sign-on]
sso_start_url = https://example.awsapps.com/start
sso_region = eu-central-1
sso_account_id = 123456789012
sso_role_name = bai
[profile program]
credential_process = false
[profile keys]
aws_access_key_id = OF-THE-PROFILE
aws_secret_access_key = secret
[profile role]
role_arn = arn:aws:iam::123456789012:role/bai
source_profile = nobody
"""


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text(_CONFIG)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)


def ask_for_credentials(settings: Settings) -> None:
    AwsSession("eu-central-1", settings.aws_profile).credentials()


def ask_ec2(settings: Settings) -> None:
    described(AwsSession("eu-central-1", settings.aws_profile).ec2(), [])


@pytest.mark.parametrize("wants", [ask_for_credentials, ask_ec2, bucket_store, staging_bucket])
@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ("sign-on", "the AWS single sign-on has expired; run `aws sso login`"),
        (
            "program",
            "the AWS credentials cannot be used: Error when retrieving credentials from custom-process",
        ),
        ("role", 'the AWS credentials cannot be used: The source_profile "nobody" referenced in the profile'),
    ],
)
def test_an_unusable_profile_is_reported_when_credentials_are_needed(
    wants: Callable[[Settings], object], profile: str, told: str
) -> None:
    settings = Settings(bucket="bucket", region="eu-central-1", profile=profile)

    with pytest.raises(AwsCredentialsError) as raised:
        wants(settings)

    assert str(raised.value).startswith(told)


@pytest.mark.parametrize(
    ("named_by", "used"), [("AWS_PROFILE", "OF-THE-ENVIRONMENT"), ("BAI_PROFILE", "OF-THE-PROFILE")]
)
def test_keys_in_the_environment_override_aws_profile_but_not_bais_profile(
    monkeypatch: pytest.MonkeyPatch, named_by: str, used: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OF-THE-ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("BAI_REGION", "eu-central-1")
    monkeypatch.setenv(named_by, "keys")

    assert aws_session(read_settings()).credentials().access_key == used


@pytest.mark.parametrize("named_by", ["AWS_PROFILE", "BAI_PROFILE"])
@pytest.mark.parametrize("wants", [ask_for_credentials, ask_ec2])
def test_a_profile_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, named_by: str, wants: Callable[[Settings], object]
) -> None:
    monkeypatch.setenv(named_by, "nope")

    with pytest.raises(AwsCredentialsError, match='has no profile "nope"'):
        wants(read_settings())


def test_an_expired_sso_login_gives_advice_to_log_in() -> None:
    error = TokenRetrievalError(provider="sso", error_msg="Token has expired and refresh failed")

    assert "aws sso login" in str(aws_error(error, doing="launching"))
