"""The watcher: a Lambda function that checks all jobs of a bucket. A schedule and EC2's events call the
function through a queue.

`handler` is the entry point. The watcher does not need Kafka. An event of EC2 only causes an earlier check,
so a lost, late or unrelated event does no harm.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Protocol

from bai_agent.decode import parse_json
from bai_agent.errors import RecordError, StoreError
from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore
from executor.backends.ec2.bucket_store import bucket_store, open_bucket
from executor.backends.ec2.clock import forget_clocks, store_now
from executor.backends.ec2.monitor.bucket_look import BucketLook, LookListener
from executor.backends.ec2.monitor.reaper import Reaped
from executor.backends.ec2.watched_jobs import Looker, last_looks, watched_jobs
from executor.backends.ec2.watcher.bounded_replacer import BoundedReplacer
from executor.backends.ec2.watcher.day_ledger import FOLDER, DayLedger
from executor.backends.ec2.watcher.launch_limits import LaunchLimits, read_limits
from executor.configuration.config import Settings, read_settings
from executor.planning.rerun_record import kept_descriptor

log = logging.getLogger(__name__)

_MARGIN_S = 10.0
"""Last part of the function's time limit in which no new work is started, so that work in progress can finish
(seconds). Work that AWS interrupts is repeated a minute later."""
_OFTEN, _SELDOM = timedelta(minutes=1), timedelta(minutes=5)
"""Time between two checks of the watcher: while jobs must be checked, and while there are no such jobs."""
_SCHEDULES = ("aws.events", "aws.scheduler")


class LambdaContext(Protocol):
    """The used part of Lambda's context: https://docs.aws.amazon.com/lambda/latest/dg/python-context.html"""

    def get_remaining_time_in_millis(self) -> int: ...


def handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    """Check all jobs; return the answer to SQS about the batch. Raises BaiError if the jobs could not be
    read, so that SQS delivers the batch again."""
    logging.getLogger().setLevel(logging.INFO)
    return _watcher().handle(event, remaining_s=context.get_remaining_time_in_millis() / 1000)


@cache
def _watcher() -> BucketWatcher:
    """Return the watcher, configured by the function's environment, which does not change. Raises
    UsageError."""
    settings = read_settings()
    settings.need_region()
    limits = read_limits(os.environ)
    spent = open_bucket(f"s3://{settings.need_bucket()}/{FOLDER}", settings)
    ledger = DayLedger(store=spent, most=limits.dollars_a_day)
    return BucketWatcher(settings, limits, bucket_store(settings), ledger)


class BucketWatcher:
    """Checks all jobs of the configured bucket."""

    def __init__(
        self,
        settings: Settings,
        limits: LaunchLimits,
        store: JobStore,
        ledger: DayLedger,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._store = store
        self._look = BucketLook(
            settings=settings,
            store=store,
            kind=Looker.WATCHER,
            replacer=lambda record: _replacer(record, settings, limits, ledger),
            listener=LookListener(
                on_reaped=_log_reaped,
                on_job=lambda job_id, sentence: log.info("%s: %s", job_id, sentence),
                on_trouble=lambda sentence: log.warning("%s", sentence),
            ),
        )

    def handle(self, event: Any, *, remaining_s: float) -> dict[str, Any]:
        """Check all jobs within `remaining_s` seconds, minus a margin. Raises StoreError."""
        until = self._clock() + remaining_s - _MARGIN_S
        # The process and its clocks may have been suspended since the last call.
        forget_clocks()
        is_idle = not watched_jobs(self._store)
        if is_idle and _is_only_schedule(event) and self._looked_lately():
            return {"batchItemFailures": []}
        self._look.every = _SELDOM if is_idle else _OFTEN
        if left := self._look.look(until=until):
            log.warning("%d jobs are left for the next check", left)
        if self._look.blind is not None:
            raise StoreError(self._look.blind)
        # SQS need not deliver these messages again, even if jobs are left, because the schedule sends a new
        # message each minute.
        return {"batchItemFailures": []}

    def _looked_lately(self) -> bool:
        looks = last_looks(self._store, store_now(self._store.url))
        return any(each.kind is Looker.WATCHER and each.age < _SELDOM for each in looks)


def _replacer(
    record: JobRecord, settings: Settings, limits: LaunchLimits, ledger: DayLedger
) -> BoundedReplacer:
    return BoundedReplacer(record, settings, lambda: kept_descriptor(record), limits=limits, ledger=ledger)


def _log_reaped(reaped: Reaped) -> None:
    if reaped.trouble:
        log.warning(
            "%s of %s: %s: %s", reaped.instance.id, reaped.instance.job_id, reaped.why, reaped.trouble
        )
    else:
        log.info("%s of %s was terminated: %s", reaped.instance.id, reaped.instance.job_id, reaped.why)


def _is_only_schedule(event: Any) -> bool:
    """Return whether a batch, or a call without a queue, contains no event of EC2."""
    return all(each.get("source") in _SCHEDULES for each in _events(event))


def _events(event: Any) -> Sequence[Mapping[str, Any]]:
    """Return the events in the input of an invocation of the Lambda function. A queue message that contains no
    event of EC2 counts as an event without content."""
    if not isinstance(event, dict):
        return [{}]
    records = event.get("Records")
    if not isinstance(records, list):
        return [event]
    found: list[Mapping[str, Any]] = []
    for each in records:
        body = each.get("body") if isinstance(each, dict) else None
        try:
            read = parse_json(str(body), where="a message of the queue")
        except RecordError as error:
            log.warning("%s", error)
            continue
        found.append(read if isinstance(read, dict) else {})
    return found
