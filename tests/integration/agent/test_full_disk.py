"""A run whose disk fills up still ends with a result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import (
    AGENT,
    RUN_SECONDS,
    begun,
    environment,
    is_alive,
    python_job,
    records_of,
    result_of,
    run_agent,
    start_agent,
    wait_until,
    write_job,
)

FOREVER = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.1)\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], check=True, timeout=60)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True, timeout=60)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_run_that_fills_the_disk_ends_as_disk_full(tmp_path: Path, small_disk: Path) -> None:
    rundir = small_disk / "run"
    program = (
        "import sys, time\nwhile True:\n    sys.stdout.write('x' * 65535 + chr(10))\n    time.sleep(0.005)\n"
    )

    code = run_agent(python_job(tmp_path, program, limits={"grace": "1s"}), rundir)

    assert code == 5
    assert result_of(rundir)["outcome"] == "disk_full"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_is_reported_before_anything_runs(tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * (22 * 2**20))

    with (tmp_path / "err").open("wb") as err:
        code = subprocess.run(
            [*AGENT, write_job(tmp_path, ["true"]), "--dir", small_disk / "run"], stderr=err, timeout=60
        ).returncode

    assert code == 5
    assert b"MiB left" in (tmp_path / "err").read_bytes() or b"No space" in (tmp_path / "err").read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_benchmark_that_fails_on_a_full_disk_ends_as_disk_full(tmp_path: Path, small_disk: Path) -> None:
    rundir = small_disk / "run"
    program = "with open('checkpoint', 'wb') as file:\n    file.write(bytes(64 * 2**20))\n"

    code = run_agent(python_job(tmp_path, program), rundir)

    assert code == 5
    assert result_of(rundir)["outcome"] == "disk_full"
    assert "exited with code 1" in result_of(rundir)["sentence"]


FILLS_IN_THE_THIRD_RUN = """
import os, sys, time
then, watch_is_blind = sys.argv[1:]
run = int(os.environ["BAI_REPEAT"])
for step in range(200):
    print(f"value={run * 1000 + step}")
sys.stdout.flush()
if run == 2:
    print("begun", flush=True)
    while then == "fails" and not os.path.exists(watch_is_blind):
        time.sleep(0.01)
    try:
        with open("checkpoint", "wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))
    except OSError:
        if then == "fails":
            raise
        while True:
            time.sleep(0.1)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
@pytest.mark.parametrize(("then", "third"), [("fails", "failed"), ("goes on", "disk_full")])
def test_a_disk_that_fills_up_during_a_repeated_run_keeps_earlier_runs(
    tmp_path: Path, small_disk: Path, then: str, third: str
) -> None:
    store = small_disk / "jobs"
    watch_is_blind = tmp_path / "watch-is-blind"
    job = python_job(
        tmp_path,
        FILLS_IN_THE_THIRD_RUN,
        arguments=[then, str(watch_is_blind)],
        metrics=[{"name": "value", "pattern": r"value=(\d+)"}],
        repeat={"runs": 4},
        store={"url": store.as_uri()},
    )
    rundir = store / "job/attempts/0/nodes/0"
    rundir.parent.mkdir(parents=True)

    with start_agent(job, rundir) as agent:
        try:
            if then == "fails":
                # It meets the full disk before the agent, which looks once a second, can see it.
                wait_until(begun(rundir))
                agent.send_signal(signal.SIGSTOP)
                watch_is_blind.touch()
                wait_until((rundir / "exit.json").exists)
                agent.send_signal(signal.SIGCONT)
            code = agent.wait(timeout=RUN_SECONDS)
        finally:
            agent.kill()

    assert code == 5
    result = result_of(rundir)
    assert result["outcome"] == "disk_full"
    assert "MiB left" in result["sentence"]
    assert "; 2 of 4 runs had succeeded by then." in result["sentence"]
    assert [each["outcome"] for each in result["repeats"]] == ["succeeded", "succeeded", third]
    values = [(each["repeat"], each["value"]) for each in records_of(rundir) if each["name"] == "value"]
    assert values == [(run, run * 1000 + step) for run in range(3) for step in range(200)]
    assert result_of(store / "job") == result


# 4 KiB each, the block of a tmpfs: together they leave no block free, and one warning each for those that did not fit.
MANY_SMALL_FILES = """
import os
os.mkdir("kept")
free = os.statvfs(".").f_bavail
for number in range(free * 6 // 10):
    with open(f"kept/{number:05}", "wb") as file:
        file.write(bytes(4096))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_result_is_written_even_if_artifacts_fill_the_disk(tmp_path: Path, small_disk: Path) -> None:
    store = small_disk / "jobs"
    job = python_job(
        tmp_path,
        MANY_SMALL_FILES,
        output={"artifacts": ["kept/*"]},
        store={"url": store.as_uri()},
    )
    rundir = store / "job/attempts/0/nodes/0"
    rundir.parent.mkdir(parents=True)

    code = run_agent(job, rundir)

    assert code == 0
    result = result_of(rundir)
    assert result["outcome"] == "succeeded"
    assert result["artifacts"]["files"] > 0
    assert any("No space left" in warning for warning in result["warnings"])
    assert result_of(store / "job") == result


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_an_agent_restarted_on_a_full_disk_writes_a_result(tmp_path: Path, small_disk: Path) -> None:
    rundir = small_disk / "run"
    job = python_job(tmp_path, FOREVER)
    with start_agent(job, rundir) as agent:
        wait_until(begun(rundir))
        agent.kill()
    fill(small_disk)

    code = run_agent(job, rundir)

    assert not is_alive(json.loads((rundir / "started.json").read_bytes())["pid"])
    assert result_of(rundir)["outcome"] == "disk_full"
    assert code == 5


def fill(disk: Path) -> None:
    """Leave no byte free, within files neither."""
    with (disk / "filler").open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    for path in disk.rglob("*.jsonl"):
        with path.open("ab", buffering=0) as file:
            file.write(b"\n" * (-path.stat().st_size % 4096))


NO_ROOM_FOR_AN_ORDER = """
import errno
from bai_agent import cli
from bai_agent.phases import benchmark_phase

def request_stop(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")

benchmark_phase.request_stop = request_stop
cli.main()
"""


def test_a_benchmark_is_ended_even_if_the_stop_order_cannot_be_written_to_disk(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = python_job(tmp_path, FOREVER)
    agent = subprocess.Popen(
        [*(sys.executable, "-c", NO_ROOM_FOR_AN_ORDER, "run", job), "--dir", rundir, "--quiet"],
        env=environment(),
    )
    with agent:
        wait_until(begun(rundir))
        (rundir / "cancel.json").write_text("{}")
        code = agent.wait(timeout=60)

    assert not is_alive(json.loads((rundir / "started.json").read_bytes())["pid"])
    assert result_of(rundir)["outcome"] == "disk_full"
    assert code == 5
