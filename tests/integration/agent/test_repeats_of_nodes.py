"""`[repeat]` with torchrun and each_node on several nodes: all nodes start each run together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_runs import records_of, wait_until
from node_agents import Nodes

from bai_agent.job.figures import relative_half_width

# Each process notes its start, and says if a process of another run is there.
PROGRAM = """
import json, os, sys, time
here = os.path.dirname(os.path.abspath(sys.argv[0]))
run, rank = os.environ["BAI_REPEAT"], int(os.environ["BAI_NODE_RANK"])
mine = f"{here}/running-{run}-{rank}"
open(mine, "w").close()
with open("starts", "a") as file:
    file.write(run + chr(10))
strangers = [each for each in os.listdir(here) if each.startswith("running-") and not each.startswith(f"running-{run}-")]
if strangers:
    print("strangers", strangers)
if os.path.exists(f"{here}/pause-{run}-{rank}"):
    print("pausing in", run, flush=True)
    while os.path.exists(f"{here}/pause-{run}-{rank}"):
        time.sleep(0.02)
number = 100 * int(run.rpartition("-")[2]) + 10 * rank
with open(os.environ["BENCHMARK_AI_FIFO_FILEPATH"], "w") as fifo:
    fifo.write(json.dumps({"emitted": number}))
sys.stdout.write(f"value {number}")
sys.stdout.flush()
os.unlink(mine)
sys.exit(7 * int(os.path.exists(f"{here}/fail-{run}-{rank}")))
"""
VALUE = [{"name": "value", "pattern": r"value (\d+)"}]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def nodes(*touched: str, repeat: dict[str, Any], program: str = PROGRAM, **tables: Any) -> Nodes:
        for name in touched:
            (tmp_path / name).touch()
        made.append(Nodes(tmp_path, program, nodes=2, repeat=repeat, metrics=VALUE, **tables))
        return made[-1]

    yield nodes
    for each in made:
        each.close()


def found(nodes: Nodes, rank: int, name: str = "value") -> dict[int, list[float]]:
    values: dict[int, list[float]] = {}
    for each in records_of(nodes.rundir(rank)):
        if each["name"] == name:
            values.setdefault(each["repeat"], []).append(each["value"])
    return values


def starts(nodes: Nodes, rank: int) -> list[str]:
    return (nodes.rundir(rank) / "work" / "starts").read_text().split()


def printed(nodes: Nodes, rank: int) -> str:
    return (nodes.rundir(rank) / "output.log").read_text()


def assert_right(nodes: Nodes, *, runs: int) -> None:
    """Check that each run was started once on each node, with the others' alone, and that each node has its values, once."""
    for rank in (0, 1):
        assert [each for each in starts(nodes, rank) if each.isdecimal()] == [str(run) for run in range(runs)]
        assert found(nodes, rank) == {run: [100 * run + 10 * rank] for run in range(runs)}
        assert found(nodes, rank, "emitted") == found(nodes, rank)
        assert "strangers" not in printed(nodes, rank)


def test_all_nodes_start_each_repeat_together(make: Callable[..., Nodes]) -> None:
    step = ["/bin/sh", "-c", "echo value 5; echo $$BAI_REPEAT >> around"]
    nodes = make(repeat={"runs": 3, "warmup_runs": 1, "prepare": step, "cleanup": step})

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0], printed(nodes, 0)
    assert_right(nodes, runs=3)
    for rank in (0, 1):
        around = (nodes.rundir(rank) / "work" / "around").read_text().split()
        assert around == [run for run in ("warmup-0", "0", "1", "2") for _ in range(2)]
    result = nodes.result
    assert (result["outcome"], "3 times" in result["sentence"]) == ("succeeded", True)
    assert [(each["repeat"], each["outcome"]) for each in result["repeats"]] == [
        (run, "succeeded") for run in range(3)
    ]


@pytest.mark.parametrize(("strategy", "slow"), [("torchrun", 0), ("torchrun", 1), ("each_node", 1)])
def test_agents_killed_while_another_node_lags_lose_and_duplicate_no_record(
    make: Callable[..., Nodes], tmp_path: Path, strategy: str, slow: int
) -> None:
    # Given a node that is still in a run when the other one is ready for the next
    nodes = make(f"pause-1-{slow}", repeat={"runs": 4}, strategy={"name": strategy})
    nodes.start_all(0, 1)
    wait_until(nodes.printed(slow, "pausing in 1"))
    wait_until(lambda: is_ready(nodes, 1 - slow, run=2))

    # When both agents are killed
    for rank in (0, 1):
        nodes.kill(rank)
        nodes.start(rank)
    (tmp_path / f"pause-1-{slow}").unlink()

    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0], printed(nodes, 0)
    assert_right(nodes, runs=4)


def is_ready(nodes: Nodes, rank: int, *, run: int) -> bool:
    lines = (nodes.rundir(rank) / "repeats.jsonl").read_bytes().splitlines()
    last = json.loads(lines[-1])
    return bool((last["event"], last["run"]) == ("ready", run))


def test_a_run_that_fails_on_one_node_ends_the_job(make: Callable[..., Nodes]) -> None:
    nodes = make("fail-1-1", "pause-1-0", repeat={"runs": 3})

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in (0, 1)] == [1, 1]
    assert starts(nodes, 0) == starts(nodes, 1) == ["0", "1"]
    result = nodes.result
    assert result["outcome"] == "failed"
    assert result["sentence"].startswith("Node 1: Run 2 of 3: The benchmark failed after ")
    assert result["sentence"].endswith(": process 1 (local rank 0) exited with code 7.")
    assert [each["outcome"] for each in result["repeats"]] == ["succeeded", "failed"]


def test_the_first_node_decides_when_all_nodes_have_repeated_enough(make: Callable[..., Nodes]) -> None:
    program = "import os; n = int(os.environ['BAI_REPEAT']); print('value', 100 + (n == 0) * 14 + n % 2 + int(os.environ['RANK']))"
    nodes = make(repeat={"runs": 40, "until": 0.02, "metric": "value"}, program=program)

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0]
    of_first = [each[0] for each in found(nodes, 0).values()]
    assert 10 < len(of_first) < 40
    # Narrow at two looks in a row
    widths = [relative_half_width(of_first[: len(of_first) - i]) for i in range(3)]
    assert max(widths[:2]) <= 0.02 < widths[2]
    assert len(found(nodes, 1)) == len(of_first)
    assert not [each for each in nodes.result["warnings"] if "[repeat]" in each]


def test_no_run_begins_after_max_time_on_any_node(make: Callable[..., Nodes]) -> None:
    nodes = make(repeat={"runs": 500, "max_time": "1s"}, program="import time; time.sleep(0.6)")

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0]
    runs = len(nodes.result["repeats"])
    assert runs < 10
    told = [each for each in nodes.result["warnings"] if "[repeat]" in each]
    assert told == [f"Node 0: {runs} of 500 runs were done when [repeat] max_time was reached."]
