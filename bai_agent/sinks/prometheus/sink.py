"""Pushes the last value of each metric to a Pushgateway every few seconds, and lets Prometheus scrape it here.

Nothing of it is kept on disk: an agent that was killed reads `metrics.jsonl` again, and pushes the same.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping

from bai_agent.backoff import Backoff
from bai_agent.job.descriptor import Job, split_address
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.sinks.prometheus.endpoint import Endpoint
from bai_agent.sinks.prometheus.exposition import label_names
from bai_agent.sinks.prometheus.latest import MOST_SERIES, LatestValues
from bai_agent.sinks.prometheus.pushgateway import PushError, Pushgateway
from bai_agent.sinks.record import labels_of
from bai_agent.sinks.sink import Delivery, SinkThread

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often the file is looked at."""
PUSH_S = 5.0
"""How often values are pushed at most: Prometheus scrapes the gateway no more often."""
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
        """Why nothing can be delivered at the moment; None while all is well."""
        return self._error or self._push_error or self._listen_error or self._read_error

    @property
    def port(self) -> int | None:
        """Where the endpoint listens; None while it does not."""
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
        """Look, listen and push, as far as each is due."""
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
            self._fail("_listen_error", f"{self._table.listen} cannot be listened on: {error.strerror}")
        else:
            self._served, self._listen_error = True, None

    def _push(self, gateway: Pushgateway, *, last: bool) -> float | None:
        due = self._pushed_at + PUSH_S - time.monotonic()
        if self._arrived == self._latest.records and not last:
            return LOOK_S
        if due > 0 and not last and not self._hurried:
            return min(due, LOOK_S)
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

    def _fail(self, which: str, reason: str) -> None:
        if getattr(self, which) != reason:
            log.warning("%s", reason)
        setattr(self, which, reason)

    def _why(self) -> str:
        if self._latest.left_out:
            return f"there are more than {MOST_SERIES:,} series, and more are not kept"
        if self._latest.malformed:
            return f"{self._latest.malformed} lines of metrics.jsonl are not records"
        return "the time for it was over (limits.drain)"
