"""Several nodes of a job with `[restart]`: if one fails, the generation ends on all, and the same nodes start the next one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_runs import events_of, records_of, wait_until
from mpi_node_agents import MpiNodes
from node_agents import WAIT_FOR_BEGUN, Nodes

RESTART = {"max_restarts": 1, "backoff": "0s"}
LOSS = [{"name": "loss", "pattern": r"loss=(\d+)", "required": True}]

ONE_FAILS = (
    WAIT_FOR_BEGUN
    + """
generation, rank = int(os.environ["BAI_GENERATION"]), int(os.environ["BAI_NODE_RANK"])
with open("starts", "a") as file:
    file.write(f"{generation} {os.environ['BAI_RESTARTS']} {os.environ['MASTER_PORT']}\\n")
print(f"loss={10 * generation + rank}", flush=True)
print("begun", flush=True)
if generation < int(sys.argv[1]):
    begin()
    if rank == int(sys.argv[2]):
        wait_for_begun()
        print("no such weights", flush=True)
        sys.exit(7)
    time.sleep(100)
"""
)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make(program: str, *arguments: object, nodes: int = 2, **tables: Any) -> Nodes:
        argv: Sequence[str | Path] = (
            [sys.executable, tmp_path / "benchmark.py", *map(str, arguments)] if arguments else ()
        )
        tables = {"restart": RESTART, "metrics": LOSS, **tables}
        made.append(Nodes(tmp_path, program, nodes=nodes, argv=argv, **tables))
        return made[0]

    yield make
    for each in made:
        each.close()


def starts(nodes: Nodes, rank: int) -> list[list[str]]:
    lines = (nodes.rundir(rank) / "work" / "starts").read_text().splitlines()
    return [each.split() for each in lines]


def values(nodes: Nodes, rank: int) -> list[tuple[int, float]]:
    records = records_of(nodes.rundir(rank))
    return [(each["generation"], each["value"]) for each in records if each["name"] == "loss"]


def test_if_one_node_fails_all_are_restarted(make: Callable[..., Nodes]) -> None:
    nodes = make(ONE_FAILS, 1, 1, nodes=3)

    nodes.start_all(0, 1, 2)

    assert [nodes.wait(rank) for rank in range(3)] == [0, 0, 0]
    result = nodes.result
    assert result["outcome"] == "succeeded"
    assert "(restarted once)" in result["sentence"]
    for rank in range(3):
        told = starts(nodes, rank)
        assert [each[:2] for each in told] == [["0", "0"], ["1", "1"]]
        assert values(nodes, rank) == [(0, rank), (1, 10 + rank)]
    ports = {tuple(each[2] for each in starts(nodes, rank)) for rank in range(3)}
    # All meet at one port, and in each generation at another one.
    (one,) = ports
    assert len(set(one)) == 2
    first = result["generations"][0]
    assert first["sentence"].startswith("Node 1: ")
    assert "process 1 (local rank 0) exited with code 7" in first["sentence"]


def test_after_the_last_restart_the_failed_node_is_the_cause(make: Callable[..., Nodes]) -> None:
    nodes = make(ONE_FAILS, 9, 1)

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in range(2)] == [1, 1]
    result = nodes.result
    assert result["outcome"] == "failed"
    assert result["sentence"].startswith("Node 1: ")
    assert result["sentence"].endswith("exited with code 7 (restarted once).")
    assert result["last_lines"] == ["loss=11", "begun", "no such weights"]


def test_a_node_that_succeeded_is_restarted_if_another_node_failed(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    program = """
import os, sys, time
print("loss=" + os.environ["BAI_GENERATION"], flush=True)
if os.environ["BAI_GENERATION"] == "0" and os.environ["BAI_NODE_RANK"] == "1":
    while not os.path.exists({other!r}):
        time.sleep(0.05)
    sys.exit(1)
"""
    other = tmp_path / "store/job/attempts/0/nodes/0/exit.json"
    nodes = make(program.format(other=str(other)))

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in range(2)] == [0, 0]
    assert [values(nodes, rank) for rank in range(2)] == [[(0, 0), (1, 1)]] * 2


def test_an_exit_code_that_is_not_listed_for_restart_ends_all_nodes(make: Callable[..., Nodes]) -> None:
    nodes = make(ONE_FAILS, 9, 1, restart={"max_restarts": 5, "exit_codes": [3]})

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in range(2)] == [1, 1]
    assert len(starts(nodes, 0)) == len(starts(nodes, 1)) == 1


def test_a_cancel_during_the_pause_before_a_restart_ends_all_nodes(make: Callable[..., Nodes]) -> None:
    nodes = make(ONE_FAILS, 9, 1, restart={"max_restarts": 5, "backoff": "1h"})
    nodes.start_all(0, 1)
    wait_until(lambda: all(_restarts(nodes, rank) for rank in range(2)))

    (nodes.store / "job" / "cancel.json").write_text("{}")

    codes = [nodes.wait(rank) for rank in range(2)]
    assert sorted(codes) in ([4, 4], [4, 5])
    # A node that the other one tells of the cancel, before it sees the cancel itself, ends with 5.
    ends = {4: "cancelled", 5: "peer_failed"}
    for rank, code in enumerate(codes):
        told = json.loads((nodes.store / f"job/attempts/0/nodes/{rank}/result.json").read_text())
        assert (told["outcome"], told["sentence"]) == (ends[code], "The job was cancelled.")
    assert nodes.result["outcome"] == "cancelled"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("moment", ["failed", "ended", "restart", "decided", "started"])
def test_an_agent_killed_between_two_generations_continues(
    make: Callable[..., Nodes], rank: int, moment: str
) -> None:
    nodes = make(ONE_FAILS, 1, 1)
    reached = {
        "failed": lambda: (nodes.rundir(1) / "exit.json").exists(),
        "ended": lambda: (nodes.rundir(rank) / "exit.json").exists(),
        "restart": lambda: _restarts(nodes, rank) == 1,
        "decided": lambda: (nodes.rundir(rank) / "generations/1/decision.json").exists(),
        "started": lambda: (nodes.rundir(rank) / "generations/1/started.json").exists(),
    }[moment]
    nodes.start_all(0, 1)
    wait_until(reached)
    nodes.kill(rank)

    nodes.start(rank)

    assert [nodes.wait(each) for each in range(2)] == [0, 0]
    for each in range(2):
        assert [told[0] for told in starts(nodes, each)] == ["0", "1"]
        assert values(nodes, each) == [(0, each), (1, 10 + each)]
        assert _restarts(nodes, each) == 1


def _restarts(nodes: Nodes, rank: int) -> int:
    path = nodes.rundir(rank)
    if not (path / "events.jsonl").exists():
        return 0
    return sum(each["type"] == "restart" for each in events_of(path))


MPI_FAILS = """
echo "loss=$BAI_GENERATION$OMPI_COMM_WORLD_RANK"
echo "$BAI_GENERATION" >> starts
[ "$BAI_GENERATION$OMPI_COMM_WORLD_RANK" != 01 ] || { sleep 1; exit 7; }
[ "$BAI_GENERATION" = 1 ] || sleep 100
"""


def test_a_restarted_mpi_job_starts_all_processes_of_both_nodes_again(tmp_path: Path) -> None:
    argv = ["/bin/sh", "-c", MPI_FAILS.replace("$", "$$")]
    nodes = MpiNodes(tmp_path, argv, restart=RESTART, metrics=LOSS)
    try:
        assert nodes.run() == [0, 0]
    finally:
        nodes.close()
    result = nodes.result
    assert (result["outcome"], result["metrics"]["per_metric"]) == ("succeeded", {"loss": 4})
    assert "process 1 on node 1 (i-1, 127.0.0.2) exited with code 7" in result["generations"][0]["sentence"]
    for rank in range(2):
        assert (nodes.rundir(rank) / "work" / "starts").read_text().split() == ["0", "1"]
        found = {
            (each["src"], each["generation"])
            for each in records_of(nodes.rundir(rank))
            if each["name"] == "loss"
        }
        assert found == {(f"log/{rank}", 0), (f"log/{rank}/g1", 1)}
