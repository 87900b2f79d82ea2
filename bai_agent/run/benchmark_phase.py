"""The phase in which the benchmark runs: its start, the watch over it, and its end."""

from __future__ import annotations

import logging
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from bai_agent.aws.secrets import SecretError
from bai_agent.benchmark.environment import SetupError
from bai_agent.benchmark.launch import ShimError, launch, make_order
from bai_agent.benchmark.stacks import runs_python
from bai_agent.benchmark.started import Started, read_started
from bai_agent.benchmark.state import State, read_exit, running_seconds, state, wait_started
from bai_agent.benchmark.static_programs import static_program
from bai_agent.benchmark.stopping import end_lost, ordered_grace, request_stop, require_valid_exit
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import (
    BenchmarkExitEvent,
    BenchmarkStartEvent,
    StopEvent,
    TruncationEvent,
    WarningEvent,
)
from bai_agent.job.reserved_space import make_room
from bai_agent.job.run_directory import make_folder, write_atomic, write_json
from bai_agent.run.context import RunContext
from bai_agent.run.environment import OWN_LEVELS, EnvironmentProbe
from bai_agent.run.held_shim import NO_DESCRIPTOR, HeldShim
from bai_agent.run.join import peers_of
from bai_agent.run.open_file import OpenFile
from bai_agent.run.prepare import secrets_of
from bai_agent.run.repeats import RepeatDecision, RepeatProgress
from bai_agent.run.ssh_hosts import wait_for_hosts
from bai_agent.run.stop import RunEndedError, StopReason
from bai_agent.run.transport import TransportLook
from bai_agent.run.turns import taking_turns
from bai_agent.sinks import SinkTroubles, sinks_of
from bai_agent.strategy import node_environment, strategy_of

log = logging.getLogger(__name__)

_BLOCK = 4096
"""What a C program writes at once into a file, unless it asks for something else (st_blksize)."""
_PART_SECONDS = 2.0
"""Seconds for which the log must end with a part of a block: a program that exits writes one too, shortly before its end is known."""
_TICK = 0.05
_SHORT_TICK = 0.01
"""Seconds between two looks while short runs wait for the word whether they are enough."""
"""Seconds between two looks at everything while the benchmark runs."""

_STARVED_TICK = 1.0
"""Seconds between two attempts without a descriptor."""

_SHIM_MARGIN = 20.0
"""Seconds beyond the grace in which the shim must have ended everything (stacks, SIGKILL, reaping)."""


def begin_environment(ctx: RunContext) -> None:
    """Begin to find out what the benchmark will run on, unless it has been started before."""
    if ctx.probe is not None and state(ctx.rundir) is State.NOT_STARTED:
        ctx.probe.begin()


def run_benchmark(ctx: RunContext) -> None:
    """Start the benchmark, or adopt the one that runs; return when nothing of it is left. Raises RunEndedError.

    An agent without a file descriptor watches what it can and begins again, as a restarted one would, until it has one.
    """
    with closing(HeldShim()) as shim:
        while True:
            try:
                _attend(ctx, shim)
                return
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not shim.is_held:
                    raise
                shim.watch_starved(ctx, error)
            ctx.clock.sleep(_STARVED_TICK)


def _attend(ctx: RunContext, shim: HeldShim) -> None:
    start_followers(ctx)
    descriptor = ctx.rundir.job.read_bytes()
    with closing(OpenFile(ctx.rundir.kept_output)) as output:
        output.stat()  # before it can be taken away
        if state(ctx.rundir) is State.NOT_STARTED and not _was_started(ctx):
            if reason := ctx.watch.reason():
                raise RunEndedError(reason)
            if ctx.probe is not None:
                _write_environment(ctx, ctx.probe)
            _launch(ctx)
        # Read once: a benchmark may delete the file, and nothing else has the shim's pid.
        started = read_started(ctx.rundir)
        shim.hold(ctx, started)
        look_for_transport = TransportLook(ctx)
        with taking_turns(ctx):
            _follow(ctx, started, output, look_for_transport)
        if state(ctx.rundir) is not State.EXITED:
            _end_unwatched(ctx, started)
        _keep_output(ctx, output)
        look_for_transport(ended=True)
        _warn_of_missing_files(ctx)
    if not ctx.rundir.job.exists():
        # An extractor that died of that is started again, and reads there what to look for.
        write_atomic(ctx.rundir.job, descriptor)
    require_valid_exit(ctx.rundir)
    ended = read_exit(ctx.rundir)
    make_room(ctx.rundir)
    if ended["stop"] is None and ended["code"] != 0 and (full := ctx.disk.look()):
        # The benchmark met the full disk before the watch did: only the space that was set aside is left.
        ctx.events.add(StopEvent(reason=full.outcome.value, message=full.message))
    ctx.events.add(
        BenchmarkExitEvent(code=ended["code"], signal=ended["signal"], wall_seconds=ended["wall_seconds"])
    )


def _write_environment(ctx: RunContext, probe: EnvironmentProbe) -> None:
    """Write `environment.json`. A failure is logged, and does not end the run."""
    try:
        facts = ctx.redactor.redact_all(probe.finish(stopping=ctx.watch.stopping), own_levels=OWN_LEVELS)
        write_json(ctx.rundir.environment, facts)
    except Exception:
        # Whatever a machine answers, the benchmark shall run on it.
        log.exception("%s could not be written", ctx.rundir.environment)


def start_followers(ctx: RunContext) -> None:
    """Start the extractor and the job's sinks, unless they run or the extractor has finished."""
    if not ctx.extractor.finished:
        ctx.extractor.start(secrets=ctx.redactor.known if ctx.may_quote else None)
    if not ctx.sinks_started:
        ctx.sinks_started = True
        for sink in sinks_of(ctx.job, ctx.rundir, rank=ctx.node.rank, redactor=ctx.redactor):
            sink.start()
            ctx.sinks.append(sink)


def _was_started(ctx: RunContext) -> bool:
    """Return whether an agent started the benchmark, even where its files are gone: it must not be started twice."""
    return any(isinstance(event, BenchmarkStartEvent) for event in ctx.events.seen)


def _launch(ctx: RunContext) -> None:
    job, peers = ctx.job, peers_of(ctx.rundir)
    me, strategy = peers[ctx.node.rank], strategy_of(job)
    try:
        order = make_order(
            job,
            ctx.rundir,
            launch=lambda job, command: strategy.launch(job, command, me, peers),
            node=node_environment(job, me, peers, hostfile=str(ctx.rundir.hostfile)),
            secrets=secrets_of(ctx),
            umask=ctx.umask,
        )
        if order.hosts:
            wait_for_hosts(ctx, order)
        launch(order, ctx.rundir)
    except (SecretError, SetupError, ShimError) as error:
        raise RunEndedError(StopReason(Outcome.PREPARE_FAILED, str(error))) from error
    started = wait_started(ctx.rundir, timeout_s=30)
    if started is not None:
        ctx.events.add(BenchmarkStartEvent(pid=started.pid, argv=list(order.argv)))
        for warning in started.warnings:
            ctx.warn(f"{warning[0].upper()}{warning[1:]}.")


def _follow(
    ctx: RunContext, started: Started | None, output: OpenFile, look_for_transport: TransportLook
) -> None:
    """Watch the benchmark until it has ended or is LOST. The first reason to stop becomes one order to the shim.

    A shim that does not end the benchmark within the grace that it was told and `_SHIM_MARGIN` is ended with it.
    """
    clock = ctx.clock
    give_up_at: float | None = None
    if ctx.rundir.stop.exists():
        told = ordered_grace(ctx.rundir)
        grace = told if told is not None else ctx.job.limits.grace
        give_up_at = clock.monotonic() + grace.total_seconds() + _SHIM_MARGIN
    size = 0
    part_since: float | None = None
    look_for_programs = _ProgramLook(ctx, started)
    troubles = SinkTroubles(ctx.events.add)
    repeats = RepeatDecision(ctx.job, ctx.rundir)
    progress = RepeatProgress(ctx)
    while state(ctx.rundir) is State.RUNNING:
        ctx.extractor.poll()
        repeats.poll()
        progress.poll()
        troubles.observe(ctx.sink_errors())
        _keep_output(ctx, output)
        look_for_programs()
        look_for_transport()
        before, size = size, output.size()
        if size < before:
            ctx.events.add(TruncationEvent(bytes=before))
        if size % _BLOCK == 0:
            part_since = None
        elif part_since is None:
            part_since = clock.monotonic()
        elif clock.monotonic() - part_since > _PART_SECONDS:
            ctx.writes_blocks = False
        reason = ctx.watch.reason(running_s=running_seconds(started))
        if reason is not None and give_up_at is None:
            grace = ctx.grace()
            _order_stop(ctx, reason, grace=grace)
            give_up_at = clock.monotonic() + grace.total_seconds() + _SHIM_MARGIN
        if give_up_at is not None and clock.monotonic() > give_up_at:
            log.error("the shim did not end the benchmark in time; ending both without it")
            end_lost(ctx.rundir, started=started)
            return
        clock.sleep(_SHORT_TICK if repeats.hurries(clock.monotonic()) else _TICK)


class _ProgramLook:
    """Looks for a Python and for a static program; each time after twice the pause, as a look reads all of /proc."""

    def __init__(self, ctx: RunContext, started: Started | None) -> None:
        self._ctx = ctx
        self._shim = started.shim_pid if started is not None else None
        self._next = 0.0
        self._pause = _TICK

    def __call__(self) -> None:
        now = self._ctx.clock.monotonic()
        if self._ctx.runs_python or self._shim is None or now < self._next:
            return
        self._ctx.runs_python = runs_python(self._shim)
        self._ctx.static_program = self._ctx.static_program or static_program(self._shim)
        self._next = self._ctx.clock.monotonic() + self._pause
        self._pause *= 2


def _order_stop(ctx: RunContext, reason: StopReason, *, grace: timedelta) -> None:
    ctx.reason = reason
    if reason.outcome is Outcome.DISK_FULL:
        make_room(ctx.rundir)
    try:
        request_stop(
            ctx.rundir,
            reason=reason.outcome,
            grace=grace,
            stacks=reason.outcome is Outcome.NO_OUTPUT,
        )
    except FileNotFoundError:
        log.warning("%s is gone: the order to stop cannot be written", ctx.rundir.path)
    ctx.events.add(StopEvent(reason=reason.outcome.value, message=reason.message))


def _end_unwatched(ctx: RunContext, started: Started | None) -> None:
    """End a benchmark whose shim is dead, or out of reach."""
    message = Outcome.LOST.sentence
    if not ctx.rundir.shim_lock.exists():
        message = (
            f"Files of the run directory {ctx.rundir.path} were deleted or renamed while the benchmark ran, "
            f"{ctx.rundir.shim_lock.name} among them, and the benchmark was ended for that: it must leave them alone."
        )
        ctx.reason = ctx.reason or StopReason(Outcome.LOST, message)
    # A reason to stop explains the end better: this agent may have been started for a cancel.
    ctx.reason = ctx.reason or ctx.watch.reason()
    end_lost(ctx.rundir, started=started)
    ctx.events.add(StopEvent(reason=Outcome.LOST.value, message=message))


def _keep_output(ctx: RunContext, output: OpenFile) -> None:
    """Link the output again under the name that its readers know, where the benchmark deleted or renamed it."""
    kept = ctx.rundir.kept_output
    if kept.exists():
        return
    first = _warn_of_missing(ctx, kept)
    try:
        make_folder(kept.parent, private=ctx.rundir.path)
        output.link_again()
    except OSError as error:
        if first:
            log.warning("%s has gone and cannot be put back: %s", kept, error)


def _warn_of_missing_files(ctx: RunContext) -> None:
    rundir = ctx.rundir
    for path in (rundir.job, rundir.events, rundir.metrics, rundir.kept_metrics):
        if not path.exists():
            _warn_of_missing(ctx, path)


def _warn_of_missing(ctx: RunContext, path: Path) -> bool:
    """Warn, once, of a file that the benchmark deleted or renamed; return whether this was that time."""
    name = path.relative_to(ctx.rundir.path).as_posix()
    message = f"{name} was deleted or renamed in the run directory while the benchmark ran; what it held may be missing."
    if any(isinstance(event, WarningEvent) and event.message == message for event in ctx.events.seen):
        return False
    ctx.warn(message)
    return True
