"""What a test lets go wrong in the control plane."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from sandbox.fake_aws.calls import Call

Then = Literal["refuse", "drop", "go on"]


@dataclass(kw_only=True)
class Fault:
    """Meets the calls that fit, `times` times."""

    action: str
    """RunInstances, GetObject …; `*`: every one."""
    service: str | None = None
    identity: str | None = None
    zone: str | None = None
    """RunInstances: the availability zone that is asked for."""
    resource: str = ""
    """What the call's resource begins with."""
    match: dict[str, str] = field(default_factory=dict)
    """Parameters as they are sent."""
    then: Then = "refuse"
    """`refuse`: answer with the error, do nothing. `drop`: do it, then cut the connection without an answer. `go on`: only late."""
    code: str = "InternalError"
    message: str = "An internal error has occurred"
    status: int = 500
    delay: timedelta = timedelta(0)
    """Before anything is done."""
    times: int | None = 1
    """None: until the test ends."""
    hits: int = 0
    """How many calls it has met."""

    def fits(self, call: Call, zone: str | None) -> bool:
        return (
            self.action in ("*", call.action)
            and self.service in (None, call.service)
            and self.identity in (None, call.identity)
            and self.zone in (None, zone)
            and call.resource.startswith(self.resource)
            and all(call.parameters.get(name) == value for name, value in self.match.items())
        )


@dataclass(frozen=True, kw_only=True)
class StillBirth:
    """An instance that RunInstances answers with, and that never runs."""

    launch_index: int
    code: str
    message: str


class Faults:
    """Those that are waiting, in the order in which they were ordered."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self._still_births: list[StillBirth] = []
        self._lock = threading.Lock()

    def fail(self, action: str, **what: Any) -> Fault:
        """Let calls of `action` fail: see `Fault` for what can be said. Returns it; its `hits` can be looked at."""
        fault = Fault(action=action, **what)
        with self._lock:
            self._waiting.append(fault)
        return fault

    def no_capacity(self, zone: str, *, times: int | None = None) -> Fault:
        """Let launches into `zone` be refused, as EC2 does when it has no such machine left."""
        message = (
            f"We currently do not have sufficient capacity in the Availability Zone you requested ({zone})."
        )
        return self.fail(
            "RunInstances",
            service="ec2",
            zone=zone,
            code="InsufficientInstanceCapacity",
            message=message,
            status=500,
            times=times,
        )

    def meet(self, call: Call, zone: Callable[[], str | None]) -> Fault | None:
        """Return the first fault that fits `call`; it is used up by that."""
        with self._lock:
            for fault in self._waiting:
                if fault.fits(call, zone() if fault.zone else None):
                    fault.hits += 1
                    if fault.hits == fault.times:
                        self._waiting.remove(fault)
                    return fault
        return None

    def add_still_birth(self, birth: StillBirth) -> None:
        with self._lock:
            self._still_births.append(birth)

    def take_still_births(self) -> list[StillBirth]:
        """Return, and forget, those for the next launch."""
        with self._lock:
            taken, self._still_births = self._still_births, []
            return taken

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()
            self._still_births.clear()
