"""The figures of a series: those of a library, of any values, without the warm-up."""

from __future__ import annotations

import math
import statistics
from array import array
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.descriptor.metric_tables import Headline, Metric
from bai_agent.job.figures import LIMIT
from executor.records.figures import figures, headline, measured
from executor.records.points import PointSeries, SeriesKey

FINITE = st.floats(-LIMIT, LIMIT)
START = 1_795_000_000_000


def series(*values: float, every_ms: int = 1000) -> PointSeries:
    """Values of which the first one comes `every_ms` after the start."""
    times = array("q", [START + every_ms * (i + 1) for i in range(len(values))])
    return PointSeries(SeriesKey("log", "loss"), "", times, array("d", values))


def metric(headline: Headline = Headline.LAST, **more: object) -> Metric:
    return Metric(name="loss", pattern="x", headline=headline, **more)  # type: ignore[arg-type]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_statistics_equal_those_of_the_standard_library(values: list[float]) -> None:
    found = figures(values)

    assert found is not None
    assert found.mean == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-9)
    assert found.median == pytest.approx(statistics.median(values), abs=1e-9)
    assert found.stdev == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-6)
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    assert (found.p5, found.p95) == pytest.approx((cuts[0], cuts[-1]), rel=1e-9, abs=1e-9)


@given(st.lists(FINITE, min_size=1, max_size=20))
def test_statistics_of_any_values_are_finite_and_ordered(values: list[float]) -> None:
    found = figures(values)

    assert found is not None
    assert found.minimum <= found.p5 <= found.median <= found.p95 <= found.maximum
    assert found.minimum <= found.mean <= found.maximum
    assert (found.stdev is None) == (len(values) == 1)
    assert all(math.isfinite(each) for each in found.as_table().values() if each is not None)


def test_a_series_without_values_has_no_statistics() -> None:
    assert figures([]) is None
    assert headline(series(), metric()) is None


@pytest.mark.parametrize(
    ("how", "number"),
    [
        (Headline.LAST, 4), (Headline.MIN, 1), (Headline.MAX, 9), (Headline.MEAN, 4.5), (Headline.MEDIAN, 4),
    ],
)  # fmt: skip
def test_the_headline_is_the_statistic_that_the_descriptor_names(how: Headline, number: float) -> None:
    assert headline(series(4, 1, 9, 4), metric(how)) == number


def test_the_first_values_are_left_out_as_warm_up() -> None:
    assert list(measured(series(100, 50, 3, 1), metric(warmup_values=2))) == [3, 1]


def test_warm_up_is_counted_from_the_start_of_the_benchmark() -> None:
    # Values at 1, 2, 3 and 4 s
    warm = metric(warmup=timedelta(seconds=3))

    assert list(measured(series(9, 8, 7, 6), warm, started=START)) == [7, 6]
    # Where the start is not known, from the first value
    assert headline(series(9, 8, 7, 6), warm) == 6
    assert headline(series(9, 8), warm, started=START) is None
