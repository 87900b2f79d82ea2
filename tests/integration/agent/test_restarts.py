"""A failed benchmark is restarted in the same job, as often as `[restart]` allows, even if the agent or shim is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from agent_runs import (
    ForkedAgent,
    begun,
    events_of,
    forked_agent,
    python_job,
    records_of,
    result_of,
    run_agent,
    start_agent,
    wait_until,
    write_job,
)

LOSS = [{"name": "loss", "pattern": r"loss=(\d+)", "required": True}]

FAILS = """
import json, os, sys, time
with open("starts", "a") as file:
    file.write(os.environ["BAI_GENERATION"] + " " + os.environ["BAI_RESTARTS"] + "\\n")
number = len(open("starts").read().splitlines())
print(f"loss={number}")
with open(os.environ["BENCHMARK_AI_FIFO_FILEPATH"], "w") as fifo:
    fifo.write(json.dumps({"emitted": number}) + "\\n")
print(f"try {number}", end="")
sys.exit(7 if number <= int(sys.argv[1]) else 0)
"""
"""Fails so many times."""


def failing(folder: Path, times: int, **tables: Any) -> Path:
    restart = {"max_restarts": 2, "backoff": "100ms", **tables.pop("restart", {})}
    return python_job(folder, FAILS, arguments=[str(times)], metrics=LOSS, restart=restart, **tables)


def starts(rundir: Path) -> list[str]:
    return (rundir / "work" / "starts").read_text().splitlines()


def generations(rundir: Path) -> list[tuple[int, str]]:
    return [(each["generation"], each["outcome"]) for each in result_of(rundir)["generations"]]


def values(rundir: Path, name: str) -> list[tuple[int, float]]:
    return [(each["generation"], each["value"]) for each in records_of(rundir) if each["name"] == name]


def test_a_benchmark_that_fails_twice_succeeds_with_two_restarts(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    code = run_agent(failing(tmp_path, 2), rundir)

    result = result_of(rundir)
    assert code == 0
    assert "(restarted 2 times)" in result["sentence"]
    assert starts(rundir) == ["0 0", "1 1", "2 2"]
    assert generations(rundir) == [(0, "failed"), (1, "failed"), (2, "succeeded")]
    assert values(rundir, "loss") == values(rundir, "emitted") == [(0, 1), (1, 2), (2, 3)]
    assert [each for each, _ in values(rundir, "bai_run_wall_seconds")] == [0, 1, 2]
    assert result["metrics"]["headlines"]["loss"]["value"] == 3
    assert result["metrics"]["per_metric"]["loss"] == 3


def test_after_the_last_restart_the_job_ends_with_the_last_failure(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    code = run_agent(failing(tmp_path, 3), rundir)

    result = result_of(rundir)
    assert code == 1
    assert result["outcome"] == "failed"
    assert result["sentence"].endswith("it exited with code 7 (restarted 2 times).")
    assert result["benchmark"]["code"] == 7
    assert result["last_lines"] == ["loss=3", "try 3"]


def test_the_pause_before_each_restart_doubles(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    code = run_agent(failing(tmp_path, 9, restart={"max_restarts": 3, "backoff": "200ms"}), rundir)

    found = result_of(rundir)["generations"]
    pauses = [after["started"] - before["ended"] for before, after in pairwise(found)]
    assert code == 1
    assert len(starts(rundir)) == 4
    # Times in the record are whole milliseconds.
    assert all(pause >= least - 2 for pause, least in zip(pauses, [200, 400, 800], strict=True)), pauses


def test_a_metric_that_an_earlier_generation_printed_is_not_missing(tmp_path: Path) -> None:
    program = """
import os, sys
if os.environ["BAI_GENERATION"] == "0":
    print("loss=1")
    sys.exit(1)
"""
    rundir = tmp_path / "run"
    job = python_job(tmp_path, program, metrics=LOSS, restart={"max_restarts": 1, "backoff": "0s"})

    assert run_agent(job, rundir) == 0
    assert result_of(rundir)["outcome"] == "succeeded"


@pytest.mark.parametrize(
    ("command", "outcome"),
    [(["/bin/sh", "-c", "exit 3"], "failed"), (["/no/such/program"], "not_found")],
)
def test_a_missing_command_or_an_exit_code_that_is_not_listed_is_not_restarted(
    tmp_path: Path, command: list[str], outcome: str
) -> None:
    rundir = tmp_path / "run"
    job = write_job(tmp_path, command, restart={"max_restarts": 3, "backoff": "0s", "exit_codes": [4, 137]})

    assert run_agent(job, rundir) == 1
    assert generations(rundir) == [(0, outcome)]
    assert "restarted" not in result_of(rundir)["sentence"]


def test_a_generation_that_reaches_the_no_output_limit_is_restarted(tmp_path: Path) -> None:
    program = """
import os, time
print("loss=1", flush=True)
if os.environ["BAI_GENERATION"] == "0":
    time.sleep(600)
"""
    rundir = tmp_path / "run"
    restart = {"max_restarts": 1, "backoff": "3s"}
    job = python_job(tmp_path, program, metrics=LOSS, restart=restart, limits={"no_output": "4s"})

    assert run_agent(job, rundir) == 0
    assert generations(rundir) == [(0, "no_output"), (1, "succeeded")]


def test_max_runtime_includes_the_pause_between_two_generations(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    limits = {"max_runtime": "5s"}

    code = run_agent(failing(tmp_path, 9, restart={"backoff": "10m"}, limits=limits), rundir)

    assert code == 3
    assert result_of(rundir)["outcome"] == "max_runtime"
    assert starts(rundir) == ["0 0"]


def test_a_cancel_during_the_pause_before_a_restart_ends_the_job(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = failing(tmp_path, 9, restart={"backoff": "10m"})
    with start_agent(job, rundir) as agent:
        wait_until(lambda: any(each["type"] == "restart" for each in _events(rundir)))
        # An agent that comes after this one waits for the rest of the pause.
        agent.kill()
    (rundir / "cancel.json").write_text("{}")

    assert run_agent(job, rundir) == 4
    assert result_of(rundir)["outcome"] == "cancelled"
    assert starts(rundir) == ["0 0"]


HANGS_FIRST = """
import os, sys, time
with open("starts", "a") as file:
    file.write(os.environ["BAI_GENERATION"] + "\\n")
print("loss=" + os.environ["BAI_GENERATION"])
print("begun", flush=True)
if os.environ["BAI_GENERATION"] == "0":
    time.sleep(600)
"""


def hanging(folder: Path) -> Path:
    return python_job(folder, HANGS_FIRST, metrics=LOSS, restart={"max_restarts": 1, "backoff": "0s"})


def test_a_job_whose_shim_was_killed_is_restarted(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    with start_agent(hanging(tmp_path), rundir) as agent:
        wait_until(begun(rundir))
        os.kill(json.loads((rundir / "started.json").read_bytes())["shim_pid"], signal.SIGKILL)

        assert agent.wait(timeout=60) == 0

    assert generations(rundir) == [(0, "lost"), (1, "succeeded")]
    assert starts(rundir) == ["0", "1"]
    assert values(rundir, "loss") == [(0, 0), (1, 1)]


def test_a_job_interrupted_by_a_reboot_is_restarted(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = hanging(tmp_path)
    with start_agent(job, rundir) as agent:
        wait_until(begun(rundir))
        agent.kill()
    # All processes are gone, and the machine is in another boot.
    started = json.loads((rundir / "started.json").read_bytes())
    for pid in (started["shim_pid"], started["pid"]):
        os.kill(pid, signal.SIGKILL)
    (rundir / "started.json").write_text(json.dumps({**started, "boot_id": "another"}))

    assert run_agent(job, rundir) == 0
    assert generations(rundir) == [(0, "lost"), (1, "succeeded")]
    assert starts(rundir) == ["0", "1"]


def test_a_restarted_agent_adopts_a_later_generation(tmp_path: Path) -> None:
    program = """
import os, sys, time
with open("starts", "a") as file:
    file.write(os.environ["BAI_GENERATION"] + "\\n")
if os.environ["BAI_GENERATION"] == "0":
    sys.exit(1)
print("begun", flush=True)
while not os.path.exists("goes on"):
    time.sleep(0.05)
print("loss=5")
"""
    rundir = tmp_path / "run"
    job = python_job(tmp_path, program, metrics=LOSS, restart={"max_restarts": 1, "backoff": "0s"})
    with start_agent(job, rundir) as agent:
        wait_until(begun(rundir))
        agent.kill()
    with start_agent(job, rundir) as agent:
        wait_until(lambda: sum(each["type"] == "agent_started" for each in _events(rundir)) == 2)
        (rundir / "work" / "goes on").touch()

        assert agent.wait(timeout=60) == 0

    assert starts(rundir) == ["0", "1"]
    assert values(rundir, "loss") == [(1, 5)]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedAgent]:
    with forked_agent(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


@pytest.mark.parametrize("call", ["write", "rename", "link", "fsync", "mkdir"])
def test_each_generation_starts_once_if_the_agent_is_killed_at_any_call_between_two(
    call: str, agent: ForkedAgent, tmp_path: Path
) -> None:
    def make_job(_: str) -> Path:
        return failing(tmp_path, 1, restart={"max_restarts": 1, "backoff": "0s"})

    for rundir, where in agent.killed_at_each(call, tmp_path, make_job):
        assert starts(rundir) == ["0 0", "1 1"], where
        assert generations(rundir) == [(0, "failed"), (1, "succeeded")], where
        assert values(rundir, "loss") == values(rundir, "emitted") == [(0, 1), (1, 2)], where
        assert [each["seq"] for each in records_of(rundir)] == list(range(len(records_of(rundir)))), where
        assert sum(each["type"] == "restart" for each in events_of(rundir)) == 1, where


def _events(rundir: Path) -> list[dict[str, Any]]:
    return events_of(rundir) if (rundir / "events.jsonl").exists() else []
