"""Sends many requests at once, and counts the launches that they make at the same time."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.fake_aws.calls import Call
from service_events import fetcher_event
from service_runs import ServiceRuns

CLIENTS = 20
ASSIGNMENTS = "bai_serve_assignments_total"
"""Counter of assignments of partitions: the first one, and one after each rebalance."""


@dataclass(frozen=True, kw_only=True)
class Burst:
    """Results of many requests at once, with a broker that was restarted halfway."""

    rebalances: float
    """Number of rebalances before the restart."""
    most_launches: int
    """Maximum number of launches at the same time."""
    memory: int
    """Memory of the service before the requests (bytes)."""
    growth: int
    """Largest growth of this memory (bytes)."""
    lost: list[str]
    """Requests that were not launched and answered exactly once."""
    restarted_s: float
    """Time from the first request until the broker was back (seconds)."""
    seconds: float
    """Time from the first request until the last answer (seconds)."""


class LaunchGauge:
    """Counts the launches that are under way. Each RunInstances takes some time, as it does on EC2."""

    def __init__(self, service: ServiceRuns, *, seconds: float = 0.3) -> None:
        self.most = 0
        self._now = 0
        self._seconds = seconds
        self._lock = threading.Lock()
        service.aws.prevents = self._begin
        service.aws.answered = self._end

    @property
    def now(self) -> int:
        """Number of launches that are under way."""
        return self._now

    def _begin(self, call: Call) -> bool:
        if call.action == "RunInstances":
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
            time.sleep(self._seconds)
        return False

    def _end(self, call: Call) -> None:
        if call.action == "RunInstances":
            with self._lock:
                self._now -= 1


def run_burst(service: ServiceRuns, count: int, *, wait: Callable[[Callable[[], bool]], object]) -> Burst:
    """Publish `count` requests, restart the broker when half of them are launched, and publish one more.

    wait: function that returns once its argument returns true, or raises.
    """
    warm_up(service)
    start, small = time.monotonic(), memory(service)
    largest, gauge = Sampler(service), LaunchGauge(service)
    assignments = figure(service, ASSIGNMENTS)
    ids = [*publish_burst(service, count), "after"]
    wait(lambda: answered(service) > count / 2)
    rebalances = figure(service, ASSIGNMENTS) - assignments
    service.broker.stop()
    service.broker.start()
    restarted = time.monotonic()
    service.publish("fetcher", fetcher_event(action_id="after"))
    # The request that warmed the service up was answered too.
    wait(lambda: answered(service) > len(ids))
    ended = time.monotonic()
    return Burst(
        rebalances=rebalances,
        most_launches=gauge.most,
        memory=small,
        growth=largest.stop() - small,
        lost=unanswered(service, ids),
        restarted_s=restarted - start,
        seconds=ended - start,
    )


def warm_up(service: ServiceRuns) -> None:
    """Let one request be launched and observed, so that what it loads does not count as growth."""
    service.publish("fetcher", fetcher_event(action_id="warm-up", client_id="warm-up"))
    service.wait(lambda: answered(service) >= 1, "the first launch")
    service.wait(lambda: service.aws.calls("DescribeInstances"), "the first look at its machine")


def publish_burst(service: ServiceRuns, count: int) -> list[str]:
    """Publish `count` requests of several clients; return their ids."""
    ids = [f"burst-{number}" for number in range(count)]
    events = [
        fetcher_event(action_id=each, client_id=f"client-{number % CLIENTS}")
        for number, each in enumerate(ids)
    ]
    service.publish("fetcher", *events)
    return ids


def figure(service: ServiceRuns, name: str) -> float:
    """Return one of the service's figures; 0 if it does not exist yet."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", service.get("/metrics")[1], re.MULTILINE)
    return float(found[1]) if found else 0.0


def answered(service: ServiceRuns) -> float:
    """Return the number of requests that this process has launched."""
    return figure(service, 'bai_serve_answers_total{status="SUCCEEDED"}')


def unanswered(service: ServiceRuns, ids: Sequence[str]) -> list[str]:
    """Return the requests that were not launched and answered exactly once."""
    said: dict[str, list[str]] = {}
    for each in service.messages("status"):
        if each["payload"]["message"] != "Benchmark starting":
            said.setdefault(each["action_id"], []).append(each["payload"]["status"])
    launched = Counter(each["action_id"] for each in service.messages("executor"))
    return [each for each in ids if said.get(each) != ["PENDING", "SUCCEEDED"] or launched[each] != 1]


def memory(service: ServiceRuns) -> int:
    """Return the service's PSS (bytes)."""
    assert service.process is not None
    text = Path(f"/proc/{service.process.pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024


class Sampler:
    """Samples the service's memory until `stop`."""

    def __init__(self, service: ServiceRuns) -> None:
        self._service = service
        self._largest = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Stop; return the largest size of the samples."""
        self._stopping.set()
        self._thread.join()
        return self._largest

    def _run(self) -> None:
        while not self._stopping.wait(0.5) and self._service.is_running:
            self._largest = max(self._largest, memory(self._service))
