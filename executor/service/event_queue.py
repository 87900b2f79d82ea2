"""Reads the SQS queue with EC2's events about instances on a thread of its own, if such a queue is
configured.

Replicas share the queue, and each message reaches only one replica. An unreadable message is deleted, because
otherwise SQS would deliver the message repeatedly.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from bai_agent.backoff import Backoff
from bai_agent.errors import BaiError
from executor.backends.ec2.session import FAILURES, aws_error, aws_session
from executor.backends.terminal import unattended
from executor.configuration.config import Settings
from executor.service.counters import ServiceCounters
from executor.service.events.ec2_events import (
    InstanceEvent,
    UnreadableInstanceEventError,
    read_instance_event,
)

log = logging.getLogger(__name__)

_WAIT_S, _MOST = 20, 10
"""Longest wait (seconds) and maximum number of messages of one request:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html"""
_HIDDEN_S = 60
"""Visibility timeout of a received message (seconds). The queue's own timeout may be longer than a job."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_HOST = re.compile(r"(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com(?:\.cn)?")


class EventQueue:
    """Reads the queue until it is stopped."""

    def __init__(
        self,
        url: str,
        settings: Settings,
        *,
        heard: Callable[[Sequence[InstanceEvent]], None],
        counters: ServiceCounters,
    ) -> None:
        """heard: called with the events that one request to SQS returned. If `heard` raises BaiError, SQS
        delivers the events again later."""
        self._url = url
        self._aws = aws_session(settings, region=queue_region(url))
        self._heard = heard
        self._counters = counters
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Accept no more events. A pending request to SQS is not interrupted; SQS delivers the messages of
        such a request again."""
        self._stopping.set()

    def _run(self) -> None:
        backoff, trouble = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), ""
        while not self._stopping.is_set():
            try:
                with unattended():
                    self._take()
                backoff.reset()
                trouble = ""
                continue
            except BaiError as error:
                # The regular checks of jobs continue without the queue, so an error is no problem. A lasting
                # error is reported only once.
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("the queue of EC2's events: %s", error)
            except Exception:
                # Even after an unexpected error, the thread continues to read the queue.
                log.exception("reading the queue of EC2's events failed because of a defect")
            self._counters.queue_failures.inc()
            self._stopping.wait(backoff.next())

    def _take(self) -> None:
        """Wait for messages, and pass the messages' events on. Raises BaiError."""
        sqs = self._aws.sqs()
        try:
            answer = sqs.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=_MOST,
                WaitTimeSeconds=_WAIT_S,
                VisibilityTimeout=_HIDDEN_S,
            )
        except FAILURES as error:
            raise aws_error(error, doing=f"receiving from {self._url}") from error
        messages = answer.get("Messages", [])
        if not messages or self._stopping.is_set():
            return
        events = [event for each in messages if (event := self._read(each.get("Body", ""))) is not None]
        if events:
            self._heard(events)
        try:
            gone = sqs.delete_message_batch(
                QueueUrl=self._url,
                Entries=[
                    {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
                    for number, each in enumerate(messages)
                ],
            )
        except FAILURES as error:
            raise aws_error(error, doing=f"deleting from {self._url}") from error
        for failed in gone.get("Failed", []):
            log.warning(
                "a message cannot be deleted from %s, and is delivered again: %s",
                self._url,
                failed.get("Message", failed.get("Code")),
            )

    def _read(self, body: str) -> InstanceEvent | None:
        try:
            event = read_instance_event(body)
        except UnreadableInstanceEventError as error:
            log.warning("a message of %s cannot be read: %s; it is deleted", self._url, error)
            self._counters.instance_events.labels("unreadable").inc()
            return None
        if event is None:
            log.info("a message of %s is about something else; it is deleted", self._url)
        self._counters.instance_events.labels(event.kind if event is not None else "foreign").inc()
        return event


def queue_region(url: str) -> str | None:
    """Return the region in a queue's address; None if the address contains no region, as for a private
    endpoint."""
    found = _HOST.fullmatch(urlsplit(url).hostname or "")
    return (found[1] or found[2]) if found else None
