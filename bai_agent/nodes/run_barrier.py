"""`[repeat]` where each node starts its own part of every run: before each but the first, all wait for one word of the coordinator.

A node's shim says in `repeats.jsonl` that it is ready for a run, and waits for `turn.json`. Its agent says so in the job store. When
all have, nothing of the run before is left anywhere, and the coordinator decides whether the next one begins. That stands in the
store: an agent that is started again finds it there, and nobody decides twice.

On a thread of its own, as the store may take long to answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bai_agent.benchmark.state import running_seconds
from bai_agent.job.attempt import COORDINATOR, AttemptRecord
from bai_agent.job.descriptor import Repeat
from bai_agent.job.repeats import RepeatsFile
from bai_agent.job.run_directory import RunDir, read_json, write_json
from bai_agent.nodes.members_file import peers_of
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.poller import Poller

_LOOK_SECONDS = 0.2


@contextmanager
def run_barrier(ctx: RunContext) -> Iterator[None]:
    """Pass on the permission to begin each run, if the nodes of the job do its runs together."""
    if ctx.job.repeat is None or not ctx.job.runs_together or ctx.monitor is None:
        yield
        return
    turns = RunBarrier(
        ctx.monitor.attempt, ctx.rundir, ctx.job.repeat, rank=ctx.node.rank, nodes=len(peers_of(ctx.rundir))
    )
    turns.start()
    try:
        yield
    finally:
        turns.end()


class RunBarrier(Poller):
    """The part of one node, which does what the job's limits and its fate let it: a node that never comes is their matter."""

    def __init__(
        self, attempt: AttemptRecord, rundir: RunDir, repeat: Repeat, *, rank: int, nodes: int
    ) -> None:
        super().__init__(
            self.look,
            name="turns",
            pause_s=lambda: _LOOK_SECONDS,
            failure="the next run waits",
        )
        self._attempt = attempt
        self._rundir = rundir
        self._repeat = repeat
        self._rank = rank
        self._nodes = nodes
        self._runs = RepeatsFile(rundir.repeats)
        self._said: int | None = None
        """The run for which this node has said that it is ready."""
        self._told: int | None = None
        """The run of which its shim has been told whether it begins."""
        self._waits_for: set[int] = set()
        """As the coordinator: the nodes that have not said that they are ready for the run."""

    def look(self) -> None:
        """Publish this node's state, and pass on the permission. Raises BaiError if the store cannot be reached."""
        run = self._runs.look().ready
        if run is None or run == self._told:
            return
        if run != self._said:
            self._attempt.be_ready(run, self._rank)
            self._said, self._waits_for = run, set(range(self._nodes))
        begins = self._attempt.turn(run)
        if begins is None and self._rank == COORDINATOR:
            begins = self._decide(run) if self._all_are_ready(run) else None
            if begins is not None:
                begins = self._attempt.give_turn(run, begins=begins)
        if begins is not None:
            write_json(self._rundir.turn, {"run": run, "begins": begins})
            self._told = run

    def _all_are_ready(self, run: int) -> bool:
        self._waits_for = {rank for rank in self._waits_for if not self._attempt.is_ready(run, rank)}
        return not self._waits_for

    def _decide(self, run: int) -> bool | None:
        """Return whether a run begins; None while it is not known whether those before it are enough."""
        repeat, done = self._repeat, self._runs.known.runs
        measured = run - repeat.warmup_runs
        if measured > 0 and repeat.arms and measured % len(repeat.arms):
            return True  # a block that was begun is finished
        limit = repeat.max_time if repeat.min_runs is None or measured >= repeat.min_runs else None
        # By the boot's own clock, since the time of day may be set.
        if limit is not None and running_seconds(done[0]) >= limit.total_seconds():
            return False
        if repeat.decided_after is None or measured < repeat.decided_after:
            return True
        word = read_json(self._rundir.repeat_word) or {}
        return not word.get("enough") if word.get("runs") == measured else None
