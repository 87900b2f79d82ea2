"""The maximum cost of the watcher's launches of a day: objects `DAY/LAUNCH=MICRODOLLARS` in a folder that
only the watcher writes.

The lowest amount of a launch counts, because objects are not deleted. A launch that EC2 refused has an object
with 0. If the watcher is killed between the refusal and that object, the launch counts until the end of the
day.
"""

from __future__ import annotations

import math
import threading
from datetime import datetime

from bai_agent.job.store import JobStore
from bai_agent.light_dataclass import dataclass
from executor.errors import UsageError

FOLDER = "watcher/spent"
"""The folder in the bucket. The folder is not below `jobs/`, where others write."""
_MICRO = 1_000_000
_RESERVING = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class DayLedger:
    """The costs of the watcher's launches. All methods raise StoreError."""

    store: JobStore
    """The folder."""
    most: float
    """Most USD a day (UTC)."""

    def reserve(self, launch: str, dollars: float, *, now: datetime) -> None:
        """Reserve the cost of a launch, once. Raises UsageError if those of this day would cost more than the
        limit."""
        # The function has one execution at a time, and a check has several threads.
        with _RESERVING:
            self._reserve(launch, math.ceil(dollars * _MICRO), day=_day(now))

    def give_back(self, launch: str, *, now: datetime) -> None:
        """Record that a launch costs nothing."""
        self.store.put(f"{_day(now)}{launch}=0", b"")

    def _reserve(self, launch: str, amount: int, *, day: str) -> None:
        reserved: dict[str, int] = {}
        for each in self.store.find(day):
            name, _, written = each.key.removeprefix(day).rpartition("=")
            if name and written.isdecimal():
                reserved[name] = min(int(written), reserved.get(name, int(written)))
        if launch in reserved:
            return
        spent = sum(reserved.values())
        if amount + spent > math.floor(self.most * _MICRO):
            raise UsageError(
                f"the watcher may spend {self.most:,.2f} USD a day, the machines of this day cost {spent / _MICRO:,.2f} at most, and "
                f"another one {amount / _MICRO:,.2f}; `bai setup --watcher` sets its limits"
            )
        self.store.put(f"{day}{launch}={amount}", b"")


def _day(now: datetime) -> str:
    return f"{now:%Y-%m-%d}/"
