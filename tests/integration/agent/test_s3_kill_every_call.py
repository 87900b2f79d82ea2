"""An agent whose store is a bucket is killed at each of its renames and each of its requests, and started again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import ForkedAgent, forked_agent, python_job, result_of
from s3_gate import Gate

from bai_agent.job.record import JobRecord, Stream
from bai_agent.job.store import open_store

PROGRAM = """
for step in range(30):
    print(f"step={step} loss={1 / (step + 1):.4f}")
"""
METRICS = [{"name": "loss", "pattern": r"loss=(\d+\.\d+)", "required": True}]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedAgent]:
    only_with_a_bucket = ("bai_agent.job.store.s3", "bai_agent.run.cancel")
    with forked_agent(tmp_path_factory.mktemp("agent"), *only_with_a_bucket) as agent:
        yield agent


@pytest.mark.parametrize("call", ["rename", "writev"])
def test_killed_at_every_call_the_bucket_holds_what_the_files_hold(
    call: str, agent: ForkedAgent, tmp_path: Path, gate: Gate
) -> None:
    # A thread counts its own calls: each thread is killed at its first, its second, ….
    number, killed = 0, True
    while killed:
        number += 1
        name = f"{call}-{number}"
        rundir = tmp_path / name
        store = {"url": "s3://bucket/jobs", "region": "us-east-1"}
        job = python_job(tmp_path, PROGRAM, name=name, metrics=METRICS, store=store)

        # The shim and the extractor, programs of their own, are let go.
        code = agent.run(job, rundir, call=call, number=number)
        killed = code == -signal.SIGKILL
        if killed:
            code = agent.run(job, rundir)

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
