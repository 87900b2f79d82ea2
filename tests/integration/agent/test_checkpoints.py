"""Jobs with `[checkpoint]`: each generation continues from the last checkpoint, even if processes are killed meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_runs import (
    ForkedAgent,
    events_of,
    forked_agent,
    python_job,
    result_of,
    run_agent,
    start_agent,
    wait_until,
)
from node_agents import WAIT_FOR_BEGUN, Nodes
from s3_gate import Gate, denied
from saved_files import saved

from bai_agent.generations.checkpoint_marker import CheckpointRecord
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.record import JobRecord
from bai_agent.job.store import open_store

COUNTS = """
import os, sys, time
folder = os.environ["BAI_CHECKPOINT_DIR"]
generation = int(os.environ["BAI_GENERATION"])
with open("resumed", "a") as file:
    file.write(os.environ["BAI_RESUMED"] + "\\n")
step = 0
if os.environ["BAI_RESUMED"]:
    step = int(open(os.path.join(folder, "step.txt")).read())
for _ in range(3):
    step += 1
    with open(os.path.join(folder, "draft"), "w") as file:
        file.write(str(step))
    os.rename(os.path.join(folder, "draft"), os.path.join(folder, "step.txt"))
    print(f"loss={step}", flush=True)
sys.exit(1 if generation < int(sys.argv[1]) else 0)
"""
"""Counts three steps in each generation, and fails so many times."""


def counting(folder: Path, times: int, **tables: Any) -> Path:
    checkpoint = {"path": "checkpoints", "every": "off", **tables.pop("checkpoint", {})}
    restart = {"max_restarts": 3, "backoff": "0s"}
    return python_job(
        folder, COUNTS, arguments=[str(times)], restart=restart, checkpoint=checkpoint, **tables
    )


def resumed(rundir: Path) -> list[str]:
    return (rundir / "work" / "resumed").read_text().splitlines()


def checkpoints_of(record: JobRecord) -> dict[str, dict[str, str]]:
    """Return the contents of each checkpoint whose files are whole, by its name."""
    checkpoints = CheckpointRecord(AttemptRecord(record, 0))
    return {
        marker.name: {
            each.name: record.store.get(checkpoints.file_key(marker, place)).decode()
            for place, each in enumerate(marker.files)
        }
        for marker in checkpoints.markers()
    }


def without_store(rundir: Path) -> JobRecord:
    return JobRecord(open_store(rundir.as_uri()), "checkpoints")


def in_bucket(name: str = "job") -> JobRecord:
    return JobRecord(open_store("s3://bucket/jobs"), name)


def test_each_generation_continues_from_the_checkpoint_of_the_previous_one(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    code = run_agent(counting(tmp_path, 2), rundir)

    assert code == 0
    assert resumed(rundir) == ["", "checkpoint-0-0", "checkpoint-1-0"]
    assert saved(rundir / "work" / "checkpoints") == {"step.txt": "9"}
    assert checkpoints_of(without_store(rundir)) == {
        "checkpoint-2-0": {"step.txt": "9"},
        "checkpoint-1-0": {"step.txt": "6"},
        "checkpoint-0-0": {"step.txt": "3"},
    }
    result = result_of(rundir)
    assert result["warnings"] == []
    kept = result["checkpoints"]
    assert (kept["kept"], kept["bytes"], kept["newest"]) == (3, 3, "checkpoint-2-0")
    # The folder was each of them already.
    assert (kept["restored"], kept["restored_bytes"]) == (2, 0)
    assert not (rundir / "checkpoint-held").exists()


def test_a_generation_without_a_checkpoint_starts_empty_and_reports_it_once(tmp_path: Path) -> None:
    program = """
import os, sys
with open("resumed", "a") as file:
    file.write(f"{os.environ['BAI_RESUMED']!r} {os.path.isdir(os.environ['BAI_CHECKPOINT_DIR'])}\\n")
sys.exit(os.environ["BAI_GENERATION"] != "2")
"""
    rundir = tmp_path / "run"
    job = python_job(
        tmp_path, program, restart={"max_restarts": 3, "backoff": "0s"}, checkpoint={"path": "a/b"}
    )

    assert run_agent(job, rundir) == 0
    assert resumed(rundir) == ["'' True"] * 3
    restores = [each for each in events_of(rundir) if each["type"] == "restore"]
    assert [(each["generation"], each["name"]) for each in restores] == [(1, None)]
    assert result_of(rundir)["checkpoints"]["kept"] == 0


SAVES_UNTIL_TOLD = """
import os, time
folder = os.environ["BAI_CHECKPOINT_DIR"]
open(os.path.join(folder, "one.pt"), "w").write("1")
print("begun", flush=True)
while not os.path.exists("two"):
    time.sleep(0.02)
open(os.path.join(folder, "two.pt"), "w").write("2")
while not os.path.exists("end"):
    time.sleep(0.02)
"""


def test_checkpoints_are_kept_during_the_run_only_if_files_change(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = python_job(tmp_path, SAVES_UNTIL_TOLD, checkpoint={"path": "checkpoints", "every": "1s"})
    with start_agent(job, rundir) as agent:
        wait_until(lambda: checkpoints_of(without_store(rundir)) == {"checkpoint-0-0": {"one.pt": "1"}})
        (rundir / "work" / "two").touch()
        wait_until(lambda: "checkpoint-0-1" in checkpoints_of(without_store(rundir)))
        (rundir / "work" / "end").touch()

        assert agent.wait(timeout=60) == 0

    assert checkpoints_of(without_store(rundir)) == {
        "checkpoint-0-1": {"one.pt": "1", "two.pt": "2"},
        "checkpoint-0-0": {"one.pt": "1"},
    }


def test_a_restarted_agent_continues_to_keep_checkpoints(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = python_job(tmp_path, SAVES_UNTIL_TOLD, checkpoint={"path": "checkpoints", "every": "1s"})
    with start_agent(job, rundir) as agent:
        wait_until(lambda: "checkpoint-0-0" in checkpoints_of(without_store(rundir)))
        agent.kill()
    (rundir / "work" / "two").touch()
    with start_agent(job, rundir) as agent:
        wait_until(lambda: {"one.pt": "1", "two.pt": "2"} in checkpoints_of(without_store(rundir)).values())
        (rundir / "work" / "end").touch()

        assert agent.wait(timeout=60) == 0


def test_if_a_bucket_refuses_a_checkpoint_the_previous_one_is_used(tmp_path: Path, gate: Gate) -> None:
    rundir = tmp_path / "run"
    refused = "/checkpoint/1/"
    gate.refuse = lambda method, path: denied("AccessDenied") if method == "PUT" and refused in path else None
    job = counting(tmp_path, 2, store={"url": "s3://bucket/jobs", "region": "us-east-1"})

    code = run_agent(job, rundir)

    assert code == 0
    # The second one would go to the second slot, and so do all after it.
    assert resumed(rundir) == ["", "checkpoint-0-0", "checkpoint-0-0"]
    assert saved(rundir / "work" / "checkpoints") == {"step.txt": "6"}
    assert checkpoints_of(in_bucket()) == {"checkpoint-0-0": {"step.txt": "3"}}
    (warning,) = {each for each in result_of(rundir)["warnings"] if "checkpoint" in each}
    assert warning.startswith("A checkpoint of 1 bytes was not kept: the job store s3://bucket/jobs/")
    assert "access denied" in warning
    assert warning.endswith("; checkpoint-0-0 counts.")


def test_a_damaged_checkpoint_folder_is_restored_from_the_bucket(tmp_path: Path, gate: Gate) -> None:
    """The machine went down after generation 1 was decided on, and left a folder that is torn."""
    rundir = tmp_path / "run"
    job = counting(tmp_path, 1, store={"url": "s3://bucket/jobs", "region": "us-east-1"})
    decision = rundir / "generations" / "1" / "decision.json"
    gate.swallow = lambda method, path: decision.exists()
    with start_agent(job, rundir) as agent:
        wait_until(decision.exists)
        agent.kill()
    gate.swallow = lambda method, path: False
    gate.release.set()
    folder = rundir / "work" / "checkpoints"
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "step.txt").write_text("100")
    (folder / "torn").write_text("half a fi")

    assert run_agent(job, rundir) == 0
    assert resumed(rundir) == ["", "checkpoint-0-0"]
    assert saved(folder) == {"step.txt": "6"}
    (restore,) = [each for each in events_of(rundir) if each["type"] == "restore"]
    assert (restore["name"], restore["files"], restore["bytes"]) == ("checkpoint-0-0", 1, 1)


def test_a_checkpoint_with_wrong_checksums_is_replaced_by_the_previous_one(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    # Generation 1 hangs when it has saved.
    program = COUNTS.replace("sys.exit(", "time.sleep(100 if generation == 1 else 0)\nsys.exit(")
    job = python_job(
        tmp_path,
        program,
        arguments=["1"],
        restart={"max_restarts": 3, "backoff": "0s"},
        checkpoint={"path": "checkpoints", "every": "1s"},
    )
    slots = rundir / "checkpoints" / "attempts" / "0" / "nodes" / "0" / "checkpoint"
    with start_agent(job, rundir) as agent:
        wait_until(lambda: checkpoints_of(without_store(rundir)).get("checkpoint-1-0") == {"step.txt": "6"})
        agent.kill()
    (slots / "1" / "000000").write_text("7")
    _lose(rundir, 1)

    assert run_agent(job, rundir) == 0
    assert resumed(rundir) == ["", "checkpoint-0-0", "checkpoint-0-0"]
    warnings = [each for each in result_of(rundir)["warnings"] if "checkpoint" in each]
    assert warnings == [
        "The files of checkpoint-1-0 differ from its marker: checkpoint-0-0 is tried instead."
    ]


def _lose(rundir: Path, generation: int) -> None:
    """End a generation as a reboot does, which leaves a torn folder."""
    started = rundir / "generations" / str(generation) / "started.json"
    table = json.loads(started.read_bytes())
    for pid in (table["shim_pid"], table["pid"]):
        os.kill(pid, signal.SIGKILL)
    started.write_text(json.dumps({**table, "boot_id": "another"}))
    (rundir / "work" / "checkpoints" / "step.txt").write_text("")


WAIT_FOR = """
def wait_for(name):
    while not os.path.exists(os.path.join(os.path.dirname(sys.argv[0]), name)):
        time.sleep(0.02)
"""
ONE_OF_TWO_FAILS = (
    WAIT_FOR_BEGUN
    + """
folder, rank = os.environ["BAI_CHECKPOINT_DIR"], os.environ["BAI_NODE_RANK"]
with open("resumed", "a") as file:
    file.write(os.environ["BAI_RESUMED"] + " " + ",".join(sorted(os.listdir(folder))) + "\\n")
open(os.path.join(folder, f"of-{rank}"), "w").write(os.environ["BAI_GENERATION"])
print("begun", flush=True)
begin()
if os.environ["BAI_GENERATION"] == "0":
    wait_for_begun()
    time.sleep(0 if rank == "1" else 100)
    sys.exit(7)
"""
)


@pytest.fixture
def make_nodes(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make(program: str, **tables: Any) -> Nodes:
        restart = {"max_restarts": 1, "backoff": "0s"}
        made.append(Nodes(tmp_path, program, nodes=2, restart=restart, **tables))
        return made[0]

    yield make
    for each in made:
        each.close()


def test_all_nodes_continue_from_the_checkpoint_of_the_first(make_nodes: Callable[..., Nodes]) -> None:
    nodes = make_nodes(ONE_OF_TWO_FAILS, checkpoint={"path": "checkpoints", "every": "off"})

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in range(2)] == [0, 0]
    for rank in range(2):
        # What the second node saved counts for nobody.
        assert resumed(nodes.rundir(rank)) == [" ", "checkpoint-0-0 of-0"]
    assert saved(nodes.rundir(1) / "work" / "checkpoints") == {"of-0": "0", "of-1": "1"}
    kept = nodes.result["checkpoints"]
    assert (kept["kept"], kept["newest"], kept["restored"]) == (2, "checkpoint-1-0", 1)
    assert kept["restored_bytes"] == 1


def test_a_node_that_lacks_the_first_nodes_checkpoint_takes_no_older_one(
    make_nodes: Callable[..., Nodes],
) -> None:
    # given a checkpoint that the first node has in its folder, and whose stored files are damaged
    program = ONE_OF_TWO_FAILS.replace("wait_for_begun()\n    time", "wait_for('damaged')\n    time").replace(
        "folder, rank", WAIT_FOR + "\nfolder, rank", 1
    )
    nodes = make_nodes(program, checkpoint={"path": "checkpoints", "every": "1s"})
    nodes.start_all(0, 1)
    attempt = nodes.store / "job" / "attempts" / "0"
    wait_until((attempt / "signs" / "checkpoint-0-0.json").exists)
    (attempt / "nodes" / "0" / "checkpoint" / "0" / "000000").write_text("7")

    # when the nodes are started again
    (nodes.folder / "damaged").touch()

    # then none runs from another checkpoint than the first one
    assert [nodes.wait(rank) for rank in range(2)] == [5, 5]
    assert resumed(nodes.rundir(1)) == [" "]
    assert nodes.result["outcome"] == "pull_failed"
    assert nodes.result["sentence"].startswith(
        "Node 1: The checkpoint could not be restored: the files of checkpoint-0-0 differ from its marker, and another node may "
        "have that checkpoint"
    )


def test_nodes_restore_the_checkpoint_of_the_first_node_through_the_bucket(
    make_nodes: Callable[..., Nodes], gate: Gate
) -> None:
    nodes = make_nodes(
        ONE_OF_TWO_FAILS,
        checkpoint={"path": "checkpoints", "every": "off"},
        store={"url": "s3://bucket/jobs", "region": "us-east-1"},
    )

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in range(2)] == [0, 0]
    assert [resumed(nodes.rundir(rank)) for rank in range(2)] == [[" ", "checkpoint-0-0 of-0"]] * 2


def test_each_generation_has_its_own_folder_below_a_shared_checkpoint_path(tmp_path: Path) -> None:
    program = """
import os, sys
folder, old = os.environ["BAI_CHECKPOINT_DIR"], os.environ["BAI_RESUMED"]
step = int(open(os.path.join(old, "step.txt")).read()) if old else 0
open(os.path.join(folder, "step.txt"), "w").write(str(step + 1))
print("loss=1")
sys.exit(os.environ["BAI_GENERATION"] != "2")
"""
    shared, rundir = tmp_path / "shared", tmp_path / "run"
    job = python_job(
        tmp_path,
        program,
        restart={"max_restarts": 2, "backoff": "0s"},
        checkpoint={"path": f"{shared}/$(BAI_JOB_ID)", "shared": True},
    )

    assert run_agent(job, rundir) == 0
    assert saved(shared) == {f"job/g{number}/step.txt": str(number + 1) for number in range(3)}
    assert not (rundir / "checkpoints").exists()
    restores = [each["name"] for each in events_of(rundir) if each["type"] == "restore"]
    assert restores == [f"{shared}/job/g0", f"{shared}/job/g1"]


def test_a_shared_folder_with_an_interrupted_save_is_skipped_for_an_older_one(tmp_path: Path) -> None:
    program = """
import os, sys
generation = os.environ["BAI_GENERATION"]
folders = list(filter(None, os.environ["BAI_CHECKPOINTS"].split(":")))
assert os.environ["BAI_RESUMED"] == (folders[0] if folders else "")
files = [os.path.join(each, "step.txt") for each in folders]
step = next((int(open(each).read()) for each in files if os.path.exists(each)), 0)
name = "step.txt.new" if generation == "1" else "step.txt"
open(os.path.join(os.environ["BAI_CHECKPOINT_DIR"], name), "w").write(f"{step + 1}")
print("loss=1")
sys.exit(generation != "2")
"""
    shared, rundir = tmp_path / "shared", tmp_path / "run"
    job = python_job(
        tmp_path,
        program,
        restart={"max_restarts": 2, "backoff": "0s"},
        checkpoint={"path": f"{shared}", "shared": True},
    )

    assert run_agent(job, rundir) == 0
    assert saved(shared) == {"g0/step.txt": "1", "g1/step.txt.new": "2", "g2/step.txt": "2"}


@pytest.mark.parametrize("shared", [False, True])
def test_an_absolute_checkpoint_folder_with_foreign_files_is_not_touched(
    tmp_path: Path, shared: bool
) -> None:
    folder = tmp_path / "mine"
    (folder / "g0").mkdir(parents=True)
    (folder / "g0" / "thesis.tex").write_text("dear")
    rundir = tmp_path / "run"
    job = counting(tmp_path, 1, checkpoint={"path": str(folder), "shared": shared})

    assert run_agent(job, rundir) == 5
    result = result_of(rundir)
    assert result["outcome"] == "prepare_failed"
    assert "$(BAI_JOB_ID)" in result["sentence"]
    assert (folder / "g0" / "thesis.tex").read_text() == "dear"


def test_an_absolute_checkpoint_folder_is_created_for_the_job(tmp_path: Path) -> None:
    folder, rundir = tmp_path / "data" / "checkpoints", tmp_path / "run"

    assert run_agent(counting(tmp_path, 1, checkpoint={"path": str(folder)}), rundir) == 0
    assert saved(folder) == {"step.txt": "6"}
    assert resumed(rundir) == ["", "checkpoint-0-0"]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedAgent]:
    only_with_checkpoints = (
        "bai_agent.checkpoint.periodic",
        "bai_agent.job.store.s3",
    )
    with forked_agent(tmp_path_factory.mktemp("agent"), *only_with_checkpoints) as agent:
        yield agent


@pytest.mark.parametrize("call", ["rename", "link", "fsync", "mkdir"])
def test_an_agent_killed_at_any_call_of_a_checkpoint_loses_and_tears_none(
    call: str, agent: ForkedAgent, tmp_path: Path
) -> None:
    for rundir, where in agent.killed_at_each(call, tmp_path, lambda _: counting(tmp_path, 1)):
        assert len(resumed(rundir)) == 2, where
        assert resumed(rundir)[1].startswith("checkpoint-0-"), where
        assert saved(rundir / "work" / "checkpoints") == {"step.txt": "6"}, where
        found = checkpoints_of(without_store(rundir))
        assert next(iter(found.values())) == {"step.txt": "6"}, where
        assert all(each in ({"step.txt": "3"}, {"step.txt": "6"}) for each in found.values()), where
        assert not (rundir / "checkpoint-held").exists(), where


def test_an_agent_killed_at_any_request_of_a_checkpoint_upload_loses_and_tears_none(
    agent: ForkedAgent, tmp_path: Path, gate: Gate
) -> None:
    store = {"url": "s3://bucket/jobs", "region": "us-east-1"}

    def make_job(name: str) -> Path:
        return counting(tmp_path, 1, name=name, store=store)

    for rundir, where in agent.killed_at_each("writev", tmp_path, make_job, least=4):
        assert len(resumed(rundir)) == 2, where
        assert resumed(rundir)[1].startswith("checkpoint-0-"), where
        found = checkpoints_of(in_bucket(rundir.name))
        assert next(iter(found.values())) == {"step.txt": "6"}, where
