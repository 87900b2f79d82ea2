"""The queue bounds concurrent tasks, keeps their order per key, and retries those that ask for it."""

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

    def work(task: str) -> None:
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

    queue = KeyedWorkQueue(work, at_once=3, name="test")
    queue.start()
    for number in range(20):
        queue.add(f"key-{number}", f"task-{number}")

    wait(lambda: done == 20)
    assert most == 3
    assert queue.stop(timeout_s=_SECONDS)


def test_tasks_with_the_same_key_run_in_order_and_one_at_a_time() -> None:
    seen: list[str] = []
    busy: set[str] = set()

    def work(task: str) -> None:
        key = task[0]
        assert key not in busy
        busy.add(key)
        time.sleep(0.001)
        seen.append(task)
        busy.discard(key)

    queue = KeyedWorkQueue(work, at_once=4, name="test")
    for number in range(10):
        for key in "abc":
            queue.add(key, f"{key}{number}")
    queue.start()

    wait(lambda: queue.waiting == 0)
    for key in "abc":
        assert [each for each in seen if each[0] == key] == [f"{key}{number}" for number in range(10)]


def test_a_queued_task_is_not_added_again_until_it_is_done() -> None:
    queue = KeyedWorkQueue(lambda task: None, at_once=1, name="test")

    assert queue.add("a", "task")
    assert not queue.add("a", "task")
    assert not queue.add("b", "task")
    queue.start()
    wait(lambda: queue.waiting == 0)
    assert queue.add("a", "task")


def test_a_task_that_must_wait_is_retried_and_delays_no_other() -> None:
    tries: dict[str, int] = {}
    order: list[str] = []

    def work(task: str) -> None:
        tries[task] = tries.get(task, 0) + 1
        if task == "first" and tries[task] < 2:
            raise LaterError("away")
        order.append(task)

    queue = KeyedWorkQueue(work, at_once=1, name="test")
    queue.start()
    queue.add("a", "first")
    queue.add("a", "second")

    wait(lambda: queue.waiting == 0)
    assert order == ["second", "first"]
    assert tries == {"first": 2, "second": 1}


def test_a_defect_in_one_task_does_not_affect_others() -> None:
    done: list[str] = []

    def work(task: str) -> None:
        if task == "broken":
            raise ZeroDivisionError
        done.append(task)

    queue = KeyedWorkQueue(work, at_once=1, name="test")
    queue.start()
    queue.add("a", "broken")
    queue.add("a", "sound")

    wait(lambda: queue.waiting == 0)
    assert done == ["sound"]


def test_after_a_stop_no_task_begins_and_running_ones_are_reported() -> None:
    begun, release = threading.Event(), threading.Event()

    def work(task: str) -> None:
        begun.set()
        release.wait(_SECONDS)

    queue = KeyedWorkQueue(work, at_once=1, name="test")
    queue.start()
    queue.add("a", "one")
    queue.add("b", "two")
    assert begun.wait(_SECONDS)

    assert not queue.stop(timeout_s=0.05)
    assert not queue.add("c", "three")
    release.set()
    assert queue.stop(timeout_s=_SECONDS)
    assert queue.waiting == 1
