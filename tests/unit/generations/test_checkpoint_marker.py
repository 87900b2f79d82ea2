"""Markers of checkpoints are read back, and paths that lead out of a folder are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.errors import RecordError, StoreError
from bai_agent.generations.checkpoint_marker import (
    CheckpointFile,
    CheckpointMarker,
    CheckpointRecord,
    checkpoint_name,
    checkpoint_number,
    is_below,
    leads_inside,
    marker_bytes,
    read_marker,
)
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore

SUM = "0" * 64
ODD = st.sampled_from(["a", "b", "..", ".", "", "x\n", "\udcff", "ü", " ", "a\0", "*"])
NAMES = st.lists(ODD, min_size=1, max_size=4).map("/".join)


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointRecord:
    return CheckpointRecord(AttemptRecord(JobRecord(DirectoryStore(tmp_path), "job")))


def marker(
    generation: int = 0, number: int = 0, *, node: int = 0, slot: int = 0, **more: Any
) -> CheckpointMarker:
    files = more.pop("files", [CheckpointFile(name="model.pt", size=3, sha256=SUM)])
    return CheckpointMarker(
        generation=generation, number=number, node=node, slot=slot, files=files, time=1, **more
    )


def put(checkpoints: CheckpointRecord, *markers: CheckpointMarker) -> None:
    for each in markers:
        assert checkpoints.write(each)


@given(st.lists(NAMES.filter(is_below), unique=True, max_size=6))
def test_a_marker_with_any_names_is_read_back(names: list[str]) -> None:
    folders = {name[:place] for name in names for place in range(len(name)) if name[place] == "/"}
    written = marker(
        files=[CheckpointFile(name=name, size=1, sha256=SUM) for name in names if name not in folders]
    )

    assert read_marker(json.loads(marker_bytes(written)), (0, 0), where="marker") == written


@given(NAMES, NAMES)
def test_an_accepted_link_of_a_marker_never_leaves_the_folder(name: str, target: str) -> None:
    if not is_below(name) or not leads_inside(name, target):
        return
    depth = name.count("/")
    for part in target.split("/"):
        depth += -1 if part == ".." else 1
        assert depth >= 0
    assert ".." not in target.lstrip("./").split("/")


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "a/../../x", "", "a/b/../../..", "..", "x/.."])
def test_links_out_of_the_folder_are_found(target: str) -> None:
    assert not leads_inside("last", target)


def test_links_to_names_in_the_folder_are_kept() -> None:
    assert leads_inside("last", "step-5.pt")
    assert leads_inside("sub/last", "../step-5.pt")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([{"name": "../x", "size": 1, "sha256": SUM}], "is not a file name"),
        ([{"name": "/x", "size": 1, "sha256": SUM}], "is not a file name"),
        ([{"name": "x", "size": 1, "sha256": SUM}] * 2, "the same name twice"),
        ([{"name": "x", "size": 1}], "has no checksum"),
        ([{"name": "x", "size": 1, "sha256": "zz"}], "has no checksum"),
        ([{"name": "x", "link": "/etc"}], "leads out of the folder"),
        (
            [{"name": "x", "link": "y"}, {"name": "x/passwd", "size": 1, "sha256": SUM}],
            "is in a file",
        ),
        ([{"name": "x", "size": -1, "sha256": SUM}], "a count"),
        ([7], "a table"),
    ],
)
def test_a_marker_with_paths_outside_the_folder_is_refused(files: list[Any], words: str) -> None:
    table = {**json.loads(marker_bytes(marker())), "files": files}

    with pytest.raises(RecordError, match=words):
        read_marker(table, (0, 0), where="marker")


def test_a_marker_of_another_number_is_refused() -> None:
    with pytest.raises(RecordError, match="it is of checkpoint-0-0"):
        read_marker(json.loads(marker_bytes(marker())), (0, 1), where="marker")


@given(st.integers(0, 999_999), st.integers(0, 999_999))
def test_a_checkpoint_name_is_read_back(generation: int, number: int) -> None:
    assert checkpoint_number(checkpoint_name((generation, number))) == (generation, number)


def test_the_newest_checkpoint_of_an_earlier_generation_is_chosen(checkpoints: CheckpointRecord) -> None:
    put(checkpoints, marker(0, 9), marker(0, 10), marker(1, 0), marker(2, 0))

    assert checkpoints.numbers() == [(2, 0), (1, 0), (0, 10), (0, 9)]
    assert checkpoints.newest(before=0) is None
    assert checkpoints.newest(before=1) == marker(0, 10)
    assert checkpoints.newest(before=2) == marker(1, 0)


def test_later_checkpoints_of_a_lost_node_are_ignored(checkpoints: CheckpointRecord) -> None:
    # Generation 1 began with 0-0; then its former first node wrote another one.
    put(checkpoints, marker(0, 0), marker(0, 1))

    assert checkpoints.newest(before=2, since=1, base=(0, 0)) == marker(0, 0)
    put(checkpoints, marker(1, 0))
    assert checkpoints.newest(before=2, since=1, base=(0, 0)) == marker(1, 0)


def test_a_malformed_marker_counts_as_missing(checkpoints: CheckpointRecord) -> None:
    put(checkpoints, marker(0, 0))
    store = checkpoints.attempt.job.store
    store.put(checkpoints.attempt.key("signs/checkpoint-0-1.json"), b"[]")
    store.put(checkpoints.attempt.key("signs/checkpoint-0-x.json"), b"{}")
    store.put(checkpoints.attempt.key("signs/checkpoint-0-2.json"), marker_bytes(marker(0, 3)))

    assert checkpoints.newest(before=1) == marker(0, 0)
    assert checkpoints.next_number(0) == (0, 3)


def test_a_marker_of_another_node_is_not_overwritten(checkpoints: CheckpointRecord) -> None:
    put(checkpoints, marker(0, 0))

    # A put whose answer was lost is one; another content is another one's.
    assert checkpoints.write(marker(0, 0))
    assert not checkpoints.write(marker(0, 0, node=1))
    assert checkpoints.marker((0, 0)).node == 0


def test_a_marker_that_the_store_wrongly_reports_as_existing_is_an_error(
    checkpoints: CheckpointRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectoryStore, "put", lambda *_, **__: False)

    with pytest.raises(StoreError, match="was not stored"):
        checkpoints.write(marker(0, 0))


def test_the_next_slot_follows_that_of_the_nodes_newest_checkpoint(checkpoints: CheckpointRecord) -> None:
    assert checkpoints.next_slot(0) == 0
    put(checkpoints, marker(0, 0, slot=0), marker(0, 1, slot=1), marker(1, 0, node=4, slot=0))

    assert checkpoints.next_slot(0) == 2
    assert checkpoints.next_slot(4) == 1
    put(checkpoints, marker(2, 0, slot=2))
    assert checkpoints.next_slot(0) == 0


def test_a_checkpoint_whose_files_have_other_sizes_is_incomplete(checkpoints: CheckpointRecord) -> None:
    one = marker(files=[CheckpointFile(name="a", size=3, sha256=SUM), CheckpointFile(name="l", link="a")])
    store = checkpoints.attempt.job.store

    assert not checkpoints.has_files(one)
    store.put(checkpoints.file_key(one, 0), b"four")
    assert not checkpoints.has_files(one)
    store.put(checkpoints.file_key(one, 0), b"xyz")
    assert checkpoints.has_files(one)
