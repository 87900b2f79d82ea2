"""The phase in which the benchmark is started, watched and stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from bai_agent.benchmark.programs import static_program
from bai_agent.benchmark.start import launch, make_order
from bai_agent.benchmark.state import (
    Started,
    State,
    read_exit,
    read_started,
    running_seconds,
    seconds_since_first,
    state,
    wait_started,
)
from bai_agent.benchmark.stopping import end_lost, ordered_grace, request_stop, require_valid_exit
from bai_agent.errors import SecretError, SetupError, ShimError
from bai_agent.files.new_files import NO_DESCRIPTOR
from bai_agent.generations.decision_file import generation_environment
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import generation_token, peer_of
from bai_agent.job.record_types import (
    BenchmarkExitEvent,
    BenchmarkStartEvent,
    RunEnd,
    StopEvent,
    TruncationEvent,
)
from bai_agent.job.run_directory import RunDir, make_folder, make_room, write_atomic, write_json
from bai_agent.light_dataclass import replace
from bai_agent.machine.probe import OWN_LEVELS, EnvironmentProbe
from bai_agent.nodes.members_file import members_of, peers_of
from bai_agent.nodes.run_barrier import run_barrier
from bai_agent.phases.held_shim import HeldShim
from bai_agent.phases.prepare import secrets_of
from bai_agent.phases.series import RepeatDecision, RepeatProgress
from bai_agent.phases.transport import TransportLook
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.open_file import OpenFile
from bai_agent.runtime.stop import RunEndedError, StopReason
from bai_agent.shim.proc import runs_python
from bai_agent.sinks import SinkTroubles, sinks_of
from bai_agent.strategy import node_environment, strategy_of

log = logging.getLogger(__name__)

_BLOCK = 4096
"""Number of bytes that a C program's standard output buffers by default before it writes to a file
(st_blksize)."""
_PART_SECONDS = 2.0
"""Time after which a log that ends with an incomplete block shows that the benchmark does not write whole
blocks (seconds). A program also writes an incomplete block when it exits, but the agent notices the exit
sooner."""
_TICK = 0.05
"""Pause between two checks while the benchmark runs (seconds)."""
_SHORT_TICK = 0.01
"""Pause between two checks while short runs of `[repeat]` wait for the decision whether another run follows
(seconds)."""

_STARVED_TICK = 1.0
"""Seconds between two attempts to continue while the agent has no free file descriptor."""

_SHIM_MARGIN = 20.0
"""Seconds after the grace period within which the shim must have printed stacks, sent SIGKILL and reaped all
processes."""


def begin_environment(ctx: RunContext) -> None:
    """Start to collect the properties of the machine for `environment.json`, unless the benchmark was started
    before."""
    if ctx.probe is not None and ctx.rundir.generation == 0 and state(ctx.rundir) is State.NOT_STARTED:
        ctx.probe.begin()


def run_generation(ctx: RunContext) -> None:
    """Start the benchmark, or adopt the running benchmark; return when all of its processes have ended.
    Raises RunEndedError.

    While the agent has no free file descriptor, it applies only the limits that need no file descriptor. When
    file descriptors are free again, this function continues to watch the running benchmark, as a restarted
    agent does.
    """
    with closing(HeldShim()) as shim:
        while True:
            try:
                _attend(ctx, shim)
                break
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not shim.is_held:
                    raise
                shim.watch_starved(ctx, error)
            ctx.clock.sleep(_STARVED_TICK)
    if ctx.checkpoints is not None:
        ctx.checkpoints.end()


def _attend(ctx: RunContext, shim: HeldShim) -> None:
    start_followers(ctx)
    if ctx.job.strategy.is_supervised:
        _supervise(ctx)
    descriptor = ctx.rundir.job.read_bytes()
    with closing(OpenFile(ctx.rundir.kept_output)) as output:
        output.stat()  # opened before the benchmark can delete it
        if is_unstarted(ctx):
            ctx.watch.raise_reason()
            if ctx.probe is not None and _is_first_generation(ctx.rundir):
                _write_environment(ctx, ctx.probe)
            _launch(ctx)
        # The file with the shim's pid is read only once, because the benchmark could delete it and no other
        # file contains the pid.
        started = read_started(ctx.rundir)
        earlier_s = 0.0
        if ctx.rundir.generation:
            earlier_s = max(0.0, seconds_since_first(ctx.rundir) - running_seconds(started))
        shim.hold(ctx, started, earlier_s=earlier_s)
        if ctx.elastic is not None and started is not None:
            ctx.elastic.launch(shim_port=started.port)
        ctx.when_started(ctx)
        if ctx.job.checkpoint is not None:
            # Imported here, because most jobs have no checkpoints.
            from bai_agent.checkpoint.periodic import follow

            follow(ctx)
        look_for_transport = TransportLook(ctx)
        with run_barrier(ctx):
            _follow(ctx, started, output, look_for_transport, earlier_s=earlier_s)
        if state(ctx.rundir) is not State.EXITED:
            _end_unwatched(ctx, started)
        _remove_container(ctx)
        _keep_output(ctx, output)
        look_for_transport(ended=True)
        _warn_of_missing_files(ctx)
    if not ctx.rundir.job.exists():
        # The benchmark deleted the job descriptor. The extractor failed without it, is restarted, and must
        # read the descriptor again.
        write_atomic(ctx.rundir.job, descriptor)
    require_valid_exit(ctx.rundir)
    ended = read_exit(ctx.rundir) or RunEnd(lost=True)
    make_room(ctx.rundir)
    if ended.stop is None and ended.code != 0 and (full := ctx.disk.look()):
        # The disk was full and the benchmark failed before the agent's check noticed the full disk. Only the
        # reserved space is left.
        ctx.events.add(StopEvent(reason=full.outcome.value, message=full.message))
    ctx.events.add(BenchmarkExitEvent(code=ended.code, signal=ended.signal, wall_seconds=ended.wall_seconds))


def _supervise(ctx: RunContext) -> None:
    """Start the server from which the AdaptDL processes on this node get the members of their generation."""
    if ctx.supervisor is None:
        # Imported here, so that other jobs start sooner.
        from bai_agent.peers.adaptdl_supervisor import start_supervisor

        supervisor = start_supervisor(ctx.rundir, node=ctx.node.rank, job_id=ctx.job.job.id)
        ctx.supervisor = supervisor
        if ctx.elastic is not None:
            ctx.elastic.find_hints = lambda: supervisor.hints
    ctx.supervisor.begin(ctx.rundir.generation, peers_of(ctx.rundir))


def _is_first_generation(rundir: RunDir) -> bool:
    """Return whether this is the first generation that runs on this node. A node can join an elastic job in a
    later generation."""
    if not rundir.generation:
        return True
    return state(rundir.of_generation(0)) is State.NOT_STARTED and not rundir.environment.exists()


def _write_environment(ctx: RunContext, probe: EnvironmentProbe) -> None:
    """Write `environment.json`. A failure is logged but does not end the run."""
    try:
        facts = ctx.redactor.redact_all(probe.finish(stopping=ctx.watch.stopping), own_levels=OWN_LEVELS)
        write_json(ctx.rundir.environment, facts)
    except Exception:
        # Any error is caught, because an unexpected property of a machine must not prevent the benchmark.
        log.exception("%s could not be written", ctx.rundir.environment)


def start_followers(ctx: RunContext) -> None:
    """Start the extractor and the job's sinks, unless they are running or the extractor has finished."""
    if not ctx.extractor.finished:
        ctx.extractor.start(secrets=ctx.redactor.known if ctx.may_quote else None)
    if not ctx.sinks_started:
        ctx.sinks_started = True
        for sink in sinks_of(ctx.job, ctx.rundir, rank=ctx.node.rank, redactor=ctx.redactor):
            sink.start()
            ctx.sinks.append(sink)


def is_unstarted(ctx: RunContext) -> bool:
    """Return whether no agent has started this generation. A generation must not start twice. The function
    also checks the run's events, because the generation's files were possibly deleted."""
    return state(ctx.rundir) is State.NOT_STARTED and all(
        each.generation != ctx.rundir.generation for each in ctx.events.of(BenchmarkStartEvent)
    )


def _launch(ctx: RunContext) -> None:
    job, members = ctx.job, members_of(ctx.rundir)
    peers = members.peers
    me, strategy = peer_of(peers, ctx.node.rank), strategy_of(job)
    try:
        order = make_order(
            job,
            ctx.rundir,
            launch=lambda job, command: strategy.launch(job, command, me, peers),
            node={
                **node_environment(job, me, peers, hostfile=str(ctx.rundir.hostfile)),
                **generation_environment(ctx.rundir),
                **_checkpoint_environment(ctx),
                **(ctx.supervisor.environment if ctx.supervisor is not None else {}),
            },
            secrets=secrets_of(ctx),
            token=generation_token(members, ctx.rundir.generation),
            umask=ctx.umask,
        )
        if ctx.elastic is not None:
            order = replace(order, listens_at=me.address)
        if order.hosts or order.server is not None:
            # Imported here, because most jobs launch without waiting for another node.
            from bai_agent.nodes.peer_services import wait_for_hosts, wait_for_server

            if order.hosts:
                wait_for_hosts(ctx, order)
            if job.server is not None and order.server is not None:
                wait_for_server(ctx, job.server, order.server)
        launch(order, ctx.rundir, ctx.prepared_shim)
    except (SecretError, SetupError, ShimError) as error:
        raise RunEndedError.of(Outcome.PREPARE_FAILED, str(error)) from error
    started = wait_started(ctx.rundir, timeout_s=30)
    if started is not None:
        ctx.events.add(
            BenchmarkStartEvent(
                pid=started.pid,
                argv=list(order.argv),
                generation=ctx.rundir.generation,
                output_bytes=started.output_bytes,
            )
        )
        for warning in started.warnings:
            ctx.warn(f"{warning[0].upper()}{warning[1:]}.")


def _checkpoint_environment(ctx: RunContext) -> dict[str, str]:
    if ctx.job.checkpoint is None:
        return {}
    from bai_agent.checkpoint.generation_checkpoints import checkpoint_environment

    return checkpoint_environment(ctx)


def _follow(
    ctx: RunContext,
    started: Started | None,
    output: OpenFile,
    look_for_transport: TransportLook,
    *,
    earlier_s: float,
) -> None:
    """Watch the benchmark until it has ended or its state is LOST. The agent orders the shim to stop only
    once, for the first reason.

    earlier_s: duration of all earlier generations (seconds). `limits.max_runtime` includes this time. If the
    shim does not stop the benchmark within the grace period and `_SHIM_MARGIN`, the agent kills the shim and
    the benchmark.
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
    look_for_size = _size_look(ctx)
    troubles = SinkTroubles(ctx.events.add)
    repeats = RepeatDecision(ctx.job, ctx.rundir)
    progress = RepeatProgress(ctx)
    while state(ctx.rundir) is State.RUNNING:
        ctx.extractor.poll()
        repeats.poll()
        progress.poll()
        troubles.observe(ctx.sink_errors())
        ctx.tell_checkpoints()
        ctx.tell_supervisor()
        look_for_size()
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
        reason = ctx.watch.reason(running_s=earlier_s + running_seconds(started))
        if reason is not None and give_up_at is None:
            grace = ctx.grace()
            _order_stop(ctx, reason, grace=grace)
            give_up_at = clock.monotonic() + grace.total_seconds() + _SHIM_MARGIN
        if give_up_at is not None and clock.monotonic() > give_up_at:
            log.error("the shim did not end the benchmark in time; the agent ends both")
            end_lost(ctx.rundir, started=started)
            return
        clock.sleep(_SHORT_TICK if repeats.hurries(clock.monotonic()) else _TICK)


def _size_look(ctx: RunContext) -> Callable[[], None]:
    """Return a function that proposes another number of nodes when the benchmark's hints suggest one. The
    returned function does nothing if the job does not allow proposals."""
    supervisor, elastic = ctx.supervisor, ctx.elastic
    if supervisor is None or elastic is None or not ctx.job.takes_proposals:
        return lambda: None
    # Imported here, so that other jobs start sooner.
    from bai_agent.nodes.size_policy import new_size_look

    return new_size_look(ctx, elastic, lambda: supervisor.hints)


class _ProgramLook:
    """Finds out whether the benchmark runs a Python process or a statically linked program. The pause doubles
    after each search, because each search reads all of /proc."""

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
        log.warning("%s was deleted: the order to stop cannot be written", ctx.rundir.path)
    ctx.events.add(StopEvent(reason=reason.outcome.value, message=reason.message))


def _end_unwatched(ctx: RunContext, started: Started | None) -> None:
    """Kill a benchmark whose shim is dead or unreachable."""
    message = Outcome.LOST.sentence
    if not ctx.rundir.shim_lock.exists():
        message = (
            f"Files of the run directory {ctx.rundir.path} were deleted or renamed while the benchmark ran, "
            f"including {ctx.rundir.shim_lock.name}. The benchmark was ended, because a benchmark must not change bai's files."
        )
        ctx.reason = ctx.reason or StopReason(Outcome.LOST, message)
    # If there is a reason to stop the run, such as a cancelled job, the reason explains the end better than
    # the dead shim does.
    ctx.reason = ctx.reason or ctx.watch.reason()
    end_lost(ctx.rundir, started=started)
    ctx.events.add(StopEvent(reason=Outcome.LOST.value, message=message))


def _remove_container(ctx: RunContext) -> None:
    if ctx.job.benchmark.container is None:
        return
    # Imported here because most jobs have no container.
    from bai_agent.benchmark.container import remove_container

    if (warning := remove_container(ctx.rundir)) is not None:
        ctx.warn(warning)


def _keep_output(ctx: RunContext, output: OpenFile) -> None:
    """Link the open output file to its name again if the benchmark deleted or renamed the file, because other
    programs read the file."""
    kept = ctx.rundir.kept_output
    if kept.exists():
        return
    first = _warn_of_missing(ctx, kept)
    try:
        make_folder(kept.parent, private=ctx.rundir.path)
        output.link_again()
    except OSError as error:
        if first:
            log.warning("%s is gone and cannot be restored: %s", kept, error)


def _warn_of_missing_files(ctx: RunContext) -> None:
    rundir = ctx.rundir
    for path in (rundir.job, rundir.events, rundir.metrics, rundir.kept_metrics):
        if not path.exists():
            _warn_of_missing(ctx, path)


def _warn_of_missing(ctx: RunContext, path: Path) -> bool:
    """Warn that the benchmark deleted or renamed a file, unless the same warning was added before. Return
    whether this call added the warning."""
    name = path.relative_to(ctx.rundir.path).as_posix()
    message = f"{name} was deleted or renamed in the run directory while the benchmark ran; a part of its content may be missing."
    return ctx.warn_once(message)
