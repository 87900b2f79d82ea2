"""What a follower brings, in which order, and that it holds only pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from handmade_job import HandmadeJob

from bai_agent.job.record_types import RunEvent
from executor.jobs.stream import pieces_of_nodes, position_of_last_lines
from executor.records.follower import JobFollower, News, tail_position
from executor.records.reading import PIECE


def everything(follower: JobFollower) -> list[News]:
    found = [follower.observe()]
    while found[-1].more:
        found.append(follower.observe())
    return found


def kinds(events: tuple[RunEvent, ...]) -> list[str]:
    return [each.type for each in events]


def test_a_message_is_reported_only_once(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    follower = JobFollower(job.record.node())
    job.event("agent_started", pid=1)
    job.prints("first li")
    job.measures("loss", 1.0)

    first = follower.observe()
    job.prints("ne\n")
    job.measures("loss", 2.0)
    second = follower.observe()
    third = follower.observe()

    assert (kinds(first.before), first.log) == (["agent_started"], b"first li")
    assert (kinds(second.before), second.log) == ([], b"ne\n")
    assert [json.loads(news.records)["value"] for news in (first, second)] == [1.0, 2.0]
    assert (third.before, third.log, third.records, third.result) == ((), b"", b"", None)


def test_truncated_output_is_read_again_from_its_start(tmp_path: Path) -> None:
    # Given a follower that has read all of the output
    job = HandmadeJob(tmp_path)
    job.prints("a first line\nand more")
    follower = JobFollower(job.record.node())
    follower.observe()

    # When the benchmark truncates it
    (job.node / "output.log").write_bytes(b"")
    nothing = follower.observe()
    job.prints("again\n")

    # Then that is told once, and what comes is read
    assert (nothing.truncated, nothing.log) == (True, b"")
    again = follower.observe()
    assert (again.truncated, again.log) == (False, b"again\n")
    assert follower.observe().log == b""


def test_a_truncated_log_starts_its_stream_again(tmp_path: Path) -> None:
    job, told = HandmadeJob(tmp_path), list[int]()
    job.prints("a first line\n")
    stream = pieces_of_nodes([job.record.node()], "log", follow=True, on_truncated=told.append)
    first = next(stream)

    (job.node / "output.log").write_bytes(b"again\n")
    job.ends()

    assert (first, list(stream), told) == ((0, b"a first line\n"), [(0, b"again\n")], [0])


def test_an_incomplete_record_waits_for_its_rest(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.measures("loss", 1.0)
    path = job.node / "metrics.jsonl"
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(len(whole) - 10)
    follower = JobFollower(job.record.node())

    assert follower.observe().records == b""
    with path.open("ab") as file:
        file.write(whole[-10:])
    assert follower.observe().records == whole


def test_the_result_follows_the_last_line(tmp_path: Path) -> None:
    # Given a job that printed more than one look takes, and has ended
    job = HandmadeJob(tmp_path)
    job.phases("prepare", until="run")
    job.prints(b"x" * 99 + b"\n")
    job.prints((b"y" * 99 + b"\n") * (3 * PIECE // 100))
    job.event("benchmark_exited", code=0)
    job.event("phase", phase="run", state="finished", seconds=1.0)
    job.event("warning", message="after the end")
    job.ends()

    found = everything(JobFollower(job.record.node()))

    assert len(found) > 3
    assert b"".join(news.log for news in found) == (job.node / "output.log").read_bytes()
    assert all(not news.after for news in found[:-1])
    assert kinds(found[-1].after) == ["benchmark_exited", "phase", "warning"]
    assert found[-1].result is not None
    assert max(len(news.log) for news in found) <= PIECE


def test_a_metric_record_larger_than_a_chunk_is_read_whole(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.measures("x" * (3 * PIECE), 1.0)
    job.measures("after", 2.0)

    content = b"".join(news.records for news in everything(JobFollower(job.record.node())))
    assert content == (job.node / "metrics.jsonl").read_bytes()


def test_following_only_the_newest_output_reports_the_skipped_bytes(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    lines = b"".join(b"%099d\n" % each for each in range(200_000))
    job.prints(lines)

    found = everything(JobFollower(job.record.node(), newest_only=True))

    shown = b"".join(news.log for news in found)
    assert sum(news.skipped for news in found) + len(shown) == len(lines)
    assert len(shown) < PIECE
    assert lines.endswith(shown)
    assert shown.splitlines()[0] in lines.splitlines()


@pytest.mark.parametrize("count", [0, 1, 2, 5, 1000])
@pytest.mark.parametrize("end", ["\n", ""])
def test_the_last_lines_start_at_line_beginnings(tmp_path: Path, count: int, end: str) -> None:
    job = HandmadeJob(tmp_path)
    text = "\n".join(f"line {each}" for each in range(20)) + end
    job.prints(text)

    tail = text[position_of_last_lines(job.record.node(), count) :]
    assert tail.splitlines() == (text.splitlines()[-count:] if count else [])


def test_last_lines_that_span_several_chunks_are_found(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.prints(b"first\n" + b"x" * (2 * PIECE) + b"\nlast\n")

    assert position_of_last_lines(job.record.node(), 1) == 2 * PIECE + 7
    assert position_of_last_lines(job.record.node(), 2) == 6
    assert position_of_last_lines(job.record.node(), 3) == 0


def test_a_tail_begins_with_a_complete_line_if_there_is_one(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.prints("aaaa\nbbbb\ncccc\n")

    assert tail_position(job.record.node(), "log", 100) == 0
    assert tail_position(job.record.node(), "log", 10) == 5
    assert tail_position(job.record.node(), "log", 7) == 10
    job.prints("x" * 50)
    assert tail_position(job.record.node(), "log", 20) == 45


def test_following_a_stream_ends_with_the_job(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.prints("all of it")
    job.ends()

    assert list(pieces_of_nodes([job.record.node()], "log", follow=True)) == [(0, b"all of it")]
