"""The end of repeated runs, and that no node waits for one whose runs are over."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from run_contexts import make_context

from bai_agent.decode import checked
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor.benchmark_tables import Repeat
from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import RunEnd
from bai_agent.job.run_directory import RunDir, write_json
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.peers.peer_monitor import PeerMonitor
from bai_agent.phases.gang_failure import tell_others
from bai_agent.phases.series import series_end
from bai_agent.run.run_context import RunContext

ENDED: dict[str, Any] = {
    "code": 0,
    "signal": None,
    "exec_error": None,
    "stop": None,
    "stop_signal": None,
    "oom": False,
    "lost": False,
    "wall_seconds": 60.0,
    "time": 6,
}
TORCHRUN = StrategyTable(name="torchrun", nodes=2)


def series(
    rundir: RunDir,
    *,
    runs: int,
    strategy: StrategyTable | None = None,
    max_time_s: int | None = None,
    **more: Any,
) -> RunContext:
    """Return the context of a job that is to run until its number is known, after `runs` that ended well, within 60 s."""
    repeat = Repeat(
        runs=10,
        until=0.02,
        metric="m",
        max_time=None if max_time_s is None else timedelta(seconds=max_time_s),
    )
    tables = {
        "repeat": repeat,
        "metrics": (Metric(name="m", pattern="m=(.*)"),),
        "strategy": strategy or StrategyTable(),
    }
    ctx = make_context(rundir, tables=tables, **more)
    lines = []
    for run in range(runs):
        place = {"run": run, "repeat": run, "output_bytes": 0, "emit_bytes": 0}
        began = {"event": "began", **place, "pid": 1, "start": 1, "boot_id": "x", "time": 5}
        lines += [began, {**ENDED, "event": "ended", **place}]
    rundir.repeats.write_text("".join(json.dumps(each) + "\n" for each in lines))
    write_json(rundir.exit, ENDED)
    return ctx


def end_of(ctx: RunContext) -> tuple[Outcome, str]:
    return series_end(
        ctx, checked(RunEnd, ENDED, where="exit.json"), Outcome.SUCCEEDED, "It went well.", cause=None
    )


@pytest.mark.parametrize(
    ("runs", "word", "max_time_s", "expected"),
    [
        (6, {"runs": 6, "enough": True}, None, Outcome.SUCCEEDED),
        (6, {"runs": 6, "enough": False}, 60, Outcome.SUCCEEDED),
        (10, {"runs": 10, "enough": False}, None, Outcome.SUCCEEDED),
        # No further run was begun, and nobody had said that.
        (6, {"runs": 6, "enough": False}, None, Outcome.FAILED),
        (6, {"runs": 5, "enough": False}, 61, Outcome.FAILED),
        (3, None, None, Outcome.FAILED),
    ],
)
def test_a_repeated_job_that_ends_before_all_runs_has_failed(
    rundir: RunDir, runs: int, word: dict[str, Any] | None, max_time_s: int | None, expected: Outcome
) -> None:
    ctx = series(rundir, runs=runs, max_time_s=max_time_s)
    if word is not None:
        write_json(rundir.repeat_word, word)

    outcome, sentence = end_of(ctx)

    assert outcome is expected
    if expected is Outcome.FAILED:
        assert sentence.startswith(f"Not all runs were done: {runs} of at most 10 runs had succeeded")


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ({"run": 6, "begins": False}, Outcome.SUCCEEDED),
        ({"run": 5, "begins": True}, Outcome.FAILED),
        (None, Outcome.FAILED),
    ],
)
def test_with_several_nodes_only_the_coordinator_may_end_the_repetition_early(
    rundir: RunDir, turn: dict[str, Any] | None, expected: Outcome
) -> None:
    ctx = series(rundir, runs=6, strategy=TORCHRUN, max_time_s=1)
    if turn is not None:
        write_json(rundir.turn, turn)

    assert end_of(ctx)[0] is expected


def test_nodes_waiting_for_the_next_run_learn_that_there_is_none(rundir: RunDir, tmp_path: Path) -> None:
    # given a coordinator whose series has ended with code 0, as processes of a run could not be ended
    attempt = AttemptRecord(JobRecord(DirectoryStore(tmp_path / "store"), "job-1"))
    monitor = PeerMonitor(attempt, rank=0, nodes=2)
    monitor.met((Peer(rank=0, address="10.0.0.1"), Peer(rank=1, address="10.0.0.2")))
    ctx = series(rundir, runs=3, strategy=TORCHRUN, monitor=monitor)
    write_json(rundir.turn, {"run": 2, "begins": True})

    tell_others(ctx)

    worker = PeerMonitor(attempt, rank=1, nodes=2)
    worker.observe()
    reason = worker.reason(60.0)
    assert reason is not None
    assert reason.outcome is Outcome.PEER_FAILED
    assert "Not all runs were done" in reason.message
