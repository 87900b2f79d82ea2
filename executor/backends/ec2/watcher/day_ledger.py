"""Records how much the machines that the watcher launches on one day may cost. The records are objects
`DAY/LAUNCH~TRY=MICRODOLLARS` in a folder to which only the watcher can write.

The watcher cannot delete objects. To cancel the amount of a try, the watcher writes another object of the try with
the amount 0. If a try has several objects, the lowest amount counts. The cost of a launch is the highest amount
among the launch's tries. Two executions of the watcher may reserve amounts at the same time. Each execution reads
the folder again after it has written its amount, so at least one of the two executions sees both amounts. If the
watcher is killed before it cancels an amount, the amount counts until the end of the day.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import defaultdict
from datetime import datetime

from bai_agent.job.store import JobStore
from bai_agent.light_dataclass import dataclass, field
from executor.errors import UsageError

FOLDER = "watcher/spent"
"""Folder of the ledger in the bucket. The folder is not below `jobs/`, because other users have write access
there."""
_MICRO = 1_000_000
_Amounts = dict[str, dict[str, int]]
"""Launch → recorded try of the launch → microdollars."""


@dataclass(frozen=True, kw_only=True)
class DayLedger:
    """The maximum costs of the watcher's launches. All methods raise StoreError."""

    store: JobStore
    """Store that contains the ledger's folder."""
    most: float
    """Maximum cost per day in UTC (USD)."""
    _reserving: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Lock for the threads of one check, so that two threads that reserve at the same time do not refuse each
    other's launch."""

    def reserve(self, launch: str, dollars: float, *, now: datetime) -> None:
        """Reserve the cost of a launch, only once per launch. Raises UsageError if the launches of this day
        would exceed the limit."""
        with self._reserving:
            self._reserve(launch, math.ceil(dollars * _MICRO), day=_day(now))

    def give_back(self, launch: str, *, now: datetime) -> None:
        """Record that a launch costs nothing, because nothing was launched."""
        day = _day(now)
        for each, amount in self._noted(day).get(launch, {}).items():
            if amount:
                self.store.put(f"{day}{each}=0", b"")

    def _reserve(self, launch: str, amount: int, *, day: str) -> None:
        noted = self._noted(day)
        present = max(noted.pop(launch, {}).values(), default=0)
        self._check(noted, present or amount)
        if present:
            return
        ours = f"{launch}~{secrets.token_hex(4)}"
        self.store.put(f"{day}{ours}={amount}", b"")
        others = self._noted(day)
        others.pop(launch, None)
        try:
            self._check(others, amount)
        except UsageError:
            self.store.put(f"{day}{ours}=0", b"")
            raise

    def _check(self, others: _Amounts, amount: int) -> None:
        """Raise UsageError if this amount and the amounts of other launches together exceed the limit."""
        spent = sum(max(tries.values()) for tries in others.values())
        if amount + spent > math.floor(self.most * _MICRO):
            raise UsageError(
                f"the watcher may spend {self.most:,.2f} USD a day, the machines of this day cost {spent / _MICRO:,.2f} at most, and "
                f"another machine {amount / _MICRO:,.2f}; `bai setup --watcher` sets the limit"
            )

    def _noted(self, day: str) -> _Amounts:
        found: _Amounts = defaultdict(dict)
        for each in self.store.find(day):
            name, _, written = each.key.removeprefix(day).rpartition("=")
            if name and written.isdecimal():
                tries = found[name.partition("~")[0]]
                tries[name] = min(int(written), tries.get(name, int(written)))
        return found


def _day(now: datetime) -> str:
    return f"{now:%Y-%m-%d}/"
