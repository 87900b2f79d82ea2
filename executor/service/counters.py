"""The service's counters for Prometheus, and its readiness."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_FRESH_S = 60.0
"""Largest age of the last poll while the service is ready (seconds)."""


class ServiceCounters:
    """Counters of the service. Several threads may use them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._polled_at: float | None = None
        self._registry = registry = CollectorRegistry()
        self._events = Counter(
            "bai_serve_events", "Messages read, by result.", ["kind", "taken"], registry=registry
        )
        self._answers = Counter(
            "bai_serve_answers", "Requests answered, by status.", ["status"], registry=registry
        )
        self._refusals = Counter(
            "bai_serve_refusals", "Requests refused, by reason.", ["reason"], registry=registry
        )
        self._commands = Counter(
            "bai_serve_commands", "Commands answered, by code.", ["code"], registry=registry
        )
        self._retries = Counter("bai_serve_retries", "Pieces of work put off.", registry=registry)
        self._launch_s = Histogram(
            "bai_serve_answer_seconds",
            "From the event's acceptance to its answer.",
            buckets=(0.5, 1, 2, 5, 10, 30, 60, 300, 1800),
            registry=registry,
        )
        self._open = Gauge(
            "bai_serve_open_entries", "Accepted events without a final answer.", registry=registry
        )
        self._waiting = Gauge(
            "bai_serve_waiting", "Pieces of work that are not done.", ["kind"], registry=registry
        )
        self._statuses = Counter(
            "bai_serve_statuses", "Statuses of launched jobs that were sent.", ["status"], registry=registry
        )
        self._jobs = Gauge("bai_serve_jobs", "Launched jobs that are looked after here.", registry=registry)
        self._reaped = Counter(
            "bai_serve_reaped", "Machines terminated because their time was up.", registry=registry
        )
        self._instance_events = Counter(
            "bai_serve_instance_events", "Messages of the queue of EC2's events.", ["kind"], registry=registry
        )
        self._queue_failures = Counter(
            "bai_serve_queue_failures", "Times that this queue could not be read.", registry=registry
        )
        self._lag = Gauge("bai_serve_consumer_lag", "Messages still to be read.", registry=registry)
        self._assignments = Counter(
            "bai_serve_assignments",
            "Times that partitions were given to this replica: once, and after each rebalance.",
            registry=registry,
        )

    def text(self) -> bytes:
        """Return all counters in Prometheus' format."""
        return generate_latest(self._registry)

    @property
    def ready(self) -> bool:
        """Whether the service takes events."""
        at = self._polled_at
        return at is not None and self._clock() - at < _FRESH_S

    def polled(self) -> None:
        self._polled_at = self._clock()

    def disconnected(self) -> None:
        self._polled_at = None

    def assigned(self) -> None:
        self._assignments.inc()

    def event(self, kind: str, taken: str) -> None:
        self._events.labels(kind, taken).inc()

    def answer(self, status: str, seconds: float) -> None:
        self._answers.labels(status).inc()
        self._launch_s.observe(max(0.0, seconds))

    def refusal(self, reason: str) -> None:
        self._refusals.labels(reason).inc()

    def command(self, code: int) -> None:
        self._commands.labels(str(code)).inc()

    def retry(self) -> None:
        self._retries.inc()

    def open_entries(self, count: int) -> None:
        self._open.set(count)

    def waiting(self, kind: str, count: int) -> None:
        self._waiting.labels(kind).set(count)

    def status(self, status: str) -> None:
        self._statuses.labels(status).inc()

    def jobs(self, count: int) -> None:
        self._jobs.set(count)

    def reaped(self) -> None:
        self._reaped.inc()

    def instance_event(self, kind: str) -> None:
        self._instance_events.labels(kind).inc()

    def queue_failure(self) -> None:
        self._queue_failures.inc()

    def lag(self, messages: int | None) -> None:
        if messages is not None:
            self._lag.set(messages)
