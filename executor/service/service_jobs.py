"""Launches the job of an accepted request, and sends each answer once: first PENDING, and later either
SUCCEEDED and the executor's event, or ERROR.

After the process was killed at any point, a repeated call continues. The launch continues from the record in
`launch.json` and `launched.json`, the answers continue from the content of the outbox. This module writes the
messages `00-…`, `01-answer` and `02-executor` of a request's outbox. The stored `01-answer` decides which
result is sent. If EC2 has no capacity, the launch is postponed until the next attempt. The wait for capacity
is reported (`00-waiting-…`) once for each kind of refusal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from bai_agent.errors import BaiError, RecordError, StoreError
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from executor.backends import Backends
from executor.backends.backend import CapacityWait, LaunchNotice, SubmitListener
from executor.backends.ec2.launch.launch_record import read_decision, read_launch
from executor.backends.ec2.session import DENIED
from executor.configuration.service_config import Bounds
from executor.errors import AwsCredentialsError, AwsError, LaunchError, RefusedError, UndecidedError
from executor.service.commands import CANCELLED
from executor.service.counters import ServiceCounters
from executor.service.entries import Entries, Entry
from executor.service.events.messages import AppStatus, Message, MessageWriter
from executor.service.events.requests import answerable, read_request
from executor.service.keyed_work_queue import LaterError
from executor.service.outbox import Outbox

log = logging.getLogger(__name__)

RETRY_FOR_MS = 30 * 60 * 1000
"""Longest time for which a request waits for AWS or for the service's credentials before it is refused
(ms)."""

PENDING, ANSWER, EXECUTOR = "00-pending", "01-answer", "02-executor"
_WAITING = "00-waiting"
_CANCEL_LOOK_S = 15.0
"""Time between two checks for the cancellation of a job that waits for capacity (seconds)."""


class _WaitsError(Exception):
    """EC2 has no capacity, so nothing was launched. The launch is tried again later."""

    def __init__(self, wait: CapacityWait) -> None:
        super().__init__(wait.sentence)
        self.wait = wait


class Jobs:
    """Launches the jobs of requests, and sends the answers to these requests."""

    def __init__(
        self,
        entries: Entries,
        backends: Backends,
        *,
        writer: MessageWriter,
        send: Callable[[Message], None],
        bounds: Bounds,
        region: str | None,
        counters: ServiceCounters,
        now_ms: Callable[[], int],
    ) -> None:
        """region: region of jobs that do not name a region."""
        self._entries = entries
        self._backends = backends
        self._writer = writer
        self._send = send
        self._bounds = bounds
        self._region = region
        self._counters = counters
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._waits: dict[str, CapacityWait] = {}
        """Name of each waiting entry → newest state of its wait for capacity."""
        self._answered_ms: dict[str, int] = {}
        """Time of AWS's last answer about each waiting entry (ms)."""

    def process(self, entry: Entry) -> None:
        """Do everything that has not been done yet for a request. Raises LaterError, StoreError, SendError,
        ConnectError."""
        outbox = Outbox(self._entries.store, entry.name, self._send)
        if outbox.is_sent(EXECUTOR):
            return
        if self._entries.is_closed(entry.name):
            self._entries.forget(entry.name)
            return
        self._check_due(entry)
        outbox.post(
            PENDING, self._status(entry, AppStatus.PENDING, "Processing benchmark submission request...")
        )
        if not outbox.is_kept(ANSWER):
            self._decide(entry, outbox)
        answer = outbox.post(ANSWER)
        if outbox.is_kept(EXECUTOR) and answer.table["payload"]["status"] == AppStatus.SUCCEEDED.value:
            outbox.post(EXECUTOR)
        else:
            self._entries.close(entry)
        self._answered_ms.pop(entry.name, None)
        self._counters.answer(
            str(answer.table["payload"]["status"]), (self._now_ms() - entry.received_ms) / 1000
        )

    def _check_due(self, entry: Entry) -> None:
        """Raise LaterError if a request waits for capacity and is not cancelled."""
        if (wait := self._waits.get(entry.name)) is None:
            return
        left = self._left(wait)
        if left > 0 and not wait.is_cancelled():
            raise LaterError(wait.sentence, after_s=min(left, _CANCEL_LOOK_S))
        del self._waits[entry.name]

    def _left(self, wait: CapacityWait) -> float:
        """Return the seconds until a waiting job is tried again."""
        return wait.again.timestamp() - self._now_ms() / 1000

    def _wait(self, wait: CapacityWait) -> None:
        """Raise _WaitsError unless the next attempt is due."""
        if self._left(wait) > 0:
            raise _WaitsError(wait)

    def _status(self, entry: Entry, status: AppStatus, text: str) -> Callable[[], Message]:
        """Return a function that makes a status message of a request. The status message repeats the
        request's event unless the event is too large."""
        about = None if entry.too_large else entry.event.table
        return partial(self._writer.status, entry.event, status, text, about=about)

    def _report_wait(self, entry: Entry, outbox: Outbox, wait: CapacityWait) -> LaterError:
        """Report that a request waits for capacity; return the error that postpones the request. Raises
        StoreError, SendError."""
        text = answerable(f"Waiting for capacity {wait.bound}: {wait.sentence}.")
        outbox.post(f"{_WAITING}-{wait.key}", self._status(entry, AppStatus.PENDING, text))
        left = max(0.0, self._left(wait))
        log.info("%s; asked again in %.0f s", wait.sentence, left)
        self._answered_ms[entry.name] = self._now_ms()
        self._waits[entry.name] = wait
        return LaterError(wait.sentence, after_s=min(left, _CANCEL_LOOK_S))

    def _decide(self, entry: Entry, outbox: Outbox) -> None:
        """Launch the job, and store the answer or the reason of the refusal."""
        event = entry.event
        try:
            job = self._launch(entry)
        except _WaitsError as error:
            raise self._report_wait(entry, outbox, error.wait) from error
        except LaunchError as error:
            if error.outcome is Outcome.CANCELLED:
                # A command cancelled the job after the last check, but the job was launched. The success of
                # the launch must be reported before the job's end.
                beside = Outbox(self._entries.store, entry.name, self._send)
                if beside.is_kept(CANCELLED):
                    beside.post(CANCELLED)
                outbox.keep(
                    ANSWER, self._status(entry, AppStatus.CANCELED, "Benchmark cancelled - watch ended")
                )
                return
            self._counters.refusals.labels(error.outcome.value.lower()).inc()
            sentence = str(error)
        except RefusedError as error:
            self._counters.refusals.labels("request").inc()
            sentence = str(error)
        else:
            launched = outbox.keep(EXECUTOR, lambda: self._writer.executor_event(event, job))
            text = "Benchmark successfully created..."
            made = partial(self._writer.status, event, AppStatus.SUCCEEDED, text, about=launched.table)
            outbox.keep(ANSWER, made)
            return
        text = answerable(f"{sentence.rstrip('.')}.")
        log.info("refused: %s", text)
        outbox.keep(ANSWER, self._status(entry, AppStatus.ERROR, text))

    def _launch(self, entry: Entry) -> dict[str, Any]:
        """Return the launched job as a table in the benchmark service's format. Raises LaunchError,
        RefusedError, _WaitsError, LaterError, StoreError."""
        try:
            return self._submitted(entry)
        except RecordError as error:
            raise RefusedError(str(error)) from error
        except (LaunchError, RefusedError, _WaitsError, LaterError, StoreError):
            raise
        except UndecidedError as error:
            raise LaterError(str(error)) from error
        except (AwsError, AwsCredentialsError) as error:
            raise (LaterError if self._may_try_again(entry, error) else RefusedError)(str(error)) from error
        except BaiError as error:
            raise RefusedError(str(error)) from error
        except Exception as error:
            # An unexpected error is also answered, because otherwise the client would wait forever.
            log.exception("the request could not be read or launched because of a defect")
            raise RefusedError(
                f"the executor failed because of a defect ({type(error).__name__}); the executor's log has the details"
            ) from error

    def _may_try_again(self, entry: Entry, error: AwsError | AwsCredentialsError) -> bool:
        """Return whether a request may still wait for AWS, or for the service's credentials."""
        since = max(entry.received_ms, self._started_ms, self._answered_ms.get(entry.name, 0))
        denied = isinstance(error, AwsError) and error.code in DENIED
        return not denied and self._now_ms() - since <= RETRY_FOR_MS

    def _submitted(self, entry: Entry) -> dict[str, Any]:
        if entry.is_taken:
            raise RefusedError(
                f'the action id "{entry.event.action_id}" belongs to another client; use a new one'
            )
        if entry.too_large:
            raise RefusedError(
                f"the request has {entry.size:,} bytes, which is more than the service passes on; make it smaller"
            )
        wanted = read_request(entry.event, self._bounds, region=self._region)
        listener = SubmitListener(
            on_plan=partial(self._check_cost, entry),
            on_progress=lambda sentence: log.info("%s", sentence),
            on_wait=self._wait,
        )
        backend = self._backends.named("ec2")
        submitted = backend.submit(
            wanted.job_request, wanted.descriptor, job_id=entry.name, listener=listener
        )
        return {"id": entry.name, "output": None, "extras": _extras(submitted.record)}

    def _check_cost(self, entry: Entry, notice: LaunchNotice) -> None:
        """Check before the launch that the job stays within the bounds of costs. Raises RefusedError,
        StoreError."""
        most, of_client = self._bounds.cost, self._bounds.client_cost
        bound = most if most is not None else of_client
        if bound is None:
            return
        cost = notice.cost()
        if cost is None:
            raise RefusedError(
                f"the cost of the job is not known, and at most {bound:,.2f} USD are allowed here; choose a type with a known price"
            )
        if most is not None and cost > most:
            raise RefusedError(
                f"the job may cost {cost:,.2f} USD, and at most {most:,.2f} USD are allowed here; "
                "write a shorter limits.max_runtime, or a smaller hardware.instance_type"
            )
        if of_client is None:
            return
        used = self._entries.reserve_cost(entry, cost, most=of_client)
        if used is not None:
            raise RefusedError(
                f"the job may cost {cost:,.2f} USD, and other jobs of this client that have not ended {used:,.2f} USD; at most "
                f"{of_client:,.2f} USD are allowed at the same time; wait for one of them to end, or write a shorter limits.max_runtime"
            )


def _extras(record: JobRecord) -> dict[str, Any]:
    """Return region and machines of a launched job."""
    launch = read_launch(record)
    decided = read_decision(record, attempt=0) or {}
    return {
        "instance_ids": list(decided.get("instances", ())),
        "region": launch.region if launch is not None else None,
        "availability_zone": decided.get("az"),
        "image": launch.request.get("ImageId") if launch is not None else None,
        "store": f"{record.store.url}/{record.job_id}",
    }
