"""Finds AWS credentials: in the environment, a user's AWS configuration, or the instance's role.

botocore handles a user's configuration: profiles, single sign-on, assumed roles. An agent that runs from
bai's bundle (on an EC2 instance) never uses the image's botocore, because botocore waits for the metadata
service's token only once, for 1 s. If no token arrives in this time, botocore continues without a token, but
an instance with HttpTokens=required refuses such requests.
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
from bai_agent.aws.imds import Keys, find_token, role_keys
from bai_agent.errors import CredentialsError, MetadataError

if TYPE_CHECKING:
    from obstore.store import S3Credential

log = logging.getLogger(__name__)

_LIVE = timedelta(minutes=15)
_SPARE = timedelta(minutes=1)
_RENEW_SECONDS = 60.0
"""Seconds between renewals. The service may have new credentials as late as five minutes before the old ones expire:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html
"""
_METADATA_VARIABLES = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_DISABLED")
_AWAY_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Pauses (seconds) between tries if the metadata service answered before, but does not answer now. The pauses
and the tries together take about half a minute."""
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
    """Return a function that provides obstore with credentials. Return None if obstore can find the
    credentials without this function.

    Raises CredentialsError if there are no credentials.
    """
    if keys_in(environment) or (_own_provider(environment) and not takes_botocore(environment)):
        return None
    return for_obstore(find_keys(environment))


def takes_botocore(environment: Mapping[str, str]) -> bool:
    """Return whether bai uses botocore to find the credentials.

    botocore is used if botocore is installed, if AWS is configured for botocore, and if the agent does not
    run from a bundle.
    """
    if (Path(bai_agent.__file__).parents[1] / "start_agent.py").exists() or find_spec("botocore") is None:
        return False
    if _own_provider(environment) or environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE"):
        return True
    files = (environment.get(name) or usual for name, usual in _CONFIGURATION)
    return any(Path(os.path.expanduser(each)).is_file() for each in files)  # noqa: PTH111 - no error without a home


def keys_in(environment: Mapping[str, str]) -> Keys | None:
    """Return the AWS keys from the environment's variables; None if the keys are not set."""
    access, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not (access and secret):
        return None
    return Keys(access=access, secret=secret, token=environment.get("AWS_SESSION_TOKEN") or None)


def region_in(environment: Mapping[str, str]) -> str | None:
    """Return the AWS region from the environment's variables; None if no region is set."""
    return environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or None


def find_keys(environment: Mapping[str, str]) -> Callable[[], Keys]:
    """Return a function that returns valid AWS keys and raises MetadataError. Raises CredentialsError if
    there are no credentials."""
    if keys := keys_in(environment):
        return lambda: keys
    if takes_botocore(environment):
        return _configured()
    if name := _own_provider(environment):
        raise CredentialsError(
            f"{name} is set, but without botocore this variable only works for S3; set AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY, or unset {name} to use the instance's role"
        )
    role = _shared_role(environment)
    # If the metadata service has given credentials before, a short outage of the service is not an error.
    if not role.is_known and find_token(environment) is None:
        raise CredentialsError(_NONE)
    return role.keys


def for_obstore(keys: Callable[[], Keys]) -> Callable[[], S3Credential]:
    """Return a credential provider for obstore. The provider's credentials expire early, so that obstore
    calls the provider again soon. A call of the provider costs little, because `keys` costs little."""

    def provide() -> S3Credential:
        found, soon = keys(), datetime.now(timezone.utc) + _LIVE
        return {
            "access_key_id": found.access,
            "secret_access_key": found.secret,
            "token": found.token,
            "expires_at": min(soon, found.expires or soon),
        }

    return provide


class InstanceRole:
    """The credentials of the instance's role, which are renewed before they expire."""

    def __init__(
        self, environment: Mapping[str, str], *, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._environment = environment
        self._sleep = sleep
        self._last: Keys | None = None

    def keys(self) -> Keys:
        """Return valid credentials. Raises MetadataError.

        This method retries for a while if the metadata service answered earlier requests, but does not answer
        now.
        """
        for pause in (*_AWAY_PAUSES, None):
            try:
                self._last = role_keys(self._environment, sleep=self._sleep)
                return self._last
            except MetadataError as error:
                # Credentials that were obtained earlier are possibly still valid for hours.
                if self._last is not None and self._last.expires is not None and _is_good(self._last):
                    return self._last
                if self._last is None or pause is None or not error.passes:
                    raise
                self._sleep(pause)
        raise AssertionError("the last try raises")


class RenewedRole:
    """An instance's role with a thread that renews the role's credentials before they are needed.

    Requests to AWS do not wait for a slow metadata service, because the thread has valid credentials ready.
    Without the thread, a request could wait so long that the node's heartbeat is late and other nodes regard
    the node as lost.
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
        self._keys: Keys | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_known(self) -> bool:
        """Whether the role has credentials, possibly expired ones."""
        return self._keys is not None

    def keys(self) -> Keys:
        """Return credentials of the role. If valid credentials are known, return them without waiting. Raises
        MetadataError."""
        keys = self._keys
        if keys is None or not _is_good(keys):
            keys = self._keys = self._role.keys()
        self._start()
        return keys

    def _start(self) -> None:
        with self._lock:
            # A forked process does not have its parent's threads, so it starts its own thread.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._keep, name="credentials", daemon=True)
                self._thread.start()

    def _keep(self) -> None:
        told = False
        while True:
            self._pause(_RENEW_SECONDS)
            try:
                self._keys = self._role.keys()
                told = False
            except MetadataError as error:
                if not told:
                    log.warning("the instance's credentials are not renewed ahead of time: %s", error)
                told = True
            except Exception:
                # An exception must not end this thread. If no credentials were renewed, a later call of
                # `keys` queries the metadata service itself.
                log.exception("the instance's credentials are not renewed ahead of time")


def _is_good(keys: Keys) -> bool:
    return keys.expires is None or keys.expires >= datetime.now(timezone.utc) + _SPARE


_roles: dict[tuple[str | None, ...], RenewedRole] = {}
_roles_lock = threading.Lock()


def _shared_role(environment: Mapping[str, str]) -> RenewedRole:
    """Return this process's RenewedRole for a metadata service. Clients of several stores share one
    RenewedRole and its thread."""
    key = tuple(environment.get(name) for name in _METADATA_VARIABLES)
    with _roles_lock:
        if key not in _roles:
            _roles[key] = RenewedRole(InstanceRole(dict(environment)))
        return _roles[key]


def from_botocore(credentials: Any) -> Callable[[], S3Credential]:
    """Return a provider of the current keys of botocore's `credentials`."""
    # obstore.auth.boto3 is not used, because it needs Python 3.11.
    return for_obstore(_botocore_keys(credentials))


def _botocore_keys(credentials: Any) -> Callable[[], Keys]:
    def keys() -> Keys:
        frozen = credentials.get_frozen_credentials()
        return Keys(access=frozen.access_key or "", secret=frozen.secret_key or "", token=frozen.token)

    return keys


def _own_provider(environment: Mapping[str, str]) -> str | None:
    """Return the environment variable that names a container's credentials or a web identity. Return None if
    neither a container's credentials nor a web identity is set."""
    return next((name for name in _OWN_PROVIDERS if environment.get(name)), None)


def _configured() -> Callable[[], Keys]:
    # botocore is installed together with `bai`, not with the agent.
    import botocore.session
    from botocore.exceptions import BotoCoreError

    try:
        credentials = botocore.session.Session().get_credentials()
    except BotoCoreError as error:
        raise CredentialsError(f"the AWS configuration cannot be used: {error}") from error
    if credentials is None:
        raise CredentialsError(_NONE)
    return _botocore_keys(credentials)


_NONE = (
    "there are no AWS credentials here; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, configure a profile, "
    "or give the instance a role"
)
