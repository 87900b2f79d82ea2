"""All records of a job in columns: the fast reader finds the same as the careful one, for one node or several."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from extraction_runs import extract, make_run
from handmade_job import START, HandmadeJob
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.figures import LIMIT
from executor.records.points import Points, SeriesKey, read_points
from executor.records.reading import records_in


def line(spaced: Any = False, **changes: Any) -> bytes:
    """One record, as the extractor writes it. spaced: with spaces between its labels, as where a pattern found them."""
    record = {"seq": 0, "src": "log", "off": 0, "i": 0, "k": 0, "name": "loss", "value": 1.5, "units": ""}
    record = {**record, "timestamp": START, **changes}
    text = json.dumps(record, separators=(",", ":"))
    if spaced and "labels" in record:
        labels = json.dumps(record["labels"])
        text = text.replace(json.dumps(record["labels"], separators=(",", ":")), labels)
    return text.encode() + b"\n"


NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20), st.floats(allow_nan=True), st.sampled_from([0, -0.0, 5e-324, 1.7e308])
)
VALUES = st.one_of(NUMBERS, st.sampled_from([True, None, "1", 10**400]))
RECORDS = st.fixed_dictionaries(
    {"name": st.sampled_from(["loss", 'a"b\\', "µ"]), "value": VALUES},
    optional={
        "src": st.sampled_from(["log", "host", "file"]),
        "units": st.sampled_from(["", "s", None, 3]),
        "timestamp": st.sampled_from([0, START, 2**47 - 1, 2**47, -1, 1.5]),
        "step": st.one_of(NUMBERS, st.none()),
        "labels": st.sampled_from([{"a": "1"}, {"b": "2", "a": "1"}, {"process_rank": "3"}, {"a": 1}, None]),
        "late": st.booleans(),
        "gen": st.integers(0, 3),
        "repeat": st.sampled_from([0, 7, -1, True, "1"]),
        "spaced": st.booleans(),
    },
)
OTHERS = st.sampled_from(
    [b"\n", b"[]\n", b'{"seq":01}\n', line().replace(b"0", b"00"), b'{"a":1,}\n', b"\xff\n"]
)


@given(st.lists(st.one_of(RECORDS.map(lambda changes: line(**changes)), OTHERS), max_size=30))
def test_columns_contain_exactly_the_valid_records(lines: list[bytes]) -> None:
    points = Points()
    for each in lines:
        points.add_lines(each)

    expected = [record for each in lines for record in records_in(each)]
    assert points.records == len(expected)
    assert points.beyond == sum(abs(each["value"]) > LIMIT for each in expected)
    assert points.malformed.count == len(lines) - len(expected)
    found: dict[SeriesKey, list[tuple[int, float]]] = {}
    for record in expected:
        if abs(record["value"]) > LIMIT:
            continue
        labels = dict(record.get("labels") or {})
        key = SeriesKey(
            src=record["src"],
            name=record["name"],
            process_rank=labels.pop("process_rank", None),
            labels=tuple(sorted(labels.items())),
            repeat=record.get("repeat"),
        )
        found.setdefault(key, []).append((record["timestamp"], float(record["value"])))
    assert {
        key: list(zip(each.timestamps, each.values, strict=True)) for key, each in points.series.items()
    } == found


@given(st.lists(RECORDS.map(lambda changes: line(**changes)), max_size=30))
def test_records_read_in_pieces_give_the_same_columns(lines: list[bytes]) -> None:
    whole, pieces = Points(), Points()
    whole.add_lines(b"".join(lines))
    for each in lines:
        pieces.add_lines(each)

    assert {key: each.values for key, each in whole.series.items()} == {
        key: each.values for key, each in pieces.series.items()
    }
    steps = [[str(each.steps) for each in every.series.values()] for every in (whole, pieces)]
    assert steps[0] == steps[1]
    assert (whole.late, whole.records) == (pieces.late, pieces.records)


def test_records_of_the_extractor_use_the_fast_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = "".join(f'size {n % 2} kind "a, b" step {n} time {n / 2}\n' for n in range(100))
    pattern = r'size (?P<size>\d+) kind (?P<kind>"[^"]+") step (?P<step>\d+) time (?P<value>\S+)'
    rundir = make_run(tmp_path / "run", [("time", pattern)], output=printed.encode())
    extract(rundir)
    content = rundir.metrics.read_bytes()
    # Other versions may write labels without spaces.
    compact = content.replace(b'": "', b'":"').replace(b'", "', b'","')
    assert content != compact
    careful: list[bytes] = []

    def note(lines: bytes) -> Iterator[Mapping[str, Any]]:
        careful.append(lines)
        return records_in(lines)

    monkeypatch.setattr("executor.records.series_lines.records_in", note)
    points = Points(sources=["log"])

    points.add_lines(content + compact)

    sizes = {key.labelled: list(each.values) for key, each in points.series.items()}
    values = {size: [n / 2 for n in range(100) if n % 2 == size] for size in (0, 1)}
    assert sizes == {f'time{{kind="a, b",size={size}}}': values[size] * 2 for size in (0, 1)}
    assert all(lines.count(b"\n") == 0 for lines in careful), "a line was read by itself, not for its series"
    assert len(careful) < 20


def test_a_series_with_steps_in_some_records_has_gaps() -> None:
    points = Points()
    points.add_lines(line(value=1) + line(value=2, step=10) + line(value=3))

    (series,) = points.series.values()
    assert series.steps is not None
    assert [None if math.isnan(step) else step for step in series.steps] == [None, 10, None]


def test_series_are_kept_apart_by_repeat_and_process() -> None:
    points = Points()
    points.add_lines(line(repeat=0) + line(repeat=1, labels={"process_rank": "1", "threads": "4"}))

    first, second = points.series
    assert (first.repeat, first.process_rank) == (0, None)
    assert (second.repeat, second.process_rank, second.labelled) == (1, "1", "loss{threads=4}")


def test_series_of_several_nodes_have_their_ranks(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, nodes=2)
    job.on(0).measures("loss", 1, 2)
    job.on(1).measures("loss", 3)
    job.on(1).measures("cpu_percent", 50, src="host")

    points = read_points(job.record, sources=("log",))

    assert {key.rank: list(each.values) for key, each in points.series.items()} == {"0": [1, 2], "1": [3]}
    assert points.records == 4
