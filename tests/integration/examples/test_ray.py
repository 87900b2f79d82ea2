"""examples/ray with the real Ray: tasks on all nodes, one that is lost, and the loss of the head."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import wait_until
from local_cli import LocalCli, open_local_cli
from local_nodes import kill_node, node_folder, node_output

from bai_agent.benchmark.orphans import kill_marked

EXAMPLE = Path(__file__).parents[3] / "examples" / "ray" / "benchmark.toml"
SECONDS = 300
UNTIL_TOLD = """
import os, runpy
def until_told(count):
    for each in range(count):
        if count == 10**6 and os.path.exists({flag!r}):
            return
        yield each
runpy.run_path("estimate.py", init_globals={{"range": until_told}}, run_name="__main__")
"""
"""Runs the script, unchanged, until there is a file."""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[LocalCli]:
    with open_local_cli(tmp_path) as cli:
        yield cli


def test_a_ray_program_continues_without_a_lost_worker_and_restarts_without_the_head(
    cli: LocalCli, tmp_path: Path
) -> None:
    """Only this shows Ray's own options, its token, and that its nodes end with us."""
    flag, script = tmp_path / "enough", tmp_path / "until_told.py"
    script.write_text(UNTIL_TOLD.format(flag=str(flag)))
    options = {
        "env.python": sys.executable,
        "hardware.distributed.num_instances": "1:3",
        "ml.benchmark_code": f"python3 {script}",
    }
    settings = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]

    def wait_for_tasks(node: int, *, nodes: int, after: str = "") -> str:
        """Wait until tasks of a round ran on so many nodes; return all that was printed."""
        line = re.compile(rf"round=\d+ nodes={nodes} ")
        wait_until(lambda: line.search(node_output(cli, "r1", node).removeprefix(after)), seconds=SECONDS)
        return node_output(cli, "r1", node)

    def lose(node: int) -> None:
        kill_node(cli, "r1", node)
        kill_marked(str(node_folder(cli, "r1", node)))

    run = ["run", str(EXAMPLE), "--on", "local", "--job-id", "r1", "--detach", *settings]
    started = cli.bai(*run, "--", "--rounds", "1000000")
    assert started.code == 0, started.stdout + started.stderr
    wait_for_tasks(0, nodes=3)
    lose(2)
    so_far = wait_for_tasks(0, nodes=2)
    rounds = [int(each) for each in re.findall(r"round=(\d+)", so_far)]
    assert rounds == list(range(len(rounds)))
    lose(0)
    wait_for_tasks(1, nodes=1)
    flag.touch()

    assert cli.bai("status", "r1", "--wait").code == 0
    result = cli.result("r1")
    assert (result["outcome"], result["lost"]) == ("succeeded", [0, 2])
    assert [each["members"] for each in result["generations"]] == [[0, 1, 2], [1]]
