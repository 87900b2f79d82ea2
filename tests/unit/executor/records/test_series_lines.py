"""Lines of records by the million: one pattern reads the same as decoding each line."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from typing import Any

import pytest
from handmade_job import START
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.metric_tables import Headline, Metric
from executor.records.reading import records_in
from executor.records.series_lines import RecordLines, SeriesReader, labelled, rows_in, with_rank
from executor.records.statistics import Measurements
from executor.view.records import NamedRecords, print_csv

JOB = Job(
    job=Identity(id="job"),
    benchmark=Benchmark(argv=("true",)),
    metrics=(
        Metric(name="loss", pattern="x", warmup_values=2, headline=Headline.MEDIAN),
        Metric(name="µ", pattern="x", warmup=timedelta(seconds=1)),
    ),
)


def line(**changes: Any) -> bytes:
    """One record, as the extractor writes it; `raw` in place of its value."""
    raw = changes.pop("raw", None)
    record = {"seq": 0, "src": "log", "off": 0, "i": 0, "k": 0, "name": "loss", "value": 1.5, "units": ""}
    text = json.dumps({**record, "timestamp": START, **changes}, separators=(",", ":"))
    return (text if raw is None else text.replace('"value":1.5', f'"value":{raw}')).encode() + b"\n"


RECORDS = st.fixed_dictionaries(
    {"name": st.sampled_from(["loss", 'a"b\\', "µ", "=1"])},
    optional={
        "raw": st.sampled_from(
            ["0", "-0", "-1.50", "1e5", "2E-3", "1e299", "1e301", "12345678901234567", "0.1"]
        ),
        "src": st.sampled_from(["log", "host", "file"]),
        "units": st.sampled_from(["", "s", "a,b"]),
        "timestamp": st.integers(START, START + 3000),
        "step": st.one_of(st.integers(-5, 5), st.floats(0, 1), st.none()),
        "labels": st.sampled_from(
            [{}, {"a": "1"}, {"b": "2", "a": "1"}, {"process_rank": "3"}, {"rank": "7"}]
        ),
        "late": st.booleans(),
        "gen": st.integers(0, 3),
        "repeat": st.integers(0, 2),
    },
)
LINES = st.lists(RECORDS.map(lambda changes: line(**changes)), max_size=30)
"""Valid records; the pattern does not know all of them."""


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what a call returns if every line is decoded."""

    def call(function: Any) -> Any:
        with monkeypatch.context() as patched:
            for module in ("executor.records.series_lines", "executor.view.records"):
                patched.setattr(f"{module}.rows_in", lambda content: None)
            return function()

    return call


GIVEN = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@GIVEN
@given(LINES, st.sampled_from([None, 0, 12]))
def test_series_are_the_same_as_if_each_line_was_decoded(
    slowly: Any, lines: list[bytes], rank: int | None
) -> None:
    def read() -> Any:
        reader = SeriesReader(lambda record: (record["name"], json.dumps(record.get("labels") or {})))
        found = [reader.read(b"".join(lines), rank=rank), reader.read(b"".join(lines[:3]), rank=rank)]
        return [
            [
                (each.count, each.late, each.last_timestamp),
                *(
                    (key, list(map(repr, batch.values)), str(batch.read_times()), batch.beyond)
                    for key, batch in each.batches.items()
                ),
            ]
            for each in found
        ]

    assert read() == slowly(read)


@GIVEN
@given(LINES)
def test_statistics_are_the_same_as_if_each_line_was_decoded(slowly: Any, lines: list[bytes]) -> None:
    def read() -> Any:
        measured = Measurements(JOB)
        for each in (lines[:10], lines[10:]):
            measured.add_lines(b"".join(each), rank=1)
        groups = (measured.benchmark, measured.host, measured.run)
        return [[each.as_table() for each in group.values()] for group in groups], measured.records

    assert read() == slowly(read)


@GIVEN
@given(LINES, st.sampled_from([None, 3]))
def test_csv_is_the_same_as_if_each_line_was_decoded(
    slowly: Any, monkeypatch: pytest.MonkeyPatch, lines: list[bytes], rank: int | None
) -> None:
    def read() -> str:
        out = io.StringIO()
        with monkeypatch.context() as patched:
            patched.setattr("sys.stdout", out)
            print_csv(JOB, iter([RecordLines(b"".join(lines), rank)]), False)
        return out.getvalue()

    printed = read()
    assert printed == slowly(read)
    assert len(list(csv.reader(io.StringIO(printed)))) == len(lines) + 1


@given(LINES, st.integers(0, 1200))
def test_adding_a_rank_to_lines_changes_nothing_else(lines: list[bytes], rank: int) -> None:
    content = b"".join(lines)

    spliced = with_rank(content, rank)

    assert list(records_in(spliced)) == [labelled(record, rank) for record in records_in(content)]
    assert rows_in(content) is None or b"rank" in content or rows_in(spliced) is not None


@pytest.mark.parametrize(
    "foreign", [b"no json\n", b"[1]\n", b"\n", b'{"seq":0,"src":"log\n', b'{"seq":0}}\n']
)
def test_a_line_that_is_not_a_record_gets_no_rank(foreign: bytes) -> None:
    assert with_rank(line() + foreign + line(), 1).splitlines(keepends=True)[1] == foreign


def test_metrics_are_selected_by_name_in_any_json_formatting() -> None:
    content = line(name="a") + line(name="µ") + line(name="b")
    named = NamedRecords(["µ", "a", "c"])

    fast = b"".join(each.content for each in named.only(iter([RecordLines(content)])))
    slow = b"".join(each.content for each in named.only(iter([RecordLines(content + b"no json\n")])))

    assert rows_in(content) is not None
    assert fast == line(name="a") + line(name="µ")
    assert slow == fast + b"no json\n"
    assert named.unseen == ["c"]


def test_a_damaged_line_is_distinguished_from_a_label() -> None:
    damaged = line(labels={"a": "1", "b": "2"}).replace(b'"1","b"', b'"1""b"')

    assert rows_in(damaged) is None
    assert rows_in(line(labels={"a": "1", "b": "2"})) is not None


@pytest.mark.parametrize(
    "damaged",
    [
        *(line(raw=number) for number in ("1.2.3", "01", "-", "1.", ".5", "--1", "1e999")),
        line(units="a").replace(b'"a"', b'"\x01"'),
        line(name="a").replace(b'"a"', rb'"\x61"'),
        line(labels={"a": "1"}).replace(b'"1"', b"1"),
        line(step=7).replace(b":7", b":7.7.7"),
    ],
)
def test_a_line_that_only_resembles_a_record_is_none(damaged: bytes) -> None:
    read = SeriesReader(lambda record: str(record["name"])).read(line() + damaged + line())

    assert read.count == 2
    assert read.batches["loss"].values == [1.5, 1.5]
    assert rows_in(line() + damaged) is None
