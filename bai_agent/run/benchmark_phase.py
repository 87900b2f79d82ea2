"""The phase in which the benchmark runs: its start, the watch over it, and its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from bai_agent.aws.secrets import SecretError
from bai_agent.benchmark import process
from bai_agent.job.outcome import Outcome
from bai_agent.job.reserved_space import make_room
from bai_agent.job.run_directory import make_folder, read_json, write_atomic, write_json
from bai_agent.run.context import RunContext
from bai_agent.run.environment import OWN_LEVELS, EnvironmentProbe
from bai_agent.run.join import peers_of
from bai_agent.run.open_file import OpenFile
from bai_agent.run.prepare import secrets_of
from bai_agent.run.stop import RunEndedError, StopReason
from bai_agent.sinks import sinks_of
from bai_agent.sinks.trouble import SinkTroubles
from bai_agent.strategy import node_environment, strategy_of

log = logging.getLogger(__name__)

_TICK = 0.05
"""Seconds between two looks at everything while the benchmark runs."""

_SHIM_MARGIN = 20.0
"""Seconds beyond the grace in which the shim must have ended everything (stacks, SIGKILL, reaping)."""


def begin_environment(ctx: RunContext) -> EnvironmentProbe | None:
    """Begin to find out what the benchmark will run on; None where it has been started before."""
    if process.state(ctx.rundir) is not process.State.NOT_STARTED:
        return None
    probe = EnvironmentProbe(ctx.job, ctx.rundir, node=ctx.node, scripts=ctx.scripts)
    probe.begin()
    return probe


def run_benchmark(ctx: RunContext) -> None:
    """Start the benchmark, or adopt the one that runs; stay until nothing of it is left."""
    start_followers(ctx)
    descriptor = ctx.rundir.job.read_bytes()
    with closing(OpenFile(ctx.rundir.kept_output)) as output:
        output.stat()  # before it can be taken away
        if process.state(ctx.rundir) is process.State.NOT_STARTED and not _was_started(ctx):
            if reason := ctx.watch.reason():
                raise RunEndedError(reason)
            if ctx.probe is not None:
                _write_environment(ctx, ctx.probe)
            _launch(ctx)
        # Kept: should the benchmark take it away, nothing else tells the shim's pid.
        started = read_json(ctx.rundir.started)
        _follow(ctx, started, output)
        if process.state(ctx.rundir) is not process.State.EXITED:
            _end_unwatched(ctx, started)
        _keep_output(ctx, output)
        _tell_what_has_gone(ctx)
    if not ctx.rundir.job.exists():
        # An extractor that died of the same is started again, and is to know what it looks for.
        write_atomic(ctx.rundir.job, descriptor)
    left = process.read_exit(ctx.rundir)
    make_room(ctx.rundir)
    if left["stop"] is None and left["code"] != 0 and (full := ctx.disk.look()):
        # It met the full disk before we looked at it: what we set aside is all that is left.
        ctx.events.add("stop", reason=full.outcome.value, message=full.message)
    ctx.events.add(
        "benchmark_exited", code=left["code"], signal=left["signal"], wall_seconds=left["wall_seconds"]
    )


def _write_environment(ctx: RunContext, probe: EnvironmentProbe) -> None:
    """Write `environment.json`. Nothing that goes wrong with that is an error of the run."""
    try:
        facts = ctx.redactor.redact_all(probe.finish(stopping=ctx.watch.stopping), own_levels=OWN_LEVELS)
        write_json(ctx.rundir.environment, facts)
    except Exception:
        # Whatever a machine answers, its benchmark is to run.
        log.exception("%s could not be written", ctx.rundir.environment)


def start_followers(ctx: RunContext) -> None:
    """Start what reads the benchmark's output and its records, unless that runs or has done its work."""
    if not ctx.extractor.finished:
        ctx.extractor.start(secrets=ctx.redactor.known if ctx.may_quote else None)
    if not ctx.sinks_started:
        ctx.sinks_started = True
        for sink in sinks_of(ctx.job, ctx.rundir, rank=ctx.node.rank, redactor=ctx.redactor):
            sink.start()
            ctx.sinks.append(sink)


def _was_started(ctx: RunContext) -> bool:
    """Return whether it has been started although no file says so any more; it must not be a second time."""
    return any(event["type"] == "benchmark_started" for event in ctx.events.seen)


def _launch(ctx: RunContext) -> None:
    job, peers = ctx.job, peers_of(ctx.rundir)
    me, strategy = peers[ctx.node.rank], strategy_of(job)
    try:
        order = process.order(
            job,
            ctx.rundir,
            launch=lambda command: strategy.launch(job, command, me, peers),
            node=node_environment(job, me, peers, hostfile=str(ctx.rundir.hostfile)),
            scripts=ctx.scripts,
            secrets=secrets_of(ctx),
            umask=ctx.umask,
        )
        process.launch(order, ctx.rundir)
    except (SecretError, process.SetupError, process.ShimError) as error:
        raise RunEndedError(StopReason(Outcome.PREPARE_FAILED, str(error))) from error
    started = process.wait_started(ctx.rundir, timeout=30)
    if started is not None:
        ctx.events.add("benchmark_started", pid=started["pid"], argv=order.argv)
        for warning in started.get("warnings", ()):
            ctx.warn(f"{warning[0].upper()}{warning[1:]}.")


def _follow(ctx: RunContext, started: Mapping[str, Any] | None, output: OpenFile) -> None:
    """Return when the benchmark has gone, asked or unasked, or when nothing tells any more whether it has."""
    asked_at = time.monotonic() if ctx.rundir.stop.exists() else None
    size = 0
    look_for_python = _PythonLook(ctx, started)
    troubles = SinkTroubles(ctx.events.add)
    while process.state(ctx.rundir) is process.State.RUNNING:
        ctx.extractor.poll()
        troubles.observe(ctx.sink_errors())
        _keep_output(ctx, output)
        look_for_python()
        before, size = size, output.size()
        if size < before:
            ctx.events.add("output_truncated", bytes=before)
        reason = ctx.watch.reason(running_s=process.running_seconds(started))
        if reason is not None and asked_at is None:
            asked_at = time.monotonic()
            _ask_to_stop(ctx, reason)
        if (
            asked_at is not None
            and time.monotonic() > asked_at + ctx.job.limits.grace.total_seconds() + _SHIM_MARGIN
        ):
            log.error("the shim did not end the benchmark in time; ending both without it")
            process.end_lost(ctx.rundir, started=started)
            return
        time.sleep(_TICK)


class _PythonLook:
    """Looks whether the benchmark runs a Python: often at first, ever more seldom later, as each look reads all of /proc."""

    def __init__(self, ctx: RunContext, started: Mapping[str, Any] | None) -> None:
        self._this = ctx
        self._shim = started["shim_pid"] if started is not None else None
        self._next = 0.0
        self._pause = _TICK

    def __call__(self) -> None:
        if self._this.runs_python or self._shim is None or time.monotonic() < self._next:
            return
        self._this.runs_python = process.runs_python(self._shim)
        self._next = time.monotonic() + self._pause
        self._pause *= 2


def _ask_to_stop(ctx: RunContext, reason: StopReason) -> None:
    ctx.reason = reason
    if reason.outcome is Outcome.DISK_FULL:
        make_room(ctx.rundir)
    try:
        process.request_stop(
            ctx.rundir,
            reason=reason.outcome,
            grace=ctx.grace(),
            stacks=reason.outcome is Outcome.NO_OUTPUT,
        )
    except FileNotFoundError:
        log.warning("%s is gone: there is no place for the order to stop", ctx.rundir.path)
    ctx.events.add("stop", reason=reason.outcome.value, message=reason.message)


def _end_unwatched(ctx: RunContext, started: Mapping[str, Any] | None) -> None:
    """End a benchmark whose shim is dead, or cannot be spoken to any more."""
    message = Outcome.LOST.sentence
    if not ctx.rundir.shim_lock.exists():
        message = (
            f"Files of the run directory {ctx.rundir.path} were deleted or renamed while the benchmark ran, "
            f"{ctx.rundir.shim_lock.name} among them, and the benchmark was ended for that: it must leave them alone."
        )
        ctx.reason = ctx.reason or StopReason(Outcome.LOST, message)
    # Where the job is to end anyway, that is why it ends: this agent may have been started for a cancel.
    ctx.reason = ctx.reason or ctx.watch.reason()
    process.end_lost(ctx.rundir, started=started)
    ctx.events.add("stop", reason=Outcome.LOST.value, message=message)


def _keep_output(ctx: RunContext, output: OpenFile) -> None:
    """Give the output the name again that its readers know, should the benchmark have taken it away."""
    kept = ctx.rundir.kept_output
    if kept.exists():
        return
    first = _tell_of(ctx, kept)
    try:
        make_folder(kept.parent, private=ctx.rundir.path)
        output.link_again()
    except OSError as error:
        if first:
            log.warning("%s has gone and cannot be put back: %s", kept, error)


def _tell_what_has_gone(ctx: RunContext) -> None:
    rundir = ctx.rundir
    for path in (rundir.job, rundir.events, rundir.metrics, rundir.kept_metrics):
        if not path.exists():
            _tell_of(ctx, path)


def _tell_of(ctx: RunContext, path: Path) -> bool:
    """Warn of a file that the benchmark took away; return whether that is the first time."""
    name = path.relative_to(ctx.rundir.path).as_posix()
    message = f"{name} was deleted or renamed in the run directory while the benchmark ran; what it held may be missing."
    if any(event["type"] == "warning" and event["message"] == message for event in ctx.events.seen):
        return False
    ctx.warn(message)
    return True
