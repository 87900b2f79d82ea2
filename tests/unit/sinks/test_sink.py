"""A sink's rounds: until all is delivered, the deadline, or a defect."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from bai_agent.sinks import sink as sink_module
from bai_agent.sinks.sink import Delivery, SinkThread

LONG_S = 60.0


class Rounds(SinkThread):
    """Does in each round what it is given, and counts them."""

    def __init__(self, work: Callable[[bool], float | None]) -> None:
        super().__init__("the place")
        self._work = work
        self.count = 0
        self.entered = threading.Event()
        self.closed = False

    def is_told_to_finish(self) -> bool:
        """Return whether `finish` is called; waits for it."""
        return self._finishing.wait(LONG_S)

    def _round(self, *, last: bool) -> float | None:
        self.count += 1
        self.entered.set()
        return self._work(last)

    def _summary(self, deadline: float) -> Delivery:
        return Delivery.of(
            delivered=self.count, undelivered=1, what="rounds", place=self.name, why=self.error or "none"
        )

    def _close(self) -> None:
        self.closed = True


def test_finish_runs_one_last_round_after_the_last_record() -> None:
    asked: list[bool] = []

    def work(last: bool) -> float | None:
        asked.append(last)
        return None if last else LONG_S

    sink = Rounds(work)
    sink.start()
    assert sink.entered.wait(LONG_S)

    sink.finish(time.monotonic() + LONG_S)

    assert asked == [False, True]
    assert sink.closed


def test_a_finish_during_a_round_is_followed_by_the_last_round_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink_module, "_FINISHING_PAUSE_S", 2 * LONG_S)
    asked: list[bool] = []

    def work(last: bool) -> float | None:
        asked.append(last)
        return None if last or not sink.is_told_to_finish() else 2 * LONG_S

    sink = Rounds(work)
    sink.start()
    assert sink.entered.wait(LONG_S)

    sink.finish(time.monotonic() + LONG_S)

    assert asked == [False, True]


@pytest.mark.parametrize("here", [True, False])
def test_only_a_local_sink_gets_its_last_round_after_the_deadline(
    monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    monkeypatch.setattr(Rounds, "_on_this_machine", here)
    asked: list[bool] = []

    def work(last: bool) -> float | None:
        asked.append(last)
        return LONG_S

    sink = Rounds(work)
    sink.start()
    assert sink.entered.wait(LONG_S)

    sink.finish(time.monotonic() - 1.0)

    sink.join(LONG_S)
    assert not sink.is_alive()
    assert asked == ([False, True] if here else [False])


def test_a_flush_ends_the_pause_between_two_rounds() -> None:
    again = threading.Event()

    def work(last: bool) -> float | None:
        if sink.count > 1:
            again.set()
        return None if last else LONG_S

    sink = Rounds(work)
    sink.start()
    assert sink.entered.wait(LONG_S)

    sink.flush_soon()

    assert again.wait(LONG_S)
    sink.finish(time.monotonic() + LONG_S)


def test_a_sink_that_is_never_done_is_abandoned_at_the_deadline() -> None:
    sink = Rounds(lambda last: 0.01)
    sink.start()

    sink.finish(time.monotonic() + 0.1)

    sink.join(LONG_S)
    assert not sink.is_alive()


def test_a_defect_is_reported_as_the_reason_for_undelivered_records() -> None:
    def fail(last: bool) -> float | None:
        raise KeyError("a defect")

    sink = Rounds(fail)
    sink.start()

    told = sink.finish(time.monotonic() + LONG_S)

    assert told.warnings == (
        "1 of 2 rounds did not reach the place: the sink ended because of an unexpected error; agent.log has the details.",
    )
    assert sink.closed
