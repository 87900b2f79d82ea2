"""Takes events from Kafka. Each event is stored before its offset is committed. Other threads process the
stored events."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bai_agent.backoff import Backoff
from bai_agent.errors import BaiError, ConnectError, RecordError, StoreError
from bai_agent.job.descriptor.sink_tables import Kafka
from executor.configuration.service_config import ServiceTable
from executor.errors import MessageTooLargeError, SendError, UnreadableEventError
from executor.service.broker import (
    PartitionOwnership,
    Rebalance,
    Sender,
    consumer_lag,
    make_topics,
    open_consumer,
)
from executor.service.counters import ServiceCounters
from executor.service.entries import MAX_EVENT, Entries, Kind
from executor.service.events.event import Event, read_event
from executor.service.events.requests import is_ours
from executor.service.service_log import about_action

if TYPE_CHECKING:
    from kafka import KafkaConsumer

TRIES = 3
AGAIN_S = 60.0
"""Time between two attempts to send an unreadable message to the topic of unreadable messages, after `TRIES`
failed attempts (seconds)."""


class DeadLetters:
    """Sends messages that cannot be read to a topic of their own, or stores them in the bucket. Only one
    thread may use a `DeadLetters`."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        entries: Entries,
        *,
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """send: function that sends a message to the topic of unreadable messages; raises
        MessageTooLargeError, or another BaiError if the message cannot be sent now."""
        self._send = send
        self._entries = entries
        self._now_ms = now_ms
        self._clock = clock
        self._failed = 0
        self._again = 0.0

    def keep(self, topic: str, partition: int, offset: int, *, value: bytes | None, reason: str) -> None:
        """Send the message at `offset` to the topic. After some failed attempts the message is stored in the
        bucket instead, so that a broken topic does not block later messages forever. Raises the errors of
        `send`, and StoreError, if the message can be neither sent nor stored now.
        """
        content = value or b""
        letter = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "tstamp": self._now_ms(),
            "reason": reason,
            "size": len(content),
            "value_base64": base64.b64encode(content).decode() if len(content) <= MAX_EVENT // 2 else None,
        }
        message = json.dumps(letter).encode()
        if not self._is_sent(message):
            self._entries.keep_letter(f"{topic}-{partition}-{offset}", message)

    def _is_sent(self, message: bytes) -> bool:
        if self._failed >= TRIES and self._clock() < self._again:
            return False
        try:
            self._send(message)
        except MessageTooLargeError as error:
            log.warning("%s; the message is kept in the bucket", error)
            return False
        except BaiError as error:
            self._failed += 1
            self._again = self._clock() + AGAIN_S
            if self._failed < TRIES:
                raise
            log.warning("%s; messages that cannot be read are kept in the bucket", error)
            return False
        self._failed = 0
        return True


log = logging.getLogger(__name__)

COMMANDS = ("cancel",)
"""Commands in CMD_SUBMIT that this service supports."""
_POLL_MS = 500
_ROUNDS = 4
"""Number of polling rounds that must fit into `max_poll_interval`. A round ends early if it has used its
share of the interval."""
_COMMIT_MS = 5_000
_CLOSE_MS = 3_000
_LONGEST_REBALANCE_S = 30.0
"""Duration of a rebalance after which a new consumer is opened (seconds). A rebalance waits for each replica
at most for the session timeout of 10 s."""
_LAG_EVERY_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


class Intake:
    """The poll loop of the service. No step of the loop takes longer than a few seconds, so that the broker
    does not revoke the partitions of this replica."""

    def __init__(
        self,
        kafka: Kafka,
        table: ServiceTable,
        entries: Entries,
        *,
        accepted: Callable[[str, Kind, str], None],
        share: PartitionOwnership,
        counters: ServiceCounters,
        now_ms: Callable[[], int],
    ) -> None:
        """entries: the entries, in a store whose requests fail fast. accepted: called with the name, kind and
        client of each accepted entry. share: object that is told the partitions of this replica."""
        self._kafka = kafka
        self._table = table
        self._entries = entries
        self._accepted = accepted
        self._share = share
        self._counters = counters
        self._now_ms = now_ms
        self._sender = Sender(kafka, client_id=f"{table.group}-letters")
        self._letters = DeadLetters(
            lambda message: self._sender.send_bytes(table.dead_letter_topic, None, message),
            entries,
            now_ms=now_ms,
        )
        self._hold_until = 0.0
        self._hold = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._lag_at = 0.0

    def run(self, stopping: threading.Event) -> None:
        """Take events until `stopping`. Reconnects without a limit of attempts."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        from kafka.errors import KafkaError

        try:
            while not stopping.is_set():
                try:
                    self._poll(stopping, backoff)
                    continue
                except ConnectError as error:
                    log.warning("%s", error)
                except KafkaError as error:
                    log.warning("Kafka: %s; connecting again", error)
                except Exception:
                    # An unexpected error in the service or in kafka-python must not end the service.
                    log.exception("the poll loop failed because of a defect; connecting again")
                self._counters.disconnected()
                stopping.wait(backoff.next())
        finally:
            self._sender.close()

    def _poll(self, stopping: threading.Event, backoff: Backoff) -> None:
        """Take events with a new consumer, until `stopping` is set or a rebalance does not end. Raises
        ConnectError, KafkaError."""
        make_topics(self._kafka, self._table)
        rebalance = Rebalance(assigned=self._counters.assignments.inc)
        consumer = open_consumer(self._kafka, self._table, rebalance)
        try:
            while not stopping.is_set():
                self._round(consumer)
                waiting_s = rebalance.seconds
                if waiting_s is None:
                    self._counters.polled()
                    backoff.reset()
                elif waiting_s > _LONGEST_REBALANCE_S:
                    log.warning("Kafka: the rebalance does not end; connecting again")
                    return
        finally:
            consumer.close(autocommit=False, timeout_ms=_CLOSE_MS)

    def _round(self, consumer: KafkaConsumer) -> None:
        self._pause_or_resume(consumer)
        done = self._take_all(consumer, consumer.poll(timeout_ms=_POLL_MS))
        if done:
            self._commit(consumer, done)
        topic = self._table.topics.fetcher
        held = [each.partition for each in consumer.assignment() if each.topic == topic]
        # `partitions_for_topic` is called only for topics that the service consumes, because the library
        # waits without a limit for a topic without metadata.
        self._share.update(held, len(consumer.partitions_for_topic(topic) or ()) if held else 0)
        if time.monotonic() > self._lag_at:
            self._lag_at = time.monotonic() + _LAG_EVERY_S
            if (behind := consumer_lag(consumer, list(consumer.assignment()))) is not None:
                self._counters.lag.set(behind)

    @property
    def _is_holding(self) -> bool:
        """Whether polling pauses because an event could not be stored a short time ago."""
        return time.monotonic() < self._hold_until

    def _pause_or_resume(self, consumer: KafkaConsumer) -> None:
        if self._is_holding:
            consumer.pause(*consumer.assignment())
        elif consumer.paused():
            consumer.resume(*consumer.paused())

    def _take_all(self, consumer: KafkaConsumer, polled: Mapping[Any, Sequence[Any]]) -> dict[Any, Any]:
        """Store the polled messages; return the new offsets. The remaining messages of a partition are polled
        again later if a message cannot be stored, or if the round has used its time."""
        from kafka.structs import OffsetAndMetadata

        done: dict[Any, Any] = {}
        late = time.monotonic() + self._table.max_poll_interval.total_seconds() / _ROUNDS
        for partition, records in polled.items():
            for record in records:
                # The round ends early if the store is slow, because the next poll must not be late.
                if time.monotonic() > late or not self._is_kept(record):
                    consumer.seek(partition, record.offset)
                    break
                done[partition] = OffsetAndMetadata(record.offset + 1, "", -1)
        return done

    def _is_kept(self, record: Any) -> bool:
        """Store a message of the topic before the message's offset is committed; return whether the message
        was stored."""
        if self._is_holding:
            return False
        try:
            self._take(record)
        except (StoreError, SendError, ConnectError) as error:
            log.warning("an event cannot be stored now, and is polled again later: %s", error)
            self._hold_until = time.monotonic() + self._hold.next()
            return False
        self._hold.reset()
        return True

    def _commit(self, consumer: KafkaConsumer, offsets: dict[Any, Any]) -> None:
        from kafka.errors import KafkaError

        try:
            consumer.commit(offsets, timeout_ms=_COMMIT_MS)
        except KafkaError as error:
            # The offsets could not be committed. Kafka delivers these messages again, to this replica or to
            # the partition's new owner, which finds that they are already stored.
            log.warning("Kafka: the offsets could not be committed: %s", error)

    def _take(self, record: Any) -> None:
        """Store one message. Raises StoreError, SendError and ConnectError if the message cannot be stored
        now."""
        of_fetcher = record.topic == self._table.topics.fetcher
        kind = Kind.JOB if of_fetcher else Kind.COMMAND
        try:
            event = read_event(record.value)
            wanted = is_ours(event, self._table.engine_ids) if of_fetcher else _is_command(event)
        except UnreadableEventError as error:
            self._counters.events.labels(kind.value, "unreadable").inc()
            log.warning("%s[%d] at %d: %s", record.topic, record.partition, record.offset, error)
            self._keep_letter(record, error)
            return
        if not wanted:
            self._counters.events.labels(kind.value, "ignored").inc()
            return
        with about_action(event.action_id):
            try:
                name = self._entries.accept(kind, event, received_ms=self._now_ms(), size=len(record.value))
            except RecordError as error:
                # The object in the store is broken and will not change, so waiting would only delay all later
                # messages.
                self._counters.events.labels(kind.value, "unreadable").inc()
                log.warning("%s", error)
                self._keep_letter(record, error)
                return
            self._counters.events.labels(kind.value, "accepted").inc()
            log.info("accepted from %s as %s", record.topic, name)
        self._accepted(name, kind, event.client_id)

    def _keep_letter(self, record: Any, reason: BaiError) -> None:
        self._letters.keep(
            record.topic, record.partition, record.offset, value=record.value, reason=str(reason)
        )


def _is_command(event: Event) -> bool:
    """Return whether the service supports the command. Raises UnreadableEventError if the event names no
    command."""
    command = event.payload.get("command")
    if not isinstance(command, str):
        raise UnreadableEventError("payload.command is missing or not a text")
    return command in COMMANDS
