"""Whose name AWS is asked in: the environment's, a person's AWS configuration, or the instance's role.

botocore is for what a person has configured: profiles, single sign-on, assumed roles. An agent out of a bundle is on an
instance and never takes the one that the image brings along. That one waits 1 s for the metadata service, once, and goes
on without a token then, which an instance with HttpTokens=required refuses:
https://docs.aws.amazon.com/sdkref/latest/guide/feature-imds-credentials.html
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bai_agent
from bai_agent.instance_metadata import Keys, MetadataError, find_token, role_keys
from bai_agent.s3.meaning import S3Error

if TYPE_CHECKING:
    from obstore.store import S3Credential

_LIVE = timedelta(minutes=15)
_SPARE = timedelta(minutes=1)
_OWN_PROVIDERS = (
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
_CONFIGURATION = (
    ("AWS_CONFIG_FILE", "~/.aws/config"),
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
)


def credential_provider(environment: Mapping[str, str]) -> Callable[[], S3Credential] | None:
    """Return a provider of credentials; None where obstore finds them itself. Raises S3Error where there are none."""
    if keys_in(environment):
        return None
    if takes_botocore(environment):
        return _configured()
    if any(environment.get(name) for name in _OWN_PROVIDERS):
        return None
    if find_token(environment) is None:
        raise S3Error(_NONE)
    return InstanceRole(environment).provide


def takes_botocore(environment: Mapping[str, str]) -> bool:
    """Return whether credentials are botocore's business: something is configured for it, and we are not out of a bundle."""
    if (Path(bai_agent.__file__).parents[1] / "start_agent.py").exists() or find_spec("botocore") is None:
        return False
    if any(environment.get(name) for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", *_OWN_PROVIDERS)):
        return True
    files = (environment.get(name) or usual for name, usual in _CONFIGURATION)
    return any(Path(os.path.expanduser(each)).is_file() for each in files)  # noqa: PTH111 - no error without a home


def keys_in(environment: Mapping[str, str]) -> Keys | None:
    """Return the environment's own keys."""
    access, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not (access and secret):
        return None
    return Keys(access=access, secret=secret, token=environment.get("AWS_SESSION_TOKEN") or None)


class InstanceRole:
    """The credentials of the instance's role, asked for anew before they expire."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._last: Keys | None = None

    def keys(self) -> Keys:
        """Return credentials that are good for now. Raises MetadataError."""
        token = find_token(self._environment)
        try:
            if token is None:
                raise MetadataError("the instance metadata service does not answer")
            self._last = role_keys(token=token, environment=self._environment)
        except MetadataError:
            # Those from before may be good for hours.
            last = self._last
            if last is None or last.expires is None or last.expires < datetime.now(timezone.utc) + _SPARE:
                raise
            return last
        return self._last

    def provide(self) -> S3Credential:
        """Return them as obstore takes them."""
        keys = self.keys()
        soon = datetime.now(timezone.utc) + _LIVE
        return {
            "access_key_id": keys.access,
            "secret_access_key": keys.secret,
            "token": keys.token,
            # The service may have new ones as late as five minutes before these expire:
            # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html
            "expires_at": soon if keys.expires is None else min(soon, keys.expires),
        }


def from_botocore(credentials: Any) -> Callable[[], S3Credential]:
    """Return a provider of what botocore's `credentials` (those of a session) hold at each time."""

    # obstore.auth.boto3 would do, but needs Python 3.11.
    def provide() -> S3Credential:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key or "",
            "secret_access_key": frozen.secret_key or "",
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + _LIVE,
        }

    return provide


def _configured() -> Callable[[], S3Credential]:
    import botocore.session
    from botocore.exceptions import BotoCoreError

    try:
        credentials = botocore.session.Session().get_credentials()
    except BotoCoreError as error:
        raise S3Error(f"the AWS configuration cannot be used: {error}") from error
    if credentials is None:
        raise S3Error(_NONE)
    return from_botocore(credentials)


_NONE = (
    "there are no AWS credentials here; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, configure a profile, "
    "give the instance a role, or say anonymous = true for a public bucket"
)
