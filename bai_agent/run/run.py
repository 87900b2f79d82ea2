"""A run, from beginning to end.

`run` is the table of contents. Each phase may be entered again after a kill: what has finished is passed over, what has
not is taken up where the files in the run directory say that it stopped.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable

from bai_agent import __version__
from bai_agent.benchmark import process
from bai_agent.benchmark.python_env import discard_requirements, install_requirements
from bai_agent.benchmark.venv_cache import venv_cache
from bai_agent.errors import PullError
from bai_agent.job.descriptor import Job, SourceKind
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.reserved_space import FULL, make_room
from bai_agent.job.run_directory import RunDir, boot_id, now_ms
from bai_agent.pull import NoSpaceError, PullProgress, PullStopped, pull
from bai_agent.run.benchmark_phase import begin_environment, run_benchmark, start_followers
from bai_agent.run.context import RunContext
from bai_agent.run.join import join
from bai_agent.run.optional_dependencies import missing_dependencies
from bai_agent.run.prepare import prepare, start_uploader
from bai_agent.run.result import publish_result, write_result
from bai_agent.run.stop import RunEndedError, StopReason
from bai_agent.sinks.job_store.node_store import NodeStore
from bai_agent.sinks.job_store.uploader import StoreUploader

log = logging.getLogger(__name__)

_LONG_EXTRACTION = 10.0
"""Seconds after the benchmark's end from which on it is said what its numbers cost."""
_FINISH_EARLY = 5.0
"""For an extractor that is to leave the rest to say how much that is."""


def run(ctx: RunContext) -> Outcome:
    """Run the job to its end and return how it ended, which `result.json` then says too."""
    try:
        _begin(ctx)
        _do(ctx, "prepare", prepare)
        start_uploader(ctx)
        ctx.probe = begin_environment(ctx)
        _do(ctx, "pull", _pull)
        _do(ctx, "join", join)
        _do(ctx, "run", run_benchmark)
    except RunEndedError as ended:
        ctx.reason = ended.reason
        ctx.events.lenient = True
        ctx.events.add("stop", reason=ended.reason.outcome.value, message=ended.reason.message)
    except OSError as error:
        if error.errno not in FULL:
            raise
        make_room(ctx.rundir)
        ctx.reason = StopReason(
            Outcome.DISK_FULL, f"No space is left for the run directory {ctx.rundir.path}."
        )
        process.end_without_order(ctx.rundir)
    ctx.events.lenient = True
    if process.state(ctx.rundir) is not process.State.NOT_STARTED:
        _do(ctx, "drain", _drain)
    _do(ctx, "end", _end)
    publish_result(ctx.rundir, ctx.record, ctx.uploader, deadline=ctx.drain_deadline())
    if ctx.place is None:
        _tidy(ctx.rundir, ctx.outcome)
    return ctx.outcome


def finish_publishing(
    job: Job, rundir: RunDir, record: JobRecord | None, place: NodeStore | None, *, outcome: Outcome
) -> None:
    """Bring what a run that has ended left into the store: it may have been killed before it had done that."""
    uploader = None
    if place is not None:
        if not rundir.store_offset.exists():
            return
        uploader = StoreUploader(place, rundir)
        uploader.start()
    deadline = time.monotonic() + job.limits.drain.total_seconds()
    publish_result(rundir, record, uploader, deadline=deadline)
    if place is None:
        _tidy(rundir, outcome)


def _tidy(rundir: RunDir, outcome: Outcome) -> None:
    """Delete what a run on this machine that went well has no use for any more; of another one, it may tell why.

    Only once the result is written: a run that is killed before that may still need it, one killed here is tidied by
    whoever starts it again.
    """
    if outcome is Outcome.SUCCEEDED:
        discard_requirements(rundir)


def _do(ctx: RunContext, phase: str, work: Callable[[RunContext], None]) -> None:
    """Do a phase, timed and told, unless it has finished before."""
    if phase in ctx.events.finished_phases() and phase != "end":
        return
    ctx.phase = phase
    begun = time.monotonic()
    for event in ctx.events.seen:
        if event["type"] == "phase" and event["phase"] == phase:
            begun -= max(0, now_ms() - event["time"]) / 1000
            break
    else:
        ctx.events.add("phase", phase=phase, state="started")
    work(ctx)
    ctx.events.add("phase", phase=phase, state="finished", seconds=round(time.monotonic() - begun, 3))


def _begin(ctx: RunContext) -> None:
    ctx.events.add("agent_started", pid=os.getpid(), version=__version__, boot_id=boot_id())
    for sentence in missing_dependencies():
        ctx.warn(sentence)


def _pull(ctx: RunContext) -> None:
    """Bring data and scripts, and install what the scripts require."""
    deadline = time.monotonic() + ctx.job.limits.pull_timeout.total_seconds()
    # A relative path of data is relative to where the benchmark starts: that is where it will look.
    start = process.working_folder(ctx.job, ctx.rundir, scripts=ctx.scripts)
    folders = {SourceKind.DATA: start, SourceKind.SCRIPTS: ctx.rundir.scripts}

    def report(progress: PullProgress) -> None:
        ctx.events.add("pull", **vars(progress))

    try:
        pull(
            ctx.job.sources,
            folders=folders,
            manifest=ctx.rundir.pulled,
            deadline=deadline,
            report=report,
            stopping=ctx.watch.stopping,
        )
        if ctx.job.benchmark.requirements is not None:
            # An instance is gone after its one job.
            cache = venv_cache(os.environ) if ctx.node.instance_id is None else None
            install_requirements(
                ctx.job, ctx.rundir, deadline=deadline, stopping=ctx.watch.stopping, cache=cache
            )
    except PullStopped:
        pass
    except NoSpaceError as error:
        raise RunEndedError(StopReason(Outcome.DISK_FULL, str(error))) from error
    except PullError as error:
        raise RunEndedError(StopReason(Outcome.PULL_FAILED, str(error))) from error
    if reason := ctx.watch.reason():
        raise RunEndedError(reason)


def _drain(ctx: RunContext) -> None:
    """Let the followers come to the end of what the benchmark left."""
    start_followers(ctx)
    deadline = _extract_rest(ctx)
    for sink in ctx.sinks:
        sink.hurry()
    # The job store last: it takes what the others have to say.
    for sink in sorted(ctx.sinks, key=lambda sink: sink is ctx.uploader):
        delivery = sink.finish(deadline)
        ctx.events.add(
            "delivery",
            sink=sink.name,
            delivered=delivery.delivered,
            undelivered=delivery.undelivered,
            error=delivery.error,
        )
        for warning in delivery.warnings:
            ctx.warn(warning)


def _extract_rest(ctx: RunContext) -> float:
    """Wait for the extractor; return until when (`time.monotonic()`) what it found may be sent."""
    begun = time.monotonic()
    deadline = begun + ctx.job.limits.extract_timeout.total_seconds()
    within = _FINISH_EARLY
    hurry = math.inf

    def over() -> bool:
        nonlocal deadline, within, hurry
        now = time.monotonic()
        # Again each time: a machine that shuts down gives less time than a job that was cancelled.
        if (ctx.watch.unwanted() or ctx.disk.look()) and ctx.drain_deadline() < hurry:
            hurry = ctx.drain_deadline()
            within = min(_FINISH_EARLY, (hurry - now) / 2)
            deadline = min(deadline, hurry - within)
        return now >= deadline

    done = ctx.extractor.wait(over)
    seconds = time.monotonic() - begun
    if not done and not ctx.extractor.finish_early(within=within):
        ctx.warn(
            f"The metrics were not all extracted; `bai extract {ctx.job.job.id}` takes them from the kept output."
        )
    ctx.events.add("extraction", stalled=not done and not over(), seconds=round(seconds, 3))
    if seconds >= _LONG_EXTRACTION:
        ctx.warn(
            f"The output held so many numbers that extracting them went on for {seconds:.0f} s after the benchmark's end."
        )
    return min(hurry, ctx.drain_deadline())


def _end(ctx: RunContext) -> None:
    """Keep what is to be kept, and say how it all ended."""
    ctx.outcome = write_result(ctx)
