"""Jobs with `[repeat]`: real agents, extractors and shims, killed at various moments."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from agent_runs import (
    extractors,
    is_alive,
    python_job,
    records_of,
    result_of,
    run_agent,
    start_agent,
    wait_until,
    write_job,
)

from bai_agent.job.figures import relative_half_width

# Each run notes that it was started, where no file of ours is. Its last line has no newline, its last emitted object neither.
PROGRAM = """
import json, os, sys, time
run = os.environ["BAI_REPEAT"]
with open("starts", "a") as file:
    file.write(run + chr(10))
if os.path.exists("pause-" + run):
    print("pausing", flush=True)
    while os.path.exists("pause-" + run):
        time.sleep(0.02)
number = int(run.rpartition("-")[2])
with open(os.environ["BENCHMARK_AI_FIFO_FILEPATH"], "w") as fifo:
    fifo.write(json.dumps({"emitted": number}) + chr(10) + json.dumps({"emitted": number + 0.5}))
LINES = int(sys.argv[1]) if len(sys.argv) > 1 else 3
for step in range(LINES):
    print(f"step {step} value={number * 1000 + step}", flush=LINES < 10)
sys.stdout.write(f"last value={number * 1000 + LINES}")
sys.exit(int(os.path.exists("fail-" + run)))
"""

METRICS = [{"name": "value", "pattern": r"value=(\d+)"}]


def job_of(folder: Path, *, lines: int = 3, **repeat: Any) -> Path:
    return python_job(folder, PROGRAM, arguments=[str(lines)], metrics=METRICS, repeat=repeat)


def work(rundir: Path, *touched: str) -> Path:
    """Make the job's work folder, with files that tell its runs what to do."""
    folder = rundir / "work"
    folder.mkdir(parents=True, mode=0o700)
    for name in touched:
        (folder / name).touch()
    return folder


def values(rundir: Path, name: str) -> dict[int | None, list[float]]:
    return values_in(records_of(rundir), name)


def values_in(records: list[dict[str, Any]], name: str) -> dict[int | None, list[float]]:
    found: dict[int | None, list[float]] = {}
    for each in records:
        if each["name"] == name:
            found.setdefault(each.get("repeat"), []).append(each["value"])
    return found


def starts(rundir: Path) -> list[str]:
    return (rundir / "work" / "starts").read_text().split()


def assert_right(rundir: Path, *, runs: int, lines: int = 3) -> None:
    """Check that each run was started once, and has its own values, once each."""
    assert starts(rundir) == [str(number) for number in range(runs)]
    records = records_of(rundir)
    printed = {run: [run * 1000 + step for step in range(lines + 1)] for run in range(runs)}
    assert values_in(records, "value") == printed
    assert values_in(records, "emitted") == {run: [run, run + 0.5] for run in range(runs)}
    assert {
        run: len(each) for run, each in values_in(records, "bai_run_wall_seconds").items()
    } == dict.fromkeys(range(runs), 1)
    assert [each["seq"] for each in records] == list(range(len(records)))


def test_each_repeat_has_its_own_metric_values(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    note = 'echo "value=7" >> steps; echo value=7'
    job = job_of(
        tmp_path, runs=3, warmup_runs=2, prepare=["sh", "-c", note], cleanup=["sh", "-c", "echo value=8"]
    )

    assert run_agent(job, rundir) == 0

    assert starts(rundir) == ["warmup-0", "warmup-1", "0", "1", "2"]
    (rundir / "work" / "starts").write_text("0 1 2")
    assert_right(rundir, runs=3)
    assert (rundir / "work" / "steps").read_text().count("value=7") == 5
    result = result_of(rundir)
    assert result["outcome"] == "succeeded"
    assert "3 times" in result["sentence"]
    assert [each["repeat"] for each in result["repeats"]] == [0, 1, 2]
    assert {each["outcome"] for each in result["repeats"]} == {"succeeded"}
    assert all(each["wall_seconds"] > 0 and each["peak_memory_bytes"] > 0 for each in result["repeats"])


def test_a_failing_run_ends_a_repeated_job(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    work(rundir, "fail-1")

    assert run_agent(job_of(tmp_path, runs=4), rundir) == 1

    assert starts(rundir) == ["0", "1"]
    result = result_of(rundir)
    assert result["sentence"].startswith("Run 2 of 4: The benchmark failed")
    assert (result["outcome"], result["benchmark"]["code"]) == ("failed", 1)
    assert [(each["outcome"], each["code"]) for each in result["repeats"]] == [
        ("succeeded", 0),
        ("failed", 1),
    ]
    assert_right(rundir, runs=2)


def test_keep_going_continues_after_failed_runs_and_counts_them(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    work(rundir, "fail-0", "fail-2")

    assert run_agent(job_of(tmp_path, runs=4, keep_going=True), rundir) == 1

    assert_right(rundir, runs=4)
    result = result_of(rundir)
    assert result["sentence"].startswith("2 of 4 runs failed; the first was run 1 of 4")
    assert [each["code"] for each in result["repeats"]] == [1, 0, 1, 0]


def test_a_failing_prepare_command_has_an_outcome_of_its_own(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    prepare = ["sh", "-c", "test $BAI_REPEAT != 1 || exit 9"]

    assert run_agent(job_of(tmp_path, runs=3, keep_going=True, prepare=prepare), rundir) == 1

    assert starts(rundir) == ["0"]
    result = result_of(rundir)
    assert result["sentence"] == "[repeat] prepare failed before run 2 of 3: it exited with code 9."
    assert [(each["repeat"], each["outcome"], each["code"]) for each in result["repeats"]] == [
        (0, "succeeded", 0),
        (1, "prepare_failed", 9),
    ]


def test_a_cancel_ends_a_repeated_job_during_the_current_run(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    work(rundir, "pause-1")
    with start_agent(job_of(tmp_path, runs=3, keep_going=True), rundir) as agent:
        wait_until(lambda: printed(rundir).count(b"pausing") == 1)
        (rundir / "cancel.json").write_text("{}")
        assert agent.wait(timeout=60) == 4

    assert starts(rundir) == ["0", "1"]
    result = result_of(rundir)
    assert "1 of 3 runs had succeeded by then" in result["sentence"]
    assert [each["outcome"] for each in result["repeats"]] == ["succeeded", "cancelled"]


def test_runs_are_repeated_until_the_confidence_interval_is_narrow(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    program = "import os; n = int(os.environ['BAI_REPEAT']); print('value', 100 + (n == 0) * 14 + n % 2)"
    metrics = [{"name": "value", "pattern": r"value (\d+)"}]
    repeat = {"runs": 40, "until": 0.02, "metric": "value"}
    job = python_job(tmp_path, program, metrics=metrics, repeat=repeat)

    # Without an agent the shim waits for its word; the next agent comes to it by itself.
    with start_agent(job, rundir) as agent:
        wait_until(lambda: ended_runs(rundir) >= 2)
        agent.kill()
    wait_until(lambda: ended_runs(rundir) == 10)
    time.sleep(0.5)
    assert ended_runs(rundir) == 10
    assert run_agent(job, rundir) == 0

    found = [each[0] for each in values(rundir, "value").values()]
    assert 10 < len(found) < 40
    # Narrow at two looks in a row
    widths = [relative_half_width(found[: len(found) - i]) for i in range(3)]
    assert max(widths[:2]) <= 0.02 < widths[2]
    # A busy machine may be warned of; that the interval was not reached must not be.
    assert not [each for each in result_of(rundir)["warnings"] if "[repeat]" in each]


def test_no_run_begins_after_max_time(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = python_job(tmp_path, "import time; time.sleep(0.6)", repeat={"runs": 50, "max_time": "2s"})

    assert run_agent(job, rundir) == 0

    runs = [json.loads(line) for line in (rundir / "repeats.jsonl").read_bytes().splitlines()]
    began = [each["time"] for each in runs if each["event"] == "began"]
    ended = [each["time"] for each in runs if each["event"] == "ended"]
    # It was looked at after the end of each run. A busy machine needs longer from there to the record of the next one.
    assert all(each - began[0] <= 2000 for each in ended[:-1])
    assert ended[-1] - began[0] > 1000
    assert len(result_of(rundir)["repeats"]) == len(began) == len(ended)
    assert f"{len(began)} of 50 runs were done" in " ".join(result_of(rundir)["warnings"])


def test_processes_left_behind_by_a_run_are_killed_before_the_next_run(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    leave = "trap '' TERM; (while sleep 0.05; do echo value=99999; done) & echo value=$BAI_REPEAT"
    job = write_job(
        tmp_path,
        ["bash", "-c", leave],
        metrics=METRICS,
        limits={"grace": "100ms"},
        repeat={"runs": 3},
    )

    assert run_agent(job, rundir) == 0

    assert values(rundir, "value") == {0: [0], 1: [1], 2: [2]}
    assert result_of(rundir)["benchmark"]["left_behind"] >= 3


def test_killing_the_shim_loses_only_the_current_run(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    work(rundir, "pause-2")
    with start_agent(job_of(tmp_path, runs=4), rundir) as agent:
        wait_until(lambda: printed(rundir).count(b"pausing") == 1)
        began = [json.loads(line) for line in (rundir / "repeats.jsonl").read_bytes().splitlines()][-1]
        os.kill(json.loads((rundir / "started.json").read_bytes())["shim_pid"], signal.SIGKILL)
        agent.wait(timeout=60)

    assert not is_alive(began["pid"])
    assert starts(rundir) == ["0", "1", "2"]
    result = result_of(rundir)
    assert [each["outcome"] for each in result["repeats"]] == ["succeeded", "succeeded", "lost"]
    found = values(rundir, "value")
    assert [found[0], found[1]] == [[0, 1, 2, 3], [1000, 1001, 1002, 1003]]


def test_killing_agent_and_extractor_loses_and_duplicates_no_record(tmp_path: Path) -> None:
    """At random moments, most of them at and between the boundaries of short runs."""
    rundir = tmp_path / "run"
    runs, lines = 30, 2_000
    chance = random.Random(os.environ.get("REPEATS_SEED", "repeats"))
    job = job_of(tmp_path, lines=lines, runs=runs, prepare=["echo", "value=5"], cleanup=["echo", "value=6"])
    held = work(rundir, f"pause-{runs - 2}") / f"pause-{runs - 2}"
    kills: Counter[str] = Counter()
    agent = start_agent(job, rundir)
    while True:
        time.sleep(chance.uniform(0.0, 0.5))
        if kills["agent"] and kills["extractor"]:
            held.unlink(missing_ok=True)
        if ended_runs(rundir) >= runs - 1:
            break
        if chance.random() < 0.4:
            agent.kill()
            agent.wait()
            kills["agent"] += 1
            agent = start_agent(job, rundir)
        else:
            for pid in extractors(rundir):
                os.kill(pid, signal.SIGKILL)
                kills["extractor"] += 1
    assert agent.wait(timeout=120) == 0

    assert_right(rundir, runs=runs, lines=lines)


def printed(rundir: Path) -> bytes:
    return (rundir / "output.log").read_bytes() if (rundir / "output.log").exists() else b""


def ended_runs(rundir: Path) -> int:
    file = rundir / "repeats.jsonl"
    return file.read_bytes().count(b'"ended"') if file.exists() else 0
