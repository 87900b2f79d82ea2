"""Elastic jobs with `[checkpoint]`: all members of a generation go on from the same checkpoint, and launch together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_runs import events_of, wait_until
from node_agents import WAIT_FOR_BEGUN, Nodes
from s3_gate import Gate
from saved_files import saved

from bai_agent.checkpoint.snapshot import STAGING

COUNTS = """
import os, signal, sys, time
from pathlib import Path
folder, rank = Path(os.environ["BAI_CHECKPOINT_DIR"]), os.environ["BAI_NODE_RANK"]
generation, resumed = os.environ["BAI_GENERATION"], os.environ["BAI_RESUMED"]
step = int((folder / "step").read_text()) if resumed else 0
with open("starts", "a") as file:
    file.write(f"{{generation}} {{rank}} {{resumed or '-'}} {{step}}\\n")

def save():
    # What each node saves tells whose it is.
    (folder / "new").write_text(str(step))
    (folder / "new").rename(folder / "step")
    (folder / f"of-{{os.environ['BAI_NODE']}}").write_text(generation)

def end(*_):
    save()
    sys.exit(143)

signal.signal(signal.SIGTERM, end)
step += 10
save()
if rank == "0":
    Path("score.json").write_text(f'{{{{"score": {{generation}}}}}}')
print("begun " + generation, flush=True)
while not Path({flag!r}).exists():
    time.sleep(0.05)
step += 1
print("loss=0.5")
"""
"""Adds ten steps in each generation, saves at SIGTERM too, and adds one when it is told to end."""
WAIT_S = 120


class Job:
    """An elastic job whose benchmark counts until `finish`."""

    def __init__(self, folder: Path, make: Callable[..., Nodes], **tables: Any) -> None:
        self._flag = folder / "go"
        tables = {
            "elastic": {"pause": "1s"},
            "metrics": [{"name": "loss", "pattern": r"loss=(\S+)"}],
            "checkpoint": {"path": "checkpoints", "every": "1s"},
            **tables,
        }
        self.nodes = make(COUNTS.format(flag=str(self._flag)), nodes=3, strategy={"min_nodes": 1}, **tables)

    def wait(self, generation: int, *nodes: int) -> None:
        for node in nodes:
            wait_until(self.nodes.printed(node, f"begun {generation}"), seconds=WAIT_S)

    def starts(self, node: int) -> list[str]:
        return (self.nodes.rundir(node) / "work" / "starts").read_text().splitlines()

    def folder(self, node: int) -> dict[str, str]:
        return saved(self.nodes.rundir(node) / "work" / "checkpoints")

    def scale(self, number: int, nodes: int) -> None:
        folder = self.nodes.store / "job" / "attempts" / "0" / "requests"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.json").write_text(json.dumps({"desired": nodes}))

    def beginning(self, generation: int) -> dict[str, Any]:
        return self.control("begin", generation)

    def control(self, kind: str, generation: int) -> dict[str, Any]:
        control = self.nodes.store / "job" / "attempts" / "0" / "control"
        found: dict[str, Any] = json.loads((control / f"{kind}-{generation:06}.json").read_bytes())
        return found

    def finish(self) -> None:
        self._flag.touch()


def test_after_scaling_down_and_up_members_continue_from_the_first_nodes_checkpoint(
    tmp_path: Path, make: Callable[..., Nodes]
) -> None:
    job = Job(tmp_path, make)
    job.nodes.start_all(0, 1, 2)
    job.wait(0, 0, 1, 2)

    job.scale(0, 2)
    job.wait(1, 0, 1)
    first, second = job.starts(0), job.starts(1)
    job.finish()

    assert [job.nodes.wait(node) for node in (0, 1)] == [0, 0]
    name = job.beginning(1)["checkpoint"]
    assert name is not None
    assert name.startswith("checkpoint-0-")
    assert first == ["0 0 - 0", f"1 0 {name} 10"]
    assert second == ["0 1 - 0", f"1 1 {name} 10"]
    # What other nodes have saved is gone with the restore.
    assert set(job.folder(1)) == {"step", "of-0", "of-1"}
    assert job.nodes.result["checkpoints"]["restored"] == 1
    (restore,) = [each for each in events_of(job.nodes.rundir(1)) if each["type"] == "restore"]
    assert restore["name"] == name


def test_when_the_first_node_is_lost_the_next_one_leads_with_its_last_checkpoint(
    tmp_path: Path, make: Callable[..., Nodes]
) -> None:
    job = Job(tmp_path, make)
    job.nodes.start_all(0, 1, 2)
    job.wait(0, 0, 1, 2)
    signs = job.nodes.store / "job" / "attempts" / "0" / "signs"
    wait_until(lambda: (signs / "checkpoint-0-0.json").exists())

    job.nodes.lose(0)
    job.wait(1, 1, 2)
    job.finish()

    assert [job.nodes.wait(node) for node in (1, 2)] == [0, 0]
    # The first one may have been taken between two files of one save.
    name = job.beginning(1)["checkpoint"]
    assert name in ("checkpoint-0-0", "checkpoint-0-1")
    assert job.starts(1)[1] == f"1 0 {name} 10"
    assert job.starts(2)[1] == f"1 1 {name} 10"
    # It writes the checkpoints from now on.
    assert (signs / "checkpoint-1-0.json").exists()
    assert json.loads((signs / "checkpoint-1-0.json").read_bytes())["node"] == 1


def test_a_member_that_cannot_restore_is_left_out(tmp_path: Path, make: Callable[..., Nodes]) -> None:
    job = Job(tmp_path, make)
    job.nodes.start_all(0, 1, 2)
    job.wait(0, 0, 1, 2)
    # A file where the restore needs a folder
    (job.nodes.rundir(1) / "work" / "checkpoints" / STAGING).touch()

    job.nodes.lose(2)
    job.wait(2, 0)
    job.finish()

    assert [job.nodes.wait(node) for node in (0, 1)] == [0, 5]
    result = job.nodes.result
    assert result["outcome"] == "succeeded"
    assert [(each["generation"], each["members"]) for each in result["generations"]] == [
        (0, [0, 1, 2]),
        (2, [0]),
    ]
    why = "The checkpoint could not be restored: "
    assert job.control("generation", 2)["sentence"].startswith(
        f"Node 1 did not restore the checkpoint: {why}"
    )
    assert [each for each in result["warnings"] if each.startswith(f"Node 1: {why}")]


def test_after_scaling_away_the_first_node_the_next_leads_with_its_checkpoint(
    tmp_path: Path, make: Callable[..., Nodes]
) -> None:
    # Given node 1 as the first one, because node 0 was lost for a while
    job = Job(
        tmp_path,
        make,
        elastic={"pause": "1s", "nodes": 2},
        checkpoint={"path": "checkpoints", "every": "off"},
        output={"artifacts": ["starts"]},
        results=[{"path": "score.json", "format": "json", "values": ["score"]}],
    )
    job.nodes.start_all(0, 1)
    job.wait(0, 0, 1)
    job.nodes.lose(0)
    job.wait(1, 1)
    job.nodes.start(0)
    job.wait(2, 0, 1)

    job.scale(0, 1)
    job.wait(3, 0)
    job.finish()

    assert [job.nodes.wait(node) for node in (0, 1)] == [0, 0]
    assert job.starts(1) == ["0 1 - 0", "1 0 - 0", "2 0 checkpoint-1-0 10"]
    assert job.starts(0) == ["0 0 - 0", "2 1 checkpoint-1-0 10", "3 0 checkpoint-2-0 20"]
    # What is in the job's own folder is of the first node of the last generation, and so is what its result files say.
    artifacts = job.nodes.store / "job" / "artifacts"
    assert (artifacts / "starts").read_text().splitlines() == job.starts(0)
    assert (artifacts / "node-1" / "starts").read_text().splitlines() == job.starts(1)
    assert job.nodes.result["metrics"]["headlines"]["score"]["value"] == 3


def test_a_restart_of_an_elastic_job_continues_from_a_bucket(
    tmp_path: Path, make: Callable[..., Nodes], gate: Gate
) -> None:
    program = (
        WAIT_FOR_BEGUN
        + """
from pathlib import Path
folder, rank = Path(os.environ["BAI_CHECKPOINT_DIR"]), os.environ["BAI_NODE_RANK"]
with open("starts", "a") as file:
    file.write(os.environ["BAI_RESUMED"] + " " + ",".join(sorted(os.listdir(folder))) + "\\n")
(folder / f"of-{rank}").write_text("x")
begin()
if os.environ["BAI_GENERATION"] == "0":
    wait_for_begun()
    time.sleep(0 if rank == "1" else 100)
    sys.exit(1)
"""
    )
    nodes = make(
        program,
        nodes=2,
        strategy={"min_nodes": 1},
        restart={"max_restarts": 1, "backoff": "0s"},
        checkpoint={"path": "checkpoints", "every": "off"},
        store={"url": "s3://bucket/jobs", "region": "us-east-1"},
    )
    nodes.start_all(0, 1)

    assert [nodes.wait(node) for node in (0, 1)] == [0, 0]
    for node in (0, 1):
        lines = (nodes.rundir(node) / "work" / "starts").read_text().splitlines()
        assert lines == [" ", "checkpoint-0-0 of-0"]


@pytest.mark.parametrize("node", [0, 1])
def test_an_agent_killed_during_a_restore_continues_it(
    tmp_path: Path, make: Callable[..., Nodes], node: int
) -> None:
    job = Job(tmp_path, make)
    job.nodes.start_all(0, 1, 2)
    job.wait(0, 0, 1, 2)
    decision = job.nodes.rundir(node) / "generations" / "1" / "decision.json"

    job.scale(0, 2)
    wait_until(decision.exists, seconds=WAIT_S)
    job.nodes.kill(node)
    job.nodes.start(node)
    job.wait(1, 0, 1)
    job.finish()

    assert [job.nodes.wait(each) for each in (0, 1)] == [0, 0]
    name = job.beginning(1)["checkpoint"]
    assert [job.starts(each)[1] for each in (0, 1)] == [f"1 0 {name} 10", f"1 1 {name} 10"]
