"""Synchronizes the runs of `[repeat]` if each node starts its own processes. Before each run except the
first, all nodes wait for the coordinator's decision.

A node's shim writes to `repeats.jsonl` that it is ready for a run, and waits for the file `turn.json`. The
node's agent then reports to the job store that the node is ready. When all nodes are ready, no process of the
previous run is left on any node, and the coordinator decides whether the next run begins. The coordinator
writes the decision to the store. A restarted coordinator reads its earlier decision from the store and does
not decide again.

The barrier works on a separate thread, because the store can take long to answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bai_agent.benchmark.state import running_seconds
from bai_agent.job.descriptor.benchmark_tables import Repeat
from bai_agent.job.peers import COORDINATOR
from bai_agent.job.repeats import RepeatsFile
from bai_agent.job.run_directory import RunDir, read_json, write_json
from bai_agent.nodes.members_file import peers_of
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.poller import Poller

if TYPE_CHECKING:
    from bai_agent.job.attempt import AttemptRecord

_LOOK_SECONDS = 0.2


@contextmanager
def run_barrier(ctx: RunContext) -> Iterator[None]:
    """While the context is open, tell this node's shim when to begin each run, if all nodes of the job must
    start each run together."""
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
    """This node's part of the barrier at which all nodes wait for each other. The barrier has no time limit
    of its own, because the job's limits and the monitor of the other nodes end the wait for a node that never
    arrives."""

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
        """The run for which this node has reported that it is ready."""
        self._told: int | None = None
        """The run whose decision this node's shim has received."""
        self._waits_for: set[int] = set()
        """The nodes that have not reported that they are ready for the run. Only the coordinator uses this
        set."""

    def look(self) -> None:
        """Publish whether this node is ready for the next run, and pass the coordinator's decision to this
        node's shim. Raises BaiError if the store cannot be reached."""
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
        """Return whether a run begins. Return None until the analysis of the previous runs has decided
        whether these runs are enough."""
        repeat, done = self._repeat, self._runs.known.runs
        measured = run - repeat.warmup_runs
        if measured > 0 and repeat.arms and measured % len(repeat.arms):
            return True  # a block that has begun is always finished
        limit = repeat.max_time if repeat.min_runs is None or measured >= repeat.min_runs else None
        # The runs' time is measured by the clock since boot, because the time of day can be changed.
        if limit is not None and running_seconds(done[0]) >= limit.total_seconds():
            return False
        if repeat.decided_after is None or measured < repeat.decided_after:
            return True
        word = read_json(self._rundir.repeat_word) or {}
        return not word.get("enough") if word.get("runs") == measured else None
