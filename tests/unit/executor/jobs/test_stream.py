"""A job's logs and records as they come from its nodes."""

from __future__ import annotations

import json
from pathlib import Path

from handmade_job import HandmadeJob

from executor.jobs.stream import pieces_of_nodes, record_lines
from executor.records.nodes import node_records
from executor.records.reading import PIECE


def test_logs_are_printed_node_after_node(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, nodes=2)
    job.prints(b"x" * (PIECE + 1))
    job.on(1).prints("one\n")

    found = list(pieces_of_nodes(node_records(job.record), "log"))

    assert [(rank, len(piece)) for rank, piece in found] == [(0, PIECE), (0, 1), (1, 4)]


def test_a_node_that_prints_without_end_hides_no_other(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, nodes=2)
    job.prints(b"x" * PIECE)
    job.on(1).prints("one\n")
    found = pieces_of_nodes(node_records(job.record), "log", follow=True)

    seen = []
    for rank, piece in found:
        seen.append(rank)
        if rank == 0:
            job.prints(b"x" * PIECE)
        elif piece == b"one\n":
            break

    assert seen == [0, 1]


def test_following_ends_after_the_job_with_all_output_of_all_nodes(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, nodes=3)
    found = pieces_of_nodes(node_records(job.record), "log", follow=True)
    job.on(2).prints("a")
    seen = [next(found)]
    job.prints("b")
    job.on(2).prints("c")
    job.ends()

    assert sorted([*seen, *found]) == [(0, b"b"), (2, b"a"), (2, b"c")]


def test_a_truncated_log_of_one_node_restarts_only_that_log(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, nodes=2)
    for rank in range(2):
        job.on(rank).prints("before\n")
    told: list[int] = []
    found = pieces_of_nodes(node_records(job.record), "log", follow=True, on_truncated=told.append)
    assert [next(found), next(found)] == [(0, b"before\n"), (1, b"before\n")]

    (job.on(1).node / "output.log").write_bytes(b"new\n")
    job.ends()

    assert (list(found), told) == ([(1, b"new\n")], [1])


def test_records_of_nodes_are_whole_lines_with_their_ranks(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, nodes=2)
    job.measures("loss", 0.5)
    job.on(1).measures("loss", 0.25)
    with (job.on(1).node / "metrics.jsonl").open("a") as file:
        file.write('{"name": "unfinished"')

    lines = b"".join(each.with_rank() for each in record_lines(node_records(job.record))).splitlines()

    assert [(each["value"], each["labels"]) for each in map(json.loads, lines)] == [
        (0.5, {"rank": "0"}),
        (0.25, {"rank": "1"}),
    ]


def test_records_of_one_node_are_not_changed(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.measures("loss", 0.5)

    (lines,) = record_lines(node_records(job.record))
    assert lines.with_rank() == (job.node / "metrics.jsonl").read_bytes()


def test_an_incomplete_record_waits_for_the_rest_of_its_line(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    path = job.node / "metrics.jsonl"
    path.write_bytes(b"a\nb")
    lines = record_lines([job.record.node()], follow=True)
    assert next(lines).content == b"a\n"

    with path.open("ab") as file:
        file.write(b"c\nunfinished")
    job.ends()

    assert [each.content for each in lines] == [b"bc\n"]
