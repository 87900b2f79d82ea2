"""A run of a job on one node, from beginning to end. The function `run` lists the phases in order.

An agent that is restarted after a kill skips the finished phases, and continues the unfinished phase from the
files of the run directory.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from bai_agent import __version__
from bai_agent.benchmark.environment import workspaces
from bai_agent.benchmark.state import State, state
from bai_agent.benchmark.stopping import end_without_order
from bai_agent.generations.decision_file import read_ledger
from bai_agent.job.descriptor import Job
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import peer_of
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import (
    AgentEvent,
    DeliveryEvent,
    ExtractionEvent,
    PhaseEvent,
    StopEvent,
)
from bai_agent.job.run_directory import FULL, RunDir, boot_id, make_room, read_json
from bai_agent.light_dataclass import dataclass
from bai_agent.machine.colocated_jobs import colocated_jobs_reported, wait_until_alone
from bai_agent.machine.job_sockets import ThisJob
from bai_agent.machine.probe import counters_now
from bai_agent.machine.throttling import throttling_warnings
from bai_agent.nodes.held_ports import answer_others, hold_agent_port
from bai_agent.nodes.join import join
from bai_agent.nodes.members_file import members_of
from bai_agent.phases.benchmark_phase import begin_environment, start_followers
from bai_agent.phases.generation_history import has_run, newest_begun, newest_started
from bai_agent.phases.generation_loop import end_generations, run_benchmark, wait_for_checkpoint
from bai_agent.phases.prepare import missing_dependencies, prepare, start_monitor, start_uploader
from bai_agent.phases.pull_phase import bring, mount_file_systems, unmount_file_systems
from bai_agent.run.run_context import RunContext, new_uploader
from bai_agent.runtime.clock import CLOCK
from bai_agent.runtime.stop import RunEndedError, StopReason
from bai_agent.strategy import role_of
from bai_agent.strategy.launch import Role

if TYPE_CHECKING:
    from bai_agent.job.peers import Members
    from bai_agent.peers.elastic_monitor import ElasticMonitor
    from bai_agent.peers.node_monitor import NodeMonitor
    from bai_agent.peers.peer_monitor import PeerMonitor
    from bai_agent.sinks.job_store.node_store import NodeStore

log = logging.getLogger(__name__)

_LONG_EXTRACTION = 10.0
"""Time after the benchmark's exit for which extraction can continue without a warning (seconds)."""
_FINISH_EARLY = 5.0
"""Time for an extractor that is ordered to stop to report how much output it has not read (seconds)."""

Phase: TypeAlias = Callable[[RunContext], None]


def run(ctx: RunContext, phases: Phases | None = None) -> Outcome:
    """Run the job to its end and return its outcome, which is also in `result.json`."""
    phases = phases or Phases()
    ctx.when_started = _import_end
    if (newest := newest_started(ctx)) != ctx.rundir:
        ctx.begin_generation(newest)
    try:
        _begin(ctx)
        _do(ctx, "prepare", phases.prepare)
        start_uploader(ctx)
        start_monitor(ctx)
        _wait_until_alone(ctx)
        begin_environment(ctx)
        mount_file_systems(ctx)
        _do(ctx, "pull", phases.pull)
        _do(ctx, "join", phases.join)
        if ctx.monitor is not None:
            _meet(ctx, ctx.monitor)
        if ctx.elastic is not None:
            _meet_generation(ctx, ctx.elastic)
        with _machine_watched(ctx):
            _do(ctx, "run", phases.run)
    except RunEndedError as ended:
        ctx.reason = ended.reason
        lasted = ctx.seconds_since(ctx.phase)
        if lasted is not None and ctx.phase not in ctx.events.finished_phases():
            ctx.cut_short = {ctx.phase: lasted}
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
    if ctx.others is not None:
        from bai_agent.phases.gang_failure import tell_others

        tell_others(ctx)
    end_generations(ctx)
    wait_for_checkpoint(ctx)
    if has_run(ctx):
        _do(ctx, "drain", phases.drain)
    _do(ctx, "end", phases.end)
    from bai_agent.phases.result import publish_result

    discard_ssh(ctx.rundir)
    publish_result(
        ctx.job, ctx.rundir, ctx.record, ctx.uploader, rank=ctx.node.rank, deadline=ctx.drain_deadline()
    )
    unmount_file_systems(ctx.job, ctx.rundir)
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
    """Upload the files of an ended run that have not been uploaded yet. The run's agent was possibly killed
    before it had uploaded all files."""
    from bai_agent.phases.result import publish_result

    discard_ssh(rundir)
    uploader = None
    if node_store is not None:
        if not rundir.store_offset.exists():
            return
        uploader = new_uploader(node_store, rundir)
        uploader.start()
    deadline = CLOCK.monotonic() + job.limits.drain.total_seconds()
    publish_result(job, rundir, record, uploader, rank=rank, deadline=deadline)
    unmount_file_systems(job, rundir)
    if node_store is None:
        _tidy(job, rundir, outcome)


def discard_ssh(rundir: RunDir) -> None:
    """Delete the keys and files of ssh and sshd."""
    if rundir.ssh.exists():
        from shutil import rmtree  # it loads the libraries of all compressions

        rmtree(rundir.ssh, ignore_errors=True)


def _import_end(ctx: RunContext) -> None:
    """While the benchmark runs, import the modules that the end of the run needs. Raises OSError if no file
    descriptor is free.

    The early import is needed because bai can be upgraded during the run. The agent must not load modules of
    another version.
    """
    names = ["metrics.checkpoint", "metrics.search_limit", "metrics.search.terminal", "phases.result"]
    if ctx.others is not None:
        names.append("phases.gang_failure")
    if ctx.job.repeat is not None:
        names.append("phases.enough")
    if any(own.venv.exists() for _, own in workspaces(ctx.job, ctx.rundir)):
        names.append("requirements.python_env")
    try:
        for name in names:
            import_module(f"bai_agent.{name}")
    except ImportError:
        # An import without a free file descriptor raises ImportError instead of OSError. Opening this file
        # then raises OSError, so that the import is tried again.
        os.close(os.open(os.devnull, os.O_RDONLY))
        raise


def _tidy(job: Job, rundir: RunDir, outcome: Outcome) -> None:
    """Delete the benchmark's Python environments after a success. After a failure, the environments are kept,
    because they can help to explain the failure.

    The environments are deleted only after the result was written, because an agent that is restarted before
    that time needs them. If the agent is killed before the deletion, `finish_publishing` deletes the
    environments.
    """
    if outcome is Outcome.SUCCEEDED:
        for _, own in workspaces(job, rundir):
            if own.venv.exists() or own.venv.is_symlink():
                from bai_agent.requirements.python_env import discard_requirements

                discard_requirements(own)


def _do(ctx: RunContext, phase: str, work: Phase) -> None:
    """Run a phase, and add events for its start and end. A phase that an earlier agent of the run has
    finished is skipped."""
    if phase in ctx.events.finished_phases() and phase != "end":
        return
    ctx.phase = phase
    if ctx.others is not None:
        ctx.others.phase = phase
    begun = ctx.began(phase)
    if begun is None:
        begun = ctx.clock.monotonic()
        ctx.events.add(PhaseEvent(phase=phase, state="started", uptime=round(begun, 3)))
    work(ctx)
    now = ctx.clock.monotonic()
    ctx.events.add(
        PhaseEvent(phase=phase, state="finished", seconds=round(now - begun, 3), uptime=round(now, 3))
    )


def _meet(ctx: RunContext, monitor: PeerMonitor) -> None:
    """Record the other nodes and their roles. From now on, this node answers direct requests of the other
    nodes and can send requests to them."""
    members = members_of(ctx.rundir)
    peers = members.peers
    roles = {peer.rank: role_of(ctx.job, peer, peers) for peer in peers}
    ctx.role = roles.pop(ctx.node.rank)
    ctx.is_served = Role.SERVE in roles.values()
    monitor.serves = ctx.role is Role.SERVE
    monitor.met(peers, key=members.key)
    if monitor.generations is not None:
        serving = frozenset(rank for rank, role in roles.items() if role is Role.SERVE)
        monitor.generations.met(members, serving=serving)
        monitor.generations.begin(ctx.rundir.generation, read_ledger(ctx.rundir))
    _answer(ctx, monitor, members)


def _meet_generation(ctx: RunContext, elastic: ElasticMonitor) -> None:
    """Do the work of `_meet` in an elastic job, for the members of this node's generation. An earlier agent
    has possibly started this generation."""
    from bai_agent.nodes.membership import meet

    meet(ctx, elastic)
    elastic.at = newest_begun(ctx)
    _answer(ctx, elastic, members_of(ctx.rundir))


def _answer(ctx: RunContext, others: NodeMonitor, members: Members) -> None:
    """Answer the other nodes' requests from now on, and ask other nodes about the store when this node cannot
    reach the store."""
    me = peer_of(members.peers, ctx.node.rank)
    if ctx.agent_port is None and me.agent_port:
        # An earlier agent of this node, which was killed, announced this port to the other nodes.
        ctx.agent_port = hold_agent_port(me.address, me.agent_port)
    if members.key is not None:
        answer_others(ctx, others, key=members.key)
    others.start_looking_for_store()


def _wait_until_alone(ctx: RunContext) -> None:
    """If the job is exclusive, wait until no other job runs on this machine. Raises RunEndedError if the run
    must end during the wait."""
    # If nodes share a machine, only node 0 waits for other jobs to end. The other nodes wait for node 0 in
    # `join`.
    if not ctx.job.benchmark.exclusive or ctx.node.rank or state(ctx.rundir) is not State.NOT_STARTED:
        return
    ctx.alone = wait_until_alone(_me(ctx), tell=ctx.events.add, stopping=ctx.watch.stopping, clock=ctx.clock)
    ctx.watch.raise_reason()


@contextmanager
def _machine_watched(ctx: RunContext) -> Iterator[None]:
    """While the context is open, record which other jobs run on this machine. When the context closes, warn
    if the machine was throttled."""
    if "run" in ctx.events.finished_phases():
        yield
        return
    with colocated_jobs_reported(_me(ctx), ctx.events):
        yield
    # The counters at the start are read from environment.json, because an earlier agent possibly started the
    # benchmark.
    before = (read_json(ctx.rundir.environment) or {}).get("counters")
    if isinstance(before, dict):
        for sentence in throttling_warnings(before, counters_now()):
            ctx.warn(sentence)


def _me(ctx: RunContext) -> ThisJob:
    place = ctx.record.store.url if ctx.record is not None else str(ctx.rundir.path)
    return ThisJob.of(ctx.job.job.id, place=place)


def _begin(ctx: RunContext) -> None:
    ctx.events.add(AgentEvent(pid=os.getpid(), version=__version__, boot_id=boot_id()))
    for sentence in missing_dependencies():
        ctx.warn(sentence)


def _drain(ctx: RunContext) -> None:
    """Wait until the extractor has read the output and the sinks have delivered its records, within their
    time limits."""
    start_followers(ctx)
    deadline = _extract_rest(ctx)
    for sink in ctx.sinks:
        sink.flush_soon()
    # The job store's sink finishes last, because the job store also receives the events about the other
    # sinks.
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
    """Wait until the extractor has finished. Return the deadline for the delivery of the extracted records
    (`time.monotonic()`)."""
    clock = ctx.clock
    begun = clock.monotonic()
    deadline = begun + ctx.job.limits.extract_timeout.total_seconds()
    within = _FINISH_EARLY
    hurry = math.inf

    def over() -> bool:
        nonlocal deadline, within, hurry
        now = clock.monotonic()
        # The deadline is computed at each check, because a shutdown of the machine can leave less time than
        # an earlier cancellation.
        if (ctx.watch.abandoned() or ctx.disk.look()) and ctx.drain_deadline() < hurry:
            hurry = ctx.drain_deadline()
            within = min(_FINISH_EARLY, (hurry - now) / 2)
            deadline = min(deadline, hurry - within)
        return now >= deadline

    done = ctx.extractor.wait(over, sleep=clock.sleep)
    seconds = clock.monotonic() - begun
    if not done and not ctx.extractor.finish_early(within=within):
        ctx.warn(
            f"Not all metrics were extracted; `bai extract {ctx.job.job.id}` extracts them from the saved output."
        )
    ctx.events.add(ExtractionEvent(stalled=not done and not over(), seconds=round(seconds, 3)))
    if seconds >= _LONG_EXTRACTION:
        ctx.warn(
            f"The output held so many numbers that their extraction continued for {seconds:.0f} s after the benchmark's end."
        )
    return min(hurry, ctx.drain_deadline())


def _end(ctx: RunContext) -> None:
    """Save the artifacts, and write the result of this node's run."""
    from bai_agent.phases.result import write_result

    ctx.outcome = write_result(ctx)


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The functions that run the phases of a run, in the order of the phases."""

    prepare: Phase = prepare
    pull: Phase = bring
    join: Phase = join
    run: Phase = run_benchmark
    drain: Phase = _drain
    """The phase in which records are delivered. The `drain` phase is skipped if the benchmark never began."""
    end: Phase = _end
