"""What looks after jobs where no process stays: a Lambda function, called by a schedule each minute and by EC2's events.

It does for launched jobs what `bai serve` does, and may do so beside it: the store decides what is said, whoever looks. It takes no
requests and no commands. `handler` is its entry; docs/service.md shows how to set it up.
"""

from __future__ import annotations

import logging
import os
import platform
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, MutableSequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any, Protocol

from bai_agent import __version__
from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Kafka
from bai_agent.job.run_directory import now_ms
from bai_agent.sinks.kafka.library_log import quieten
from executor.backends.ec2.clock import forget_clocks
from executor.backends.ec2.job_store import bucket_store, open_bucket
from executor.config import Settings, read_settings
from executor.service.broker import Sender
from executor.service.counters import ServiceCounters
from executor.service.ec2_events import (
    InstanceEvent,
    UnreadableInstanceEventError,
    instance_event,
    read_instance_event,
)
from executor.service.entries import Entries
from executor.service.life import Life
from executor.service.log import log_level, start_log
from executor.service.messages import MessageWriter
from executor.service.reconciler import Reconciler
from executor.service_config import ServiceTable, brokers_of, of_service
from executor.unattended import unattended

log = logging.getLogger(__name__)

_MARGIN_S = 10.0
"""Of the function's time this much is kept for what is under way: what AWS cuts off is done again, a minute later."""
_AT_ONCE = 8
_CALLED_BY = ("aws.events", "aws.scheduler")
"""A rule with a schedule, and EventBridge Scheduler."""


class Context(Protocol):
    """What we need of https://docs.aws.amazon.com/lambda/latest/dg/python-context.html"""

    def get_remaining_time_in_millis(self) -> int: ...


def handler(event: Any, context: Context) -> dict[str, Any]:
    """Look at the jobs that an event is about: of a schedule all that are open, of EC2 those whose machines it names.

    Returns what SQS wants to hear of a batch, else how many jobs were looked at. Raises BaiError where nothing could be done.
    """
    return _function().handle(event, remaining_s=context.get_remaining_time_in_millis() / 1000)


@cache
def _function() -> Function:
    """Return the function with the configuration of its environment, which does not change while it lives. Raises UsageError."""
    start_log(level=log_level(os.environ), as_json=True)
    quieten()
    settings = read_settings()
    return Function(settings, of_service(settings.service), brokers_of(settings.kafka))


class Function:
    """Looks at jobs while it is called. Nothing is kept between two calls: the next one may be elsewhere, or much later."""

    def __init__(
        self,
        settings: Settings,
        table: ServiceTable,
        kafka: Kafka,
        *,
        shuffle: Callable[[MutableSequence[str]], None] = random.shuffle,
    ) -> None:
        """Raises UsageError where the configuration cannot be used."""
        settings.need_bucket()
        settings.need_region()
        self._settings = settings
        self._table = table
        self._kafka = kafka
        self._shuffle = shuffle

    def handle(self, event: Any, *, remaining_s: float) -> dict[str, Any]:
        """Do what an event asks for, within `remaining_s` seconds but some. Raises BaiError."""
        deadline = time.monotonic() + remaining_s - _MARGIN_S
        # The process may have stood still since the last call, and clocks with it.
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
        writer = MessageWriter(
            topics=self._table.topics,
            version=__version__,
            node=platform.node() or None,
            now_ms=now_ms,
            new_id=lambda: str(uuid.uuid4()),
        )
        return Reconciler(
            Entries(open_bucket(f"s3://{self._settings.need_bucket()}", self._settings)),
            bucket_store(self._settings),
            self._settings,
            life=Life(writer=writer, dashboard=self._table.dashboard, said=counters.status),
            send=sender.send,
            holds=lambda client_id: True,
            counters=counters,
            stays=False,
        )

    def _sweep(self, reconciler: Reconciler, deadline: float) -> dict[str, Any]:
        """Look at all open jobs, and end machines whose time is up."""
        names = reconciler.due()
        # Where there are more than there is time for, those that are left are not the same each minute.
        self._shuffle(names)
        with _Workers(deadline) as workers:
            reaping = workers.begin("", lambda name: reconciler.reap())
            workers.finish(workers.begin(each, reconciler.take_up) for each in names)
            # One request for the machines of all of them.
            reconciler.survey()
            done = workers.finish(workers.begin(each, reconciler.attend) for each in names)
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
        jobs, done = self._attend([found], reconciler, deadline)
        left = set(jobs.values()) - done
        return {"looked_at": len(done), "left": len(left)}

    def _batch(self, records: list[Any], reconciler: Reconciler, deadline: float) -> dict[str, Any]:
        """Look at the jobs that messages of a queue are about; name those messages that are to come again.

        https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html
        """
        events: dict[str, InstanceEvent] = {}
        for each in records:
            record = each if isinstance(each, dict) else {}
            number = str(record.get("messageId"))
            try:
                event = read_instance_event(str(record.get("body")))
            except UnreadableInstanceEventError as error:
                log.warning("message %.60s cannot be read: %s; it does not come again", number, error)
                continue
            if event is None:
                log.info("message %.60s is about something else", number)
                continue
            events[number] = event
        jobs, done = self._attend(events.values(), reconciler, deadline)
        again = [
            number
            for number, event in events.items()
            if (name := jobs.get(event.instance_id)) is not None and name not in done
        ]
        return {"batchItemFailures": [{"itemIdentifier": each} for each in again]}

    def _attend(
        self, events: Iterable[InstanceEvent], reconciler: Reconciler, deadline: float
    ) -> tuple[Mapping[str, str], set[str]]:
        """Return the jobs whose instances the events are about, by instance, and those that were looked at."""
        jobs = reconciler.changed(events)
        with _Workers(deadline) as workers:
            names = dict.fromkeys(jobs.values())
            return jobs, workers.finish(workers.begin(each, reconciler.attend) for each in names)


class _Workers:
    """Threads that work until a deadline. What is under way then is left to itself: all that we do may be cut off anywhere."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="life")
        self._over = threading.Event()

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def begin(self, name: str, work: Callable[[str], None]) -> Future[str | None]:
        return self._pool.submit(self._run, name, work)

    def finish(self, begun: Iterable[Future[str | None]]) -> set[str]:
        """Return the names of those that were done well until the deadline."""
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
            # The thread's outermost frame: a defect that one job meets must not take the others' looks.
            log.exception("a look at %s failed by a defect", name or "what is overdue")
            return None
        return name
