from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.sink_tables import Kafka
from bai_agent.sinks.backlog import (
    MAX_BYTES,
    MAX_RECORDS,
    Backlog,
    SendProgress,
    read_progress,
    write_progress,
)
from bai_agent.sinks.kafka.metric_messages import MetricMessage, MetricMessageWriter

JOB = Job(job=Identity(id="j"), benchmark=Benchmark(argv=("true",)), kafka=Kafka(brokers=("b:1",)))


def record(seq: int, *, src: str = "log", name: str = "loss") -> bytes:
    return (
        json.dumps({"seq": seq, "src": src, "name": name, "value": seq / 2, "timestamp": 1}).encode() + b"\n"
    )


def backlog(path: Path) -> Backlog[MetricMessage]:
    writer = MetricMessageWriter(JOB, rank=0)
    return Backlog(path, writer.write, size=lambda message: len(message.value))


def all_batches(path: Path) -> list[list[int]]:
    """The sequence numbers of each batch, read one after the other."""
    batches, offset = [], 0
    while (batch := backlog(path).read(offset)).end != offset:
        batches.append([int(message.seq) for message in batch.messages])
        offset = batch.end
    return batches


def test_a_missing_metrics_file_gives_an_empty_batch(tmp_path: Path) -> None:
    batch = backlog(tmp_path / "metrics.jsonl").read(0)

    assert (batch.messages, batch.end) == ([], 0)


def test_an_incomplete_last_line_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(record(0) + record(1)[:-1])

    assert all_batches(path) == [[0]]

    with path.open("ab") as file:
        file.write(b"\n")
    assert all_batches(path) == [[0, 1]]


def test_a_batch_is_bounded_in_records(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(map(record, range(MAX_RECORDS + 10))))

    batches = all_batches(path)

    assert [seq for batch in batches for seq in batch] == list(range(MAX_RECORDS + 10))
    assert max(map(len, batches)) == MAX_RECORDS


def test_a_batch_is_bounded_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    long = "x" * 10_000
    path.write_bytes(b"".join(record(seq, name=long) for seq in range(200)))

    batches = all_batches(path)

    assert [seq for batch in batches for seq in batch] == list(range(200))
    assert max(map(len, batches)) * len(long) <= MAX_BYTES + len(long)


def test_malformed_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(record(0) + b"{broken\n" + b"\n" + record(1))

    batch = backlog(path).read(0)

    assert [message.seq for message in batch.messages] == [b"0", b"1"]
    assert batch.malformed == 2


def test_an_overlong_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(record(0) + b"x" * 3_000_000 + b"\n" + record(1))

    assert [seq for batch in all_batches(path) for seq in batch] == [0, 1]


@pytest.mark.parametrize("host_metrics", [False, True])
def test_the_backlog_is_counted_in_complete_lines(tmp_path: Path, host_metrics: bool) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [record(seq, src="host" if seq % 5 == 0 else "log") for seq in range(20_000)]
    path.write_bytes(b"".join(lines) + b'{"seq": 20000')

    left = backlog(path).count(len(lines[0]), deadline=time.monotonic() + 60, host_metrics=host_metrics)

    assert left == (19_999 if host_metrics else 16_000)


def test_a_metric_name_that_contains_a_host_record_is_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(record(0, name='"src": "host"'))

    assert backlog(path).count(0, deadline=time.monotonic() + 60, host_metrics=False) == 1


def test_send_progress_is_written_and_read_back(tmp_path: Path) -> None:
    progress = SendProgress(offset=123, delivered=4, refused=1, malformed=2)

    write_progress(tmp_path / "kafka.offset", progress)

    assert read_progress(tmp_path / "kafka.offset") == progress


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"garbage", b'{"offset": -1, "delivered": 0, "refused": 0, "malformed": 0}']
)
def test_unreadable_progress_counts_as_no_progress(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kafka.offset").write_bytes(content)

    assert read_progress(tmp_path / "kafka.offset") == SendProgress()
