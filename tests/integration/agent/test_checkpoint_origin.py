"""A job that begins from the checkpoint of another one in its store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_runs import events_of, python_job, result_of, run_agent, wait_until
from node_agents import WAIT_FOR_BEGUN, Nodes
from saved_files import keep_checkpoint, saved

from bai_agent.generations.checkpoint_marker import CheckpointMarker, CheckpointRecord, marker_digest
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore

_GOES_ON = """
import os, sys
folder, generation = os.environ["BAI_CHECKPOINT_DIR"], os.environ["BAI_GENERATION"]
with open("starts", "a") as file:
    file.write(f"{generation} {os.environ['BAI_RESUMED']} {sorted(os.listdir(folder))}\\n")
"""


@pytest.fixture
def earlier(tmp_path: Path) -> JobRecord:
    return JobRecord(DirectoryStore(tmp_path / "store"), "earlier")


def _origin(marker: CheckpointMarker) -> dict[str, str]:
    return {"job": "earlier", "name": marker.name, "sha256": marker_digest(marker)}


def _checkpoint(marker: CheckpointMarker, path: str = "checkpoints") -> dict[str, Any]:
    return {"path": path, "every": "off", "origin": _origin(marker)}


def _starts(rundir: Path) -> list[str]:
    return (rundir / "work" / "starts").read_text().splitlines()


def test_a_job_restarted_before_its_first_checkpoint_begins_from_the_other_jobs_again(
    tmp_path: Path, earlier: JobRecord
) -> None:
    marker = keep_checkpoint(earlier, {"step": "7"})
    # What the first start leaves is discarded: it is not known to be whole.
    program = (
        _GOES_ON
        + """
if generation == "0":
    os.rename(f"{folder}/step", "elsewhere")
    sys.exit(1)
print(open(f"{folder}/step").read())
"""
    )
    job = python_job(
        tmp_path,
        program,
        restart={"max_restarts": 1, "backoff": "0s"},
        checkpoint=_checkpoint(marker),
        store={"url": earlier.store.url},
    )
    rundir = tmp_path / "store" / JobRecord(earlier.store, "job").node().place

    code = run_agent(job, rundir)

    assert code == 0, result_of(rundir)
    resumed = "earlier/checkpoint-0-0 ['step']"
    assert _starts(rundir) == [f"0 {resumed}", f"1 {resumed}"]
    restores = [each for each in events_of(rundir) if each["type"] == "restore"]
    assert [(each["generation"], each["name"], each["bytes"]) for each in restores] == [
        (0, "earlier/checkpoint-0-0", 1),
        (1, "earlier/checkpoint-0-0", 1),
    ]
    checkpoints = result_of(rundir)["checkpoints"]
    assert (checkpoints["restored"], checkpoints["restored_bytes"]) == (2, 2)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("file", "[checkpoint.origin]: the files of earlier/checkpoint-0-0 differ from its marker"),
        (
            "marker",
            "[checkpoint.origin]: earlier/checkpoint-0-0 has changed since this job was submitted",
        ),
        ("gone", "/earlier/attempts/0/signs/checkpoint-0-0.json is gone"),
    ],
)
def test_a_checkpoint_that_has_changed_since_the_submission_ends_the_job_before_its_start(
    tmp_path: Path, earlier: JobRecord, harm: str, says: str
) -> None:
    marker = keep_checkpoint(earlier, {"step": "7"})
    checkpoints = CheckpointRecord(AttemptRecord(earlier, 0))
    sign = tmp_path / "store/earlier/attempts/0/signs/checkpoint-0-0.json"
    if harm == "file":
        earlier.store.put(checkpoints.file_key(marker, 0), b"8")
    else:
        sign.unlink()
    if harm == "marker":
        keep_checkpoint(earlier, {"step": "8"})
    job = python_job(tmp_path, _GOES_ON, checkpoint=_checkpoint(marker), store={"url": earlier.store.url})
    rundir = tmp_path / "store" / JobRecord(earlier.store, "job").node().place

    assert run_agent(job, rundir) == 5

    assert result_of(rundir)["outcome"] == "pull_failed"
    assert says in result_of(rundir)["sentence"]
    assert not (rundir / "work" / "starts").exists()


@pytest.fixture
def make_nodes(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make(program: str, **tables: Any) -> Nodes:
        made.append(Nodes(tmp_path, program, nodes=2, **tables))
        return made[0]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("absolute", [False, True])
def test_every_node_begins_from_the_checkpoint_of_the_other_job(
    tmp_path: Path, make_nodes: Callable[..., Nodes], earlier: JobRecord, absolute: bool
) -> None:
    marker = keep_checkpoint(earlier, {"step": "7"})
    # Nodes of one machine share an absolute folder.
    path = str(tmp_path / "kept") if absolute else "checkpoints"
    nodes = make_nodes(_GOES_ON, checkpoint=_checkpoint(marker, path))

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in range(2)] == [0, 0], nodes.result
    for rank in range(2):
        assert _starts(nodes.rundir(rank)) == ["0 earlier/checkpoint-0-0 ['step']"]
        # It is there before the nodes meet, so none waits for another one's restore after the launch. A shared folder is the first
        # node's to fill.
        steps = [each.get("phase", each["type"]) for each in events_of(nodes.rundir(rank))]
        if rank == 0 or not absolute:
            assert steps.index("restore") < steps.index("join")


def test_nodes_that_share_a_checkpoint_folder_leave_its_restore_to_the_first_node(
    tmp_path: Path, make_nodes: Callable[..., Nodes], earlier: JobRecord
) -> None:
    # Given a folder which may be on a file system that the first node mounts before its pull
    marker = keep_checkpoint(earlier, {"step": "7"})
    nodes = make_nodes(_GOES_ON, checkpoint=_checkpoint(marker, str(tmp_path / "kept")))

    # When the other node has pulled before
    nodes.start(1)
    wait_until(lambda: _has_pulled(nodes.rundir(1)))

    # Then it has left the folder to it
    assert not (tmp_path / "kept").exists()
    nodes.start(0)
    assert [nodes.wait(rank) for rank in range(2)] == [0, 0], nodes.result
    for rank in range(2):
        assert _starts(nodes.rundir(rank)) == ["0 earlier/checkpoint-0-0 ['step']"]


def _has_pulled(rundir: Path) -> bool:
    events = events_of(rundir) if (rundir / "events.jsonl").exists() else []
    return any((each.get("phase"), each.get("state")) == ("pull", "finished") for each in events)


def test_an_elastic_job_begins_from_the_other_jobs_checkpoint_until_it_has_its_own(
    make_nodes: Callable[..., Nodes], earlier: JobRecord
) -> None:
    marker = keep_checkpoint(earlier, {"step": "7"})
    program = (
        WAIT_FOR_BEGUN
        + _GOES_ON
        + """
begin()
wait_for_begun()
if generation == "0":
    sys.exit(7)
if generation == "1":
    with open(f"{folder}/step", "w") as file:
        file.write("8")
    sys.exit(7)
"""
    )
    nodes = make_nodes(
        program,
        checkpoint=_checkpoint(marker),
        strategy={"min_nodes": 1},
        restart={"max_restarts": 2, "backoff": "0s"},
    )

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in range(2)] == [0, 0], nodes.result
    for rank in range(2):
        assert _starts(nodes.rundir(rank)) == [
            "0 earlier/checkpoint-0-0 ['step']",
            "1 earlier/checkpoint-0-0 ['step']",
            "2 checkpoint-1-0 ['step']",
        ]
        assert saved(nodes.rundir(rank) / "work" / "checkpoints") == {"step": "8"}
