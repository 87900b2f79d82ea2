"""Takes events from Kafka: each is kept in the store before its offset is committed, and worked on elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bai_agent.backoff import Backoff
from bai_agent.errors import BaiError, StoreError
from bai_agent.job.descriptor import Kafka
from bai_agent.job.store import RecordError
from bai_agent.sinks.kafka.connection import ConnectError
from executor.service.broker import (
    Rebalance,
    Sender,
    SendError,
    lag_of,
    make_topics,
    open_consumer,
)
from executor.service.counters import ServiceCounters
from executor.service.entries import Entries, Kind
from executor.service.event import Event, UnreadableEventError, read_event
from executor.service.letters import DeadLetters
from executor.service.log import about_action
from executor.service.requests import is_ours
from executor.service.share import Share
from executor.service_config import ServiceTable

if TYPE_CHECKING:
    from kafka import KafkaConsumer

log = logging.getLogger(__name__)

COMMANDS = ("cancel",)
"""What we do of what CMD_SUBMIT may ask for."""
_POLL_MS = 500
_ROUNDS = 4
"""In a `max_poll_interval`, at least: nothing more is begun in a round that has taken its part of it."""
_COMMIT_MS = 5_000
_CLOSE_MS = 3_000
_LONGEST_REBALANCE_S = 30.0
"""Then a new consumer joins the group: a rebalance waits for no replica longer than for its session's time-out, 10 s."""
_LAG_EVERY_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


class Intake:
    """The poll loop. Nothing in it takes longer than some seconds, so that the broker never takes its partitions away."""

    def __init__(
        self,
        kafka: Kafka,
        table: ServiceTable,
        entries: Entries,
        *,
        accepted: Callable[[str, Kind, str], None],
        share: Share,
        counters: ServiceCounters,
        now_ms: Callable[[], int],
    ) -> None:
        """entries: of a store that fails fast. accepted: called with an entry, its kind, and whose it is. share: hears what is ours."""
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
        """Take events until `stopping`. Reconnects for as long as it takes."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        from kafka.errors import KafkaError

        try:
            while not stopping.is_set():
                try:
                    make_topics(self._kafka, self._table)
                    rebalance = Rebalance(assigned=self._counters.assigned)
                    consumer = open_consumer(self._kafka, self._table, rebalance)
                except ConnectError as error:
                    self._counters.disconnected()
                    log.warning("%s", error)
                    stopping.wait(backoff.next())
                    continue
                try:
                    try:
                        while not stopping.is_set():
                            self._round(consumer)
                            waiting_s = rebalance.seconds
                            if waiting_s is None:
                                self._counters.polled()
                                backoff.reset()
                            elif waiting_s > _LONGEST_REBALANCE_S:
                                log.warning("Kafka: the rebalance does not end; connecting again")
                                break
                    finally:
                        consumer.close(autocommit=False, timeout_ms=_CLOSE_MS)
                except KafkaError as error:
                    self._counters.disconnected()
                    log.warning("Kafka: %s; connecting again", error)
                    stopping.wait(backoff.next())
                except Exception:
                    # The loop's outermost frame: a defect, ours or the library's, must not end the service.
                    self._counters.disconnected()
                    log.exception("the poll loop failed by a defect; connecting again")
                    stopping.wait(backoff.next())
        finally:
            self._sender.close()

    def _round(self, consumer: KafkaConsumer) -> None:
        from kafka.structs import OffsetAndMetadata

        holding = time.monotonic() < self._hold_until
        if holding:
            consumer.pause(*consumer.assignment())
        elif consumer.paused():
            consumer.resume(*consumer.paused())
        done: dict[Any, Any] = {}
        polled = consumer.poll(timeout_ms=_POLL_MS)
        late = time.monotonic() + self._table.max_poll_interval.total_seconds() / _ROUNDS
        for partition, records in polled.items():
            for record in records:
                if time.monotonic() > late:
                    # The store is slow: the rest comes again with the next poll, which must not be late.
                    consumer.seek(partition, record.offset)
                    break
                try:
                    if holding:
                        raise StoreError("the store was away a moment ago")
                    self._take(record)
                except (StoreError, SendError, ConnectError) as error:
                    if not holding:
                        log.warning("an event waits, as it cannot be kept now: %s", error)
                        self._hold_until = time.monotonic() + self._hold.next()
                        holding = True
                    consumer.seek(partition, record.offset)
                    break
                self._hold.reset()
                done[partition] = OffsetAndMetadata(record.offset + 1, "", -1)
        if done:
            self._commit(consumer, done)
        topic = self._table.topics.fetcher
        held = [each.partition for each in consumer.assignment() if each.topic == topic]
        # Asked only where it is known: for a topic without metadata the library waits for them, however long that takes.
        self._share.update(held, len(consumer.partitions_for_topic(topic) or ()) if held else 0)
        if time.monotonic() > self._lag_at:
            self._lag_at = time.monotonic() + _LAG_EVERY_S
            self._counters.lag(lag_of(consumer, list(consumer.assignment())))

    def _commit(self, consumer: KafkaConsumer, offsets: dict[Any, Any]) -> None:
        from kafka.errors import KafkaError

        try:
            consumer.commit(offsets, timeout_ms=_COMMIT_MS)
        except KafkaError as error:
            # They come once more, to us or to who has the partition now, and are found to be kept.
            log.warning("Kafka: the offsets could not be committed: %s", error)

    def _take(self, record: Any) -> None:
        """Keep one message. Raises StoreError, SendError and ConnectError where that cannot be done now."""
        of_fetcher = record.topic == self._table.topics.fetcher
        kind = Kind.JOB if of_fetcher else Kind.COMMAND
        try:
            event = read_event(record.value)
            wanted = is_ours(event, self._table.engine_ids) if of_fetcher else _is_command(event)
        except UnreadableEventError as error:
            self._counters.event(kind.value, "unreadable")
            log.warning("%s[%d] at %d: %s", record.topic, record.partition, record.offset, error)
            self._keep_letter(record, error)
            return
        if not wanted:
            self._counters.event(kind.value, "ignored")
            return
        with about_action(event.action_id):
            try:
                name = self._entries.accept(kind, event, received_ms=self._now_ms(), size=len(record.value))
            except RecordError as error:
                # What is in the store stays as it is, so waiting would hold up all that comes behind.
                self._counters.event(kind.value, "unreadable")
                log.warning("%s", error)
                self._keep_letter(record, error)
                return
            self._counters.event(kind.value, "accepted")
            log.info("accepted from %s as %s", record.topic, name)
        self._accepted(name, kind, event.client_id)

    def _keep_letter(self, record: Any, reason: BaiError) -> None:
        self._letters.keep(
            record.topic, record.partition, record.offset, value=record.value, reason=str(reason)
        )


def _is_command(event: Event) -> bool:
    """Return whether a command is one that we know. Raises UnreadableEventError where it says none."""
    command = event.payload.get("command")
    if not isinstance(command, str):
        raise UnreadableEventError("payload.command is missing or not a text")
    return command in COMMANDS
