"""A benchmark that deletes or renames files of its own run: the run ends well all the same, and nothing of it is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_runs import (
    events_of,
    is_alive,
    python_job,
    records_of,
    result_of,
    run_agent,
    start_agent,
    wait_until,
)
from s3_gate import Gate

from bai_agent.job.record import JobRecord
from bai_agent.job.store import open_store

LOSS = [{"name": "loss", "pattern": r"loss=(\d+\.\d+)", "units": "nats", "required": True}]

# It says who it is at a place that it leaves alone, and prints for some time after the deed.
DEED = """
import os, shutil, sys, time
from contextlib import suppress
run, log = os.environ["BAI_RUN_DIR"], "log/" + "0" * 20
open(sys.argv[1], "w").write(str(os.getpid()))
print("loss=0.5", flush=True)
def is_recorded():
    with suppress(FileNotFoundError), open(f"{run}/metrics.jsonl", "rb") as file:
        return b'"loss"' in file.read()
while sys.argv[3] == "recorded" and not is_recorded():
    time.sleep(0.02)
time.sleep(float(sys.argv[3]) if sys.argv[3] != "recorded" else 0)
os.chdir("/")
def remove():
    # What is written meanwhile makes a removal fail.
    while os.path.lexists(run):
        shutil.rmtree(run, ignore_errors=True)
exec(sys.argv[2])
for step in range(int(sys.argv[4])):
    print(f"loss=0.{step:02}", flush=True)
    time.sleep(0.1)
"""

HARMLESS = {
    "the log's second name": "os.unlink(f'{run}/{log}')",
    "both names of the log": "os.unlink(f'{run}/{log}'); os.unlink(f'{run}/output.log')",
    "the log renamed": "os.rename(f'{run}/log', f'{run}/old'); os.rename(f'{run}/output.log', f'{run}/o')",
    "the metrics": "os.unlink(f'{run}/metrics.jsonl')",
    "the metrics' folder": "shutil.rmtree(f'{run}/metrics')",
    "the start": "os.unlink(f'{run}/started.json')",
    "the descriptor": "os.unlink(f'{run}/job.toml')",
    "the place of the end": "os.unlink(f'{run}/exit.json.reserve')",
}
FATAL = {
    "the whole directory": "remove()",
    "the directory renamed": "os.rename(run, run + '.old')",
    "a file in its place": "remove(); open(run, 'w').close()",
    "the shim's lock": "os.unlink(f'{run}/shim.lock')",
    "lock and start": "os.unlink(f'{run}/shim.lock'); os.unlink(f'{run}/started.json')",
}


def job_that_does(
    tmp_path: Path, deed: str, *, wait: float | str = "recorded", steps: int = 20, **tables: object
) -> Path:
    """wait: seconds before the deed, or until the first number is in the run's records."""
    arguments = [str(tmp_path / "pid"), deed, str(wait), str(steps)]
    return python_job(tmp_path, DEED, arguments=arguments, metrics=LOSS, **tables)


def benchmark_pid(tmp_path: Path) -> int:
    return int((tmp_path / "pid").read_text())


@pytest.mark.parametrize("deed", HARMLESS.values(), ids=HARMLESS)
def test_a_run_continues_without_files_that_the_benchmark_deleted(tmp_path: Path, deed: str) -> None:
    rundir = tmp_path / "run"

    code = run_agent(job_that_does(tmp_path, deed, limits={"no_output": "5s"}), rundir)

    assert code == 0, result_of(rundir)
    assert result_of(rundir)["outcome"] == "succeeded"
    assert result_of(rundir)["metrics"]["per_metric"] == {"loss": 21}
    assert [each["type"] for each in events_of(rundir)].count("benchmark_started") == 1


def test_a_deleted_log_file_is_restored_with_a_warning(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    name = "log/00000000000000000000"

    run_agent(job_that_does(tmp_path, HARMLESS["the log's second name"]), rundir)

    assert [each for each in result_of(rundir)["warnings"] if name in each]
    assert (rundir / name).samefile(rundir / "output.log")
    assert len([each for each in records_of(rundir) if each["src"] == "log"]) == 21
    assert result_of(rundir)["last_lines"][-1] == "loss=0.19"


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "job.toml"])
def test_files_missing_at_the_end_of_a_run_cause_a_warning(tmp_path: Path, name: str) -> None:
    rundir = tmp_path / "run"

    code = run_agent(job_that_does(tmp_path, f"os.unlink(f'{{run}}/{name}')"), rundir)

    assert code == 0
    assert [each for each in result_of(rundir)["warnings"] if name in each]
    assert result_of(rundir)["metrics"]["per_metric"] == {"loss": 21}


@pytest.mark.parametrize("wait", [0, "recorded"])
@pytest.mark.parametrize("deed", FATAL.values(), ids=FATAL)
def test_a_benchmark_whose_records_are_all_deleted_is_ended(
    tmp_path: Path, deed: str, wait: float | str
) -> None:
    rundir = tmp_path / "run"

    code = run_agent(job_that_does(tmp_path, deed, wait=wait, steps=10_000), rundir)

    assert not is_alive(benchmark_pid(tmp_path))
    assert code == 5
    if "open(" not in deed:
        assert "deleted or renamed" in result_of(rundir)["sentence"]


def test_a_restarted_agent_whose_files_were_deleted_does_not_start_the_benchmark_again(
    tmp_path: Path,
) -> None:
    rundir = tmp_path / "run"
    job = job_that_does(tmp_path, FATAL["lock and start"], wait=3, steps=10_000)
    with start_agent(job, rundir) as agent:
        wait_until(
            lambda: (
                (tmp_path / "pid").exists() and b"benchmark_started" in (rundir / "events.jsonl").read_bytes()
            )
        )
        agent.kill()
    first = benchmark_pid(tmp_path)
    wait_until(lambda: not (rundir / "started.json").exists())

    code = run_agent(job, rundir)

    assert code == 5
    assert benchmark_pid(tmp_path) == first
    assert not is_alive(first)
    assert result_of(rundir)["outcome"] == "lost"


def test_the_result_reaches_a_bucket_although_the_run_directory_was_deleted(
    tmp_path: Path, gate: Gate
) -> None:
    rundir = tmp_path / "run"
    store = {"url": "s3://bucket/jobs", "region": "us-east-1"}

    code = run_agent(job_that_does(tmp_path, FATAL["the whole directory"], steps=10_000, store=store), rundir)

    record = JobRecord(open_store("s3://bucket/jobs"), "job")
    assert code == 5
    assert not is_alive(benchmark_pid(tmp_path))
    result = record.result()
    assert result is not None
    assert result["outcome"] == "lost"
    assert record.node().read("log", 0).startswith(b"loss=0.5\n")
