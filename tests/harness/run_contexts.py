"""Makes a run's context in this process, with real files and small collaborators that need no time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tomli_w

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor_file import job_table
from bai_agent.job.record import JobRecord
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.run.run_context import RunContext
from bai_agent.run.stop_sources import DiskFull, Signals
from bai_agent.runtime.clock import Clock
from bai_agent.runtime.event_log import EventLog
from bai_agent.runtime.stop import StopMonitor, StopReason, StopSource
from bai_agent.sinks.job_store.uploader import StoreUploader


class SteppingClock(Clock):
    """Clock whose time passes by sleeping, and by `step` seconds with each reading.

    A sleep after `limit` seconds fails.
    """

    def __init__(self, *, step: float = 0.0, limit: float = 3600.0) -> None:
        self.start = self.now = time.monotonic()
        self.step = step
        self._limit = limit
        self._epoch = 1_795_000_000.0 - self.start

    @property
    def passed(self) -> float:
        """Seconds since the clock was made."""
        return self.now - self.start

    def monotonic(self) -> float:
        self.now += self.step
        return self.now

    def time(self) -> float:
        return self._epoch + self.now

    def set_forward(self, seconds: float) -> None:
        """Set the time of day, as NTP does. The monotonic clock does not change."""
        self._epoch += seconds

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.passed < self._limit, "it waits for ever"


@dataclass
class ScriptedStopSource:
    """A source that has a reason to stop as soon as a test gives it one."""

    found: StopReason | None = None
    asked: list[float | None] = field(default_factory=list)
    """The `running_s` of each query."""
    after: int = 0
    """Number of queries that get no reason yet."""

    def reason(self, running_s: float | None) -> StopReason | None:
        self.asked.append(running_s)
        return self.found if len(self.asked) > self.after else None


class InstantExtractor:
    """Has extracted everything as soon as it is started. With `stuck` it never finishes."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.finished = False
        self._stuck = stuck

    def start(self, *, secrets: Sequence[str] | None = ()) -> None:
        self.finished = not self._stuck

    def poll(self) -> None:
        pass

    def wait(self, over: Callable[[], bool], *, sleep: Callable[[float], None] = time.sleep) -> bool:
        while not self.finished and not over():
            sleep(1)
        return self.finished

    def finish_early(self, *, within: float) -> bool:
        return self.finished


class IdleUploader(StoreUploader):
    """Uploads nothing, because its thread is never started."""

    def start(self) -> None:
        pass


def make_context(
    rundir: RunDir,
    *,
    sources: Sequence[StopSource] = (),
    clock: Clock | None = None,
    record: JobRecord | None = None,
    tables: dict[str, Any] | None = None,
    **more: Any,
) -> RunContext:
    """Return the context of an agent that has just been started on `rundir`, as `bai_agent.cli` makes it.

    tables: tables of the job descriptor. more: fields of the context.
    """
    clock = clock or SteppingClock()
    rundir.path.mkdir(parents=True, exist_ok=True)
    job = Job(**{"job": Identity(id="job-1"), "benchmark": Benchmark(argv=("true",)), **(tables or {})})
    rundir.job.write_text(tomli_w.dumps(job_table(job)))
    redactor = Redactor()
    return RunContext(
        job=job,
        rundir=rundir,
        events=EventLog(rundir.events, redactor=redactor, clock=lambda: int(clock.time() * 1000)),
        watch=StopMonitor(sources, clock=clock),
        disk=DiskFull(rundir, clock=clock, free_bytes=lambda _: 2**40),
        redactor=redactor,
        record=record,
        clock=clock,
        **{
            "signals": Signals(),
            "extractor": InstantExtractor(),
            "new_uploader": IdleUploader,
            **more,
        },
    )
