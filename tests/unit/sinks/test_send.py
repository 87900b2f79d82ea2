from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from bai_agent.job.descriptor import Benchmark, Identity, Job, Kafka, StrategyTable
from bai_agent.sinks.kafka.send import MetricMessageWriter


def job(**identity: Any) -> Job:
    return Job(
        job=Identity(id="job-1", **identity),
        benchmark=Benchmark(argv=("true",)),
        kafka=Kafka(brokers=("broker:9092",)),
    )


def line(**changes: Any) -> bytes:
    record = {
        "seq": 7, "src": "log", "off": 120, "i": 0, "k": 0, "name": "accuracy", "value": 0.35, "units": "ratio",
        "timestamp": 1567070046123,
    }  # fmt: skip
    return json.dumps({**record, **changes}).encode()


def test_a_record_becomes_the_services_message() -> None:
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
    assert message.headers == [("job", b"job-1"), ("rank", b"3"), ("seq", b"7")]


def test_without_a_service_the_action_is_the_job() -> None:
    message = MetricMessageWriter(job(), rank=0).write(line())

    assert message is not None
    assert json.loads(message.value)["labels"] == {"action-id": "job-1", "client-id": "local"}


def test_the_parent_is_named_where_there_is_one() -> None:
    message = MetricMessageWriter(job(parent_action_id="cron"), rank=0).write(line())

    assert message is not None
    assert json.loads(message.value)["labels"]["parent-action-id"] == "cron"


def test_no_label_of_the_user_passes_for_another_job() -> None:
    message = MetricMessageWriter(job(labels={"action-id": "other", "client-id": "other"}), rank=0).write(
        line()
    )

    assert message is not None
    assert json.loads(message.value)["labels"] == {"action-id": "job-1", "client-id": "local"}


@pytest.mark.parametrize("name", ["ñandú", 'quote"back\\slash', "line\nbreak", "\ud800", "}"])
@pytest.mark.parametrize("value", [0, -1, 1.5e-05, 1e300, 2**53])
def test_any_name_and_value_survive(name: str, value: float) -> None:
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
def test_what_is_no_record_is_refused(broken: bytes) -> None:
    with pytest.raises(ValueError):
        MetricMessageWriter(job(), rank=0).write(broken)


def test_host_metrics_are_left_out_unless_asked_for() -> None:
    wanted = Job(
        job=Identity(id="job-1"),
        benchmark=Benchmark(argv=("true",)),
        kafka=Kafka(brokers=("broker:9092",), host_metrics=True),
    )
    host = line(src="host", name="bai_host_cpu_percent")

    assert MetricMessageWriter(job(), rank=0).write(host) is None
    assert MetricMessageWriter(wanted, rank=0).write(host) is not None


def test_a_records_labels_yield_to_the_jobs() -> None:
    writer = MetricMessageWriter(job(labels={"task_name": "hello"}), rank=0)

    message = writer.write(line(labels={"threads": "4", "action-id": "mine", "task_name": "mine"}))

    assert message is not None
    assert json.loads(message.value)["labels"] == {
        "threads": "4",
        "task_name": "hello",
        "action-id": "job-1",
        "client-id": "local",
    }


def test_node_and_process_are_labels_of_what_a_process_printed() -> None:
    of_two = dataclasses.replace(job(), strategy=StrategyTable(name="mpi", nodes=2))

    message = MetricMessageWriter(of_two, rank=1).write(line(src="log/3", labels={"process_rank": "3"}))

    assert message is not None
    labels = json.loads(message.value)["labels"]
    assert (labels["rank"], labels["process_rank"]) == ("1", "3")


@pytest.mark.parametrize("labels", [[], "x", {"a": 1}])
def test_labels_that_are_no_texts_are_refused(labels: object) -> None:
    with pytest.raises(ValueError):
        MetricMessageWriter(job(), rank=0).write(line(labels=labels))
