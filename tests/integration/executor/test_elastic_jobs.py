"""`bai run` of an elastic job on this machine: it shrinks, grows and outlives a killed node, and its numbers go on where it stopped."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from agent_runs import wait_until
from local_cli import LocalCli
from local_nodes import kill_node, node_output
from stand_in_torchrun import put_torchrun
from stand_in_training import TRAINS

from executor import scale

MORE = """
[[output.metrics]]
name = "steps"
pattern = 'step=([0-9]+) '
[hardware.distributed]
num_instances = "2:3"
[elastic]
pause = "1s"
[checkpoint]
path = "checkpoints"
"""
WAIT_S = 120
"""Far beyond what a change takes, also on a machine that does much else."""


@pytest.fixture
def nodes(cli: LocalCli) -> LocalCli:
    """A harness whose PATH has a torchrun."""
    path = f"{put_torchrun(cli.folder)}:{os.environ['PATH']}"
    return replace(cli, environment={**cli.environment, "PATH": path})


def test_an_elastic_job_shrinks_grows_and_continues_without_a_killed_node(nodes: LocalCli) -> None:
    limits = 'grace = "10s"\npeer_silence = "20s"'
    file = nodes.descriptor(TRAINS, limits=limits, strategy="torchrun", more=MORE)
    with nodes.start("run", file, "--job-id", "e1", "--", nodes.go_file, "0.05") as run:
        try:
            wait_until(lambda: printed(nodes, 0, "step=20 "), seconds=WAIT_S)

            # Smaller: the node with the highest number leaves.
            assert scale("e1", 2, store=nodes.store) == "scaling to 2 nodes"
            wait_until(lambda: printed(nodes, 0, "generation=1 node=0 rank=0 of 2 goes on"), seconds=WAIT_S)
            shown = nodes.bai("status", "e1").stdout
            assert "generation 1 of 2:3 nodes (desired 2): 2 members" in shown

            # Larger again: by a node with a number that nobody had.
            wait_until(lambda: makes_steps(nodes, 0, generation=1), seconds=WAIT_S)
            assert nodes.bai("scale", "e1", "3").code == 0
            wait_until(lambda: printed(nodes, 3, "generation=2 node=3 rank=2 of 3 goes on"), seconds=WAIT_S)

            # The first node is killed, with all that it has started. The next one leads, and goes on without it until it is back.
            wait_until(lambda: makes_steps(nodes, 0, generation=2), seconds=WAIT_S)
            kill_node(nodes, "e1", 0)
            wait_until(lambda: "node=0 rank=2 of 3 goes on" in node_output(nodes, "e1", 0), seconds=WAIT_S)
            last = int(
                re.findall(r"^generation=([0-9]+) node=0 rank=2 ", node_output(nodes, "e1", 0), re.MULTILINE)[
                    0
                ]
            )
            wait_until(lambda: makes_steps(nodes, 1, generation=last), seconds=WAIT_S)
            nodes.go_file.touch()
            shown, said = run.communicate(timeout=WAIT_S)
        finally:
            run.kill()

    assert run.returncode == 0, shown + said
    steps = steps_of(nodes)
    for number, found in steps.items():
        assert found == list(range(found[0], found[0] + len(found))), number
    assert steps[0][0] == 1
    assert steps[1][0] == steps[0][-1] + 1
    assert steps[2][0] == steps[1][-1] + 1
    # What came after the last checkpoint is computed again, and nothing is left out. A generation may have ended before its first step.
    assert last in steps
    for before, after in pairwise(sorted(steps)):
        assert steps[before][0] <= steps[after][0] <= steps[before][-1] + 1
    kept = nodes.store / "e1" / "attempts" / "0" / "signs"
    assert {each.name.split("-")[1] for each in kept.glob("checkpoint-*.json")} >= {"0", "1", "2"}


def printed(nodes: LocalCli, node: int, text: str) -> bool:
    return text in node_output(nodes, "e1", node)


def makes_steps(nodes: LocalCli, node: int, *, generation: int) -> bool:
    """Return whether the first process of a generation, which runs on that node, has made some steps."""
    return node_output(nodes, "e1", node).partition(f"generation={generation} ")[2].count("step=") > 5


def steps_of(nodes: LocalCli) -> dict[int, list[int]]:
    """Return the steps of each generation, as `bai metrics` has them."""
    found: dict[int, list[int]] = {}
    for line in nodes.bai("metrics", "e1", "--name", "steps", "--format", "jsonl").stdout.splitlines():
        record = json.loads(line)
        found.setdefault(record["generation"], []).append(int(record["value"]))
    return found
