from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from elastic_record import ElasticRecord
from handmade_job import START, HandmadeJob

from bai_agent.job.generation_records import Change
from executor.records import newest
from executor.records.newest import JobGlance, NewestRecords


def write(job: HandmadeJob, *records: dict[str, Any], rest: str = "") -> None:
    lines = [
        json.dumps({"src": "log", "units": "", "timestamp": START, **each}, separators=(",", ":"))
        for each in records
    ]
    with (job.node / "metrics.jsonl").open("a") as file:
        file.write("".join(f"{line}\n" for line in lines) + rest)


def values(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"name": "loss", "value": number} for number in range(start, start + count)]


def host(value: float) -> dict[str, Any]:
    return {"src": "host", "name": "bai_host_cpu_percent", "value": value, "units": "%"}


def test_all_of_a_few_records_are_read(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    records = NewestRecords(job.record.node())
    write(job, *values(3), rest='{"src":"log","na')
    assert records.read().count(b"\n") == 3
    assert (records.read(), records.skipped) == (b"", 0)


def test_only_the_newest_records_and_the_last_host_sample_are_read(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    write(job, *values(10), host(50.0), host(60.0), *values(5000, 10))
    records = NewestRecords(job.record.node())
    content = records.read()
    assert len(content) < 2**16 + 2**13
    lines = [json.loads(line) for line in content.splitlines()]
    assert [each["value"] for each in lines[:2]] == [50.0, 60.0]
    assert lines[-1]["value"] == 5009
    assert [each["value"] for each in lines[2:]] == list(range(lines[2]["value"], 5010))
    assert records.skipped > 0


def test_a_refresh_of_top_reads_no_more_than_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "_WINDOW_HERE", 4096)
    job = HandmadeJob(tmp_path)
    write(job, *values(1000))
    records = NewestRecords(job.record.node())
    content = records.read()
    assert 3000 < len(content) <= 4096
    assert json.loads(content.splitlines()[-1])["value"] == 999
    assert json.loads(content.splitlines()[0])["name"] == "loss"
    write(job, *values(2))
    assert records.read().count(b"\n") == 2


def test_a_stream_uploaded_in_pieces_is_read_to_its_end(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, written=False)
    node = job.record.node()
    records = NewestRecords(node)
    offset = 0
    for value in range(3):
        line = (
            json.dumps({"src": "log", "name": "loss", "value": value, "units": "", "timestamp": START}) + "\n"
        )
        job.store.put(node.key(f"metrics/{offset:020}.jsonl"), line.encode())
        offset += len(line)
    assert [json.loads(line)["value"] for line in records.read().splitlines()] == [0, 1, 2]
    assert records.read() == b""


def test_an_overlong_line_does_not_prevent_reading_later_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "_WINDOW_HERE", 4096)
    job = HandmadeJob(tmp_path)
    write(job, rest="x" * 10_000)
    records = NewestRecords(job.record.node())
    assert records.read() == b""
    write(job, rest="\n")
    write(job, *values(2))
    assert records.read().endswith(b"\n")


def test_top_shows_phases_values_and_the_end_of_each_node(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, nodes=2)
    for rank in range(2):
        job.on(rank).phases("prepare", "pull", until="run" if rank else "join")
        job.on(rank).measures("loss", 1.0 + rank)
    glance = JobGlance(job.record)
    glance.look()
    assert {rank: state.phase for rank, state in glance.states.items()} == {0: "join", 1: "run"}
    assert {each.name: each.last for each in glance.measurements.benchmark.values() if each.count} == {
        "loss{rank=0}": 1.0,
        "loss{rank=1}": 2.0,
    }
    assert glance.result is None
    job.ends()
    glance.look()
    assert glance.result is not None


def test_top_shows_the_generation_and_later_nodes_of_an_elastic_job(tmp_path: Path) -> None:
    made = ElasticRecord(tmp_path)
    made.decides(0, 0, 1)
    glance = JobGlance(made.record)
    glance.look()
    assert glance.state is glance.states[0]
    made.decides(1, 1, 5, why=Change.LOST, nodes=(0,))
    made.job.on(5)._begin()
    made.job.on(5).measures("loss", 3.0)

    glance.look()

    assert glance.generation is not None
    assert glance.generation.members == (1, 5)
    assert glance.state is glance.states[1]
    assert {each.name for each in glance.measurements.benchmark.values() if each.count} == {"loss{rank=5}"}


def test_the_newest_repeat_is_shown(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    glance = JobGlance(job.record)
    write(job, {"name": "loss", "value": 1, "repeat": 0}, {"name": "loss", "value": 1, "repeat": 2})
    glance.look()
    assert glance.repeat == 2
