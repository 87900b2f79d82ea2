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
from bai_agent.ballast import FULL, make_room
from bai_agent.benchmark import process
from bai_agent.benchmark.python_env import discard_requirements, install_requirements
from bai_agent.errors import PullError
from bai_agent.job import Job, SourceKind
from bai_agent.outcome import Outcome
from bai_agent.parts import missing_parts
from bai_agent.prepare import prepare, start_uploader
from bai_agent.pull import NoSpaceError, Progress, PullStopped, pull
from bai_agent.push.place import Place
from bai_agent.push.store import Left, StoreUploader
from bai_agent.result import publish_result, write_result
from bai_agent.run_benchmark import run_benchmark, start_followers
from bai_agent.run_state import Run
from bai_agent.rundir import RunDir, boot_id, now_ms
from bai_agent.store.record import JobRecord
from bai_agent.strategy import strategy_of
from bai_agent.venv_cache import venv_cache
from bai_agent.watch import EndedError, Reason

log = logging.getLogger(__name__)

_LONG_EXTRACTION = 10.0
"""Seconds after the benchmark's end from which on it is said what its numbers cost."""
_FINISH_EARLY = 5.0
"""For an extractor that is to leave the rest to say how much that is."""


def run(this: Run) -> Outcome:
    """Run the job to its end and return how it ended, which `result.json` then says too."""
    try:
        _begin(this)
        _do(this, "prepare", prepare)
        start_uploader(this)
        _do(this, "pull", _pull)
        _do(this, "join", _join)
        _do(this, "run", run_benchmark)
    except EndedError as ended:
        this.reason = ended.reason
        this.events.lenient = True
        this.events.add("stop", reason=ended.reason.outcome.value, message=ended.reason.message)
    except OSError as error:
        if error.errno not in FULL:
            raise
        make_room(this.rundir)
        this.reason = Reason(Outcome.DISK_FULL, f"No space is left for the run directory {this.rundir.path}.")
        process.end_without_order(this.rundir)
    this.events.lenient = True
    if this.rundir.started.exists():
        _do(this, "drain", _drain)
    _do(this, "end", _end)
    publish_result(this.rundir, this.record, this.uploader, deadline=this.drain_deadline())
    if this.place is None:
        _tidy(this.rundir, this.outcome)
    return this.outcome


def finish_publishing(
    job: Job, rundir: RunDir, record: JobRecord | None, place: Place | None, *, outcome: Outcome
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


def _begin(this: Run) -> None:
    this.events.add("agent_started", pid=os.getpid(), version=__version__, boot_id=boot_id())
    for sentence in missing_parts():
        this.warn(sentence)


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
            # An instance is gone after its one job.
            cache = venv_cache(os.environ) if this.node.instance_id is None else None
            install_requirements(
                this.job, this.rundir, deadline=deadline, stopping=this.watch.stopping, cache=cache
            )
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


def _drain(this: Run) -> None:
    """Let the followers come to the end of what the benchmark left."""
    start_followers(this)
    deadline = _extract_rest(this)
    if this.uploader is not None:
        this.uploader.hurry()
    if this.kafka is not None:
        delivery = this.kafka.finish(deadline)
        this.events.add("delivery", **vars(delivery))
        if delivery.undelivered:
            this.warn(
                f"{delivery.undelivered} of {delivery.delivered + delivery.undelivered} metric messages did not reach "
                f"Kafka{f': {delivery.error}' if delivery.error else ''}."
            )
    if this.uploader is not None:
        _warn_of_left(this, this.uploader.flush(deadline))


def _extract_rest(this: Run) -> float:
    """Wait for the extractor; return until when (`time.monotonic()`) what it found may be sent."""
    begun = time.monotonic()
    deadline = begun + this.job.limits.extract_timeout.total_seconds()
    within = _FINISH_EARLY
    hurry = math.inf

    def over() -> bool:
        nonlocal deadline, within, hurry
        now = time.monotonic()
        # Again each time: a machine that shuts down gives less time than a job that was cancelled.
        if (this.watch.unwanted() or this.watch.disk_full()) and this.drain_deadline() < hurry:
            hurry = this.drain_deadline()
            within = min(_FINISH_EARLY, (hurry - now) / 2)
            deadline = min(deadline, hurry - within)
        return now >= deadline

    done = this.extractor.wait(over)
    seconds = time.monotonic() - begun
    if not done and not this.extractor.finish_early(within=within):
        this.warn(
            f"The metrics were not all extracted; `bai extract {this.job.job.id}` takes them from the kept output."
        )
    this.events.add("extraction", stalled=not done and not over(), seconds=round(seconds, 3))
    if seconds >= _LONG_EXTRACTION:
        this.warn(
            f"The output held so many numbers that extracting them went on for {seconds:.0f} s after the benchmark's end."
        )
    return min(hurry, this.drain_deadline())


def _warn_of_left(this: Run, left: Left) -> None:
    why = f": {left.error}" if left.error else ": the time for it was over (limits.drain)"
    for stream, count in (("output", left.log), ("metrics", left.metrics)):
        if count:
            this.warn(f"{count} bytes of the {stream} were not in the job store when the run ended{why}.")
    if left.lost:
        this.warn(
            f"The benchmark truncated its output; {left.lost} bytes of it had not reached the job store."
        )


def _end(this: Run) -> None:
    """Keep what is to be kept, and say how it all ended."""
    this.outcome = write_result(this)
