"""The watcher's daily limit, while two of its executions reserve amounts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from bai_agent.job.store import JobStore, open_store
from executor.backends.ec2.watcher.day_ledger import DayLedger
from executor.errors import UsageError

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=timezone.utc)


class Interrupted:
    """A store between whose calls another execution does something, once."""

    def __init__(self, store: JobStore, call: str, meanwhile: Callable[[], None]) -> None:
        self._store, self._call, self._meanwhile = store, call, [meanwhile]

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            answer = getattr(self._store, name)(*arguments, **options)
            while name == self._call and self._meanwhile:
                self._meanwhile.pop()()
            return answer

        return called


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return open_store(tmp_path.as_uri())


def ledger(store: Any, *, most: float = 1.0) -> DayLedger:
    return DayLedger(store=store, most=most)


def test_launches_of_a_day_stay_within_the_limit_and_each_counts_once(store: JobStore) -> None:
    for _ in range(2):
        ledger(store).reserve("one", 0.6, now=NOW)

    with pytest.raises(
        UsageError, match=r"the machines of this day cost 0\.60 at most, and another machine 0\.50"
    ):
        ledger(store).reserve("two", 0.5, now=NOW)
    ledger(store).reserve("two", 0.4, now=NOW)
    ledger(store).reserve("three", 1.0, now=NOW + timedelta(days=1))


def test_a_released_reservation_can_be_reserved_again(store: JobStore) -> None:
    ledger(store).reserve("one", 1.0, now=NOW)
    ledger(store).give_back("one", now=NOW)

    ledger(store).reserve("one", 0.6, now=NOW)
    with pytest.raises(UsageError):
        ledger(store).reserve("two", 0.6, now=NOW)


@pytest.mark.parametrize("call", ["find", "put"])
def test_at_most_one_of_two_concurrent_executions_reserves_the_rest(store: JobStore, call: str) -> None:
    got = []

    def other() -> None:
        try:
            ledger(store).reserve("other", 0.6, now=NOW)
        except UsageError:
            return
        got.append("other")

    try:
        ledger(Interrupted(store, call, other)).reserve("ours", 0.6, now=NOW)
    except UsageError:
        pass
    else:
        got.append("ours")

    assert got == (["other"] if call == "find" else ["ours"])
    # Whoever was refused has noted nothing that counts.
    ledger(store).reserve("small", 0.4, now=NOW)
    with pytest.raises(UsageError):
        ledger(store).reserve("other" if got == ["ours"] else "ours", 0.1, now=NOW)


def test_two_executions_that_launch_the_same_machine_count_it_once(store: JobStore) -> None:
    ledger(Interrupted(store, "find", lambda: ledger(store).reserve("one", 0.6, now=NOW))).reserve(
        "one", 0.6, now=NOW
    )

    ledger(store).reserve("two", 0.4, now=NOW)
    ledger(store).give_back("one", now=NOW)
    ledger(store).reserve("three", 0.6, now=NOW)


def test_amounts_reserved_by_an_earlier_version_count(store: JobStore) -> None:
    store.put("2026-11-20/one=600000", b"")
    store.put("2026-11-20/gone=900000", b"")
    store.put("2026-11-20/gone=0", b"")

    with pytest.raises(UsageError):
        ledger(store).reserve("two", 0.5, now=NOW)
    ledger(store).reserve("one", 0.6, now=NOW)
    ledger(store).reserve("two", 0.4, now=NOW)
