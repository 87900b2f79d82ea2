"""Reads the JSON that benchmark tools write; docs/extraction.md names the metrics and labels that each gives."""

from __future__ import annotations

from typing import Any

from bai_agent.metrics.results.measured import Found, Measured, Problem, items, require, series, tables

_HYPERFINE = ("mean", "stddev", "median", "user", "system", "min", "max")
_GOOGLE_FACTS = frozenset(
    {
        *("family_index", "per_family_instance_index", "repetitions", "repetition_index"),
        *("threads", "iterations", "error_occurred", "skipped"),
    }
)
_GOOGLE_UNITS = {"bytes_per_second": "B/s", "items_per_second": "1/s"}
_PYTEST_SECONDS = ("min", "max", "mean", "stddev", "median", "iqr", "q1", "q3", "total")
_PYTEST_UNITS = {"ops": "1/s", "rounds": "", "iterations": ""}


def hyperfine(document: Any) -> Found:
    """`--export-json`: its statistics of each command, and each run's time."""
    results = document.get("results") if isinstance(document, dict) else None
    require(isinstance(results, list), 'list "results"')
    for each in tables(results):
        labels = {"command": each.get("command"), **dict(items(each.get("parameters")))}
        for name in _HYPERFINE:
            if each.get(name) is not None:  # one run alone has no deviation
                yield Measured(name, each[name], "s", labels)
        for run, seconds in series(each.get("times")):
            yield Measured("time", seconds, "s", labels, run)
        for run, size in series(each.get("memory_usage_byte")):
            yield Measured("memory", size, "bytes", labels, run)


def google_benchmark(document: Any) -> Found:
    """`--benchmark_out`: times and counters of each repetition, and its aggregates with their name behind the metric's."""
    benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
    require(isinstance(benchmarks, list), 'list "benchmarks"')
    for each in tables(benchmarks):
        name = each.get("run_name", each.get("name"))
        if each.get("error_occurred") is True or each.get("skipped"):
            said = each.get("error_message", each.get("skip_message"))
            yield Problem("has a benchmark that gave no value", f"{name}: {said}")
            continue
        aggregate = each.get("aggregate_name")
        labels = {"benchmark": name, "label": each.get("label")}
        repeated = aggregate is None and each.get("repetitions") not in (None, 1)
        for key, value in each.items():
            if key in _GOOGLE_FACTS or isinstance(value, (str, bool)):
                continue
            units = each.get("time_unit") if key in ("real_time", "cpu_time") else _GOOGLE_UNITS.get(key, "")
            if each.get("aggregate_unit") == "percentage":
                units = ""
            yield Measured(
                key if aggregate is None else f"{key}_{aggregate}",
                value,
                units,
                labels,
                each.get("repetition_index") if repeated else None,
            )


def pytest_benchmark(document: Any) -> Found:
    """`--benchmark-json`: the statistics of each test, and with `--benchmark-save-data` each round's time."""
    benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
    require(isinstance(benchmarks, list), 'list "benchmarks"')
    for each in tables(benchmarks):
        labels = {"benchmark": each.get("fullname", each.get("name")), "group": each.get("group")}
        stats = dict(items(each.get("stats")))
        for name in _PYTEST_SECONDS:
            if name in stats:
                yield Measured(name, stats[name], "s", labels)
        for name, units in _PYTEST_UNITS.items():
            if name in stats:
                yield Measured(name, stats[name], units, labels)
        for turn, seconds in series(stats.get("data")):
            yield Measured("time", seconds, "s", labels, turn)


def bmf(document: Any) -> Found:
    """Bencher Metric Format: measures by benchmark, with their bounds where they have some."""
    require(isinstance(document, dict), "object of benchmarks")
    for benchmark, measures in document.items():
        for measure, said in items(measures):
            for key, value in items(said):
                if key in ("value", "lower_value", "upper_value"):
                    name = measure if key == "value" else f"{measure}_{key}"
                    yield Measured(name, value, "", {"benchmark": benchmark})


def jmh(document: Any) -> Found:
    """`-rf json`: score, error, percentiles and iterations of each benchmark, and the scores of profilers."""
    require(isinstance(document, list), "list of benchmarks")
    for each in tables(document):
        labels = {
            "benchmark": each.get("benchmark"),
            "mode": each.get("mode"),
            **dict(items(each.get("params"))),
        }
        primary = dict(items(each.get("primaryMetric")))
        units = primary.get("scoreUnit")
        if "score" in primary:
            yield Measured("score", primary["score"], units, labels)
        # Of few iterations it is the text "NaN".
        if isinstance(primary.get("scoreError"), (int, float)):
            yield Measured("score_error", primary["scoreError"], units, labels)
        for percentile, value in items(primary.get("scorePercentiles")):
            yield Measured(f"score_p{percentile.removesuffix('.0')}", value, units, labels)
        iteration = 0
        for _, fork in series(primary.get("rawData")):
            for _, value in series(fork):
                yield Measured("iteration", value, units, labels, iteration)
                iteration += 1
        for name, metric in items(each.get("secondaryMetrics")):
            said = dict(items(metric))
            if "score" in said and said["score"] != "NaN":
                yield Measured(name.strip("·"), said["score"], said.get("scoreUnit"), labels)
