"""Counts what the service does, for Prometheus, and reports whether the service is ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_FRESH_S = 60.0
"""Maximum age of the last poll of Kafka at which the service counts as ready (seconds)."""


class ServiceCounters:
    """Counters of the service. Several threads may use the counters."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._polled_at: float | None = None
        self._registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.events = counter("bai_serve_events", "Messages read, by result.", ["kind", "taken"])
        self.answers = counter("bai_serve_answers", "Requests answered, by status.", ["status"])
        self.refusals = counter("bai_serve_refusals", "Requests refused, by reason.", ["reason"])
        self.commands = counter("bai_serve_commands", "Commands answered, by code.", ["code"])
        self.retries = counter("bai_serve_retries", "Failed attempts that are retried.")
        self.answer_seconds = Histogram(
            "bai_serve_answer_seconds",
            "Time from the acceptance of an event to the answer (seconds).",
            buckets=(0.5, 1, 2, 5, 10, 30, 60, 300, 1800),
            registry=registry,
        )
        self.open_entries = gauge("bai_serve_open_entries", "Accepted events without a final answer.")
        self.waiting = gauge("bai_serve_waiting", "Requests and commands in the queue.", ["kind"])
        self.statuses = counter("bai_serve_statuses", "Statuses of launched jobs that were sent.", ["status"])
        self.jobs = gauge("bai_serve_jobs", "Launched jobs that this replica monitors.")
        self.reaped = counter("bai_serve_reaped", "Machines terminated because their time was up.")
        self.instance_events = counter(
            "bai_serve_instance_events", "Messages of the queue of EC2's events.", ["kind"]
        )
        self.queue_failures = counter("bai_serve_queue_failures", "Failed reads of EC2's events.")
        self.lag = gauge("bai_serve_consumer_lag", "Messages still to be read.")
        self.assignments = counter(
            "bai_serve_assignments",
            "Assignments of partitions to this replica: at the start, and after each rebalance.",
        )

    def text(self) -> bytes:
        """Return all counters in Prometheus' format."""
        return generate_latest(self._registry)

    @property
    def ready(self) -> bool:
        """Whether the service is accepting events."""
        at = self._polled_at
        return at is not None and self._clock() - at < _FRESH_S

    def polled(self) -> None:
        self._polled_at = self._clock()

    def disconnected(self) -> None:
        self._polled_at = None

    def answer(self, status: str, seconds: float) -> None:
        self.answers.labels(status).inc()
        self.answer_seconds.observe(max(0.0, seconds))

    def status(self, status: str) -> None:
        self.statuses.labels(status).inc()
