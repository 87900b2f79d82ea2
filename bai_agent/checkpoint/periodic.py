"""Saves checkpoints periodically while a generation runs, and the last checkpoint at the generation's end. A
separate thread saves the checkpoints.

`follow` is called after a launch. `wait_until_kept` is called after the last process of the benchmark has ended, before the next
generation begins or the job ends.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bai_agent.benchmark.state import read_started
from bai_agent.checkpoint.generation_checkpoints import benchmark_user, checkpoint_folder, checkpoint_record
from bai_agent.checkpoint.keep import Keeper
from bai_agent.checkpoint.snapshot import FolderListing, Snapshot, list_folder, take_snapshot
from bai_agent.errors import CheckpointError
from bai_agent.files.user_rights import User
from bai_agent.generations.checkpoint_marker import CheckpointMarker
from bai_agent.job.record_types import (
    CheckpointEvent,
    CheckpointSummary,
    RestoreEvent,
    RunEvent,
    WarningEvent,
)
from bai_agent.nodes.members_file import is_first_member
from bai_agent.run.run_context import KeepsCheckpoints, RunContext

log = logging.getLogger(__name__)

_TICK_S = 0.05
_SETTLE_S = 10.0
"""Longest wait until nothing is written to the checkpoint folder (seconds). The checkpoint is skipped if
files still change after this wait."""
_SKIPPED = 5
"""Maximum number of names of skipped files in a warning."""


def follow(ctx: RunContext) -> None:
    """Start to save checkpoints of this generation, if this node has group rank 0."""
    checkpoint, generation = ctx.job.checkpoint, ctx.rundir.generation
    if checkpoint is None or checkpoint.shared or not is_first_member(ctx):
        return
    if ctx.checkpoints is not None and ctx.checkpoints.generation == generation:
        return
    started = read_started(ctx.rundir)
    if started is not None and not started.of_this_boot:
        # The machine rebooted, so the benchmark's last writes may be missing on the disk.
        return
    keeper = Keeper(
        record=checkpoint_record(ctx),
        node=ctx.node.rank,
        generation=generation,
        patience=ctx.job.limits.drain,
    )
    ctx.checkpoints = CheckpointThread(
        checkpoint_folder(ctx, checkpoint),
        keeper,
        user=benchmark_user(ctx),
        place=ctx.rundir.checkpoint_held,
        every_s=checkpoint.every.total_seconds() if checkpoint.every is not None else None,
        last=ctx.restored,
        before=ctx.checkpoints,
        before_s=ctx.job.limits.pull_timeout.total_seconds(),
    )
    ctx.checkpoints.start()


def wait_until_kept(ctx: RunContext) -> None:
    """Wait until the last checkpoint of this generation is saved, or until the time limit for saving is
    over."""
    if ctx.began("drain") is None:
        # A previous agent process may have been killed while it waited for this checkpoint.
        follow(ctx)
    thread = ctx.checkpoints
    if thread is None:
        return
    thread.end()
    limit_s = ctx.job.limits.pull_timeout.total_seconds()
    hurry = math.inf
    while thread.is_alive():
        if ctx.watch.abandoned() or ctx.watch.deadline() is not None:
            # The time limit is computed only once. If it were computed repeatedly as half of the time that
            # remains, it would never be reached.
            hurry = min(hurry, ctx.drain_deadline())
        if ctx.clock.monotonic() >= hurry or not thread.keeps_within(limit_s):
            thread.give_up()
            break
        ctx.tell_checkpoints()
        ctx.clock.sleep(_TICK_S)
    ctx.tell_checkpoints()


def checkpoint_summary(ctx: RunContext) -> CheckpointSummary:
    """Return the number, size and duration of this node's checkpoints."""
    kept, restores = ctx.events.of(CheckpointEvent), ctx.events.of(RestoreEvent)
    # A restarted agent may restore a checkpoint for the same generation a second time.
    restored = {each.generation: each for each in restores if each.name is not None}.values()
    return CheckpointSummary(
        kept=len(kept),
        newest=kept[-1].name if kept else None,
        restored=len(restored),
        restored_bytes=sum(each.bytes for each in restored),
        bytes=sum(each.bytes for each in kept),
        seconds=_seconds(kept),
        restore_seconds=_seconds(restored),
    )


def _seconds(events: Iterable[CheckpointEvent | RestoreEvent]) -> float:
    return round(sum(each.seconds for each in events), 3)


class CheckpointThread(threading.Thread):
    """Saves the checkpoints of a generation. The checkpoint thread creates events, and the main thread of the
    run reads the events."""

    def __init__(
        self,
        folder: Path,
        keeper: Keeper,
        *,
        user: User | None,
        place: Path,
        every_s: float | None,
        last: CheckpointMarker | None,
        before: KeepsCheckpoints | None,
        before_s: float,
    ) -> None:
        """every_s: seconds between two checkpoints. If `every_s` is None, only the generation's last
        checkpoint is saved. last: the restored checkpoint.

        before: the thread of the previous generation, which must end first. before_s: longest wait for the
        end of that thread (seconds).
        """
        super().__init__(name="checkpoints", daemon=True)
        self._folder, self._keeper, self._user, self._place = folder, keeper, user, place
        self._every_s = every_s
        self._last = last
        self._before, self._before_s = before, before_s
        self._seen: FolderListing | None = None
        """Listing of the folder at the time of the last checkpoint."""
        self._held: Snapshot | None = None
        self._is_stale: bool | None = None
        self._ends = threading.Event()
        self._ended_s = 0.0
        self._is_given_up = False
        self._events: queue.SimpleQueue[RunEvent] = queue.SimpleQueue()
        self._failure: str | None = None
        """Reason why the last checkpoint was not saved. None if the last checkpoint was saved."""
        self._skipped: tuple[str, ...] = ()

    @property
    def generation(self) -> int:
        return self._keeper.generation

    def events(self) -> Iterator[RunEvent]:
        """Yield the events that were created since the last call."""
        while not self._events.empty():
            yield self._events.get()

    def end(self) -> None:
        """Save the last checkpoint now, because no process of the benchmark is running any more."""
        if not self._ends.is_set():
            self._ended_s = time.monotonic()
            self._ends.set()

    def keeps_within(self, limit_s: float) -> bool:
        """Return whether the thread has been saving the generation's last checkpoint for less than
        `seconds`."""
        return self.is_alive() and time.monotonic() < self._ended_s + limit_s

    def give_up(self) -> None:
        """Save no further checkpoints. Report a checkpoint whose upload was not finished before this call."""
        self._is_given_up = True
        self.end()
        if self.is_alive():
            self._warn("there was no time left")

    def run(self) -> None:
        try:
            if self._before is not None:
                self._before.join(self._before_s)
                if self._before.is_alive():
                    # If the threads of two generations ran together, both generations would write to the same
                    # files in the store.
                    self._warn("the upload of the previous generation is still running")
                    return
            while not self._ends.wait(self._every_s):
                self._keep(over=self._is_outdated)
            self._keep(over=lambda: self._is_given_up, is_last=True)
        except BaseException:
            # BaseException is caught in the thread's outermost frame, because a panic in obstore raises a
            # BaseException.
            log.exception("checkpoints: a defect")
            self._warn("a defect; agent.log has the details")

    def _keep(self, *, over: Callable[[], bool], is_last: bool = False) -> None:
        """Save a checkpoint if the checkpoint folder has changed since the last checkpoint."""
        self._held = None
        try:
            seen = list_folder(self._folder, user=self._user)
            if seen.files and (self._seen is None or seen.files != self._seen.files):
                self._keep_changed(over)
        except (CheckpointError, OSError) as error:
            # No warning is given if another checkpoint follows at the generation's end, or if `give_up` has
            # already reported this checkpoint.
            if is_last is self._ends.is_set() and not self._is_given_up:
                self._warn(str(error) if isinstance(error, CheckpointError) else _words(error))

    def _keep_changed(self, over: Callable[[], bool]) -> None:
        until = time.monotonic() + _SETTLE_S
        held = take_snapshot(self._folder, user=self._user, place=self._place, until=until, over=over)
        self._held = held
        try:
            self._tell_skipped(held.listing)
            marker = self._keeper.keep(held, last=self._last, over=over)
        finally:
            held.release()
        self._seen = held.listing
        if marker is not None:
            self._last = marker
            self._failure = None
            self._events.put(
                CheckpointEvent(
                    name=marker.name, files=len(marker.files), bytes=marker.bytes, seconds=marker.seconds
                )
            )

    def _is_outdated(self) -> bool:
        """Return whether the current upload is useless, because the generation has ended and the files have
        changed since they were captured."""
        if self._is_given_up:
            return True
        if not self._ends.is_set() or self._held is None:
            return self._ends.is_set()
        if self._is_stale is None:
            self._is_stale = self._has_changed(self._held.listing)
        return self._is_stale

    def _has_changed(self, listing: FolderListing) -> bool:
        try:
            return list_folder(self._folder, user=self._user).files != listing.files
        except (CheckpointError, OSError):
            return True

    def _tell_skipped(self, listing: FolderListing) -> None:
        names = listing.skipped
        if names and names != self._skipped:
            listed = ", ".join(names[:_SKIPPED])
            more = f" and {len(names) - _SKIPPED} more" if len(names) > _SKIPPED else ""
            message = (
                f"Checkpoints do not have {listed}{more}: neither files nor links within {self._folder}."
            )
            self._events.put(WarningEvent(message=message))
        self._skipped = names

    def _warn(self, why: str) -> None:
        """Warn once for consecutive checkpoints that fail for the same reason."""
        if why != self._failure:
            size = f" of {self._held.listing.bytes:,} bytes" if self._held is not None else ""
            counts = f"{self._last.name} counts" if self._last is not None else "no earlier checkpoint exists"
            self._events.put(WarningEvent(message=f"A checkpoint{size} was not kept: {why}; {counts}."))
        self._failure = why


def _words(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
