"""Pushes the last value of each metric to a Pushgateway every few seconds, serves these values to Prometheus,
or both.

The sink stores nothing on the disk, because a restarted agent reads `metrics.jsonl` again and gets the same
values.
"""

from __future__ import annotations

import base64
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from urllib.error import URLError

from bai_agent.aws.http_answer import Answer, send
from bai_agent.aws.secrets import resolve
from bai_agent.backoff import Backoff
from bai_agent.errors import PushError, SecretError
from bai_agent.job.bounded_server import Answers, BoundedServer
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.sink_tables import Prometheus
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.job.schema.field_types import split_address
from bai_agent.sinks.backlog import labels_of
from bai_agent.sinks.exposition import CONTENT_TYPE, MOST_SERIES, LatestValues, label_names
from bai_agent.sinks.sink import Delivery, SinkThread

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two checks of `metrics.jsonl` for new records."""
PUSH_S = 5.0
"""Shortest time between two pushes (seconds). Prometheus does not scrape the gateway more often."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _AGAIN_S = 1.0, 15.0, 0.5


class PrometheusSink(SinkThread):
    """Follows `metrics.jsonl` from its beginning."""

    def __init__(
        self,
        job: Job,
        rundir: RunDir,
        *,
        rank: int,
        redactor: Redactor,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        super().__init__("Prometheus")
        if job.prometheus is None:
            raise ValueError("the job names no Prometheus")
        table = self._table = job.prometheus
        labels = label_names({k: v for k, v in labels_of(job, rank=rank).items() if k != "rank"})
        identity = {"job_id": job.job.id, "rank": str(rank)}
        self._latest = LatestValues(rundir.metrics, {**labels, **identity}, host_metrics=table.host_metrics)
        self._gateway = (
            Pushgateway(table, job_id=job.job.id, rank=rank, redactor=redactor, environment=environment)
            if table.pushgateway
            else None
        )
        self._text = b""
        self._endpoint: Endpoint | None = None
        self._served = False
        self._arrived = 0
        self._pushed_at = float("-inf")
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._push_error: str | None = None
        self._listen_error: str | None = None
        self._read_error: str | None = None

    @property
    def error(self) -> str | None:
        """Reason why nothing can be delivered at the moment; None if deliveries succeed."""
        return self._error or self._push_error or self._listen_error or self._read_error

    @property
    def port(self) -> int | None:
        """Port of the endpoint. None if the endpoint does not listen."""
        return self._endpoint.port if self._endpoint is not None else None

    def _summary(self, deadline: float) -> Delivery:
        latest, arrived = self._latest, self._arrived
        lost = latest.malformed + latest.left_out
        undelivered = max(0, latest.records - arrived) + lost + latest.left(deadline=deadline)
        return Delivery.of(
            delivered=arrived,
            undelivered=undelivered,
            what="values",
            place="Prometheus",
            why=self.error or self._why(),
        )

    def _close(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()

    def _round(self, *, last: bool) -> float | None:
        """Read new records, and start the endpoint or push values to the gateway, if this is due."""
        try:
            if self._latest.look() or not self._text:
                self._text = self._latest.text()
            self._read_error = None
        except OSError as error:
            self._read_error = f"metrics.jsonl cannot be read: {error.strerror}"
        self._listen()
        if self._gateway is None:
            if self._served:
                self._arrived = self._latest.records
            return None if last else LOOK_S
        return self._push(self._gateway, last=last)

    def _listen(self) -> None:
        if self._table.listen is None or self._endpoint is not None:
            return
        try:
            self._endpoint = Endpoint(*split_address(self._table.listen), lambda: self._text)
        except OSError as error:
            self._fail("_listen_error", f"the agent cannot listen on {self._table.listen}: {error.strerror}")
        else:
            self._served, self._listen_error = True, None

    def _push(self, gateway: Pushgateway, *, last: bool) -> float | None:
        if not last and (pause_s := self._pause_before_push()) > 0:
            return pause_s
        self._hurried = False
        covered = self._latest.records
        try:
            if covered != self._arrived:
                gateway.replace(self._text)
            if last and self._table.delete_on_end:
                self._arrived = covered
                gateway.delete()
        except PushError as error:
            self._fail("_push_error", str(error))
            if last:
                return _AGAIN_S if error.passes else None
            return self._backoff.next()
        self._arrived, self._pushed_at = covered, time.monotonic()
        self._push_error = None
        self._backoff.reset()
        return None if last else LOOK_S

    def _pause_before_push(self) -> float:
        """Return the number of seconds until the next push can be due; 0 if a push is due now."""
        if self._arrived == self._latest.records:
            return LOOK_S
        due_s = self._pushed_at + PUSH_S - time.monotonic()
        return 0.0 if self._hurried else min(max(0.0, due_s), LOOK_S)

    def _fail(self, which: str, reason: str) -> None:
        if getattr(self, which) != reason:
            log.warning("%s", reason)
        setattr(self, which, reason)

    def _why(self) -> str:
        if self._latest.left_out:
            return f"there are more than {MOST_SERIES:,} series; further series are left out"
        if self._latest.malformed:
            return f"{self._latest.malformed} lines of metrics.jsonl are not records"
        return "the time was over (limits.drain)"


class Endpoint:
    """Small web server that serves `/metrics` on an address of this machine during the run, on its own
    threads."""

    def __init__(self, host: str, port: int, text: Callable[[], bytes]) -> None:
        """Start to listen. Port 0 means any free port. Raises OSError."""
        self._server = BoundedServer((host, port), _handler(text))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="Prometheus endpoint", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def _handler(text: Callable[[], bytes]) -> type[Answers]:
    class Handler(Answers):
        def do_GET(self) -> None:  # noqa: N802 - the library's name
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, explain="the metrics are at /metrics")
                return
            self.answer(text(), CONTENT_TYPE)

    return Handler


_TIMEOUT_S = 10.0
_PASSES = (408, 429)
_MOST_QUOTED = 300


class Pushgateway:
    """The group of metrics of one node of a job in a Pushgateway:
    https://github.com/prometheus/pushgateway#api."""

    def __init__(
        self,
        table: Prometheus,
        *,
        job_id: str,
        rank: int,
        redactor: Redactor,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._table = table
        self._redactor = redactor
        self._environment = environment
        self._authorization: str | None = None
        address = (table.pushgateway or "").rstrip("/")
        self._group = f"{address}/metrics/job/bai/job_id/{job_id}/rank/{rank}"

    def replace(self, text: bytes) -> None:
        """Replace the group's metrics by those in `text`. Raises PushError."""
        self._ask("PUT", text)

    def delete(self) -> None:
        """Delete the group. Raises PushError."""
        self._ask("DELETE", None)

    def _ask(self, method: str, text: bytes | None) -> None:
        headers = {"Content-Type": CONTENT_TYPE} if text is not None else {}
        if self._table.username is not None:
            headers["Authorization"] = self._basic()
        try:
            answer = send(
                self._group,
                method=method,
                headers=headers,
                data=text,
                timeout_s=_TIMEOUT_S,
                most_bytes=_MOST_QUOTED,
            )
        except URLError as error:
            raise PushError(
                f"{self._table.pushgateway} does not answer: {error.reason}", passes=True
            ) from error
        if not answer.succeeded:
            raise PushError(self._refusal(answer), passes=answer.status >= 500 or answer.status in _PASSES)

    def _basic(self) -> str:
        if self._authorization is None:
            try:
                password = resolve(self._table.password or "", environment=self._environment)
            except SecretError as error:
                raise PushError(f"[prometheus] password: {error}", passes=True) from error
            pair = base64.b64encode(f"{self._table.username}:{password}".encode()).decode()
            self._redactor.know([password, pair])
            self._authorization = f"Basic {pair}"
        return self._authorization

    def _refusal(self, answer: Answer) -> str:
        said = answer.text.strip()
        advice = "; check [prometheus] username and password" if answer.status in (401, 403) else ""
        return f"{self._table.pushgateway} answers {answer.status}{f' ({said})' if said else ''}{advice}"
