"""Sends batches of messages in order, through one producer of kafka-python, and processes the broker's
answers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bai_agent.errors import NotAcknowledgedError
from bai_agent.sinks.backlog import MAX_RECORDS, Batch
from bai_agent.sinks.kafka.library_log import last_trouble
from bai_agent.sinks.kafka.metric_messages import MetricMessage, MetricMessageWriter, enqueue, failure_of

# kafka-python is imported in functions, because its imports take half a second and most jobs have no Kafka.
if TYPE_CHECKING:
    from kafka import KafkaProducer

MAX_IN_FLIGHT = 3
"""Largest number of batches that the producer holds. After a kill of the agent, these batches are possibly
sent twice."""
_ANSWER_SECONDS = 60.0
_END_SECONDS = 1.0
"""Longest wait until a stopped producer's thread releases its batches (seconds)."""


@dataclass
class Outgoing:
    """A batch that is being sent. A reconnection keeps this object, so that a refused message is not sent
    again for ever."""

    batch: Batch[MetricMessage]
    messages: list[MetricMessage]
    """Messages of the batch that the broker has neither acknowledged nor refused."""
    handed: int = 0
    """Number of messages, from the first one in `messages` on, that were passed to the producer."""
    refused: int = 0


@dataclass
class SendWindow:
    """All batches that are being sent, in the order of the file."""

    outgoing: deque[Outgoing] = field(default_factory=deque)
    at_a_time: int | None = None
    """Number of messages that are sent at a time after a refusal. None if whole batches are sent."""

    @property
    def pending(self) -> int:
        """Number of messages that the broker has neither acknowledged nor refused."""
        return sum(len(each.messages) for each in self.outgoing)


@dataclass(frozen=True)
class _Group:
    outgoing: Outgoing
    count: int
    future: Any
    deadline: float


class BatchSender:
    """Sends the batches of `window` through one producer, and sets `wake` when an answer arrives."""

    def __init__(
        self,
        producer: KafkaProducer,
        window: SendWindow,
        *,
        topic: str,
        writer: MetricMessageWriter,
        wake: threading.Event,
        warn: Callable[[str], None],
    ) -> None:
        self._producer = producer
        self._window = window
        self._topic = topic
        self._writer = writer
        self._wake = wake
        self._warn = warn
        self._groups: deque[_Group] = deque()
        self._failure: Exception | None = None
        for each in window.outgoing:
            each.handed = 0

    @property
    def waits(self) -> bool:
        """Whether no further group can be handed to the producer until an answer arrives."""
        return len(self._groups) >= (MAX_IN_FLIGHT if self._window.at_a_time is None else 1)

    def hand_over(self) -> None:
        """Hand the next messages to the producer, up to MAX_IN_FLIGHT groups. Raises NotAcknowledgedError."""
        from kafka.errors import KafkaError

        for outgoing in self._window.outgoing:
            while outgoing.handed < len(outgoing.messages) and not self.waits:
                start = outgoing.handed
                group = outgoing.messages[start : start + (self._window.at_a_time or MAX_RECORDS)]
                try:
                    future = enqueue(
                        self._producer,
                        topic=self._topic,
                        key=self._writer.key,
                        records=self._writer.encoder.encode(group),
                        count=len(group),
                    )
                except KafkaError as error:
                    reason = last_trouble() or error
                    raise NotAcknowledgedError(
                        f"Kafka takes no messages for topic {self._topic}: {reason}"
                    ) from error
                outgoing.handed += len(group)
                self._groups.append(_Group(outgoing, len(group), future, time.monotonic() + _ANSWER_SECONDS))
                future.add_callback(self._answered, future)

    def settle(self) -> bool:
        """Update the window with the answers that have arrived. Return whether the producer can still be
        used.

        After a refusal, the producer cannot be used any more, because a refusal is fatal for an idempotent
        producer. The refused group is sent again in halves, each half alone, until the refused message is
        found. Raises NotAcknowledgedError.
        """
        failed = self._failure is not None
        if failed:
            self._await_end()
        self._take_acknowledged()
        if failed:
            self._take_failure()
            return False
        if self._groups and time.monotonic() > self._groups[0].deadline:
            raise self.unanswered()
        return True

    def _take_acknowledged(self) -> None:
        while self._groups and (group := self._groups[0]).future.is_done and failure_of(group.future) is None:
            del group.outgoing.messages[: group.count]
            group.outgoing.handed -= group.count
            self._groups.popleft()
            if self._window.at_a_time is not None:
                self._window.at_a_time = 2 * group.count if 2 * group.count < MAX_RECORDS else None

    def _take_failure(self) -> None:
        """Handle a refusal of the first group of messages by the broker. Raises NotAcknowledgedError for any other
        failure."""
        from kafka.errors import InvalidRecordError, InvalidTimestampError, MessageSizeTooLargeError

        refusals = (InvalidRecordError, InvalidTimestampError, MessageSizeTooLargeError)
        group = self._groups[0]
        # Only the answer to this group counts, because a message must be dropped only if the broker refused
        # exactly that message.
        failure = failure_of(group.future) if group.future.is_done else None
        if not isinstance(failure, refusals):
            raise NotAcknowledgedError(
                f"Kafka did not acknowledge {self._open} messages for topic {self._topic}: {last_trouble() or self._failure}"
            )
        self._window.at_a_time = max(1, group.count // 2)
        if group.count == 1:
            self._warn(f"Kafka refuses a message for topic {self._topic}: {failure}")
            group.outgoing.messages.pop(0)
            group.outgoing.refused += 1

    def unanswered(self) -> NotAcknowledgedError:
        """Return the error for messages that are still not acknowledged at their deadline."""
        trouble = last_trouble()
        return NotAcknowledgedError(
            f"{self._open} messages for topic {self._topic} were still not acknowledged when the time was up"
            + (f": {trouble}" if trouble else "")
        )

    @property
    def _open(self) -> int:
        return sum(group.count for group in self._groups)

    def _answered(self, future: Any, _: object) -> None:
        """Handle a broker's answer. Called on the producer's thread, before that thread sends anything
        else."""
        failure = failure_of(future)
        if failure is not None and self._failure is None:
            self._failure = failure
            # Later records must not arrive before a failed message that precedes them. Therefore, the
            # producer is closed, and the next producer sends all of them again.
            self._producer._sender.force_close()
        self._wake.set()

    def _await_end(self) -> None:
        deadline = time.monotonic() + _END_SECONDS
        for group in self._groups:
            group.future.wait(max(0.0, deadline - time.monotonic()))
