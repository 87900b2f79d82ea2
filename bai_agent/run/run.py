"""A run, from beginning to end.

`run` is the table of contents. An agent that is started again after a kill skips the phases that have finished, and
goes on in the next one from where the files in the run directory say that it stopped.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from bai_agent import __version__
from bai_agent.benchmark.environment import SetupError, find_user, scripts_folder, working_folder, workspaces
from bai_agent.benchmark.openssh import discard_ssh
from bai_agent.benchmark.python_env import discard_requirements, install_requirements
from bai_agent.benchmark.state import State, state
from bai_agent.benchmark.stopping import end_without_order
from bai_agent.benchmark.venv_cache import venv_cache
from bai_agent.errors import PullError
from bai_agent.job.descriptor import Job, Source, SourceKind
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import (
    AgentEvent,
    DeliveryEvent,
    ExtractionEvent,
    PhaseEvent,
    PullEvent,
    RequirementsEvent,
    StopEvent,
)
from bai_agent.job.reserved_space import FULL, make_room
from bai_agent.job.run_directory import RunDir, boot_id, read_json
from bai_agent.pull import NoSpaceError, PullProgress, PullStopped, pull
from bai_agent.run.benchmark_phase import begin_environment, run_benchmark, start_followers
from bai_agent.run.clock import CLOCK
from bai_agent.run.context import RunContext
from bai_agent.run.direct_question import AnswerPort
from bai_agent.run.environment import counters_now
from bai_agent.run.job_sockets import Me
from bai_agent.run.join import hold_agent_port, join, members_of
from bai_agent.run.neighbours import neighbours_told, wait_until_alone
from bai_agent.run.one_fate import tell_others
from bai_agent.run.peer_monitor import PeerMonitor
from bai_agent.run.prepare import missing_dependencies, prepare, start_monitor, start_uploader
from bai_agent.run.result import publish_result, write_result
from bai_agent.run.stop import RunEndedError, StopReason
from bai_agent.run.store_absence import AbsenceWatch
from bai_agent.run.throttling import throttling_warnings
from bai_agent.sinks.job_store.node_store import NodeStore
from bai_agent.sinks.job_store.uploader import StoreUploader
from bai_agent.strategy import role_of
from bai_agent.strategy.launch import Role

log = logging.getLogger(__name__)

_LONG_EXTRACTION = 10.0
"""An extraction that goes on for more seconds after the benchmark's end is warned of."""
_FINISH_EARLY = 5.0
"""For an extractor that is told to leave the rest: to say how much that is."""

Phase: TypeAlias = Callable[[RunContext], None]


def run(ctx: RunContext, phases: Phases | None = None) -> Outcome:
    """Run the job to its end and return how it ended, which `result.json` then says too."""
    phases = phases or Phases()
    try:
        _begin(ctx)
        _do(ctx, "prepare", phases.prepare)
        start_uploader(ctx)
        start_monitor(ctx)
        _wait_until_alone(ctx)
        begin_environment(ctx)
        _do(ctx, "pull", phases.pull)
        _do(ctx, "join", phases.join)
        if ctx.monitor is not None:
            _meet(ctx, ctx.monitor)
        with _machine_watched(ctx):
            _do(ctx, "run", phases.run)
    except RunEndedError as ended:
        ctx.reason = ended.reason
        began = _began(ctx, ctx.phase)
        if began is not None and ctx.phase not in ctx.events.finished_phases():
            ctx.cut_short = {ctx.phase: round(ctx.clock.monotonic() - began, 3)}
        ctx.events.lenient = True
        ctx.events.add(StopEvent(reason=ended.reason.outcome.value, message=ended.reason.message))
    except OSError as error:
        if error.errno not in FULL:
            raise
        make_room(ctx.rundir)
        ctx.reason = StopReason(
            Outcome.DISK_FULL, f"No space is left for the run directory {ctx.rundir.path}."
        )
        end_without_order(ctx.rundir)
    ctx.events.lenient = True
    tell_others(ctx)
    if state(ctx.rundir) is not State.NOT_STARTED:
        _do(ctx, "drain", phases.drain)
    _do(ctx, "end", phases.end)
    discard_ssh(ctx.rundir)
    publish_result(ctx.rundir, ctx.record, ctx.uploader, rank=ctx.node.rank, deadline=ctx.drain_deadline())
    if ctx.node_store is None:
        _tidy(ctx.job, ctx.rundir, ctx.outcome)
    return ctx.outcome


def finish_publishing(
    job: Job,
    rundir: RunDir,
    record: JobRecord | None,
    node_store: NodeStore | None,
    *,
    rank: int,
    outcome: Outcome,
) -> None:
    """Bring what a run that has ended left into the store: its agent may have been killed before it had done that."""
    discard_ssh(rundir)
    uploader = None
    if node_store is not None:
        if not rundir.store_offset.exists():
            return
        uploader = StoreUploader(node_store, rundir)
        uploader.start()
    deadline = CLOCK.monotonic() + job.limits.drain.total_seconds()
    publish_result(rundir, record, uploader, rank=rank, deadline=deadline)
    if node_store is None:
        _tidy(job, rundir, outcome)


def _tidy(job: Job, rundir: RunDir, outcome: Outcome) -> None:
    """Delete what a successful run does not need any more; after another one it may tell why.

    Only once the result is written: an agent that is killed before that needs it when it is started again; one that is
    killed here leaves the rest to `finish_publishing`.
    """
    if outcome is Outcome.SUCCEEDED:
        for _, own in workspaces(job, rundir):
            discard_requirements(own)


def _do(ctx: RunContext, phase: str, work: Phase) -> None:
    """Do a phase, with events for its start and its end, unless it has finished before."""
    if phase in ctx.events.finished_phases() and phase != "end":
        return
    ctx.phase = phase
    if ctx.monitor is not None:
        ctx.monitor.phase = phase
    begun = _began(ctx, phase)
    if begun is None:
        begun = ctx.clock.monotonic()
        ctx.events.add(PhaseEvent(phase=phase, state="started", uptime=round(begun, 3)))
    work(ctx)
    now = ctx.clock.monotonic()
    ctx.events.add(
        PhaseEvent(phase=phase, state="finished", seconds=round(now - begun, 3), uptime=round(now, 3))
    )


def _began(ctx: RunContext, phase: str) -> float | None:
    """Return when another agent began this phase, by this boot's monotonic clock; None if none did.

    After a reboot only the time of day tells; that one may have been set in between, so within a boot it is not asked.
    """
    boot = None
    for event in ctx.events.seen:
        if isinstance(event, AgentEvent):
            boot = event.boot_id
        elif isinstance(event, PhaseEvent) and event.phase == phase:
            if event.uptime is not None and boot is not None and boot == boot_id():
                return min(event.uptime, ctx.clock.monotonic())
            return ctx.clock.monotonic() - max(0.0, ctx.clock.time() - event.time / 1000)
    return None


def _meet(ctx: RunContext, monitor: PeerMonitor) -> None:
    """Know who the other nodes are, and what each one's part is; ask them directly from now on, and answer them."""
    members = members_of(ctx.rundir)
    peers = members.peers
    roles = {peer.rank: role_of(ctx.job, peer, peers) for peer in peers}
    ctx.role = roles.pop(ctx.node.rank)
    ctx.is_served = Role.SERVE in roles.values()
    monitor.serves = ctx.role is Role.SERVE
    monitor.met(peers, key=members.key)
    me = peers[ctx.node.rank]
    if ctx.agent_port is None and me.agent_port:
        # An agent before this one told the others of the port.
        ctx.agent_port = hold_agent_port(me.address, me.agent_port)
    if ctx.agent_port is not None and members.key is not None:
        AnswerPort(ctx.agent_port, rank=me.rank, key=members.key, answer=monitor.absence.answer).start()
    AbsenceWatch(monitor.look_for_store).start()


def _wait_until_alone(ctx: RunContext) -> None:
    """Have this machine for this job alone, where the job says so. Raises RunEndedError where it is to end meanwhile."""
    # Of several nodes on one machine the first one speaks for all; the others wait for it in `join`.
    if not ctx.job.benchmark.exclusive or ctx.node.rank or state(ctx.rundir) is not State.NOT_STARTED:
        return
    ctx.alone = wait_until_alone(_me(ctx), tell=ctx.events.add, stopping=ctx.watch.stopping, clock=ctx.clock)
    if reason := ctx.watch.reason():
        raise RunEndedError(reason)


@contextmanager
def _machine_watched(ctx: RunContext) -> Iterator[None]:
    """Note which other jobs run on this machine meanwhile, and warn of what slowed it down."""
    if "run" in ctx.events.finished_phases():
        yield
        return
    with neighbours_told(_me(ctx), ctx.events):
        yield
    # In environment.json, as another agent may have started the benchmark.
    before = (read_json(ctx.rundir.environment) or {}).get("counters")
    if isinstance(before, dict):
        for sentence in throttling_warnings(before, counters_now()):
            ctx.warn(sentence)


def _me(ctx: RunContext) -> Me:
    place = ctx.record.store.url if ctx.record is not None else str(ctx.rundir.path)
    return Me.of(ctx.job.job.id, place=place)


def _begin(ctx: RunContext) -> None:
    ctx.events.add(AgentEvent(pid=os.getpid(), version=__version__, boot_id=boot_id()))
    for sentence in missing_dependencies():
        ctx.warn(sentence)


def _pull(ctx: RunContext) -> None:
    """Bring data and scripts, and install what the scripts require."""
    deadline = ctx.clock.monotonic() + ctx.job.limits.pull_timeout.total_seconds()
    homes = workspaces(ctx.job, ctx.rundir)

    def report(progress: PullProgress) -> None:
        ctx.events.add(PullEvent(**vars(progress)))

    try:
        user = find_user(ctx.job.benchmark.user)
        pull(
            _sources(ctx),
            folders=_folders(*homes[0]),
            manifest=ctx.rundir.pulled,
            deadline=deadline,
            report=report,
            stopping=ctx.watch.stopping,
            user=user,
        )
        for job, rundir in homes:
            if (required := job.benchmark.requirements) is not None:
                ctx.events.add(RequirementsEvent(path=required, done=False))
                # An instance is gone after its one job.
                cache = venv_cache(os.environ) if ctx.node.instance_id is None else None
                install_requirements(job, rundir, deadline=deadline, stopping=ctx.watch.stopping, cache=cache)
                ctx.events.add(RequirementsEvent(path=required, done=True))
    except PullStopped:
        pass
    except NoSpaceError as error:
        raise RunEndedError(StopReason(Outcome.DISK_FULL, str(error))) from error
    except (PullError, SetupError) as error:
        raise RunEndedError(StopReason(Outcome.PULL_FAILED, str(error))) from error
    if reason := ctx.watch.reason():
        raise RunEndedError(reason)


def _folders(job: Job, rundir: RunDir) -> dict[SourceKind, Path]:
    """Return where relative paths start; of data it is the folder that the benchmark starts in: it looks there."""
    start = working_folder(job, rundir, scripts=scripts_folder(job, rundir))
    return {SourceKind.DATA: start, SourceKind.SCRIPTS: rundir.scripts}


def _sources(ctx: RunContext) -> Sequence[Source]:
    """Return what this node pulls. Of several nodes on one machine the first one alone brings what lies outside their folders.

    Where arms have folders of their own, what has a relative path comes into those of each arm that it is for.
    """
    everything = ctx.node.rank == 0 or ctx.node.instance_id is not None
    found: dict[Source, None] = {}
    for job, rundir in workspaces(ctx.job, ctx.rundir):
        folders = _folders(job, rundir)
        for source in job.sources:
            if not everything and Path(source.path).is_absolute():
                continue
            if rundir.arm is not None:
                slash = "/" if source.path.endswith("/") else ""
                source = replace(source, path=f"{folders[source.kind] / source.path}{slash}")
            found[source] = None
    return list(found)


def _drain(ctx: RunContext) -> None:
    """Let the extractor and the sinks come to the end of what the benchmark left."""
    start_followers(ctx)
    deadline = _extract_rest(ctx)
    for sink in ctx.sinks:
        sink.hurry()
    # The job store last: it takes the events that the others cause, too.
    for sink in sorted(ctx.sinks, key=lambda sink: sink is ctx.uploader):
        delivery = sink.finish(deadline)
        ctx.events.add(
            DeliveryEvent(
                sink=sink.name,
                delivered=delivery.delivered,
                undelivered=delivery.undelivered,
                error=delivery.error,
            )
        )
        for warning in delivery.warnings:
            ctx.warn(warning)


def _extract_rest(ctx: RunContext) -> float:
    """Wait for the extractor; return until when (`time.monotonic()`) what it found may be sent."""
    clock = ctx.clock
    begun = clock.monotonic()
    deadline = begun + ctx.job.limits.extract_timeout.total_seconds()
    within = _FINISH_EARLY
    hurry = math.inf

    def over() -> bool:
        nonlocal deadline, within, hurry
        now = clock.monotonic()
        # Again each time: a machine that shuts down gives less time than a job that was cancelled.
        if (ctx.watch.unwanted() or ctx.disk.look()) and ctx.drain_deadline() < hurry:
            hurry = ctx.drain_deadline()
            within = min(_FINISH_EARLY, (hurry - now) / 2)
            deadline = min(deadline, hurry - within)
        return now >= deadline

    done = ctx.extractor.wait(over, sleep=clock.sleep)
    seconds = clock.monotonic() - begun
    if not done and not ctx.extractor.finish_early(within=within):
        ctx.warn(
            f"The metrics were not all extracted; `bai extract {ctx.job.job.id}` takes them from the kept output."
        )
    ctx.events.add(ExtractionEvent(stalled=not done and not over(), seconds=round(seconds, 3)))
    if seconds >= _LONG_EXTRACTION:
        ctx.warn(
            f"The output held so many numbers that extracting them went on for {seconds:.0f} s after the benchmark's end."
        )
    return min(hurry, ctx.drain_deadline())


def _end(ctx: RunContext) -> None:
    """Keep the artifacts, and write how the run ended."""
    ctx.outcome = write_result(ctx)


@dataclass(frozen=True, kw_only=True)
class Phases:
    """What a run does, in this order."""

    prepare: Phase = prepare
    pull: Phase = _pull
    join: Phase = join
    run: Phase = run_benchmark
    drain: Phase = _drain
    """Only where the benchmark has begun."""
    end: Phase = _end
