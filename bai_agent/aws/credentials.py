"""Finds AWS credentials: in the environment, a person's AWS configuration, or the instance's role.

botocore is for what a person has configured: profiles, single sign-on, assumed roles. An agent out of a bundle is on an
instance and never takes the one that the image brings along. That one waits 1 s for the metadata service, once, and goes
on without a token then, which an instance with HttpTokens=required refuses:
https://docs.aws.amazon.com/sdkref/latest/guide/feature-imds-credentials.html
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bai_agent
from bai_agent.aws.imds import Keys, MetadataError, find_token, role_keys
from bai_agent.aws.s3_errors import S3Error

if TYPE_CHECKING:
    from obstore.store import S3Credential

log = logging.getLogger(__name__)

_LIVE = timedelta(minutes=15)
_SPARE = timedelta(minutes=1)
_RENEW_SECONDS = 60.0
"""Between two times that they are asked for. The service may have new ones as late as five minutes before the old ones expire:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html"""
_METADATA_VARIABLES = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_DISABLED")
_AWAY_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between tries when a metadata service that answered before does not: half a minute of it, or a bit more."""
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
    if _own_provider(environment) is not None:
        return None
    role = InstanceRole(environment)
    if not role.answers():
        raise S3Error(_NONE)
    return _shared_role(environment).provide


def takes_botocore(environment: Mapping[str, str]) -> bool:
    """Return whether botocore finds the credentials: it is configured, and the agent does not run from a bundle."""
    if (Path(bai_agent.__file__).parents[1] / "start_agent.py").exists() or find_spec("botocore") is None:
        return False
    if _own_provider(environment) or environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE"):
        return True
    files = (environment.get(name) or usual for name, usual in _CONFIGURATION)
    return any(Path(os.path.expanduser(each)).is_file() for each in files)  # noqa: PTH111 - no error without a home


def keys_in(environment: Mapping[str, str]) -> Keys | None:
    """Return the environment's own keys."""
    access, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not (access and secret):
        return None
    return Keys(access=access, secret=secret, token=environment.get("AWS_SESSION_TOKEN") or None)


def find_keys(environment: Mapping[str, str], role: Callable[[], Keys]) -> Keys:
    """Return the environment's own keys, else those of `role`. Raises MetadataError.

    For what is asked by hand. S3 is asked through obstore, which knows containers and web identities too.
    """
    if keys := keys_in(environment):
        return keys
    if name := _own_provider(environment):
        raise MetadataError(
            f"{name} is set, but without botocore only S3 takes credentials from it; set AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY, or unset {name} to take the instance's role"
        )
    return role()


class InstanceRole:
    """The credentials of the instance's role, asked for anew before they expire."""

    def __init__(
        self, environment: Mapping[str, str], *, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._environment = environment
        self._sleep = sleep
        self._answered = False
        self._last: Keys | None = None

    def answers(self) -> bool:
        """Return whether there is a metadata service."""
        return self._find_token() is not None

    def keys(self) -> Keys:
        """Return credentials that are good for now. Raises MetadataError."""
        try:
            self._last = role_keys(token=self._token(), environment=self._environment)
        except MetadataError:
            # Those from before may be good for hours.
            if self._last is None or not self._good():
                raise
        return self._last

    def _good(self) -> bool:
        expires = self._last.expires if self._last is not None else None
        return expires is not None and expires >= datetime.now(timezone.utc) + _SPARE

    def _token(self) -> str:
        """Return a token, after a while where the service answered before and is away for a moment."""
        for pause in (*_AWAY_PAUSES, None):
            token = self._find_token()
            if token is not None:
                return token
            if pause is None or not self._answered or self._good():
                break
            self._sleep(pause)
        raise MetadataError(
            "the instance metadata service does not answer; "
            "where this is not an instance, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )

    def _find_token(self) -> str | None:
        token = find_token(self._environment, sleep=self._sleep)
        self._answered = self._answered or token is not None
        return token

    def provide(self) -> S3Credential:
        """Return them as obstore takes them, with the time at which they expire. Raises MetadataError."""
        keys = self.keys()
        return {
            "access_key_id": keys.access,
            "secret_access_key": keys.secret,
            "token": keys.token,
            "expires_at": keys.expires,
        }


class RenewedRole:
    """An instance's role whose credentials are renewed ahead of time, on a thread of its own.

    A request then finds new ones there already, and is not held up by a metadata service that is slow or away: a sign of life
    that comes late would have the node lost.
    """

    def __init__(
        self,
        role: InstanceRole,
        *,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._role = role
        self._pause = pause
        self._lock = threading.Lock()
        self._provided: S3Credential | None = None
        self._thread: threading.Thread | None = None

    def provide(self) -> S3Credential:
        """Return credentials as obstore takes them, at once if there are any that are good. Raises MetadataError."""
        provided = self._provided
        if provided is None or not self._is_good(provided):
            provided = self._renew()
        self._start()
        return {**provided, "expires_at": self._ask_again_at(provided)}

    def _renew(self) -> S3Credential:
        self._provided = provided = self._role.provide()
        return provided

    @staticmethod
    def _is_good(provided: S3Credential) -> bool:
        expires = provided["expires_at"]
        return expires is None or expires >= datetime.now(timezone.utc) + _SPARE

    @staticmethod
    def _ask_again_at(provided: S3Credential) -> datetime:
        """Return when obstore is to ask for them again: soon, as that costs nothing."""
        soon, expires = datetime.now(timezone.utc) + _LIVE, provided["expires_at"]
        return soon if expires is None else min(soon, expires)

    def _start(self) -> None:
        with self._lock:
            # A process that was forked has no threads of its parent's.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._keep, name="credentials", daemon=True)
                self._thread.start()

    def _keep(self) -> None:
        told = False
        while True:
            self._pause(_RENEW_SECONDS)
            try:
                self._renew()
                told = False
            except MetadataError as error:
                if not told:
                    log.warning("the instance's credentials are not renewed ahead of time: %s", error)
                told = True
            except Exception:
                # The thread's outermost frame; whoever needs new credentials then asks for them by itself.
                log.exception("the instance's credentials are not renewed ahead of time")


_roles: dict[tuple[str | None, ...], RenewedRole] = {}
_roles_lock = threading.Lock()


def _shared_role(environment: Mapping[str, str]) -> RenewedRole:
    """Return the one role of this process: a client more, such as for each of a service's stores, is no thread more."""
    key = tuple(environment.get(name) for name in _METADATA_VARIABLES)
    with _roles_lock:
        if key not in _roles:
            _roles[key] = RenewedRole(InstanceRole(dict(environment)))
        return _roles[key]


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


def _own_provider(environment: Mapping[str, str]) -> str | None:
    """Return the variable that names a container's credentials or a web identity."""
    return next((name for name in _OWN_PROVIDERS if environment.get(name)), None)


def _configured() -> Callable[[], S3Credential]:
    # Not installed with the agent: only where `bai` is, too.
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
