"""Runs `bai serve`: starts, connects and stops the parts of the service."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from bai_agent.errors import BaiError, ConnectError, RecordError, StoreError
from bai_agent.job.descriptor.sink_tables import Kafka
from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import dataclass
from bai_agent.sinks.kafka.library_log import quieten
from executor.backends import Backends
from executor.backends.ec2.bucket_store import bucket_store, open_bucket
from executor.backends.ec2.shared import Shared, sharing
from executor.backends.terminal import unattended
from executor.configuration.config import Settings
from executor.configuration.service_config import ServiceTable
from executor.errors import SendError
from executor.service.broker import PartitionOwnership, Sender
from executor.service.commands import Commands
from executor.service.counters import ServiceCounters
from executor.service.entries import Entries, Kind
from executor.service.event_queue import EventQueue
from executor.service.events.messages import message_writer
from executor.service.events.policy import bounded_limits
from executor.service.events.requests import read_request
from executor.service.intake import Intake
from executor.service.keyed_work_queue import KeyedWorkQueue, LaterError
from executor.service.reconciler import Reconciler
from executor.service.service_jobs import Jobs
from executor.service.service_log import about_action
from executor.service.status_reporter import StatusReporter
from executor.service.supervision import Supervisor

log = logging.getLogger(__name__)

_COMMANDS_AT_ONCE = 2
_END_S = 5.0


class Service:
    """Runs the jobs of the benchmark service until `stop` is called."""

    def __init__(
        self, settings: Settings, table: ServiceTable, kafka: Kafka, *, counters: ServiceCounters
    ) -> None:
        """Raises UsageError, StoreError if the configuration cannot be used."""
        settings = replace(
            settings,
            # The jobs' metrics are sent to the same Kafka cluster, unless the configuration names another
            # cluster.
            kafka=settings.kafka or kafka,
            limits=bounded_limits(settings.limits, table.bounds),
        )
        root = f"s3://{settings.need_bucket()}"
        settings.need_region()
        self._counters = counters
        self._entries = Entries(open_bucket(root, settings))
        self._sender = Sender(kafka, client_id=table.group)
        writer = message_writer(table.topics)
        self._jobs = Jobs(
            self._entries,
            Backends(settings=lambda: settings),
            writer=writer,
            send=self._sender.send,
            bounds=table.bounds,
            region=settings.region,
            counters=counters,
            now_ms=now_ms,
        )
        store, share = bucket_store(settings), PartitionOwnership()
        self._commands = Commands(
            self._entries, store, writer=writer, send=self._sender.send, counters=counters
        )
        reconciler = Reconciler(
            self._entries,
            store,
            settings,
            reporter=StatusReporter(writer=writer, dashboard=table.dashboard, said=counters.status),
            send=self._sender.send,
            holds=share.owns,
            counters=counters,
            describe=lambda entry: read_request(entry.event, table.bounds, region=settings.region).descriptor,
            every=table.look_interval,
        )
        self._supervisor = Supervisor(reconciler, share=share, every=table.look_interval)
        self._queue = (
            EventQueue(table.events_queue, settings, heard=self._supervisor.changed, counters=counters)
            if table.events_queue is not None
            else None
        )
        self._lanes = {
            Kind.JOB: KeyedWorkQueue(partial(self._work, Kind.JOB), at_once=table.launches, name="launch"),
            Kind.COMMAND: KeyedWorkQueue(
                partial(self._work, Kind.COMMAND), at_once=_COMMANDS_AT_ONCE, name="command"
            ),
        }
        self._intake = Intake(
            kafka,
            table,
            # The poll loop uses a store whose requests fail fast, because the loop must not wait for an
            # unreachable store.
            Entries(open_bucket(root, settings, quick=True)),
            accepted=self._accepted,
            share=share,
            counters=counters,
            now_ms=now_ms,
        )
        self._shared = Shared()
        self._stopping = threading.Event()
        self._recovery = Recovery(self._entries, share, take_up=self._add, looked=self._looked)

    def stop(self) -> None:
        """Make `run` return soon. `stop` may be called in signal handlers."""
        self._stopping.set()

    def run(self) -> bool:
        """Serve until `stop` is called. Return whether all work in progress was finished. The next start of
        the service continues unfinished work."""
        quieten()
        for lanes in self._lanes.values():
            lanes.start()
        recovery = threading.Thread(
            target=self._recovery.run, args=(self._stopping,), name="recovery", daemon=True
        )
        recovery.start()
        self._supervisor.start()
        if self._queue is not None:
            self._queue.start()
        try:
            self._intake.run(self._stopping)
        finally:
            self._stopping.set()
            if self._queue is not None:
                self._queue.stop()
            deadline = time.monotonic() + _END_S
            ended = [
                each.stop(timeout_s=max(0.0, deadline - time.monotonic())) for each in self._lanes.values()
            ]
            ended.append(self._supervisor.stop(timeout_s=max(0.0, deadline - time.monotonic())))
            recovery.join(max(0.0, deadline - time.monotonic()))
            self._sender.close()
        return all(ended) and not recovery.is_alive()

    def _accepted(self, name: str, kind: Kind, client_id: str) -> None:
        self._recovery.accepted(name, client_id)
        self._add(name, kind, client_id)

    def _add(self, name: str, kind: Kind, client_id: str) -> None:
        self._lanes[kind].add(client_id, name)

    def _looked(self, open_entries: int) -> None:
        self._counters.open_entries.set(open_entries)
        for kind, lanes in self._lanes.items():
            self._counters.waiting.labels(kind.value).set(lanes.waiting)

    def _work(self, kind: Kind, name: str) -> None:
        """Do everything that is due for an entry. Raises LaterError."""
        try:
            entry = self._entries.read(name)
            if entry is None or not self._recovery.is_ours(name, entry.owner.client_id):
                return
            with about_action(entry.event.action_id), unattended(), sharing(self._shared):
                (self._jobs if kind is Kind.JOB else self._commands).process(entry)
            self._recovery.settle(name)
            if kind is Kind.JOB:
                self._supervisor.launched(name, entry.owner.client_id)
        except LaterError as error:
            if error.after_s is None:
                self._counters.retries.inc()
            raise
        except BaiError as error:
            if isinstance(error, (StoreError, SendError, ConnectError)) and not isinstance(
                error, RecordError
            ):
                self._counters.retries.inc()
                raise LaterError(str(error)) from error
            log.error("%s: %s; the entry is not processed any further", name, error)  # noqa: TRY400 - a sentence says it
            self._recovery.settle(name)


_EVERY_S = 60.0
_SHARE_LOOK_S = 1.0
"""Time between two checks of this replica's partitions (seconds)."""


@dataclass(frozen=True, kw_only=True)
class _Known:
    """Those properties of an open entry that never change."""

    kind: Kind
    client_id: str
    received_ms: int


class Recovery:
    """Finds and adopts open entries on which no replica is working."""

    def __init__(
        self,
        entries: Entries,
        share: PartitionOwnership,
        *,
        take_up: Callable[[str, Kind, str], None],
        looked: Callable[[int], None],
    ) -> None:
        """take_up: called with an adopted entry, and the entry's kind and client. looked: called after each
        check with the number of open entries."""
        self._entries = entries
        self._share = share
        self._take_up = take_up
        self._looked = looked
        self._settled: set[str] = set()
        """Open entries for which this version of `bai` has nothing left to do."""
        self._unshared: set[str] = set()
        """Entries that this replica accepted although their client belongs to another replica. A replica gets
        the event of a client of another replica if the event's Kafka key is not the client id."""
        self._known: dict[str, _Known] = {}
        self._seen: set[str] = set()
        self._version = -1

    def run(self, stopping: threading.Event) -> None:
        """Check the open entries now, each minute, and after each change of this replica's partitions."""
        due = 0.0
        while not stopping.is_set():
            if time.monotonic() >= due or self._share.version != self._version:
                due = time.monotonic() + (_EVERY_S if self.look() else _SHARE_LOOK_S)
            stopping.wait(_SHARE_LOOK_S)

    def look(self) -> bool:
        """Adopt the open entries that belong to this replica; return whether the open entries could be
        listed."""
        version = self._share.version
        before = {*self._settled, *self._unshared}
        try:
            names = self._entries.open_names()
        except StoreError as error:
            log.warning("the open entries cannot be listed: %s", error)
            return False
        there = set(names)
        # Entries that were accepted during the listing are missing in the list, but must not be forgotten.
        for kept in (self._settled, self._unshared):
            kept -= before - there
        self._known = {name: known for name, known in self._known.items() if name in there}
        for name, known in self._unattended(names, changed=version != self._version):
            self._take_up(name, known.kind, known.client_id)
        self._seen, self._version = there, version
        self._looked(len(names))
        return True

    def _unattended(self, names: Sequence[str], *, changed: bool) -> list[tuple[str, _Known]]:
        """Return the entries to be adopted, the oldest first. changed: whether this replica's partitions have
        changed since the last check."""
        first = self._version < 0
        # An entry that was accepted after the last check is processed by the replica that accepted it, unless
        # the partitions have changed.
        open_ = [name for name in names if name not in self._settled and (changed or name in self._seen)]
        read = [(name, known) for name in open_ if (known := self._read(name)) is not None]
        found = [each for each in read if first or self._share.owns(each[1].client_id)]
        return sorted(found, key=lambda each: each[1].received_ms)

    def accepted(self, name: str, client_id: str) -> None:
        """Record that this replica accepted an event. The replica processes the event, even if the client
        belongs to another replica."""
        if not self._share.may_own(client_id):
            self._unshared.add(name)

    def settle(self, name: str) -> None:
        """Record that nothing is left to be done for an entry."""
        self._settled.add(name)

    def is_ours(self, name: str, client_id: str) -> bool:
        """Return whether an adopted entry still belongs to this replica."""
        return name in self._unshared or self._share.may_own(client_id)

    def _read(self, name: str) -> _Known | None:
        if name in self._known:
            return self._known[name]
        try:
            entry = self._entries.read(name)
        except StoreError as error:
            log.warning("%s", error)
            if isinstance(error, RecordError):
                self.settle(name)
            return None
        if entry is None:
            return None
        self._known[name] = _Known(
            kind=entry.kind, client_id=entry.owner.client_id, received_ms=entry.received_ms
        )
        return self._known[name]
