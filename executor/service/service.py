"""`bai serve`: puts the parts together, and ends them."""

from __future__ import annotations

import logging
import platform
import threading
import time
import uuid
from dataclasses import replace
from functools import partial

from bai_agent import __version__
from bai_agent.errors import BaiError, StoreError
from bai_agent.job.descriptor import Kafka
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store import RecordError
from bai_agent.sinks.kafka.connection import ConnectError
from bai_agent.sinks.kafka.library_log import quieten
from executor.backends import Backends
from executor.backends.ec2.job_store import bucket_store, open_bucket
from executor.backends.ec2.shared import Shared, sharing
from executor.config import Settings
from executor.service.broker import MessageTooLargeError, Sender, SendError
from executor.service.commands import Commands
from executor.service.counters import ServiceCounters
from executor.service.entries import Entries, Kind
from executor.service.event_queue import EventQueue
from executor.service.intake import Intake
from executor.service.jobs import Jobs
from executor.service.lanes import Lanes, LaterError
from executor.service.life import Life
from executor.service.log import about_action
from executor.service.messages import MessageWriter
from executor.service.reconciler import Reconciler
from executor.service.recovery import Recovery
from executor.service.share import Share
from executor.service.supervision import Supervisor
from executor.service.trust import bounded_limits
from executor.service_config import ServiceTable
from executor.unattended import unattended

log = logging.getLogger(__name__)

_COMMANDS_AT_ONCE = 2
_END_S = 5.0


class Service:
    """Takes jobs from the benchmark service until it is stopped."""

    def __init__(
        self, settings: Settings, table: ServiceTable, kafka: Kafka, *, counters: ServiceCounters
    ) -> None:
        """Raises UsageError, StoreError where the configuration cannot be used."""
        settings = replace(
            settings,
            # The jobs' metrics go to the same Kafka, unless the configuration names another.
            kafka=settings.kafka or kafka,
            limits=bounded_limits(settings.limits, table.bounds),
        )
        root = f"s3://{settings.need_bucket()}"
        settings.need_region()
        self._counters = counters
        self._entries = Entries(open_bucket(root, settings))
        self._sender = Sender(kafka, client_id=table.group)
        writer = MessageWriter(
            topics=table.topics,
            version=__version__,
            node=platform.node() or None,
            now_ms=now_ms,
            new_id=lambda: str(uuid.uuid4()),
        )
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
        store, share = bucket_store(settings), Share()
        self._commands = Commands(
            self._entries, store, writer=writer, send=self._sender.send, counters=counters
        )
        reconciler = Reconciler(
            self._entries,
            store,
            settings,
            life=Life(writer=writer, dashboard=table.dashboard, said=counters.status),
            send=self._sender.send,
            holds=share.holds,
            counters=counters,
        )
        self._supervisor = Supervisor(reconciler, share=share, every=table.look_interval)
        self._queue = (
            EventQueue(table.events_queue, settings, heard=self._supervisor.changed, counters=counters)
            if table.events_queue is not None
            else None
        )
        self._lanes = {
            Kind.JOB: Lanes(partial(self._work, Kind.JOB), at_once=table.launches, name="launch"),
            Kind.COMMAND: Lanes(partial(self._work, Kind.COMMAND), at_once=_COMMANDS_AT_ONCE, name="command"),
        }
        self._intake = Intake(
            kafka,
            table,
            # The poll loop must not wait for a store that is away.
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
        """Let `run` return soon. For signal handlers too."""
        self._stopping.set()

    def run(self) -> bool:
        """Serve until `stop`; return whether all that was under way came to its end. What did not is taken up at the next start."""
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
        self._counters.open_entries(open_entries)
        for kind, lanes in self._lanes.items():
            self._counters.waiting(kind.value, lanes.waiting)

    def _work(self, kind: Kind, name: str) -> None:
        """Do what is due for an entry. Raises LaterError."""
        try:
            entry = self._entries.read(name)
            if entry is None or not self._recovery.is_ours(name, entry.owner.client_id):
                return
            with about_action(entry.event.action_id), unattended(), sharing(self._shared):
                (self._jobs if kind is Kind.JOB else self._commands).process(entry)
            self._recovery.settle(name)
            if kind is Kind.JOB:
                self._supervisor.launched(name, entry.owner.client_id)
        except MessageTooLargeError as error:
            log.error("%s: %s; it is left as it is", name, error)  # noqa: TRY400 - a sentence says it
            self._recovery.settle(name)
        except RecordError as error:
            log.error("%s: %s; it is left as it is", name, error)  # noqa: TRY400
            self._recovery.settle(name)
        except LaterError as error:
            if error.after_s is None:
                self._counters.retry()
            raise
        except (StoreError, SendError, ConnectError) as error:
            self._counters.retry()
            raise LaterError(str(error)) from error
        except BaiError as error:
            log.error("%s: %s; it is left as it is", name, error)  # noqa: TRY400
            self._recovery.settle(name)
