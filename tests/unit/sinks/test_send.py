"""Batches in flight, with a producer whose answers the test gives."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import IllegalStateError, KafkaTimeoutError, MessageSizeTooLargeError
from kafka.producer.future import FutureProduceResult
from kafka.structs import TopicPartition
from metric_files import append_records, kafka_job, new_run

from bai_agent.errors import NotAcknowledgedError
from bai_agent.job.run_directory import RunDir
from bai_agent.sinks.backlog import MAX_RECORDS, Batch, SendProgress, read_progress
from bai_agent.sinks.kafka import pusher as pusher_module
from bai_agent.sinks.kafka import send
from bai_agent.sinks.kafka.library_log import forget_trouble
from bai_agent.sinks.kafka.metric_messages import MetricMessage, MetricMessageWriter
from bai_agent.sinks.kafka.pusher import KafkaPusher
from bai_agent.sinks.kafka.send import BatchSender, Outgoing, SendWindow


class StandInProducer:
    """Holds what it is handed; gives up everything when it is told to end, as kafka-python does."""

    def __init__(self, answer: Callable[[Sequence[MetricMessage]], Exception | None] | None = None) -> None:
        self.batches: list[Sequence[MetricMessage]] = []
        self.futures: list[FutureProduceResult] = []
        self.ended = False
        self._answer = answer
        self._sender = SimpleNamespace(force_close=self._end)

    def enqueue(self, messages: Sequence[MetricMessage]) -> FutureProduceResult:
        self.batches.append(messages)
        future = FutureProduceResult(TopicPartition("metrics", 0))
        self.futures.append(future)
        return future

    def answer(self, number: int, failure: Exception | None = None) -> None:
        self.futures[number].success((0, -1, None if failure is None else lambda _: failure))

    def answer_open(self) -> None:
        """Answer what is open, in order, as the broker would."""
        for number, future in enumerate(self.futures):
            if not future.is_done:
                self.answer(number, self._answer(self.batches[number]) if self._answer else None)

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            for number, future in enumerate(self.futures):
                if not future.is_done:
                    self.answer(number, IllegalStateError("closed"))


@pytest.fixture(autouse=True)
def _handed_unencoded(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_trouble()
    monkeypatch.setattr(send, "enqueue", lambda producer, records, **_: producer.enqueue(records))


class PlainWriter(MetricMessageWriter):
    def __init__(self) -> None:
        self.key = b"key"
        self.encoder: Any = SimpleNamespace(encode=list)


def window_of(*batches: Sequence[str]) -> SendWindow:
    window = SendWindow()
    for batch in batches:
        messages = [MetricMessage(value.encode(), b"0") for value in batch]
        whole = Batch(messages=messages, end=0, malformed=0, is_full=False)
        window.outgoing.append(Outgoing(whole, list(messages)))
    return window


def sender_of(producer: Any, window: SendWindow, warnings: list[str] | None = None) -> BatchSender:
    return BatchSender(
        producer,
        window,
        topic="metrics",
        writer=PlainWriter(),
        wake=threading.Event(),
        warn=(warnings if warnings is not None else []).append,
    )


def left(window: SendWindow) -> list[list[str]]:
    return [[message.value.decode() for message in each.messages] for each in window.outgoing]


def test_at_most_three_batches_are_in_flight() -> None:
    producer = StandInProducer()
    window = window_of("a", "b", "c", "d", "e")
    sender = sender_of(producer, window)

    sender.hand_over()
    assert [len(producer.batches), sender.waits] == [3, True]

    producer.answer(0)
    assert sender.settle()
    sender.hand_over()
    assert [len(producer.batches), left(window)] == [4, [[], ["b"], ["c"], ["d"], ["e"]]]


def test_an_acknowledgement_out_of_order_does_not_advance_the_offset() -> None:
    producer = StandInProducer()
    window = window_of("a", "b")
    sender = sender_of(producer, window)
    sender.hand_over()

    producer.answer(1)

    assert sender.settle()
    assert left(window) == [["a"], ["b"]]


def test_after_a_failure_no_later_message_is_sent_and_all_are_kept() -> None:
    producer = StandInProducer()
    window = window_of("a", "b", "c")
    sender = sender_of(producer, window)
    sender.hand_over()

    producer.answer(0)
    producer.answer(1, KafkaTimeoutError("30 s"))

    assert producer.ended, "before the producer's thread does anything else"
    with pytest.raises(NotAcknowledgedError, match=r"2 messages for topic metrics: .*30 s"):
        sender.settle()
    assert left(window) == [[], ["b"], ["c"]]


def test_a_refusal_drops_only_the_refused_message() -> None:
    producer = StandInProducer()
    window = window_of("a", "b")
    sender = sender_of(producer, window)
    sender.hand_over()

    producer.answer(1, MessageSizeTooLargeError("too large"))

    with pytest.raises(NotAcknowledgedError):
        sender.settle()
    assert left(window) == [["a"], ["b"]]
    assert [each.refused for each in window.outgoing] == [0, 0]


def test_a_missing_acknowledgement_is_an_error_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "_ANSWER_SECONDS", -1.0)
    sender = sender_of(StandInProducer(), window_of("a"))
    sender.hand_over()

    with pytest.raises(NotAcknowledgedError, match="1 messages"):
        sender.settle()


@pytest.mark.parametrize("bad", [{"m0"}, {"m3"}, {"m11"}, {"m2", "m3", "m9"}, set()])
def test_after_a_refusal_batches_are_split_until_the_refused_message_is_found(bad: set[str]) -> None:
    window = window_of(*([f"m{number}" for number in range(start, start + 4)] for start in (0, 4, 8)))
    warnings: list[str] = []
    arrived: list[str] = []

    def broker(messages: Sequence[MetricMessage]) -> Exception | None:
        values = [message.value.decode() for message in messages]
        if bad.intersection(values):
            refusal: Exception = MessageSizeTooLargeError("too large")
            return refusal
        arrived.extend(values)
        return None

    producers = 0
    while any(left(window)):
        producers += 1
        assert producers < 20
        producer = StandInProducer(broker)
        sender = sender_of(producer, window, warnings)
        usable = True
        while usable and any(left(window)):
            alone = window.at_a_time is not None
            sender.hand_over()
            if alone:
                assert sum(not future.is_done for future in producer.futures) == 1
            producer.answer_open()
            usable = sender.settle()

    assert arrived == [f"m{number}" for number in range(12) if f"m{number}" not in bad]
    assert [sum(each.refused for each in window.outgoing), len(warnings)] == [len(bad), len(bad)]


def pushed(
    rundir: RunDir,
    producer: StandInProducer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    clock: Callable[[], float],
) -> KafkaPusher:
    monkeypatch.setattr(pusher_module, "connect", lambda *_, **__: producer)
    monkeypatch.setattr(pusher_module, "release", lambda _: None)
    return KafkaPusher(kafka_job("nobody:1", "metrics"), rundir, rank=0, clock=clock)


class Acknowledging(StandInProducer):
    """Answers at once; `handed` is asked before."""

    def __init__(self, handed: Callable[[int], None]) -> None:
        super().__init__()
        self._handed = handed
        self._sent = 0

    def enqueue(self, messages: Any) -> FutureProduceResult:
        future = super().enqueue(messages)
        # What `encode` makes is bytes here: each record holds its number in a header called seq.
        self._sent += messages.count(b"\x06seq")
        self._handed(self._sent)
        self.answer(-1)
        return future


def test_after_a_kill_at_most_three_batches_are_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir = new_run(tmp_path)
    append_records(rundir, range(10 * MAX_RECORDS))
    ahead: list[int] = []
    producer = Acknowledging(lambda sent: ahead.append(sent - read_progress(rundir.kafka_offset).delivered))
    # A clock that stands still: the offset is never due by time.
    pusher = pushed(rundir, producer, monkeypatch, clock=lambda: 0.0)

    pusher.start()
    delivery = pusher.finish(time.monotonic() + 60)

    assert delivery.delivered == 10 * MAX_RECORDS
    assert max(ahead) <= 3 * MAX_RECORDS
    assert read_progress(rundir.kafka_offset).delivered == 10 * MAX_RECORDS


def test_the_offset_file_is_written_ten_times_a_second_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir = new_run(tmp_path)
    now = itertools.count()

    def clock() -> float:
        # Each look at it takes 10 ms.
        return next(now) / 100

    written: list[SendProgress] = []
    monkeypatch.setattr(pusher_module, "write_progress", lambda _, progress: written.append(progress))
    rest = iter(range(1, 50))

    def append(_: int) -> None:
        for seq in itertools.islice(rest, 1):
            append_records(rundir, [seq])

    append_records(rundir, [0])
    producer = Acknowledging(append)
    pusher = pushed(rundir, producer, monkeypatch, clock=clock)
    pusher.start()
    deadline = time.monotonic() + 60
    while pusher.delivered < 50:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pusher.finish(deadline)

    assert len(producer.batches) == 50
    assert 2 <= len(written) <= clock() / 0.1 + 1
    assert len(written) < 40
    assert written[-1].delivered == 50
