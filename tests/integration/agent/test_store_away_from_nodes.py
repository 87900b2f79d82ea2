"""A job waits for a store that is unreachable for all its nodes for longer than limits.peer_silence, and then succeeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from agent_runs import events_of, wait_until
from node_agents import UNTIL_TOLD, Nodes
from s3_gate import Gate, another_gate

from bai_agent.job.record import JobRecord
from bai_agent.job.store import open_store


def test_nodes_keep_running_while_the_store_is_unreachable_for_all_of_them(
    make: Callable[..., Nodes], tmp_path: Path, gate: Gate, moto: str
) -> None:
    # Given three nodes that reach the store, one of them by another way
    flag = tmp_path / "go"
    with another_gate(moto, gate.s3) as other:
        nodes = make(
            UNTIL_TOLD.format(flag=str(flag)),
            nodes=3,
            store={"url": "s3://bucket/jobs", "region": "us-east-1"},
            limits={"peer_silence": "20s"},
        )
        for rank in range(3):
            nodes.start(rank, {"S3_ENDPOINT": other.url} if rank == 1 else {})
        for rank in range(3):
            wait_until(nodes.printed(rank, "begun"))

        # When it answers one of them with errors and the others not at all, for more than limits.peer_silence
        other.refuse = lambda _method, _path: (503, b"<Error><Code>SlowDown</Code></Error>")
        gate.swallow = lambda _method, _path: True
        time.sleep(45)

        # Then all are there still, and end well when it is back
        assert [agent.poll() for agent in nodes.agents.values()] == [None] * 3
        other.refuse = lambda _method, _path: None
        gate.swallow = lambda _method, _path: False
        gate.release.set()
        flag.touch()
        assert [nodes.wait(rank) for rank in range(3)] == [0, 0, 0]

    result = JobRecord(open_store("s3://bucket/jobs"), "job").result()
    assert result is not None
    assert (result["outcome"], result["lost"]) == ("succeeded", None)
    for rank in range(3):
        assert not [each for each in events_of(nodes.rundir(rank)) if each["type"] == "stop"]
