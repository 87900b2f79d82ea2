"""Who calls: the control plane knows an identity by its access key."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

ANONYMOUS = "anonymous"
SETUP = "setup"
"""The fixture's own calls; they are not logged and nothing is refused to them."""
INSTANCE = "instance"

_NEVER = datetime.max.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, kw_only=True)
class Credentials:
    identity: str
    instance_id: str | None = None
    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires: datetime = _NEVER


class Identities:
    """Hands out credentials and recognises them again."""

    def __init__(self) -> None:
        self._by_key: dict[str, Credentials] = {}
        self._by_name: dict[str, Credentials] = {}
        self._lock = threading.Lock()

    def of(self, identity: str) -> Credentials:
        """Return the long-lived credentials of a person or service, the same at each call."""
        with self._lock:
            if identity not in self._by_name:
                made = Credentials(
                    identity=identity,
                    access_key="AKIA" + secrets.token_hex(8).upper(),
                    secret_key=secrets.token_urlsafe(30),
                )
                self._by_name[identity] = self._by_key[made.access_key] = made
            return self._by_name[identity]

    def of_instance(self, instance_id: str, *, valid: timedelta = timedelta(hours=6)) -> Credentials:
        """Return new role credentials for an instance."""
        made = Credentials(
            identity=INSTANCE,
            instance_id=instance_id,
            access_key="ASIA" + secrets.token_hex(8).upper(),
            secret_key=secrets.token_urlsafe(30),
            token=secrets.token_urlsafe(120),
            expires=datetime.now(timezone.utc) + valid,
        )
        with self._lock:
            self._by_key[made.access_key] = made
        return made

    def find(self, access_key: str) -> Credentials | None:
        with self._lock:
            return self._by_key.get(access_key)
