"""An agent whose store is a bucket is killed at each of its renames and each of its requests, and started again."""

from __future__ import annotations

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
    with forked_agent(tmp_path_factory.mktemp("agent"), "bai_agent.job.store.s3") as agent:
        yield agent


@pytest.mark.parametrize("call", ["rename", "writev"])
def test_the_bucket_equals_the_local_files_after_a_kill_at_any_system_call(
    call: str, agent: ForkedAgent, tmp_path: Path, gate: Gate
) -> None:
    store = {"url": "s3://bucket/jobs", "region": "us-east-1"}

    def make_job(name: str) -> Path:
        return python_job(tmp_path, PROGRAM, name=name, metrics=METRICS, store=store)

    for rundir, where in agent.killed_at_each(call, tmp_path, make_job, least=4):
        record = JobRecord(open_store("s3://bucket/jobs"), rundir.name)
        assert read(record, "log") == (rundir / "output.log").read_bytes() != b"", where
        assert read(record, "metrics") == (rundir / "metrics.jsonl").read_bytes() != b"", where
        assert read(record, "events") == (rundir / "events.jsonl").read_bytes(), where
        assert record.result() == record.node().read_object("result.json") == result_of(rundir), where


def read(record: JobRecord, stream: Stream) -> bytes:
    whole = b""
    while piece := record.node().read(stream, len(whole)):
        whole += piece
    return whole
