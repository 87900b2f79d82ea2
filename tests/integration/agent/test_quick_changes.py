"""Changes of an elastic job without waiting times: nodes wake each other, and their ports show what still runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_runs import wait_until
from node_agents import Nodes

PROGRAM = """
import os, sys, time
from pathlib import Path
generation, node = os.environ["BAI_GENERATION"], os.environ["BAI_NODE"]
print("begun " + generation, flush=True)
while not Path({folder!r}, "go").exists():
    time.sleep(0.05)
    if generation == "0" and Path({folder!r}, "fails-" + node).exists():
        sys.exit("connection reset by peer")
print("loss=0.5")
"""
"""Runs until it is told to end; its first generation fails on each node that is told to."""
WAIT_S = 120


@pytest.fixture
def nodes(tmp_path: Path, make: Callable[..., Nodes]) -> Callable[..., Nodes]:
    def started(number: int, **tables: Any) -> Nodes:
        made = make(
            PROGRAM.format(folder=str(tmp_path)),
            nodes=number,
            strategy={"min_nodes": 1},
            metrics=[{"name": "loss", "pattern": r"loss=(\S+)"}],
            **{"elastic": {"pause": "1s"}, **tables},
        )
        made.start_all(*range(number))
        for each in range(number):
            wait_until(made.printed(each, "begun 0"), seconds=WAIT_S)
        return made

    return started


def attempt(nodes: Nodes) -> Path:
    return nodes.store / "job" / "attempts" / "0"


def decided(nodes: Nodes, generation: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (attempt(nodes) / f"control/generation-{generation:06}.json").read_bytes()
    )
    return found


def test_members_stop_for_a_planned_change_once_all_have_confirmed_it(nodes: Callable[..., Nodes]) -> None:
    it = nodes(3)

    (attempt(it) / "requests").mkdir()
    (attempt(it) / "requests/0.json").write_text(json.dumps({"desired": 2}))
    for each in (0, 1):
        wait_until(it.printed(each, "begun 1"), seconds=WAIT_S)

    said = (attempt(it) / "control/together-000001.json").stat().st_mtime_ns
    ended = [(attempt(it) / f"ended/{each}-0.json").stat().st_mtime_ns for each in (0, 1, 2)]
    assert said <= min(ended)


def test_a_dead_leader_is_replaced_without_waiting_if_a_benchmark_fails(
    nodes: Callable[..., Nodes], tmp_path: Path
) -> None:
    it = nodes(3, limits={"peer_silence": "10m"})

    it.lose(0)
    for each in (1, 2):
        (tmp_path / f"fails-{each}").touch()
        wait_until(it.printed(each, "begun 1"), seconds=WAIT_S)

    assert (decided(it, 1)["members"], decided(it, 1)["nodes"]) == ([1, 2], [0])
    assert decided(it, 1)["ledger"]["restarts"] == 0


def test_a_crashed_agent_whose_benchmark_still_runs_is_waited_for_until_its_restart(
    nodes: Callable[..., Nodes], tmp_path: Path
) -> None:
    # The start of an agent takes a busy machine seconds.
    it = nodes(2, restart={"max_restarts": 1, "backoff": "0s"}, limits={"peer_silence": "60s"})

    it.kill(1)
    (tmp_path / "fails-0").touch()
    wait_until((attempt(it) / "ended/0-0.json").exists, seconds=WAIT_S)
    # As long as a guardian takes for it
    time.sleep(5)
    it.start(1)

    for each in (0, 1):
        wait_until(it.printed(each, "begun 1"), seconds=WAIT_S)
    assert (decided(it, 1)["why"], decided(it, 1)["ledger"]["restarts"]) == ("failed", 1)
