"""A run, from beginning to end.

`run` is the table of contents. Each phase may be entered again after a kill: what has finished is passed over, what has
not is taken up where the files in the run directory say that it stopped.
"""

from __future__ import annotations

import errno
import logging
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent import __version__
from bai_agent.benchmark import process
from bai_agent.benchmark.python_env import install_requirements
from bai_agent.errors import BaiError, PullError
from bai_agent.events import EventLog
from bai_agent.job import Job, SourceKind
from bai_agent.metrics.supervise import Extractor
from bai_agent.outcome import Outcome
from bai_agent.pull import NoSpaceError, Progress, PullStopped, pull
from bai_agent.result import write_result
from bai_agent.rundir import RunDir, boot_id, now_ms, write_json
from bai_agent.secrets import Redactor, SecretError, resolve
from bai_agent.store.record import JobRecord
from bai_agent.strategy import strategy_of
from bai_agent.watch import LOW_DISK_BYTES, Reason, Watch

if TYPE_CHECKING:
    from bai_agent.push.kafka import KafkaPusher

log = logging.getLogger(__name__)

_TICK = 0.05
"""Seconds between two looks at everything while the benchmark runs."""

_SHIM_MARGIN = 20.0
"""Seconds beyond the grace in which the shim must have ended everything (stacks, SIGKILL, reaping)."""

_HURRY = 5.0
"""Seconds for draining when the machine is going down."""


class EndedError(Exception):
    """The run is over before its last phase."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


@dataclass
class Run:
    """What the phases share."""

    job: Job
    rundir: RunDir
    events: EventLog
    watch: Watch
    redactor: Redactor
    record: JobRecord | None
    extractor: Extractor
    kafka: KafkaPusher | None = None
    phase: str = "prepare"
    reason: Reason | None = None
    """Why the run ended before its benchmark did."""
    outcome: Outcome = Outcome.AGENT_ERROR

    @property
    def scripts(self) -> Path | None:
        """The scripts' folder, where the job has scripts."""
        has_scripts = any(source.kind is SourceKind.SCRIPTS for source in self.job.sources)
        return self.rundir.scripts if has_scripts else None

    def warn(self, message: str) -> None:
        self.events.add("warning", message=message)


def run(this: Run) -> Outcome:
    """Run the job to its end and return how it ended, which `result.json` then says too."""
    try:
        _do(this, "prepare", _prepare)
        _do(this, "pull", _pull)
        _do(this, "join", _join)
        _do(this, "run", _run_benchmark)
    except EndedError as ended:
        this.reason = ended.reason
        this.events.add("stop", reason=ended.reason.outcome.value, message=ended.reason.message)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _make_room(this)
        this.reason = Reason(Outcome.DISK_FULL, f"No space is left for the run directory {this.rundir.path}.")
    if this.rundir.started.exists():
        _do(this, "drain", _drain)
    _do(this, "end", _end)
    return this.outcome


def _do(this: Run, phase: str, work: Callable[[Run], None]) -> None:
    """Do a phase, timed and told, unless it has finished before."""
    if phase in this.events.finished_phases() and phase != "end":
        return
    this.phase = phase
    begun = time.monotonic()
    for event in this.events.seen:
        if event["type"] == "phase" and event["phase"] == phase:
            begun -= max(0, now_ms() - event["time"]) / 1000
            break
    else:
        this.events.add("phase", phase=phase, state="started")
    work(this)
    this.events.add("phase", phase=phase, state="finished", seconds=round(time.monotonic() - begun, 3))


def _prepare(this: Run) -> None:
    """Make the run directory complete, and find out early what would fail late."""
    rundir = this.rundir
    for folder in (rundir.work, rundir.log_chunks, rundir.metric_chunks):
        folder.mkdir(exist_ok=True)
    for file, link in (
        (rundir.output, rundir.log_chunks / f"{0:020}"),
        (rundir.metrics, rundir.metric_chunks / f"{0:020}.jsonl"),
    ):
        file.touch()
        if not link.exists():
            os.link(file, link)
    _keep_room(this)
    try:
        strategy_of(this.job)
        if process.state(rundir) is process.State.NOT_STARTED:
            _secrets(this)
    except SecretError as error:
        raise EndedError(Reason(Outcome.PREPARE_FAILED, str(error))) from error
    except BaiError as error:
        raise EndedError(Reason(Outcome.BAD_DESCRIPTOR, str(error))) from error
    write_json(
        rundir.ready,
        {
            "host": platform.node(),
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "version": __version__,
            "time": now_ms(),
        },
    )


def _pull(this: Run) -> None:
    """Bring data and scripts, and install what the scripts require."""
    deadline = time.monotonic() + this.job.limits.pull_timeout.total_seconds()
    # A relative path of data is relative to where the benchmark starts: that is where it will look.
    start = process.working_folder(this.job, this.rundir, scripts=this.scripts)
    folders = {SourceKind.DATA: start, SourceKind.SCRIPTS: this.rundir.scripts}

    def report(progress: Progress) -> None:
        this.events.add("pull", **vars(progress))

    try:
        pull(
            this.job.sources,
            folders=folders,
            manifest=this.rundir.pulled,
            deadline=deadline,
            report=report,
            stopping=this.watch.stopping,
        )
        if this.job.benchmark.requirements is not None:
            install_requirements(this.job, this.rundir, deadline=deadline, stopping=this.watch.stopping)
    except PullStopped:
        pass
    except NoSpaceError as error:
        raise EndedError(Reason(Outcome.DISK_FULL, str(error))) from error
    except PullError as error:
        raise EndedError(Reason(Outcome.PULL_FAILED, str(error))) from error
    if reason := this.watch.reason():
        raise EndedError(reason)


def _join(this: Run) -> None:
    """Meet the other nodes; a single node has nobody to meet."""
    strategy_of(this.job)


def _run_benchmark(this: Run) -> None:
    """Start the benchmark, or adopt the one that runs; stay until nothing of it is left."""
    _start_followers(this)
    if process.state(this.rundir) is process.State.NOT_STARTED:
        if reason := this.watch.reason():
            raise EndedError(reason)
        _launch(this)
    _follow_benchmark(this)
    if process.state(this.rundir) is process.State.LOST:
        process.end_lost(this.rundir)
        this.events.add("stop", reason=Outcome.LOST.value, message=Outcome.LOST.sentence)
    left = process.read_exit(this.rundir)
    _make_room(this)
    if left["stop"] is None and left["code"] != 0 and (full := this.watch.disk_full()):
        # It met the full disk before we looked at it: what we set aside is all that is left.
        this.events.add("stop", reason=full.outcome.value, message=full.message)
    this.events.add(
        "benchmark_exited", code=left["code"], signal=left["signal"], wall_seconds=left["wall_seconds"]
    )


def _launch(this: Run) -> None:
    try:
        order = process.order(
            this.job,
            this.rundir,
            argv=strategy_of(this.job).argv(),
            scripts=this.scripts,
            secrets=_secrets(this),
        )
        process.launch(order, this.rundir)
    except (SecretError, process.SetupError, process.LaunchError) as error:
        raise EndedError(Reason(Outcome.PREPARE_FAILED, str(error))) from error
    started = process.wait_started(this.rundir, timeout=30)
    if started is not None:
        this.events.add("benchmark_started", pid=started["pid"], argv=order.argv)


def _follow_benchmark(this: Run) -> None:
    """Return when the benchmark has gone, asked or unasked."""
    asked_at = time.monotonic() if this.rundir.stop.exists() else None
    while process.state(this.rundir) is process.State.RUNNING:
        this.extractor.poll()
        reason = this.watch.reason(running_seconds=process.running_seconds(this.rundir))
        if reason is not None and asked_at is None:
            asked_at = time.monotonic()
            this.reason = reason
            this.events.add("stop", reason=reason.outcome.value, message=reason.message)
            if reason.outcome is Outcome.DISK_FULL:
                _make_room(this)
            process.request_stop(
                this.rundir,
                reason=reason.outcome,
                grace=this.job.limits.grace,
                stacks=reason.outcome is Outcome.NO_OUTPUT,
            )
        if (
            asked_at is not None
            and time.monotonic() > asked_at + this.job.limits.grace.total_seconds() + _SHIM_MARGIN
        ):
            log.error("the shim did not end the benchmark in time; ending both without it")
            process.end_lost(this.rundir)
            return
        time.sleep(_TICK)


def _start_followers(this: Run) -> None:
    if not this.extractor.finished:
        this.extractor.start()
    if this.job.kafka is not None and this.kafka is None:
        from bai_agent.push.kafka import KafkaPusher

        this.kafka = KafkaPusher(this.job, this.rundir, rank=0)
        this.kafka.start()


def _drain(this: Run) -> None:
    """Let the followers come to the end of what the benchmark left."""
    _start_followers(this)
    limit = (
        min(_HURRY, this.job.limits.drain.total_seconds())
        if this.watch.hurried
        else (this.job.limits.drain.total_seconds())
    )
    deadline = time.monotonic() + limit
    while not this.extractor.finished and time.monotonic() < deadline:
        this.extractor.poll()
        time.sleep(_TICK / 5)
    if not this.extractor.finished:
        this.warn(
            f"The metrics were not all extracted within limits.drain; {this.rundir.metrics} is incomplete."
        )
        this.extractor.stop()
    if this.kafka is not None:
        delivery = this.kafka.finish(deadline)
        this.events.add("delivery", **vars(delivery))
        if delivery.undelivered:
            this.warn(
                f"{delivery.undelivered} of {delivery.delivered + delivery.undelivered} metric messages did not reach "
                f"Kafka{f': {delivery.error}' if delivery.error else ''}."
            )


def _end(this: Run) -> None:
    """Keep what is to be kept, and say how it all ended."""
    this.outcome = write_result(this)


def _secrets(this: Run) -> dict[str, str]:
    """Return the benchmark's secrets, by their names in its environment. Raises SecretError."""
    found = {name: resolve(reference) for name, reference in this.job.benchmark.secrets.items()}
    this.redactor.know(found.values())
    return found


def _ballast(this: Run) -> Path:
    return this.rundir.path / "ballast"


def _keep_room(this: Run) -> None:
    """Set a little space aside, so that a run that fills the disk can still say so."""
    with _ballast(this).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, LOW_DISK_BYTES // 4)


def _make_room(this: Run) -> None:
    _ballast(this).unlink(missing_ok=True)
