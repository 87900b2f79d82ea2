"""The phase in which the benchmark runs: its start, the watch over it, and its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from bai_agent.ballast import make_room
from bai_agent.benchmark import process
from bai_agent.outcome import Outcome
from bai_agent.prepare import secrets_of
from bai_agent.push.trouble import SinkTroubles
from bai_agent.run_state import POWER_OFF_GRACE, Run
from bai_agent.salvage import Salvage
from bai_agent.secrets import SecretError
from bai_agent.strategy import strategy_of
from bai_agent.watch import EndedError, Reason

log = logging.getLogger(__name__)

_TICK = 0.05
"""Seconds between two looks at everything while the benchmark runs."""

_SALVAGE_SECONDS = 1.0
"""Between two looks whether the run directory is still complete."""

_SHIM_MARGIN = 20.0
"""Seconds beyond the grace in which the shim must have ended everything (stacks, SIGKILL, reaping)."""


def run_benchmark(this: Run) -> None:
    """Start the benchmark, or adopt the one that runs; stay until nothing of it is left."""
    start_followers(this)
    with closing(Salvage(this.rundir, this.events)) as salvage:
        if process.state(this.rundir) is process.State.NOT_STARTED and not _was_started(this):
            if reason := this.watch.reason():
                raise EndedError(reason)
            _launch(this)
        salvage.remember_start()
        _follow(this, salvage)
        if process.state(this.rundir) is not process.State.EXITED:
            _end_unwatched(this, salvage)
        _put_back(this, salvage)
    left = process.read_exit(this.rundir)
    make_room(this.rundir)
    if left["stop"] is None and left["code"] != 0 and (full := this.watch.disk_full()):
        # It met the full disk before we looked at it: what we set aside is all that is left.
        this.events.add("stop", reason=full.outcome.value, message=full.message)
    this.events.add(
        "benchmark_exited", code=left["code"], signal=left["signal"], wall_seconds=left["wall_seconds"]
    )


def start_followers(this: Run) -> None:
    """Start what reads the benchmark's output and its records, unless that runs or has done its work."""
    if not this.extractor.finished:
        this.extractor.start(secrets=this.redactor.known if this.may_quote else None)
    if this.job.kafka is not None and this.kafka is None:
        from bai_agent.push.kafka import KafkaPusher

        this.kafka = KafkaPusher(this.job, this.rundir, rank=this.node.rank, redactor=this.redactor)
        this.kafka.start()


def _was_started(this: Run) -> bool:
    """Return whether it has been started although no file says so any more; it must not be a second time."""
    return any(event["type"] == "benchmark_started" for event in this.events.seen)


def _launch(this: Run) -> None:
    try:
        order = process.order(
            this.job,
            this.rundir,
            argv=strategy_of(this.job).argv(),
            scripts=this.scripts,
            secrets=secrets_of(this),
            umask=this.umask,
        )
        process.launch(order, this.rundir)
    except (SecretError, process.SetupError, process.LaunchError) as error:
        raise EndedError(Reason(Outcome.PREPARE_FAILED, str(error))) from error
    started = process.wait_started(this.rundir, timeout=30)
    if started is not None:
        this.events.add("benchmark_started", pid=started["pid"], argv=order.argv)
        for warning in started.get("warnings", ()):
            this.warn(f"{warning[0].upper()}{warning[1:]}.")


def _follow(this: Run, salvage: Salvage) -> None:
    """Return when the benchmark has gone, asked or unasked, or when nothing tells any more whether it has."""
    asked_at = time.monotonic() if this.rundir.stop.exists() else None
    size = 0
    look_for_python = _PythonLook(this, salvage.started)
    next_salvage = time.monotonic() + _SALVAGE_SECONDS
    troubles = SinkTroubles(this.events.add)
    while process.state(this.rundir) is process.State.RUNNING:
        this.extractor.poll()
        troubles.look(this.sink_errors())
        if time.monotonic() >= next_salvage:
            next_salvage = time.monotonic() + _SALVAGE_SECONDS
            _put_back(this, salvage)
        look_for_python()
        before, size = size, salvage.output_size()
        if size < before:
            this.events.add("output_truncated", bytes=before)
        reason = this.watch.reason(running_seconds=process.running_seconds(salvage.started))
        if reason is not None and asked_at is None:
            asked_at = time.monotonic()
            _ask_to_stop(this, reason)
        if (
            asked_at is not None
            and time.monotonic() > asked_at + this.job.limits.grace.total_seconds() + _SHIM_MARGIN
        ):
            log.error("the shim did not end the benchmark in time; ending both without it")
            process.end_lost(this.rundir, started=salvage.started)
            return
        time.sleep(_TICK)


class _PythonLook:
    """Looks whether the benchmark runs a Python: often at first, ever more seldom later, as each look reads all of /proc."""

    def __init__(self, this: Run, started: Mapping[str, Any] | None) -> None:
        self._this = this
        self._shim = started["shim_pid"] if started is not None else None
        self._next = 0.0
        self._pause = _TICK

    def __call__(self) -> None:
        if self._this.runs_python or self._shim is None or time.monotonic() < self._next:
            return
        self._this.runs_python = process.runs_python(self._shim)
        self._next = time.monotonic() + self._pause
        self._pause *= 2


def _ask_to_stop(this: Run, reason: Reason) -> None:
    this.reason = reason
    if reason.outcome is Outcome.DISK_FULL:
        make_room(this.rundir)
    try:
        process.request_stop(
            this.rundir,
            reason=reason.outcome,
            grace=min(this.job.limits.grace, POWER_OFF_GRACE) if this.goes_down else this.job.limits.grace,
            stacks=reason.outcome is Outcome.NO_OUTPUT,
        )
    except FileNotFoundError:
        log.warning("%s is gone: there is no place for the order to stop", this.rundir.path)
    this.events.add("stop", reason=reason.outcome.value, message=reason.message)


def _end_unwatched(this: Run, salvage: Salvage) -> None:
    """End a benchmark whose shim is dead, or cannot be spoken to any more."""
    message = Outcome.LOST.sentence
    if not this.rundir.shim_lock.exists():
        message = (
            f"Files of the run directory {this.rundir.path} were deleted or renamed while the benchmark ran, "
            f"{this.rundir.shim_lock.name} among them, and the benchmark was ended for that: it must leave them alone."
        )
        this.reason = this.reason or Reason(Outcome.LOST, message)
    # Where the job is to end anyway, that is why it ends: this agent may have been started for a cancel.
    this.reason = this.reason or this.watch.reason()
    process.end_lost(this.rundir, started=salvage.started)
    this.events.add("stop", reason=Outcome.LOST.value, message=message)


def _put_back(this: Run, salvage: Salvage) -> None:
    told = {event["message"] for event in this.events.seen if event["type"] == "warning"}
    for name in salvage.put_back():
        message = f"{name} was deleted or renamed in the run directory while the benchmark ran; what it held may be missing."
        if message not in told:
            this.warn(message)
