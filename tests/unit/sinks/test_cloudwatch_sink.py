"""Records become documents that CloudWatch's specification allows, and none gets lost on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from emf_schema import checked, values_of
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.descriptor.sink_tables import CloudWatch
from bai_agent.sinks.backlog import Record
from bai_agent.sinks.cloudwatch_sink import EventWriter, LogEvent, cloudwatch_unit, requests_of

LABELS = {"task_name": "digits", "action-id": "job-1", "client-id": "me"}
texts = st.text(st.characters(), max_size=6)
records = st.builds(
    Record,
    src=st.just("log"),
    name=texts | st.sampled_from(["_aws", "task_name", "loss"]),
    value=st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70),
    units=texts | st.sampled_from(["ms", "s", ""]),
    timestamp=st.integers(0, 3),
    seq=st.just(0),
    labels=st.dictionaries(texts | st.sampled_from(["_aws", "loss", ":x"]), texts, max_size=3),
)


def record(name: str = "loss", value: float = 0.5, *, at: int = 1, units: str = "", **labels: str) -> Record:
    return Record("log", name, value, units, at, 0, labels)


def documents(*of: Record, labels: dict[str, str] = LABELS, **table: Any) -> list[dict[str, Any]]:
    events, refused = EventWriter(CloudWatch(log_group="g", **table), labels).events(of)
    assert refused == 0
    return [checked(event.message) for event in events]


def metrics_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["_aws"]["CloudWatchMetrics"][0]["Metrics"]
    return found


def dimensions_of(document: dict[str, Any]) -> dict[str, str]:
    (names,) = document["_aws"]["CloudWatchMetrics"][0]["Dimensions"]
    return {name: document[name] for name in names}


@given(st.lists(records, max_size=8))
def test_any_records_become_valid_documents_without_loss(given_records: list[Record]) -> None:
    events, refused = EventWriter(CloudWatch(log_group="g"), LABELS).events(given_records)

    values: list[float] = []
    for event in events:
        document = checked(event.message)
        found = [value for metric in metrics_of(document) for value in values_of(document, metric["Name"])]
        assert event.records == len(found)
        values += found
    kept = [
        each.value
        for each in given_records
        if not each.value or 8.51592e-109 <= abs(each.value) <= 1.174271e108
    ]
    assert sorted(values) == sorted(kept)
    assert refused == len(given_records) - len(kept)
    assert [event.timestamp for event in events] == sorted(event.timestamp for event in events)


def test_values_with_the_same_timestamp_are_in_one_document() -> None:
    (document,) = documents(record("loss", 1), record("loss", 2), record("rate", 3, units="images/s"))

    assert document["_aws"]["Timestamp"] == 1
    assert document["loss"] == [1, 2]
    assert document["rate"] == 3
    assert metrics_of(document) == [{"Name": "loss"}, {"Name": "rate", "Unit": "Count/Second"}]


def test_values_with_other_timestamps_labels_or_units_are_in_separate_documents() -> None:
    of = [record(), record(at=2), record(kind="test"), record(units="s")]

    assert len(documents(*of)) == 4


def test_no_document_has_more_than_a_hundred_metrics_or_values() -> None:
    assert [each.records for each in events_of(record(value=n) for n in range(250))] == [100, 100, 50]
    assert [each.records for each in events_of(record(f"m{n}") for n in range(250))] == [100, 100, 50]


def events_of(of: Any) -> list[LogEvent]:
    return EventWriter(CloudWatch(log_group="g"), LABELS).events(of)[0]


def test_all_labels_but_the_job_id_are_dimensions() -> None:
    (document,) = documents(record(process_rank="3"), labels={**LABELS, "rank": "1"})

    assert dimensions_of(document) == {
        "client-id": "me", "process_rank": "3", "rank": "1", "task_name": "digits",
    }  # fmt: skip
    assert document["action-id"] == "job-1"


def test_the_descriptor_decides_which_labels_are_dimensions() -> None:
    (document,) = documents(
        record(), dimensions=("action-id", "not there"), namespace="Team/X", high_resolution=True
    )

    assert dimensions_of(document) == {"action-id": "job-1"}
    assert document["task_name"] == "digits"
    assert document["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Team/X"
    assert metrics_of(document) == [{"Name": "loss", "StorageResolution": 1}]


def test_at_most_thirty_labels_are_dimensions() -> None:
    (document,) = documents(record()._replace(labels={f"label{n:02}": "x" for n in range(40)}))

    assert len(dimensions_of(document)) == 30
    assert document["label39"] == "x"


def test_a_document_that_is_too_large_is_refused_and_counted() -> None:
    writer = EventWriter(CloudWatch(log_group="g", dimensions=()), LABELS)

    events, refused = writer.events([record(), record(text="x" * 300_000)])

    assert ([each.records for each in events], refused) == ([1], 1)


@pytest.mark.parametrize(
    ("units", "unit"),
    [
        ("s", "Seconds"), ("ms", "Milliseconds"), ("µs", "Microseconds"), ("us", "Microseconds"), ("%", "Percent"),
        ("B", "Bytes"), ("kB", "Kilobytes"), ("MB", "Megabytes"), ("GB/s", "Gigabytes/Second"), ("bytes", "Bytes"),
        ("Mbit/s", "Megabits/Second"), ("Gbps", "Gigabits/Second"), ("b", "Bits"), ("kbit", "Kilobits"), ("count", "Count"),
        ("images/s", "Count/Second"), ("1/s", "Count/Second"), ("/s", "Count/Second"),
        ("", None), ("MiB", None), ("MiB/s", None), ("PB/s", None), ("h", None), ("nats", None), ("ns", None),
    ],
)  # fmt: skip
def test_units_are_translated_to_those_of_cloudwatch(units: str, unit: str | None) -> None:
    assert cloudwatch_unit(units) == unit


def test_requests_stay_within_the_services_limits() -> None:
    day = 24 * 3600 * 1000
    events = [LogEvent(n, json.dumps("x" * 1000), 1) for n in range(3000)]
    events += [LogEvent(3000, "y", 1)] * 25_000 + [LogEvent(3000 + day, "z", 1)]

    requests = list(requests_of(events))

    assert [event for request in requests for event in request] == events
    for request in requests:
        assert len(request) <= 10_000
        assert sum(len(event.message) + 26 for event in request) <= 1_048_576
        assert request[-1].timestamp - request[0].timestamp < day
