"""An agent whose store is a bucket is killed at each of its renames and each of its requests, and started again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from agent_runs import python_job, result_of, run_agent
from s3_gate import Gate

from bai_agent.job.record import JobRecord, Stream
from bai_agent.job.store import open_store

PROGRAM = """
for step in range(30):
    print(f"step={step} loss={1 / (step + 1):.4f}")
"""
METRICS = [{"name": "loss", "pattern": r"loss=(\d+\.\d+)", "required": True}]


@pytest.mark.parametrize("call", ["rename", "writev"])
def test_killed_at_every_call_the_bucket_holds_what_the_files_hold(
    call: str, tmp_path: Path, gate: Gate
) -> None:
    # A thread counts its own calls: each thread is killed at its first, its second, ….
    number, killed = 0, True
    while killed:
        number += 1
        name = f"{call}-{number}"
        rundir = tmp_path / name
        store = {"url": "s3://bucket/jobs", "region": "us-east-1"}
        job = python_job(tmp_path, PROGRAM, name=name, metrics=METRICS, store=store)

        # -b execve: the shim and the extractor are let go as soon as they are programs of their own.
        inject = f"inject={call}:signal=SIGKILL:when={number}"
        code = run_agent(
            job, rundir, prefix=("strace", "-f", "-qq", "-b", "execve", "-o", "/dev/null", "-e", inject)
        )
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if killed:
            code = run_agent(job, rundir)

        assert code == 0, f"after a kill at {call} {number}"
        record = JobRecord(open_store("s3://bucket/jobs"), name)
        assert read(record, "log") == (rundir / "output.log").read_bytes() != b""
        assert read(record, "metrics") == (rundir / "metrics.jsonl").read_bytes() != b""
        assert read(record, "events") == (rundir / "events.jsonl").read_bytes()
        assert record.result() == record.node().read_object("result.json") == result_of(rundir)
    assert number > 3, f"the agent hardly called {call}: the test killed next to nothing"


def read(record: JobRecord, stream: Stream) -> bytes:
    whole = b""
    while piece := record.node().read(stream, len(whole)):
        whole += piece
    return whole
