"""Work is bounded, in order within a lane, and tried again where that may help."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from executor.service.keyed_work_queue import KeyedWorkQueue, LaterError

_SECONDS = 120.0


def wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_no_more_tasks_run_at_once_than_allowed() -> None:
    lock, under_way, most, done = threading.Lock(), 0, 0, 0
    release = threading.Event()

    def work(piece: str) -> None:
        nonlocal under_way, most, done
        with lock:
            under_way += 1
            most = max(most, under_way)
        if under_way == 3:
            release.set()
        assert release.wait(_SECONDS)
        with lock:
            under_way -= 1
            done += 1

    lanes = KeyedWorkQueue(work, at_once=3, name="test")
    lanes.start()
    for number in range(20):
        lanes.add(f"lane-{number}", f"piece-{number}")

    wait(lambda: done == 20)
    assert most == 3
    assert lanes.stop(timeout_s=_SECONDS)


def test_tasks_with_the_same_key_run_in_order_and_one_at_a_time() -> None:
    seen: list[str] = []
    busy: set[str] = set()

    def work(piece: str) -> None:
        lane = piece[0]
        assert lane not in busy
        busy.add(lane)
        time.sleep(0.001)
        seen.append(piece)
        busy.discard(lane)

    lanes = KeyedWorkQueue(work, at_once=4, name="test")
    for number in range(10):
        for lane in "abc":
            lanes.add(lane, f"{lane}{number}")
    lanes.start()

    wait(lambda: lanes.waiting == 0)
    for lane in "abc":
        assert [each for each in seen if each[0] == lane] == [f"{lane}{number}" for number in range(10)]


def test_a_queued_task_is_not_added_again_until_it_is_done() -> None:
    lanes = KeyedWorkQueue(lambda piece: None, at_once=1, name="test")

    assert lanes.add("a", "piece")
    assert not lanes.add("a", "piece")
    assert not lanes.add("b", "piece")
    lanes.start()
    wait(lambda: lanes.waiting == 0)
    assert lanes.add("a", "piece")


def test_a_task_that_must_wait_is_retried_and_delays_no_other() -> None:
    tries: dict[str, int] = {}
    order: list[str] = []

    def work(piece: str) -> None:
        tries[piece] = tries.get(piece, 0) + 1
        if piece == "first" and tries[piece] < 2:
            raise LaterError("away")
        order.append(piece)

    lanes = KeyedWorkQueue(work, at_once=1, name="test")
    lanes.start()
    lanes.add("a", "first")
    lanes.add("a", "second")

    wait(lambda: lanes.waiting == 0)
    assert order == ["second", "first"]
    assert tries == {"first": 2, "second": 1}


def test_a_defect_in_one_task_does_not_affect_others() -> None:
    done: list[str] = []

    def work(piece: str) -> None:
        if piece == "broken":
            raise ZeroDivisionError
        done.append(piece)

    lanes = KeyedWorkQueue(work, at_once=1, name="test")
    lanes.start()
    lanes.add("a", "broken")
    lanes.add("a", "sound")

    wait(lambda: lanes.waiting == 0)
    assert done == ["sound"]


def test_after_a_stop_no_task_begins_and_running_ones_are_reported() -> None:
    begun, release = threading.Event(), threading.Event()

    def work(piece: str) -> None:
        begun.set()
        release.wait(_SECONDS)

    lanes = KeyedWorkQueue(work, at_once=1, name="test")
    lanes.start()
    lanes.add("a", "one")
    lanes.add("b", "two")
    assert begun.wait(_SECONDS)

    assert not lanes.stop(timeout_s=0.05)
    assert not lanes.add("c", "three")
    release.set()
    assert lanes.stop(timeout_s=_SECONDS)
    assert lanes.waiting == 1
