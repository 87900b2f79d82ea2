"""Statistics while values stream by: exact where they promise it, bounded where they must be."""

from __future__ import annotations

import json
import math
import random
import statistics
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy
import pytest

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Arm, Benchmark, Identity, Repeat
from bai_agent.job.descriptor.metric_tables import Better, Headline, Metric, OverRanks
from executor.documents.metrics import metric_notes
from executor.records.over_ranks import over_ranks
from executor.records.series import Series, Trend
from executor.records.statistics import Measurements


def record(name: str, value: float, src: str = "log", units: str = "") -> bytes:
    fields = {"seq": 0, "src": src, "off": 0, "i": 0, "k": 0, "name": name, "value": value, "units": units}
    return json.dumps({**fields, "timestamp": 1_795_000_000_000}).encode() + b"\n"


@pytest.mark.parametrize("seed", range(5))
def test_statistics_do_not_depend_on_the_pieces_of_the_stream(seed: int) -> None:
    # Given values in random pieces
    chance = random.Random(seed)
    values = [chance.gauss(100, 30) for _ in range(chance.randrange(1, 5000))]
    series = Series("loss")
    position = 0
    while position < len(values):
        step = chance.randrange(0, 700)
        series.add_all(values[position : position + step])
        position += step

    # Then they are those of the whole
    assert (series.count, series.first, series.last) == (len(values), values[0], values[-1])
    assert (series.minimum, series.maximum) == (min(values), max(values))
    assert series.mean == pytest.approx(math.fsum(values) / len(values))
    assert series.stdev == pytest.approx(statistics.stdev(values) if len(values) > 1 else None)
    assert series.median == pytest.approx(statistics.median(values))


@pytest.mark.parametrize("seed", range(20))
def test_a_trend_keeps_every_nth_value_within_its_bound(seed: int) -> None:
    chance = random.Random(seed)
    trend = Trend()
    total = 0
    for _ in range(chance.randrange(1, 60)):
        count = chance.randrange(0, 1000)
        trend.add_all([float(number) for number in range(total, total + count)])
        total += count

        assert len(trend.points) <= 256
        assert trend.points == [float(number) for number in range(0, total, trend.step)]


def test_the_best_value_is_the_one_in_the_metrics_direction() -> None:
    lower, higher, neither = Series("a", better=Better.LOWER), Series("b", better=Better.HIGHER), Series("c")
    for series in (lower, higher, neither):
        series.add_all([3.0, 1.0, 2.0])

    assert (lower.best, higher.best, neither.best) == (1.0, 3.0, None)
    assert Series("d", better=Better.LOWER).best is None


def test_statistics_are_kept_separately_for_each_node_and_process() -> None:
    # Given a job with two metrics, and records of all sources
    job = Job(
        job=Identity(id="job"),
        benchmark=Benchmark(argv=("true",)),
        metrics=(
            Metric(name="z", pattern="z"),
            Metric(name="a", pattern="a", units="s", better=Better.LOWER),
        ),
    )
    measurements = Measurements(job)

    measurements.add_lines(record("a", 1.5) + record("bai_host_cpu_percent", 9, "host") + record("a", 0.5))
    measurements.add_lines(record("extra", 7, "emit", "GB/s") + record("bai_run_wall_seconds", 3, "run"))

    # Then the descriptor's come first, in its order, seen or not
    assert list(measurements.benchmark) == ["z", "a", "extra"]
    assert measurements.benchmark["a"].as_table() == {
        "name": "a",
        "units": "s",
        "count": 2,
        "first": 1.5,
        "last": 0.5,
        "min": 0.5,
        "max": 1.5,
        "mean": 1.0,
        "median": 1.0,
        "stdev": pytest.approx(math.sqrt(0.5)),
        "p95": pytest.approx(1.45),
        "headline": 0.5,
        "headline_is": "last",
        "better": "lower",
        "best": 0.5,
    }
    assert measurements.benchmark["z"].as_table() == {"name": "z", "units": "", "count": 0}
    assert measurements.benchmark["extra"].units == "GB/s"
    assert list(measurements.host) == ["bai_host_cpu_percent"]
    assert list(measurements.run) == ["bai_run_wall_seconds"]
    assert measurements.records == 5


def test_a_broken_record_does_not_hide_the_others() -> None:
    measurements = Measurements()

    measurements.add_lines(record("a", 1) + b"no json\n" + record("a", 2))

    assert measurements.benchmark["a"].count == 2


def labelled(name: str, value: float, **labels: str) -> bytes:
    fields = json.loads(record(name, value, units="ms"))
    return json.dumps({**fields, "labels": labels}).encode() + b"\n"


def test_a_metric_with_labels_has_a_row_for_each_set() -> None:
    job = Job(
        job=Identity(id="j"),
        benchmark=Benchmark(argv=("true",)),
        metrics=(Metric(name="lat", pattern="(.)", better=Better.LOWER), Metric(name="gone", pattern="(.)")),
    )
    measured = Measurements(job)

    measured.add_lines(labelled("lat", 1, threads="4") + labelled("lat", 3, threads="8"))
    measured.add_lines(labelled("lat", 2, threads="4"))

    assert [(each.name, each.count) for each in measured.benchmark.values()] == [
        ("gone", 0),
        ("lat{threads=4}", 2),
        ("lat{threads=8}", 1),
    ]
    row = measured.benchmark["lat{threads=4}"].as_table()
    assert (row["name"], row["labels"], row["best"], row["units"]) == ("lat", {"threads": "4"}, 1, "ms")


def test_rows_of_a_metric_are_bounded() -> None:
    measured = Measurements()
    for number in range(1000):
        measured.add_lines(labelled("lat", number, n=str(number)))

    assert len(measured.benchmark) == 65
    assert measured.benchmark["lat{…}"].count == 936


def test_a_record_with_malformed_labels_is_skipped() -> None:
    measured = Measurements()
    fields = json.loads(record("lat", 1))
    measured.add_lines(json.dumps({**fields, "labels": ["x"]}).encode() + b"\n")
    assert (measured.records, measured.malformed.count) == (0, 1)


def test_quantiles_of_host_metrics_include_all_samples() -> None:
    piece = 97
    # Given values in an order that repeats itself, which regular picking would fall for
    measured = Measurements()
    values = [float(i % 1000) for i in range(9_999)]
    for start in range(0, len(values), piece):
        measured.add_lines(b"".join(record("cpu", each, "host") for each in values[start : start + piece]))

    series = measured.host["cpu"]
    assert (series.median, series.p95) == pytest.approx((numpy.median(values), numpy.quantile(values, 0.95)))
    assert "headline" not in series.as_table()


def test_one_value_has_no_standard_deviation() -> None:
    one = Series("one")
    one.add_all([3.0])
    assert one.stdev is None


@pytest.mark.parametrize("huge", [1.1e300, -1.7e308])
def test_values_too_large_to_compute_with_are_left_out_of_statistics(huge: float) -> None:
    # Given one in front, which is no warm-up, and one last
    measured = Measurements(described(warmup_values=1))
    for value in (huge, 90, 2, 1e300, huge):
        measured.add_lines(at(0, value))

    series = measured.benchmark["loss"]
    assert (series.count, series.left_out, series.beyond) == (2, 1, 2)
    assert (series.first, series.last, series.newest, series.mean) == (2, 1e300, 1e300, 5e299)
    assert series.as_table()["beyond_left_out"] == 2
    _, (note, tone, *_) = metric_notes([series]).rows
    assert (note, tone) == (
        "without recorded values beyond 1e+300, which no figure counts: loss (2)",
        "caution",
    )


def test_a_metric_with_only_too_large_values_counts_as_seen() -> None:
    measured = Measurements(described())
    measured.add_lines(at(0, 1e301, labels={"k": "1"}))

    (series,) = measured.benchmark.values()
    assert (series.name, series.count, series.seen) == ("loss{k=1}", 0, True)


def described(**metric: Any) -> Job:
    return Job(
        job=Identity(id="job"),
        benchmark=Benchmark(argv=("true",)),
        metrics=(Metric(name="loss", pattern="x", **metric),),
    )


def at(second: float, value: float, **more: Any) -> bytes:
    fields = {"seq": 0, "src": "log", "off": 0, "i": 0, "k": 0, "name": "loss", "value": value, "units": ""}
    return (
        json.dumps({**fields, "timestamp": 1_795_000_000_000 + int(1000 * second), **more}).encode() + b"\n"
    )


def test_the_first_values_of_each_series_and_run_are_warm_up() -> None:
    measurements = Measurements(described(warmup_values=2))
    for repeat in (0, 1):
        for value in (90, 80, 2, 1):
            measurements.add_lines(at(0, value, repeat=repeat))
    measurements.add_lines(at(0, 50, labels={"rank": "1"}))

    series = measurements.benchmark["loss"]
    assert (series.count, series.maximum, series.left_out) == (4, 2, 4)
    assert series.as_table()["warmup_left_out"] == 4
    # Another series has its own first values; that all were left out is not that none were seen
    other = measurements.benchmark["loss{rank=1}"]
    assert (other.count, other.left_out, other.newest) == (0, 1, 50)


def test_warm_up_by_time_counts_from_the_start_of_the_run() -> None:
    lines = b"".join(at(second, second) for second in (1, 2, 3, 4))

    known = Measurements(described(warmup=timedelta(seconds=3)), starts={None: 1_795_000_000_000})
    known.add_lines(lines)
    assert (known.benchmark["loss"].first, known.benchmark["loss"].left_out) == (3, 2)

    # Where the start is not known the first value stands for it
    unknown = Measurements(described(warmup=timedelta(seconds=3)))
    unknown.add_lines(lines)
    assert unknown.benchmark["loss"].first == 4


@pytest.mark.parametrize(
    ("how", "one", "several"),
    [
        (Headline.LAST, 4, 5), (Headline.MIN, 1, 1.5), (Headline.MAX, 9, 9.5), (Headline.MEAN, 4.5, 5.5),
        (Headline.MEDIAN, 4, 5.5),
    ],
)  # fmt: skip
def test_the_headline_is_the_statistic_of_one_run_or_the_median_over_repeats(
    how: Headline, one: float, several: float
) -> None:
    single = Measurements(described(headline=how))
    single.add_lines(b"".join(at(0, value) for value in (4, 1, 9, 4)))
    assert single.benchmark["loss"].headline == one

    repeated = Measurements(described(headline=how))
    for repeat, values in enumerate([(4, 1, 9, 4), (2, 10, 8, 6)]):
        repeated.add_lines(b"".join(at(0, value, repeat=repeat) for value in values))
    assert repeated.benchmark["loss"].headline == several
    assert repeated.benchmark["loss"].runs == 2


def test_the_headline_of_many_values_includes_all_of_them() -> None:
    # Given more values than any choice of them holds
    values = [float(value) for value in range(100_001)]
    random.Random(1).shuffle(values)
    measured = Measurements(described(headline=Headline.MEDIAN))
    measured.add_lines(b"".join(at(0, value) for value in values))

    assert measured.benchmark["loss"].headline == measured.benchmark["loss"].median == 50_000


@pytest.mark.parametrize("known_before", [True, False])
def test_failed_runs_are_left_out_of_statistics(known_before: bool) -> None:
    measured = Measurements(described(headline=Headline.MEDIAN), failed=[1] if known_before else [])
    for repeat, value in enumerate((1, 1000, 3)):
        measured.add_lines(at(repeat, value, repeat=repeat) + at(repeat, value + 2, repeat=repeat))
    measured.leave_out_runs([1])

    series = measured.benchmark["loss"]
    assert (series.headline, series.runs, series.count, series.maximum) == (3.0, 2, 4, 5)
    assert (series.of_failed, series.first, series.last) == (2, 1, 5)


def test_each_arm_has_its_own_row() -> None:
    arms = (Arm(name="old", argv=("a",)), Arm(name="new", argv=("b",)), Arm(name="third", argv=("c",)))
    job = replace(described(), repeat=Repeat(runs=6, arms=arms))
    assert job.repeat is not None
    measured = Measurements(job)
    for repeat, arm in enumerate(job.repeat.arms_of_runs):
        measured.add_lines(at(repeat, {"old": 1, "new": 20, "third": 300}[arm], repeat=repeat))

    found = {name: (each.headline, each.count) for name, each in measured.benchmark.items()}
    assert found == {"loss{arm=old}": (1, 2), "loss{arm=new}": (20, 2), "loss{arm=third}": (300, 2)}


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_statistics_of_a_metric_use_the_last_generation_with_values(
    pieces: int,
) -> None:
    # Given two sources of a job that was restarted, one of which is read further than the other
    told = [("a", 1, 0), ("a", 2, 0), ("a", 30, 1), ("b", 5, 0), ("b", 7, 1), ("only before", 9, 0)]
    lines = [
        record(name, value).replace(b"}\n", b', "generation": %d}\n' % generation)
        for name, value, generation in told
    ]
    measured = Measurements()
    size = -(-len(lines) // pieces)
    for start in range(0, len(lines), size):
        measured.add_lines(b"".join(lines[start : start + size]))

    found = {name: (each.count, each.of_earlier) for name, each in measured.benchmark.items()}
    assert found == {"a": (1, 2), "b": (1, 1), "only before": (1, 0)}
    assert measured.benchmark["a"].headline == 30
    assert all(each.seen for each in measured.benchmark.values())


def test_a_generation_without_values_keeps_earlier_values() -> None:
    # Given a generation that failed before it printed anything: only what it took is told
    lines = [
        record("loss", 3).replace(b"}\n", b', "generation": 0}\n'),
        record("bai_run_wall_seconds", 5, src="run").replace(b"}\n", b', "generation": 0}\n'),
        record("bai_run_wall_seconds", 1, src="run").replace(b"}\n", b', "generation": 1}\n'),
    ]
    measured = Measurements()
    for each in lines:
        measured.add_lines(each)

    assert (measured.benchmark["loss"].count, measured.benchmark["loss"].headline) == (1, 3)
    assert measured.run["bai_run_wall_seconds"].count == 1


def of_generation(content: bytes, generation: int) -> bytes:
    return content.replace(b"}\n", b', "generation": %d}\n' % generation)


def test_values_combined_over_ranks_are_of_the_same_generation() -> None:
    # Given a node that was lost with the first generation
    measured = Measurements()
    for rank, value, generation in ((0, 1, 0), (1, 20, 0), (0, 4, 1)):
        measured.add_lines(of_generation(record("loss", value), generation), rank=rank)

    found = {name: (each.count, each.of_earlier) for name, each in measured.benchmark.items()}
    assert found == {"loss{rank=0}": (1, 1), "loss{rank=1}": (0, 1)}
    (row,) = over_ranks(measured.benchmark.values(), {"loss": OverRanks.SUM})
    assert (row.name, row.headline, row.of_earlier) == ("loss", 4, 2)


def test_a_generation_with_only_warm_up_keeps_earlier_values() -> None:
    measured = Measurements(described(warmup_values=2))
    for value, generation in ((1, 0), (2, 0), (3, 0), (10, 1), (20, 1)):
        measured.add_lines(of_generation(record("loss", value), generation))
    assert (measured.benchmark["loss"].headline, measured.benchmark["loss"].left_out) == (3, 4)

    measured.add_lines(of_generation(record("loss", 30), 1))

    series = measured.benchmark["loss"]
    assert (series.headline, series.count, series.left_out, series.of_earlier) == (30, 1, 2, 3)
