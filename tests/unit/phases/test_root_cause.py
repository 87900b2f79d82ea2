"""The cause of a failure is read from the files of a failed launcher, whatever they contain."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from run_contexts import make_context

from bai_agent.decode import checked
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Repeat
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer, peers_table
from bai_agent.job.record_types import RunEnd
from bai_agent.job.run_directory import RunDir, write_json
from bai_agent.phases.root_cause import classify_end, failed_at
from bai_agent.run.run_context import RunContext

ENDED = 1_700_000_010_000
LEFT: dict[str, Any] = {
    "code": 1,
    "signal": None,
    "exec_error": None,
    "stop": None,
    "stop_signal": None,
    "oom": False,
    "wall_seconds": 5.0,
    "time": ENDED,
    "lost": False,
}
END = checked(RunEnd, LEFT, where="exit.json")


@pytest.fixture
def ctx(rundir: RunDir) -> RunContext:
    return context_of(rundir)


def context_of(rundir: RunDir, **more: Any) -> RunContext:
    tables = {
        "strategy": StrategyTable(name="torchrun"),
        "benchmark": Benchmark(argv=("train",), secrets={"KEY": "env:KEY"}),
        **more,
    }
    made = make_context(rundir, tables=tables)
    made.redactor.know(["sesame-street"])
    write_json(rundir.peers, {"peers": peers_table([Peer(rank=0, address="127.0.0.1")])})
    rundir.kept_output.parent.mkdir()
    rundir.kept_output.write_text("begun\n")
    return made


def leave(
    rundir: RunDir,
    message: str,
    *,
    local: int = 0,
    seconds: float = ENDED / 1000 - 1,
    launch: str = "job-0_x",
) -> Path:
    """Write the error file of a process."""
    folder = rundir.launcher / launch / "attempt_0" / str(local)
    folder.mkdir(parents=True)
    file = folder / "error.json"
    stack = f"Traceback (most recent call last):\n{message}\n"
    file.write_text(json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": stack}}}))
    os.utime(file, (seconds, seconds))
    return file


def test_an_exception_is_quoted_without_secrets(ctx: RunContext) -> None:
    leave(ctx.rundir, "ValueError: no \x1b[31m sesame-\x1b[0mstreet\x07")

    outcome, sentence, cause = classify_end(ctx, END, quote=True)

    assert outcome is Outcome.FAILED
    assert sentence.endswith("process 0 (local rank 0) failed: ValueError: no ***.")
    assert cause is not None
    assert "***" in cause.traceback[-1]
    assert failed_at(END, cause) == ENDED - 1000


def test_if_output_may_contain_secrets_only_the_failed_process_is_named(ctx: RunContext) -> None:
    leave(ctx.rundir, "ValueError: bad weights")

    _, sentence, cause = classify_end(ctx, END, quote=False)

    assert sentence.endswith("process 0 (local rank 0) failed.")
    assert cause is not None
    assert (cause.message, cause.traceback, cause.printed) == ("", (), None)


def test_a_long_message_is_cut(ctx: RunContext) -> None:
    leave(ctx.rundir, "ValueError: " + "x" * 5000)

    assert len(classify_end(ctx, END, quote=True)[1]) < 500


def test_an_implausible_time_is_ignored(ctx: RunContext) -> None:
    leave(ctx.rundir, "ValueError: bad", seconds=7)

    assert failed_at(END, classify_end(ctx, END, quote=True)[2]) == ENDED


def test_links_and_pipes_are_ignored(ctx: RunContext, tmp_path: Path) -> None:
    file = leave(ctx.rundir, "ValueError: bad")
    aside = file.rename(tmp_path / "aside.json")
    file.symlink_to(aside)
    other = leave(ctx.rundir, "ValueError: other", local=1)
    other.unlink()
    os.mkfifo(other)

    assert classify_end(ctx, END, quote=True)[2] is None


def test_a_link_in_place_of_the_folder_is_not_followed(ctx: RunContext, tmp_path: Path) -> None:
    leave(ctx.rundir, "ValueError: bad")
    ctx.rundir.launcher.rename(tmp_path / "aside")
    ctx.rundir.launcher.symlink_to(tmp_path / "aside")

    assert classify_end(ctx, END, quote=True)[2] is None


def test_only_a_limited_number_of_files_is_read(ctx: RunContext) -> None:
    leave(ctx.rundir, "ValueError: bad")
    for number in range(3000):
        (ctx.rundir.launcher / f"{number}").touch()
    (ctx.rundir.launcher / "large").write_bytes(bytes(50_000_000))

    assert classify_end(ctx, END, quote=True)[0] is Outcome.FAILED


@pytest.mark.parametrize("left", [{"code": 0}, {"code": None, "signal": 9}, {"stop": "cancelled"}])
def test_no_cause_is_searched_for_a_benchmark_that_succeeded_or_was_stopped(
    ctx: RunContext, left: dict[str, Any]
) -> None:
    leave(ctx.rundir, "ValueError: bad")

    assert classify_end(ctx, checked(RunEnd, {**LEFT, **left}, where="exit.json"), quote=True)[2] is None


def test_an_error_in_the_search_for_a_cause_hides_no_outcome(ctx: RunContext) -> None:
    leave(ctx.rundir, "ValueError: bad")
    ctx.rundir.peers.write_text("{}")

    outcome, sentence, cause = classify_end(ctx, END, quote=True)

    assert (outcome, cause) == (Outcome.FAILED, None)
    assert sentence == "The benchmark failed after 5.0 s: it exited with code 1."


def write_repeats(rundir: RunDir, codes: Sequence[int], *, step: str | None = None) -> None:
    """Write how runs of 10 s each ended, the last one at `ENDED`, and that a step after them failed."""
    lines: list[dict[str, Any]] = []
    for run, code in enumerate(codes):
        place = {"run": run, "repeat": run, "output_bytes": 0, "emit_bytes": 0}
        ended = ENDED - 10_000 * (len(codes) - 1 - run)
        began = {"event": "began", **place, "pid": 1, "start": 1, "boot_id": "x", "time": ended - 9000}
        lines += [
            began,
            {**LEFT, "event": "ended", **place, "code": code, "time": ended, "output_bytes": 9999},
        ]
    if step is not None:
        lines.append({**LEFT, "event": "failed", "step": step, "run": len(codes), "repeat": len(codes)})
    rundir.repeats.write_text("".join(json.dumps(each) + "\n" for each in lines))


SUMMARY = """
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2023-11-14_22:13:29
  host      : here
  rank      : 1 (local_rank: 1)
  exitcode  : 7 (pid: 4711)
  error_file: <N/A>
"""


def test_an_error_file_of_an_earlier_run_is_not_used_for_the_failed_run(rundir: RunDir) -> None:
    # given a process that failed in the first run, and was started again, and another one that failed in the second
    ctx = context_of(rundir, repeat=Repeat(runs=3))
    leave(rundir, "ValueError: healed", seconds=ENDED / 1000 - 15)
    rundir.kept_output.write_text(SUMMARY)
    write_repeats(rundir, [0, 7])

    _, sentence, cause = classify_end(ctx, END, quote=True)

    assert cause is not None
    assert (cause.process, cause.code, cause.message) == ("process 1 (local rank 1)", 7, "")
    assert sentence.endswith("process 1 (local rank 1) exited with code 7.")


@pytest.mark.parametrize("listed", [range(9), range(8, -1, -1)])
def test_the_first_of_several_failed_runs_uses_its_own_error_file(
    rundir: RunDir, listed: Sequence[int]
) -> None:
    ctx = context_of(rundir, repeat=Repeat(runs=9, keep_going=True))
    for run in listed:
        leave(
            rundir, f"ValueError: in run {run}", seconds=ENDED / 1000 - 81 + 10 * run, launch=f"job-0_{run}"
        )
    write_repeats(rundir, [1] * 9)

    assert classify_end(ctx, END, quote=True)[1].endswith("failed: ValueError: in run 0.")


def test_a_failed_prepare_command_is_not_explained_by_error_files_of_runs(rundir: RunDir) -> None:
    ctx = context_of(rundir, repeat=Repeat(runs=3))
    leave(rundir, "ValueError: healed")
    write_repeats(rundir, [0], step="prepare")

    assert classify_end(ctx, END, quote=True)[2] is None
