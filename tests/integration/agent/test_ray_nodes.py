"""Nodes of a Ray, which is a stand-in: nodes come and go while the command runs, and only the loss of its own node starts it again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from agent_runs import events_of, wait_until
from node_agents import Nodes
from stand_in_ray import StandInRay

DRIVER = """
import os, time, ray
ray.init(os.environ["RAY_ADDRESS"])
print("begun", os.environ["BAI_GENERATION"], flush=True)
shown = None
while not os.path.exists({flag!r}):
    found = sum(each["Alive"] for each in ray.nodes())
    if found != shown:
        print("nodes", found, flush=True)
        shown = found
    time.sleep(0.05)
print("loss=0.5")
"""
"""Prints how many nodes its Ray has at each change, until there is a file `flag`."""
WAIT_S = 180


def test_nodes_join_and_leave_a_ray_cluster_without_restarting_the_command(
    tmp_path: Path, make: Callable[..., Nodes]
) -> None:
    ray, flag = StandInRay(tmp_path, version="2.61.0"), tmp_path / "finish"
    nodes = make(
        DRIVER.format(flag=str(flag)),
        nodes=3,
        strategy={"name": "ray", "min_nodes": 1},
        elastic={"nodes": 2, "pause": "1s"},
        metrics=[{"name": "loss", "pattern": r"loss=(\S+)", "required": True}],
    )
    nodes.env.update(ray.env)
    said = nodes.rundir(0) / "output.log"

    def wait_for(*lines: str) -> None:
        wait_until(lambda: said.exists() and said.read_text().split("\n")[:-1] == list(lines), seconds=WAIT_S)

    nodes.start_all(0, 1)
    wait_for("begun 0", "nodes 2")
    # One that joins
    nodes.start(2)
    wait_for("begun 0", "nodes 2", "nodes 3")
    # A member that is lost
    nodes.lose(1)
    wait_for("begun 0", "nodes 2", "nodes 3", "nodes 2")
    tokens = {json.loads(each.read_text())["token"] for each in ray.shared.glob("started-*")}
    # The head
    nodes.lose(0)
    wait_until(nodes.printed(2, "begun 1\nnodes 1\n"), seconds=WAIT_S)
    flag.touch()

    assert nodes.wait(2) == 0
    result = nodes.result
    assert (result["outcome"], result["lost"]) == ("succeeded", [0, 1])
    assert [each["members"] for each in result["generations"]] == [[0, 1, 2], [2]]
    warnings = [each["message"] for each in events_of(nodes.rundir(0)) if each["type"] == "warning"]
    assert "The benchmark's Python has ray '2.61.0', which was never tested; 2.60.0 works." in warnings
    # All nodes have one secret, which is nowhere in the record.
    (token,) = tokens
    assert len(token) == 64
    files = [each for each in nodes.store.rglob("*") if each.is_file()]
    assert not [each for each in files if token.encode() in each.read_bytes()]


def test_the_end_of_the_command_stops_ray_on_all_nodes(tmp_path: Path, make: Callable[..., Nodes]) -> None:
    ray, flag = StandInRay(tmp_path), tmp_path / "finish"
    flag.touch()
    nodes = make(DRIVER.format(flag=str(flag)), strategy={"name": "ray"})
    nodes.env.update(ray.env)
    nodes.start_all(0, 1)

    assert [nodes.wait(0), nodes.wait(1)] == [0, 0]
    assert ray.nodes() == []
    assert len(list(ray.shared.glob("ended-*"))) == 2
    assert nodes.result["outcome"] == "succeeded"


def test_a_job_on_nodes_without_ray_fails_before_the_nodes_join(
    tmp_path: Path, make: Callable[..., Nodes]
) -> None:
    nodes = make("print('loss=0.5')", strategy={"name": "ray"})
    nodes.env["PATH"] = "/usr/bin:/bin"
    nodes.start_all(0, 1)

    assert nodes.wait(0) != 0
    nodes.wait(1)
    result = nodes.result
    assert result["outcome"] == "prepare_failed"
    assert (
        "ray is not on this machine (looked at: PATH); install Ray for the benchmark's Python (the package ray, version 2.60.0)"
        in result["sentence"]
    )
    assert not (nodes.store / "job" / "attempts" / "0" / "control" / "peers.json").exists()
