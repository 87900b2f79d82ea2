from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import InvalidRecordError, KafkaError
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.structs import TopicPartition

from bai_agent.errors import RecordError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.sink_tables import Kafka
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.sinks.kafka import metric_messages
from bai_agent.sinks.kafka.metric_messages import (
    MetricMessage,
    MetricMessageWriter,
    RecordEncoder,
    failure_of,
)


def job(**identity: Any) -> Job:
    return Job(
        job=Identity(id="job-1", **identity),
        benchmark=Benchmark(argv=("true",)),
        kafka=Kafka(brokers=("broker:9092",)),
    )


def line(*, separators: tuple[str, str] | None = None, **changes: Any) -> bytes:
    record = {
        "seq": 7, "src": "log", "off": 120, "i": 0, "k": 0, "name": "accuracy", "value": 0.35, "units": "ratio",
        "timestamp": 1567070046123,
    }  # fmt: skip
    return json.dumps({**record, **changes}, separators=separators).encode()


def test_a_record_is_encoded_as_a_message_of_the_benchmark_service() -> None:
    writer = MetricMessageWriter(
        job(action_id="action", client_id="client", labels={"task_name": "hello_world"}), rank=3
    )

    message = writer.write(line())

    assert message is not None
    assert json.loads(message.value) == {
        "name": "accuracy",
        "value": 0.35,
        "timestamp": 1567070046123,
        "labels": {"task_name": "hello_world", "action-id": "action", "client-id": "client"},
    }
    assert writer.key == b"client"
    assert message.seq == b"7"


def test_without_the_service_the_action_id_is_the_job_id() -> None:
    message = MetricMessageWriter(job(), rank=0).write(line())

    assert message is not None
    assert json.loads(message.value)["labels"] == {"action-id": "job-1", "client-id": "local"}


def test_the_parent_is_named_if_there_is_one() -> None:
    message = MetricMessageWriter(job(parent_action_id="cron"), rank=0).write(line())

    assert message is not None
    assert json.loads(message.value)["labels"]["parent-action-id"] == "cron"


def test_a_label_cannot_override_the_action_or_client_id() -> None:
    message = MetricMessageWriter(job(labels={"action-id": "other", "client-id": "other"}), rank=0).write(
        line()
    )

    assert message is not None
    assert json.loads(message.value)["labels"] == {"action-id": "job-1", "client-id": "local"}


@pytest.mark.parametrize("name", ["ñandú", 'quote"back\\slash', "line\nbreak", "\ud800", "}"])
@pytest.mark.parametrize("value", [0, -1, 1.5e-05, 1e300, 2**53])
def test_any_metric_name_and_value_is_encoded_unchanged(name: str, value: float) -> None:
    message = MetricMessageWriter(job(labels={"ключ": "значение"}), rank=0).write(
        line(name=name, value=value)
    )

    assert message is not None
    assert json.loads(message.value)["name"] == name
    assert json.loads(message.value)["value"] == value
    assert json.loads(message.value)["labels"]["ключ"] == "значение"


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        line(value="0.35"),
        line(value=None),
        line(value=True),
        line(value=float("nan")),
        line(value=float("inf")),
        line(value=10**400),
        line(name=None),
        line(timestamp=1.5),
        line(seq="7"),
    ],
)
def test_a_line_that_is_not_a_record_is_refused(broken: bytes) -> None:
    with pytest.raises(RecordError):
        MetricMessageWriter(job(), rank=0).write(broken)


def test_host_metrics_are_left_out_unless_requested() -> None:
    wanted = Job(
        job=Identity(id="job-1"),
        benchmark=Benchmark(argv=("true",)),
        kafka=Kafka(brokers=("broker:9092",), host_metrics=True),
    )
    host = line(src="host", name="bai_host_cpu_percent")

    assert MetricMessageWriter(job(), rank=0).write(host) is None
    assert MetricMessageWriter(wanted, rank=0).write(host) is not None


def test_labels_of_the_job_override_those_of_a_record() -> None:
    writer = MetricMessageWriter(job(labels={"task_name": "hello"}), rank=0)

    message = writer.write(line(labels={"threads": "4", "action-id": "mine", "task_name": "mine"}))

    assert message is not None
    assert json.loads(message.value)["labels"] == {
        "threads": "4",
        "task_name": "hello",
        "action-id": "job-1",
        "client-id": "local",
    }


def test_values_of_a_process_are_labelled_with_node_and_process() -> None:
    of_two = dataclasses.replace(job(), strategy=StrategyTable(name="mpi", nodes=2))

    message = MetricMessageWriter(of_two, rank=1).write(line(src="log/3", labels={"process_rank": "3"}))

    assert message is not None
    labels = json.loads(message.value)["labels"]
    assert (labels["rank"], labels["process_rank"]) == ("1", "3")


@pytest.mark.parametrize("labels", [[], "x", {"a": 1}])
def test_labels_that_are_not_strings_are_refused(labels: object) -> None:
    with pytest.raises(RecordError):
        MetricMessageWriter(job(), rank=0).write(line(labels=labels))


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["loss", "bai_run_x", '"']
)
NUMBERS = st.integers(-(10**17), 10**17) | st.floats(allow_nan=False, allow_infinity=False)
MORE = st.fixed_dictionaries(
    {},
    optional={
        "step": st.integers(-10, 10**6),
        "late": st.just(True),
        "gen": st.integers(0, 3),
        "repeat": st.integers(0, 3),
        "generation": st.integers(0, 3),
        "labels": st.dictionaries(st.sampled_from(["kind", "action-id"]), NAMES),
    },
)


@given(
    seq=st.integers(0, 10**17),
    src=st.sampled_from(["log", "log/3", "emit", "host", "run", "file"]),
    name=NAMES,
    value=NUMBERS,
    units=NAMES,
    more=MORE,
)
def test_the_fast_path_without_parsing_gives_the_same_message(
    seq: int, src: str, name: str, value: float, units: str, more: dict[str, Any]
) -> None:
    writer = MetricMessageWriter(job(), rank=0)
    changes = {"seq": seq, "src": src, "name": name, "value": value, "units": units, **more}

    # As the extractor writes it, and with spaces, which only the parser takes.
    spliced, parsed = writer.write(line(separators=(",", ":"), **changes)), writer.write(line(**changes))

    assert (spliced is None) == (parsed is None)
    if spliced is not None and parsed is not None:
        assert spliced.seq == parsed.seq
        assert json.loads(spliced.value) == json.loads(parsed.value)


@pytest.mark.parametrize("value", ["007", "1e400", "1.", ".5", "+1", "NaN", "1_0", "0x1"])
def test_unusual_numbers_are_refused(value: str) -> None:
    plain = line(separators=(",", ":"))

    with pytest.raises(RecordError):
        MetricMessageWriter(job(), rank=0).write(plain.replace(b'"value":0.35', b'"value":' + value.encode()))


SIZES = st.sampled_from([0, 1, 62, 63, 64, 127, 128, 2_047, 2_048, 8_191, 8_192, 100_000])


@given(
    key=st.binary(max_size=100),
    job_header=st.binary(max_size=100),
    sizes=st.lists(SIZES, min_size=1, max_size=5),
    first=st.integers(0, 10**9),
)
def test_each_encoded_record_equals_kafka_pythons(
    key: bytes, job_header: bytes, sizes: list[int], first: int
) -> None:
    headers = [("job", job_header), ("rank", b"0")]
    messages = [MetricMessage(b"x" * size, b"%d" % (first + number)) for number, size in enumerate(sizes)]

    encoded = RecordEncoder(key=key, headers=headers).encode(messages)

    assert encoded == library_records(key, headers, messages)


def test_a_full_batch_has_consecutive_offsets() -> None:
    messages = [MetricMessage(b"x", b"%d" % number) for number in range(5_000)]

    encoded = RecordEncoder(key=b"k", headers=[]).encode(messages)

    assert encoded == library_records(b"k", [], messages)


def library_records(key: bytes, headers: list[tuple[str, bytes]], messages: list[MetricMessage]) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2**30,
    )
    for offset, message in enumerate(messages):
        builder.append(offset, 1_700_000_000_000, key, message.value, [*headers, ("seq", message.seq)])
    return bytes(builder.build()[DefaultRecordBatchBuilder.header_size_in_bytes() :])


def test_a_refused_batch_reports_the_refusal() -> None:
    batch = metric_messages._batch_type()(TopicPartition("t", 0), None)
    refusal = InvalidRecordError("a record of the batch")

    batch.complete_exceptionally(refusal, lambda index: KafkaError("another message of the batch failed"))

    assert failure_of(batch.produce_future) is refusal
