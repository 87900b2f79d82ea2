"""A message is kept before it is sent, and sent again as it was kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from service_events import cancel_event, encoded, fetcher_event

from bai_agent.job.store.directory import DirectoryStore
from executor.configuration.service_config import Topics
from executor.errors import MessageTooLargeError, SendError
from executor.service.events.event import read_event
from executor.service.events.messages import AppStatus, Message, MessageWriter, ReturnCode
from executor.service.outbox import Outbox


class Wire:
    """Takes messages; fails as often as it is told to."""

    def __init__(self, *, failures: int = 0, most: int = 1_000_000) -> None:
        self.sent: list[Message] = []
        self.failures = failures
        self.most = most
        """Characters of a message."""

    def send(self, message: Message) -> None:
        if len(message.value) > self.most:
            raise MessageTooLargeError("too large")
        if self.failures:
            self.failures -= 1
            raise SendError("away")
        self.sent.append(message)


def message(text: str) -> Message:
    return Message(topic="t", key="k", value=text)


def outbox(folder: Path, wire: Wire) -> Outbox:
    return Outbox(DirectoryStore(folder), "job-1", wire.send)


def test_a_message_is_sent_once(tmp_path: Path) -> None:
    wire = Wire()

    for _ in range(3):
        outbox(tmp_path, wire).post("00-pending", lambda: message("one"))

    assert wire.sent == [message("one")]


def test_an_unacknowledged_message_is_sent_again_unchanged(tmp_path: Path) -> None:
    wire = Wire(failures=1)
    with pytest.raises(SendError):
        outbox(tmp_path, wire).post("00-pending", lambda: message("first"))

    again = outbox(tmp_path, wire).post("00-pending", lambda: message("second"))

    assert again == message("first")
    assert wire.sent == [message("first")]


def test_the_first_of_two_concurrent_messages_is_sent_by_both(tmp_path: Path) -> None:
    wire = Wire()
    one, other = outbox(tmp_path, wire), outbox(tmp_path, wire)
    assert not one.is_kept("01-answer")
    assert not other.is_kept("01-answer")

    decided = [one.keep("01-answer", lambda: message("yes")), other.keep("01-answer", lambda: message("no"))]

    assert decided == [message("yes")] * 2


def test_a_process_that_lost_a_race_reads_all_messages_of_the_winner(tmp_path: Path) -> None:
    wire = Wire()
    one, other = outbox(tmp_path, wire), outbox(tmp_path, wire)
    assert not other.is_kept("01-answer")
    one.keep("02-executor", lambda: message("job"))
    one.keep("01-answer", lambda: message("yes"))

    assert other.keep("01-answer", lambda: message("no")) == message("yes")

    assert other.is_kept("02-executor")


def test_a_stored_message_is_not_sent_before_it_is_posted(tmp_path: Path) -> None:
    wire = Wire()

    outbox(tmp_path, wire).keep("02-executor", lambda: message("job"))

    assert wire.sent == []
    assert not outbox(tmp_path, wire).is_sent("02-executor")
    assert outbox(tmp_path, wire).is_kept("02-executor")


def test_a_message_too_large_for_the_broker_is_sent_without_the_event(tmp_path: Path) -> None:
    writer = MessageWriter(topics=Topics(), version="1", node=None, now_ms=lambda: 7, new_id=lambda: "id")
    source = read_event(encoded(fetcher_event(payload={"x": "x" * 5000})))
    command = read_event(encoded(cancel_event(["x", True])))
    made = {
        "00-pending": writer.status(source, AppStatus.PENDING, "text", about=source.table),
        "02-executor": writer.executor_event(source, {"id": "job-1"}),
        "00-answer": writer.command_response(command, ReturnCode.DONE, "done", ["x" * 2000]),
    }
    wire = Wire(most=2000)

    for name, each in made.items():
        for _ in range(2):
            outbox(tmp_path, wire).post(name, lambda each=each: each)  # type: ignore[misc]

    # Once each, and all that is not the event is as it was.
    payloads = [each.table["payload"] for each in wire.sent]
    assert payloads == [
        {"message": "text", "status": "PENDING", "src_event": None},
        {"job": {"id": "job-1"}},
        {"return_code": 0, "message": "done", "cmd_submit": None, "return_value": None},
    ]
    for message, whole in zip(wire.sent, made.values(), strict=True):
        assert (message.topic, message.key) == (whole.topic, whole.key)
        left_out = {"payload", "visited"}
        assert {k: v for k, v in message.table.items() if k not in left_out} == {
            k: v for k, v in whole.table.items() if k not in left_out
        }
        assert message.table["visited"] == whole.table["visited"][-1:]
