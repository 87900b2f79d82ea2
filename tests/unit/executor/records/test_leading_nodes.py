"""Following an elastic job's output: from the node with rank 0, from node to node."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_record import ElasticRecord
from handmade_job import HandmadeJob

from bai_agent.job.record_types import BenchmarkStartEvent
from executor.jobs.stream import pieces_of_leads
from executor.records.follower import JobFollower, Lead, News
from executor.records.nodes import NodeListing, node_records
from executor.records.reading import result_of


@pytest.fixture
def moved(tmp_path: Path) -> ElasticRecord:
    """A job whose first node had rank 0 until it was lost, and came back as the last one."""
    made = ElasticRecord(tmp_path)
    made.decides(0, 0, 1)
    for node in (0, 1):
        made.job.on(node).phases("prepare", "pull", until="run")
        made.starts(node, 0, f"{node} in generation 0\n")
    made.decides(1, 1, 0)
    made.starts(1, 1, "1 in generation 1\n")
    made.starts(0, 1, "0 in generation 1\n")
    return made


def shown(made: ElasticRecord, lines: int | None = None) -> tuple[bytes, list[Lead]]:
    leads: list[Lead] = []
    pieces = pieces_of_leads(made.record, on_lead=leads.append, lines=lines)
    return b"".join(piece for _, piece in pieces), leads


def test_the_log_continues_on_the_node_with_rank_0(moved: ElasticRecord) -> None:
    text, leads = shown(moved)

    assert text == b"0 in generation 0\n1 in generation 1\n"
    assert leads == [Lead(node=1, generation=1, start=len("1 in generation 0\n"))]
    assert leads[0].sentence == "from node 1, which is rank 0 from generation 1 on"


def test_successive_generations_on_one_node_are_one_part_of_the_log(moved: ElasticRecord) -> None:
    moved.decides(2, 1, 2)
    moved.starts(1, 2, "1 in generation 2\n")

    text, leads = shown(moved)

    assert text.endswith(b"1 in generation 1\n1 in generation 2\n")
    assert len(leads) == 1


def test_a_generation_that_was_never_launched_is_skipped(moved: ElasticRecord) -> None:
    moved.decides(2, 2, 0)
    moved.decides(3, 0, 1)
    moved.starts(0, 3, "0 in generation 3\n")

    assert shown(moved)[0].endswith(b"1 in generation 1\n0 in generation 3\n")


def test_the_last_lines_are_those_of_the_newest_generation(moved: ElasticRecord) -> None:
    assert shown(moved, lines=1)[0] == b"1 in generation 1\n"
    assert shown(moved, lines=9)[0] == b"1 in generation 1\n"


def test_following_continues_when_rank_0_moves_to_another_node(moved: ElasticRecord) -> None:
    follower = JobFollower(moved.record.node(), nodes=NodeListing(moved.record).look, is_elastic=True)
    first = looks(follower)
    # A node joins later, with records of its own.
    moved.job.store.put(moved.record.node(7).key("output.log"), b"")
    moved.job.on(7)._begin()
    moved.job.on(7).measures("loss", 1.0)
    moved.job.on(1).event("warning", message="of the new leader")
    later = looks(follower)

    assert (
        b"".join(each.log for each in first) == b"0 in generation 0\n0 in generation 1\n1 in generation 1\n"
    )
    assert [each.lead.node for each in first if each.lead is not None] == [1]
    started = [event for news in first for event in news.before if isinstance(event, BenchmarkStartEvent)]
    assert [each.generation for each in started] == [0, 1, 1]
    assert [event.type for news in later for event in news.before] == ["warning"]
    assert b'"rank": "7"' in b"".join(each.records for each in later)


def looks(follower: JobFollower) -> list[News]:
    found = [follower.observe()]
    while found[-1].more:
        found.append(follower.observe())
    return found


def test_a_node_that_joins_later_is_found_by_the_next_listing(moved: ElasticRecord) -> None:
    listing = NodeListing(moved.record)
    assert [each.rank for each in listing.look()] == [0, 1, 2, 3]
    moved.job.store.put(moved.record.node(5).key("ready.json"), b"{}")

    assert [each.rank for each in listing.look()] == [0, 1, 2, 3, 5]
    assert [each.rank for each in node_records(moved.record)] == [0, 1, 2, 3, 5]


def test_a_result_of_one_node_does_not_end_an_elastic_job(moved: ElasticRecord, tmp_path: Path) -> None:
    fixed = HandmadeJob(tmp_path / "fixed", nodes=2)
    for job in (moved.job, fixed):
        job.ends()
        whole = job.store.folder / job.record.key("result.json")
        whole.rename(job.store.folder / job.record.node().key("result.json"))

    assert result_of(moved.record) is None
    assert result_of(fixed.record) is not None
    moved.job.ends()
    assert result_of(moved.record) is not None
