"""What an agent goes on with that finds a run between two generations."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from agent_runs import events_of
from extraction_runs import EXITED
from run_contexts import ScriptedStopSource, SteppingClock, make_context

from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.restart_tables import Restart
from bai_agent.job.outcome import Outcome
from bai_agent.job.run_directory import RunDir, boot_id, read_json
from bai_agent.phases.generation_loop import end_generations, run_benchmark
from bai_agent.phases.prepare import prepare
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.stop import RunEndedError, StopReason

CANCELLED = StopReason(Outcome.CANCELLED, "It was cancelled.")
LONG = Restart(max_restarts=3, backoff=timedelta(hours=1))


def failed(rundir: RunDir, **more: Any) -> RunContext:
    """Return the context of an agent whose benchmark has just failed in its first generation."""
    clock = SteppingClock(limit=10 * 3600)
    more.setdefault("tables", {"restart": LONG})
    ctx = make_context(rundir, clock=clock, **more)
    prepare(ctx)
    now = round(clock.time() * 1000)
    process = {"shim_pid": 1, "shim_start": 0, "pid": 1, "start": 0, "boot_id": boot_id(), "time": now}
    rundir.started.write_text(json.dumps(process))
    ended: dict[str, Any] = {
        **EXITED,
        "code": 7,
        "signal": None,
        "exec_error": None,
        "stop": None,
        "stop_signal": None,
    }
    ended |= {"oom": False, "left_behind": 0, "left_behind_names": {}, "output_bytes": 0, "emit_bytes": 0}
    rundir.exit.write_text(json.dumps({**ended, "emit_lost_bytes": 0, "time": now, "lost": False}))
    return ctx


def test_a_cancel_during_the_pause_also_ends_the_job_for_a_restarted_agent(rundir: RunDir) -> None:
    ctx = failed(rundir, sources=[ScriptedStopSource(CANCELLED, after=3)])
    with pytest.raises(RunEndedError) as ended:
        run_benchmark(ctx)
    ctx.reason = ended.value.reason
    end_generations(ctx)

    with pytest.raises(RunEndedError) as again:
        run_benchmark(make_context(rundir, tables={"restart": LONG}))

    assert again.value.reason == CANCELLED
    assert not (rundir.path / "generations/1").exists()
    assert [each["generation"] for each in events_of(rundir.path) if each["type"] == "restart"] == [1]


def test_a_job_whose_time_is_over_in_the_pause_ends(rundir: RunDir) -> None:
    # The first process of this machine is as old as the machine.
    tables = {"restart": LONG, "limits": Limits(max_runtime=timedelta(seconds=1))}

    with pytest.raises(RunEndedError) as ended:
        run_benchmark(failed(rundir, tables=tables))

    assert ended.value.reason.outcome is Outcome.MAX_RUNTIME
    assert "it exited with code 7" in ended.value.reason.message


def test_a_generation_that_failed_to_begin_is_not_begun_by_a_restarted_agent(rundir: RunDir) -> None:
    ctx = failed(rundir)
    decided = rundir.of_generation(1)
    decided.shim_folder.mkdir(parents=True)
    decided.decision.write_text("{}")
    ctx.rundir = decided
    ctx.reason = StopReason(Outcome.PREPARE_FAILED, "There is no such user.")
    end_generations(ctx)

    with pytest.raises(RunEndedError) as again:
        run_benchmark(make_context(rundir, tables={"restart": LONG}))

    assert again.value.reason == ctx.reason
    assert not decided.started.exists()


def test_a_restarted_agent_waits_for_the_rest_of_the_pause(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    ctx = failed(rundir)
    clock = ctx.clock
    assert isinstance(clock, SteppingClock)
    clock.now += 3000

    def run_generation(ctx: RunContext) -> None:
        begun.append(ctx.rundir.generation)
        if ctx.rundir.generation:
            ctx.rundir.exit.write_text(json.dumps({**EXITED, "time": 1}))

    monkeypatch.setattr("bai_agent.phases.generation_loop.run_generation", run_generation)
    run_benchmark(ctx)

    assert begun == [0, 1]
    assert 3600 <= clock.passed < 3601
    ledger = {"restarts": 1, "quick_saves": 0}
    assert read_json(rundir.of_generation(1).decision) == {"members": [0], "ledger": ledger}


def test_a_job_without_restarts_writes_nothing_about_them(rundir: RunDir) -> None:
    ctx = failed(rundir, tables={})

    run_benchmark(ctx)
    end_generations(ctx)

    assert not (rundir.path / "generations").exists()
