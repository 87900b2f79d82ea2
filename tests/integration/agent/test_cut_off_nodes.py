"""Nodes of a job that cannot reach its store any more, while another one can: a file of its own, as it takes half a minute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agent_runs import result_of, wait_until
from node_agents import UNTIL_TOLD, Nodes
from s3_gate import Gate, another_gate

from bai_agent.job.record import JobRecord
from bai_agent.job.store import open_store


def test_nodes_that_alone_cannot_reach_the_store_end_themselves(
    make: Callable[..., Nodes], tmp_path: Path, gate: Gate, moto: str
) -> None:
    # Given three nodes of which the coordinator and a worker come another way to the store
    with another_gate(moto, gate.s3) as cut:
        nodes = make(
            UNTIL_TOLD.format(flag=str(tmp_path / "never")),
            nodes=3,
            store={"url": "s3://bucket/jobs", "region": "us-east-1"},
            limits={"drain": "2s"},
        )
        for rank in range(3):
            nodes.start(rank, {} if rank == 1 else {"S3_ENDPOINT": cut.url})
        for rank in range(3):
            wait_until(nodes.printed(rank, "begun"))

        # When that leads nowhere any more: no answer, and no error
        cut.swallow = lambda _method, _path: True

        # Then the node that is left names both
        assert nodes.wait(1) == 5
        result = JobRecord(open_store("s3://bucket/jobs"), "job").result()
        assert result is not None
        assert (result["outcome"], result["lost"]) == ("peer_lost", [0, 2])
        said = [result["sentence"], *result["warnings"]]
        for who in ("Node 0 (127.0.0.1), the coordinator,", "Node 2 (127.0.0.1)"):
            assert f"{who} ran, but did not reach the job store for 20 s." in said

        # And the others end too, without anybody's word
        for rank in (0, 2):
            assert nodes.wait(rank) == 5
            ended = result_of(nodes.rundir(rank))
            assert ended["outcome"] == "peer_lost"
            assert f"Node {rank} could not reach the job store for 20 s" in ended["sentence"]
            assert nodes.processes(rank) == []
