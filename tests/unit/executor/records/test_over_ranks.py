"""What is shown of a metric that several nodes and processes print."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.metric_tables import Better, Metric, OverRanks
from bai_agent.job.figures import LIMIT
from executor.records.over_ranks import Spread, last_over_ranks, over_ranks, spreads
from executor.records.reading import records_in
from executor.records.series import Series
from executor.records.statistics import Measurements


def job(how: OverRanks) -> Job:
    metrics = (
        Metric(name="rate", pattern="(.)", units="it/s", better=Better.HIGHER, over_ranks=how),
        Metric(name="gone", pattern="(.)", over_ranks=how),
    )
    return Job(job=Identity(id="job"), benchmark=Benchmark(argv=("true",)), metrics=metrics)


def record(value: float, *, timestamp: int = 1, **labels: str) -> bytes:
    fields: dict[str, Any] = {"src": "log", "name": "rate", "value": value, "units": "it/s"}
    if labels:
        fields["labels"] = labels
    return json.dumps({**fields, "timestamp": timestamp}).encode() + b"\n"


OF_TWO_NODES = (
    record(1, rank="0", process_rank="0")
    + record(3, rank="0", process_rank="0")
    + record(10, rank="1", process_rank="1")
    + record(20, rank="1", process_rank="1")
)


def measured(how: OverRanks, lines: bytes) -> list[Series]:
    found = Measurements(job(how))
    found.add_lines(lines)
    return over_ranks(found.benchmark.values(), found.over_ranks)


@pytest.mark.parametrize(
    ("how", "first", "last", "minimum", "maximum", "mean"),
    [
        (OverRanks.SUM, 11, 23, 11, 23, 17),
        (OverRanks.MEAN, 5.5, 11.5, 5.5, 11.5, 8.5),
        (OverRanks.MIN, 1, 3, 1, 3, 2),
        (OverRanks.MAX, 10, 20, 10, 20, 15),
    ],
)
def test_values_of_all_ranks_are_combined_into_one_row(
    how: OverRanks, first: float, last: float, minimum: float, maximum: float, mean: float
) -> None:
    gone, row = measured(how, OF_TWO_NODES)

    assert (gone.name, gone.count) == ("gone", 0)
    assert row.name == f"rate ({how.value} of 2 ranks)"
    assert (row.units, row.better, row.count) == ("it/s", Better.HIGHER, 4)
    assert (row.first, row.last, row.minimum, row.maximum, row.mean) == (first, last, minimum, maximum, mean)
    assert row.trend.points == [first, last]


def test_over_ranks_each_shows_a_row_for_every_rank() -> None:
    names = [each.name for each in measured(OverRanks.EACH, OF_TWO_NODES)]
    assert names == ["gone", "rate{rank=0,process_rank=0}", "rate{rank=1,process_rank=1}"]


def test_other_labels_stay_separate_and_one_rank_is_not_combined() -> None:
    lines = record(1, rank="0", part="a") + record(2, rank="1", part="a") + record(5, rank="0", part="b")

    rows = measured(OverRanks.SUM, lines)[1:]

    assert [(each.name, each.last, each.labels) for each in rows] == [
        ("rate{part=a} (sum of 2 ranks)", 3, {"part": "a"}),
        ("rate{part=b}", 5, {"part": "b"}),
    ]


def test_a_metric_without_ranks_is_unchanged() -> None:
    (row,) = [each for each in measured(OverRanks.SUM, record(1) + record(2)) if each.count]
    assert (row.name, row.last) == ("rate", 2)


def test_many_ranks_are_shown_by_their_range() -> None:
    lines = b"".join(record(rank, rank=str(rank)) for rank in range(9))
    rows, found = spreads(measured(OverRanks.EACH, lines))

    assert [each.name for each in rows] == ["gone"]
    (spread,) = found
    assert isinstance(spread, Spread)
    assert (spread.name, len(spread.ranks), spread.count) == ("rate", 9, 9)
    assert spread.between(lambda series: series.last) == (0, 8)
    assert spreads(measured(OverRanks.EACH, lines), at_most=9)[1] == []


def test_a_thousand_ranks_keep_their_rows() -> None:
    lines = b"".join(record(1, rank=str(rank), process_rank=str(rank)) for rank in range(1000))
    assert measured(OverRanks.SUM, lines)[1].last == 1000


def test_last_values_are_combined_over_ranks_as_configured() -> None:
    records = list(records_in(record(3, rank="0", timestamp=5) + record(20, rank="1", timestamp=9)))

    def shown(how: OverRanks) -> list[tuple[str, tuple[float, float], int]]:
        return [(each.name, each.between, each.timestamp) for each in last_over_ranks(records, {"rate": how})]

    assert shown(OverRanks.EACH) == [("rate{rank=0}", (3, 3), 5), ("rate{rank=1}", (20, 20), 9)]
    assert shown(OverRanks.SUM) == [("rate (sum of 2 ranks)", (23, 23), 9)]


def test_last_values_of_many_ranks_are_the_least_and_the_greatest() -> None:
    records = list(records_in(b"".join(record(value, rank=str(value)) for value in range(12))))
    (row,) = last_over_ranks(records, {})
    assert (row.name, row.between) == ("rate (12 ranks)", (0, 11))


values = st.lists(st.floats(-LIMIT, LIMIT), min_size=1, max_size=4)


@given(st.lists(values, min_size=1, max_size=4), st.sampled_from(list(OverRanks)))
@example([[LIMIT]] * 3, OverRanks.MEAN)
def test_statistics_over_any_ranks_are_finite(ranks: list[list[float]], how: OverRanks) -> None:
    lines = b"".join(record(value, rank=str(rank)) for rank, found in enumerate(ranks) for value in found)
    for row in measured(how, lines):
        if row.count:
            assert all(map(math.isfinite, (row.first, row.last, row.minimum, row.maximum, row.mean)))
