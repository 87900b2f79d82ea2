"""A Lambda function that monitors jobs, so that no process has to run all the time. A schedule calls the
function each minute, and EC2's events call it as well.

The function monitors launched jobs in the same way as `bai serve`. The function and `bai serve` may run at
the same time, because the store decides which messages are sent. The function accepts neither requests nor
commands. `handler` is the entry point; docs/service.md describes the setup.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableSequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any, Protocol

from bai_agent.errors import BaiError
from bai_agent.job.descriptor.sink_tables import Kafka
from bai_agent.sinks.kafka.library_log import quieten
from executor.backends.ec2.bucket_store import bucket_store, open_bucket
from executor.backends.ec2.clock import forget_clocks
from executor.backends.terminal import unattended
from executor.configuration.config import Settings, read_settings
from executor.configuration.service_config import ServiceTable, service_kafka, service_table
from executor.service.broker import Sender
from executor.service.counters import ServiceCounters
from executor.service.entries import Entries
from executor.service.events.ec2_events import (
    InstanceEvent,
    UnreadableInstanceEventError,
    instance_event,
    read_instance_event,
)
from executor.service.events.messages import message_writer
from executor.service.reconciler import Reconciler
from executor.service.service_log import log_level, start_log
from executor.service.status_reporter import StatusReporter

log = logging.getLogger(__name__)

_MARGIN_S = 10.0
"""Last part of the function's time limit in which no new work is started, so that work in progress can finish
(seconds). Work that AWS interrupts is repeated a minute later."""
_AT_ONCE = 8
_CALLED_BY = ("aws.events", "aws.scheduler")
"""Event sources that mark a call by the schedule: a scheduled rule, or EventBridge Scheduler."""


class Context(Protocol):
    """The part that is used of https://docs.aws.amazon.com/lambda/latest/dg/python-context.html"""

    def get_remaining_time_in_millis(self) -> int: ...


def handler(event: Any, context: Context) -> dict[str, Any]:
    """Check the jobs that an event concerns. A call by the schedule concerns all open jobs; events of EC2
    concern the jobs of the instances in them. Return the answer to SQS if the event is a batch; for other
    events, return the number of checked jobs. Raises BaiError if nothing could be done.
    """
    return _function().handle(event, remaining_s=context.get_remaining_time_in_millis() / 1000)


@cache
def _function() -> Function:
    """Return the function. Its configuration is read only once, because the environment does not change.
    Raises UsageError."""
    start_log(level=log_level(os.environ), as_json=True)
    quieten()
    settings = read_settings()
    return Function(settings, service_table(settings.service), service_kafka(settings.kafka))


class Function:
    """Checks jobs during a call. No state is kept between two calls, because the next call may be in another
    process, or much later."""

    def __init__(
        self,
        settings: Settings,
        table: ServiceTable,
        kafka: Kafka,
        *,
        shuffle: Callable[[MutableSequence[str]], None] = random.shuffle,
    ) -> None:
        """Raises UsageError if the configuration cannot be used."""
        settings.need_bucket()
        settings.need_region()
        self._settings = settings
        self._table = table
        self._kafka = kafka
        self._shuffle = shuffle

    def handle(self, event: Any, *, remaining_s: float) -> dict[str, Any]:
        """Handle an event within `remaining_s` seconds, minus a margin. Raises BaiError."""
        deadline = time.monotonic() + remaining_s - _MARGIN_S
        # The process and its clocks may have been suspended since the last call.
        forget_clocks()
        records = event.get("Records") if isinstance(event, dict) else None
        sender = Sender(self._kafka, client_id=self._table.group)
        try:
            with unattended():
                if isinstance(records, list):
                    return self._batch(records, self._reconciler(sender), deadline)
                if isinstance(event, dict) and event.get("source") in _CALLED_BY:
                    return self._sweep(self._reconciler(sender), deadline)
                return self._event(event, self._reconciler(sender), deadline)
        finally:
            sender.close()

    def _reconciler(self, sender: Sender) -> Reconciler:
        counters = ServiceCounters()
        return Reconciler(
            Entries(open_bucket(f"s3://{self._settings.need_bucket()}", self._settings)),
            bucket_store(self._settings),
            self._settings,
            reporter=StatusReporter(
                writer=message_writer(self._table.topics),
                dashboard=self._table.dashboard,
                said=counters.status,
            ),
            send=sender.send,
            holds=lambda client_id: True,
            counters=counters,
            stays=False,
        )

    def _sweep(self, reconciler: Reconciler, deadline: float) -> dict[str, Any]:
        """Check all open jobs, and terminate expired machines."""
        names = reconciler.due()
        # The jobs are shuffled, so that the same jobs are not left out each minute if the time is too short
        # for all jobs.
        self._shuffle(names)
        with _Workers(deadline) as workers:
            reaping = workers.begin("", lambda name: reconciler.reap())
            workers.finish(workers.begin(each, reconciler.adopt) for each in names)
            # A single request to EC2 describes the machines of all these jobs.
            reconciler.describe_instances()
            done = workers.finish(workers.begin(each, reconciler.reconcile_one) for each in names)
            workers.finish([reaping])
        if left := len(names) - len(done):
            log.warning("%d of %d open jobs are left for the next time", left, len(names))
        return {"looked_at": len(done), "left": left}

    def _event(self, event: Any, reconciler: Reconciler, deadline: float) -> dict[str, Any]:
        try:
            found = instance_event(event)
        except UnreadableInstanceEventError as error:
            log.warning("the event cannot be read: %s", error)
            found = None
        if found is None:
            log.warning("the event is about no instance and comes from no schedule: nothing is done")
            return {"looked_at": 0, "left": 0}
        jobs, done = self._check_jobs([found], reconciler, deadline)
        left = set(jobs.values()) - done
        return {"looked_at": len(done), "left": len(left)}

    def _batch(self, records: list[Any], reconciler: Reconciler, deadline: float) -> dict[str, Any]:
        """Check the jobs that a queue's messages concern; return the messages that SQS must deliver again.

        https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html
        """
        events: dict[str, InstanceEvent] = {}
        for each in records:
            record = each if isinstance(each, dict) else {}
            number = str(record.get("messageId"))
            try:
                event = read_instance_event(str(record.get("body")))
            except UnreadableInstanceEventError as error:
                log.warning(
                    "message %.60s cannot be read: %s; SQS does not deliver this message again", number, error
                )
                continue
            if event is None:
                log.info("message %.60s is about something else", number)
                continue
            events[number] = event
        jobs, done = self._check_jobs(events.values(), reconciler, deadline)
        again = [
            number
            for number, event in events.items()
            if (name := jobs.get(event.instance_id)) is not None and name not in done
        ]
        return {"batchItemFailures": [{"itemIdentifier": each} for each in again]}

    def _check_jobs(
        self, events: Iterable[InstanceEvent], reconciler: Reconciler, deadline: float
    ) -> tuple[Mapping[str, str], set[str]]:
        """Check the jobs of the events; return the jobs by instance, and the names of the jobs that were
        checked."""
        jobs = reconciler.changed(events)
        with _Workers(deadline) as workers:
            names = dict.fromkeys(jobs.values())
            return jobs, workers.finish(workers.begin(each, reconciler.reconcile_one) for each in names)


class _Workers:
    """Threads that run tasks until a deadline. Tasks that are still running at the deadline are abandoned,
    which is safe because a task may be interrupted at any point."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="supervision")
        self._over = threading.Event()

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def begin(self, name: str, work: Callable[[str], None]) -> Future[str | None]:
        return self._pool.submit(self._run, name, work)

    def finish(self, begun: Iterable[Future[str | None]]) -> set[str]:
        """Return the names of the tasks that succeeded before the deadline."""
        done, _ = wait(list(begun), timeout=max(0.0, self._deadline - time.monotonic()))
        return {name for each in done if (name := each.result()) is not None}

    def _run(self, name: str, work: Callable[[str], None]) -> str | None:
        if self._over.is_set() or time.monotonic() >= self._deadline:
            return None
        try:
            with unattended():
                work(name)
        except BaiError as error:
            log.warning("%s: %s", name or "reaping", error)
            return None
        except Exception:
            # An unexpected error with one job must not stop the checks of the other jobs.
            log.exception("the check of %s ended with an unexpected error", name or "overdue jobs")
            return None
        return name
