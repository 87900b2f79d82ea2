"""Agents, shims and whole nodes of an elastic job are killed at random moments while it prints 2,000 numbers a second."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from agent_runs import is_alive, records_of, wait_until
from node_agents import Nodes
from s3_gate import Gate

from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir
from bai_agent.job.store import open_store

NODES = 3
KILLS = {"agent": 13, "shim": 3, "node": 3, "machine": 1}
OFTEN = 667
"""Numbers that each node prints in a second."""

# A number is told from those of other generations.
PRINTS = f"""
import os, sys, time
number, started = int(os.environ["BAI_GENERATION"]) * 1_000_000, time.monotonic()
while not os.path.exists(sys.argv[1]):
    for _ in range({OFTEN} // 20):
        number += 1
        print(f"value={{number}}")
    time.sleep(0.05)
"""


def test_after_random_kills_only_a_lost_machines_last_values_are_missing(
    make: Callable[..., Nodes], tmp_path: Path, gate: Gate
) -> None:
    finish = tmp_path / "finish"
    nodes = make(
        PRINTS.replace("sys.argv[1]", repr(str(finish))),
        nodes=NODES,
        strategy={"min_nodes": 1},
        elastic={"pause": "1s"},
        restart={"max_restarts": 99, "backoff": "0s"},
        metrics=[{"name": "value", "pattern": r"value=(\d+)", "required": True}],
        store={"url": "s3://bucket/jobs", "region": "us-east-1"},
    )
    chance = random.Random(20261125)
    kinds = [kind for kind, times in KILLS.items() if kind != "machine" for _ in range(times)]
    chance.shuffle(kinds)
    nodes.start_all(*range(NODES))
    for node in range(NODES):
        wait_until(nodes.printed(node, "value="))

    # Each kill but an agent's hits a benchmark that runs, in a generation of its own.
    hit: list[int] = []
    for kind in kinds:
        time.sleep(chance.uniform(0.2, 1.5))
        node = chance.randrange(NODES)
        if kind == "agent":
            assert nodes.agents[node].poll() is None
            nodes.kill(node)
            nodes.start(node)
            continue
        generation, shim = stopped_shim(nodes, node, after=max(hit, default=-1))
        hit.append(generation)
        if kind == "shim":
            os.kill(shim, signal.SIGKILL)
        else:
            nodes.lose(node)
            nodes.start(node)
    # The last one is a machine that does not come back: what it had printed is put aside.
    lost = chance.randrange(NODES)
    wait_until(lambda: in_store(lost))
    hit.append(stopped_shim(nodes, lost, after=hit[-1])[0])
    nodes.lose(lost)
    printed = {lost: values_in(nodes.rundir(lost))}
    shutil.rmtree(nodes.rundir(lost))
    others = [node for node in range(NODES) if node != lost]
    for node in others:
        wait_until(lambda: generation_of(nodes, node) > hit[-1], seconds=120)  # noqa: B023
    finish.touch()
    codes = {node: nodes.wait(node) for node in others}

    assert codes == dict.fromkeys(others, 0)
    for node in others:
        printed[node] = values_in(nodes.rundir(node))
        records = records_of(nodes.rundir(node))
        assert [each["seq"] for each in records] == list(range(len(records)))
    for node, wanted in printed.items():
        found = in_store(node)
        assert len(set(found)) == len(found), f"node {node}: doubled"
        missing = len(wanted) - len(found)
        assert found == wanted[: len(found)], f"node {node}: something is missing that is not at the end"
        assert node == lost or missing == 0, f"node {node}: {missing} are missing"
    generations = {number // 1_000_000 for wanted in printed.values() for number in wanted}
    assert {*hit} < generations
    assert len(hit) == KILLS["shim"] + KILLS["node"] + KILLS["machine"]
    result = JobRecord(open_store("s3://bucket/jobs"), "job").result()
    assert result is not None
    assert (result["outcome"], result["lost"]) == ("succeeded", [lost])


def stopped_shim(nodes: Nodes, node: int, *, after: int) -> tuple[int, int]:
    """Stop the shim of a benchmark that runs in a generation later than `after`; return the generation, and the shim's pid.

    It has seen no end of its benchmark, so one that is killed now ends the generation, even if that was about to end anyway.
    """
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        generation = generation_of(nodes, node)
        rundir = RunDir(nodes.rundir(node)).of_generation(generation)
        shim = json.loads(rundir.started.read_bytes())["shim_pid"]
        if generation > after and is_alive(shim):
            os.kill(shim, signal.SIGSTOP)
            if not rundir.exit.exists():
                return generation, shim
            os.kill(shim, signal.SIGCONT)
        time.sleep(0.05)
    raise AssertionError(f"node {node} ran nothing after generation {after}")


def generation_of(nodes: Nodes, node: int) -> int:
    """Return the generation in which a node's benchmark printed last."""
    with (nodes.rundir(node) / "output.log").open("rb") as file:
        file.seek(-min(4096, file.seek(0, os.SEEK_END)), os.SEEK_END)
        newest = file.read().splitlines()[-2]
    return int(newest.removeprefix(b"value=")) // 1_000_000


def values_in(rundir: Path) -> list[int]:
    """Return the numbers that a node's benchmark has printed, whole lines only."""
    lines = (rundir / "output.log").read_bytes().rpartition(b"\n")[0].splitlines()
    return [int(line.removeprefix(b"value=")) for line in lines if line.startswith(b"value=")]


def in_store(node: int) -> list[int]:
    """Return the same, of the records in the job store."""
    record = JobRecord(open_store("s3://bucket/jobs"), "job").node(node)
    content = b""
    while piece := record.read("metrics", len(content)):
        content += piece
    records = [json.loads(line) for line in content.splitlines()]
    return [int(each["value"]) for each in records if each["name"] == "value"]
