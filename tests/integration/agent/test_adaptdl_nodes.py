"""Nodes of an AdaptDL job, whose replicas are stand-ins that save, fail and give hints as AdaptDL's do."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_runs import events_of, wait_until
from node_agents import Nodes
from stand_in_adaptdl import stand_in_adaptdl

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.record import JobRecord
from bai_agent.job.store import open_store

WAIT_S = 120


class Job:
    def __init__(self, folder: Path, make: Callable[..., Nodes], **tables: Any) -> None:
        self._flag = folder / "go"
        packages = folder / "packages"
        for name in tables.pop("packages", ("adaptdl", "requests", "torch")):
            packages.mkdir(exist_ok=True)
            (packages / f"{name}.py").touch()
        metadata = packages / "adaptdl-0.2.12.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text("Metadata-Version: 2.1\nName: adaptdl\nVersion: 0.2.12\n")
        self.nodes = make(
            stand_in_adaptdl(str(self._flag), hints=json.dumps(tables.pop("hints", {}))),
            nodes=2,
            strategy={"name": "adaptdl", "min_nodes": 1, "processes_per_node": "2"},
            elastic={"pause": "1s", "policy": "fixed", **tables.pop("elastic", {})},
            checkpoint={"path": "checkpoints"},
            metrics=[{"name": "loss", "pattern": r"loss=(\S+)"}],
            **tables,
        )
        self.nodes.env["PYTHONPATH"] = str(packages)

    @property
    def attempt(self) -> AttemptRecord:
        return AttemptRecord(JobRecord(open_store(self.nodes.store.as_uri()), "job"))

    def wait(self, generation: int, *, nodes: int) -> list[list[Any]]:
        """Wait until all replicas of a generation run; return how each was started, by rank."""
        wait_until(lambda: len(self.begun(generation)) == 2 * nodes, seconds=WAIT_S)
        return self.begun(generation)

    def begun(self, generation: int) -> list[list[Any]]:
        logs = (self.nodes.rundir(node) / "output.log" for node in (0, 1))
        lines = [line for log in logs if log.exists() for line in log.read_text().splitlines()]
        starts = [json.loads(line.removeprefix("begun ")) for line in lines if line.startswith("begun ")]
        return sorted(each for each in starts if each[0] == generation)

    def finish(self, *nodes: int) -> None:
        self._flag.touch()
        assert [self.nodes.wait(node) for node in nodes] == [0] * len(nodes)

    def warnings(self) -> list[str]:
        """Return what the first node has warned of."""
        return [each["message"] for each in events_of(self.nodes.rundir(0)) if each["type"] == "warning"]

    def why(self, generation: int) -> str:
        attempt = self.attempt
        return attempt.decision(generation, attempt.control()).why


@pytest.fixture
def job(tmp_path: Path, make: Callable[..., Nodes]) -> Callable[..., Job]:
    return lambda **tables: Job(tmp_path, make, **tables)


def test_a_sigterm_to_one_adaptdl_replica_makes_all_save_and_restart(job: Callable[..., Job]) -> None:
    it = job(elastic={"nodes": 2, "policy": "goodput"})
    it.nodes.start_all(0, 1)
    first = it.wait(0, nodes=2)
    wait_until(lambda: any("hints are ignored" in each for each in it.warnings()), seconds=WAIT_S)
    # AdaptDL's own word to one replica takes all along.
    os.kill(first[0][-1], signal.SIGTERM)
    second = it.wait(1, nodes=2)
    hints = it.attempt.hints()
    it.finish(0, 1)

    here = ["127.0.0.1"] * 4
    assert [each[:-1] for each in first] == [[0, rank, 4, here, 404, []] for rank in range(4)]
    assert [each[:-1] for each in second] == [[1, rank, 4, here, 404, ["1"]] for rank in range(4)]
    assert it.why(1) == "saved"
    assert hints is not None
    wait_until(lambda: '"restart": 1' in (it.attempt.hints() or hints).text, seconds=WAIT_S)
    result = it.nodes.result
    assert (result["outcome"], [each["code"] for each in result["generations"]]) == ("succeeded", [143, 0])
    assert [each for each in it.warnings() if "AdaptDL" in each or "adaptdl" in each] == [
        "The benchmark's Python has adaptdl '0.2.12', which was never tested; 0.2.11 works.",
        "AdaptDL's hints were larger than 65536 bytes, or of unknown size, and are ignored.",
        "AdaptDL's hints are ignored, because they yield no number of nodes (initBatchSize is missing).",
    ]


def test_an_adaptdl_job_continues_from_its_save_after_a_replica_and_an_agent_are_killed(
    job: Callable[..., Job],
) -> None:
    it = job(restart={"max_restarts": 1, "backoff": "0s"}, elastic={"nodes": 1})
    it.nodes.start(0)
    os.kill(it.wait(0, nodes=1)[1][-1], signal.SIGTERM)
    replica = it.wait(1, nodes=1)[0]
    # The replicas go on meanwhile, and find the supervisor where it was.
    it.nodes.kill(0)
    it.nodes.start(0)
    os.kill(replica[-1], signal.SIGKILL)
    third = it.wait(2, nodes=1)
    it.finish(0)

    assert [each[:-1] for each in third] == [[2, rank, 2, ["127.0.0.1"] * 2, 404, ["1"]] for rank in (0, 1)]
    sentence = it.nodes.result["generations"][1]["sentence"]
    assert "replica 0 (local rank 0) was ended by SIGKILL" in sentence
    assert (it.why(1), it.why(2)) == ("saved", "failed")


def test_a_missing_package_is_named_before_the_nodes_meet(job: Callable[..., Job]) -> None:
    it = job(packages=("requests", "torch"))
    it.nodes.start_all(0, 1)

    assert [it.nodes.wait(node) for node in (0, 1)] == [5, 5]
    result = it.nodes.result
    assert result["outcome"] == "prepare_failed"
    assert 'has no module "adaptdl"; install AdaptDL for that Python' in result["sentence"]
    assert it.begun(0) == []
