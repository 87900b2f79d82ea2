"""An unreadable message is stored, even if the topic for such messages fails."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from bai_agent.job.store.directory import DirectoryStore
from executor.errors import MessageTooLargeError, SendError
from executor.service.entries import Entries
from executor.service.intake import AGAIN_S, TRIES, DeadLetters


class Topic:
    """Takes letters, unless it is told what is wrong; a clock that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.trouble: Exception | None = None
        self.tried = 0
        self.sent: list[bytes] = []
        self.now = 100.0
        self.store = DirectoryStore(folder)
        self.letters = DeadLetters(self.send, Entries(self.store), now_ms=lambda: 7, clock=lambda: self.now)

    def send(self, message: bytes) -> None:
        self.tried += 1
        if self.trouble is not None:
            raise self.trouble
        self.sent.append(message)

    def keep(self, offset: int) -> None:
        self.letters.keep("t", 1, offset, value=b"broken", reason="why")

    @property
    def kept(self) -> list[str]:
        return [each.key for each in self.store.find("service/")]


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return Topic(tmp_path)


def test_a_dead_letter_has_the_message_and_the_reason(topic: Topic) -> None:
    topic.keep(5)

    (letter,) = map(json.loads, topic.sent)
    assert (letter["topic"], letter["partition"], letter["offset"], letter["reason"]) == ("t", 1, 5, "why")
    assert base64.b64decode(letter["value_base64"]) == b"broken"
    assert topic.kept == []


def test_dead_letters_go_to_the_bucket_if_their_topic_keeps_failing(topic: Topic) -> None:
    # given a topic that fails
    topic.trouble = SendError("away")
    for _ in range(TRIES - 1):
        with pytest.raises(SendError):
            topic.keep(5)

    # when it is tried once more, and more comes
    topic.keep(5)
    topic.keep(6)

    # then all is in the bucket, and no more time was lost
    assert topic.kept == ["service/_letters/t-1-5.json", "service/_letters/t-1-6.json"]
    assert json.loads(topic.store.get(topic.kept[0]))["reason"] == "why"
    assert topic.tried == TRIES
    # and when it works again, it is used again
    topic.now += AGAIN_S
    topic.trouble = None
    topic.keep(7)
    assert len(topic.sent) == 1


def test_a_dead_letter_too_large_for_kafka_goes_to_the_bucket_at_once(topic: Topic) -> None:
    topic.trouble = MessageTooLargeError("too large")

    topic.keep(5)

    assert topic.kept == ["service/_letters/t-1-5.json"]
