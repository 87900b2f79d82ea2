"""What passes is tried again, a bounded number of times, with growing pauses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bai_agent.backoff import Backoff, retry
from bai_agent.errors import PassingError


def failing(times: int, *, passes: bool) -> Callable[[], str]:
    left = iter(range(times))

    def work() -> str:
        if next(left, None) is None:
            return "done"
        raise PassingError("away", passes=passes)

    return work


def test_pauses_grow_up_to_the_longest_and_restart_after_success() -> None:
    backoff = Backoff(1, 5)
    assert [backoff.next() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.reset()
    assert backoff.next() == 1


def test_a_temporary_error_is_retried_after_a_pause() -> None:
    pauses: list[float] = []
    assert retry(failing(2, passes=True), tries=3, backoff=Backoff(1), sleep=pauses.append) == "done"
    assert pauses == [1, 2]


@pytest.mark.parametrize(("passes", "pauses"), [(True, [1.0, 2.0]), (False, [])])
def test_a_lasting_or_permanent_error_is_raised(passes: bool, pauses: list[float]) -> None:
    taken: list[float] = []
    with pytest.raises(PassingError, match="away"):
        retry(failing(3, passes=passes), tries=3, backoff=Backoff(1), sleep=taken.append)
    assert taken == pauses
