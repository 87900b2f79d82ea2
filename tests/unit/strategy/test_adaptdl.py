"""What each node of an AdaptDL job starts, and how a failure recorded by its spawner is explained."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.restart_tables import Checkpoint
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.peers import Peer
from bai_agent.strategy import SetsUp, explain_failure, strategy_of
from bai_agent.strategy.failure import Cause, LeftFile, Remains
from bai_agent.strategy.launch import Launch

PEERS = [
    Peer(rank=0, address="10.0.0.1", slots=2, port=4711, node=3),
    Peer(rank=1, address="10.0.0.2", slots=3, interface="ens5", node=0),
]
COMMAND = ("python3", "train.py", "--epochs", "3")
NOTE = {"rank": 3, "local": 1, "code": 1, "signal": None, "time": 1_700_000_000_000}


def job(*, env: dict[str, str] | None = None, **table: Any) -> Job:
    return Job(
        job=Identity(id="j"),
        benchmark=Benchmark(argv=COMMAND, env=env or {}),
        strategy=StrategyTable(name="adaptdl", nodes=2, min_nodes=1, **table),
        limits=Limits(grace=timedelta(minutes=2)),
        checkpoint=Checkpoint(path="checkpoints"),
    )


def launched(rank: int, its: Job | None = None) -> Launch:
    its = its or job()
    return strategy_of(its).launch(its, COMMAND, PEERS[rank], PEERS)


def test_each_node_starts_its_replicas_with_consecutive_ranks() -> None:
    end = [launched(rank).argv[-8:] for rank in (0, 1)]

    assert end == [("0", "2", "120", "--", *COMMAND), ("2", "3", "120", "--", *COMMAND)]


def test_replicas_get_addresses_and_generation_in_adaptdls_variables() -> None:
    env = launched(1).env

    assert {name: value for name, value in env.items() if name.startswith("ADAPTDL_")} == {
        "ADAPTDL_CHECKPOINT_PATH": "$(BAI_CHECKPOINT_DIR)",
        "ADAPTDL_MASTER_ADDR": "10.0.0.1",
        "ADAPTDL_MASTER_PORT": "4711",
        "ADAPTDL_NUM_NODES": "2",
        "ADAPTDL_NUM_REPLICAS": "5",
        "ADAPTDL_NUM_RESTARTS": "$(BAI_GENERATION)",
        "ADAPTDL_SCHED_VERSION": "0.2.11",
    }
    assert (env["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"], env["GLOO_SOCKET_IFNAME"]) == ("1", "ens5")
    assert "OMP_NUM_THREADS" not in env


def test_variables_of_the_job_override_ours_except_for_ranks_and_addresses() -> None:
    own = {
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "0",
        "GLOO_SOCKET_IFNAME": "eth1",
        "ADAPTDL_NUM_NODES": "9",
    }

    env = launched(1, job(env=own, cpus_per_process=4)).env

    assert not {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "GLOO_SOCKET_IFNAME"} & env.keys()
    assert (env["ADAPTDL_NUM_NODES"], env["OMP_NUM_THREADS"]) == ("2", "4")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"strategy": StrategyTable(name="adaptdl", nodes=2)}, "min_nodes: adaptdl runs on a range of nodes"),
        ({"checkpoint": None}, "needs a folder that bai copies"),
        ({"checkpoint": Checkpoint(path="/shared", shared=True)}, "leave out shared"),
    ],
)
def test_a_job_that_adaptdl_cannot_run_is_refused(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DescriptorError, match=sentence):
        strategy_of(replace(job(), **table))


def test_packages_that_adaptdl_needs_are_checked_before_nodes_join() -> None:
    strategy = strategy_of(job())
    assert isinstance(strategy, SetsUp)

    setup = strategy.setup(job(), 1)

    assert set(setup.needs.modules) == {"adaptdl", "requests", "torch"}
    assert setup.versions == {"adaptdl": ("0.2.11",)}
    assert strategy.mismatch(PEERS) is None


def cause_of(content: str, path: str = "replica.json") -> Cause | None:
    remains = Remains(log="", files=[LeftFile(path=path, content=content, modified=0)])
    return explain_failure(job(), remains, PEERS[1], PEERS)


def test_the_replica_that_failed_first_is_named() -> None:
    cause = cause_of(json.dumps(NOTE))

    assert cause is not None
    assert (cause.process, cause.code, cause.failed) == ("replica 3 (local rank 1)", 1, NOTE["time"])


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"rank": 3}', json.dumps({**NOTE, "code": "1"}), json.dumps({**NOTE, "rank": -1})],
)
def test_a_malformed_failure_note_of_a_replica_is_ignored(content: str) -> None:
    assert cause_of(content) is None
    assert cause_of(json.dumps(NOTE), path="other/replica.json") is None
