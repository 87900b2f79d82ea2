"""Differences between two sides other than their values: stable properties of machines, and descriptor keys that affect the measurement."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Git, Identity
from bai_agent.job.descriptor.metric_tables import Better, Headline, Metric, ResultFormat, Results
from bai_agent.job.descriptor.sink_tables import CloudWatch, Prometheus
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from executor.analysis.differences import descriptor_differences, environment_differences

MACHINE: dict[str, Any] = {
    "version": 1, "time": 1, "rank": 0,
    "instance": {"id": "i-1", "type": "c5.large", "image_id": "ami-1", "availability_zone": "us-east-1a"},
    "system": {"kernel": "6.1.0"},
    "cpu": {"model": "Xeon 8275", "count": 2, "mhz": 3100.2, "governors": ["performance"]},
    "memory": {"total_bytes": 4_000_000_000, "available_bytes": 3_000_000_000},
    "gpus": {"driver": "550.1", "devices": [{"name": "T4", "sm_mhz": 600, "processes": []}] * 2},
    "mounts": {"data": {"type": "ext4", "free_bytes": 5}},
    "python": {"version": "3.11", "packages": {"torch": "2.4.0"}, "distributions": {"numpy": "2.0"}},
    "load": {"average": [0.1, 0.2, 0.3], "busiest": [{"name": "x", "cores": 1}]},
    "agent": {"version": "0.2.0"}, "waited_seconds": 0.1, "warnings": ["the governor is not performance"],
}  # fmt: skip


def changed(**changes: Any) -> dict[str, Any]:
    machine = copy.deepcopy(MACHINE)
    for path, value in changes.items():
        *tables, key = path.split("__")
        place = machine
        for table in tables:
            place = place[table]
        place[key] = value
    return machine


def test_jitter_from_run_to_run_is_not_a_difference() -> None:
    other = changed(
        time=2, rank=1, instance__id="i-2", instance__availability_zone="us-east-1b", cpu__mhz=1200.0,
        memory__available_bytes=1, memory__total_bytes=4_000_300_000, mounts__data__free_bytes=9,
        load__average=[9, 9, 9], waited_seconds=3, warnings=[],
    )  # fmt: skip
    other["gpus"]["devices"][0]["sm_mhz"] = 1590

    assert environment_differences([MACHINE], [other]) == []


def test_unequal_machines_are_named_by_importance() -> None:
    other = changed(
        instance__type="c6i.large", cpu__model="Xeon 8375", gpus__driver="560.0", system__kernel="6.8.0",
        python__packages={"torch": "2.5.0"}, python__distributions={"numpy": "2.0", "scipy": "1.14"},
    )  # fmt: skip

    found = environment_differences([MACHINE, MACHINE], [other])

    assert [(each.what, each.a, each.b) for each in found] == [
        ("instance type", "c5.large", "c6i.large"),
        ("cpu model", "Xeon 8275", "Xeon 8375"),
        ("gpus driver", "550.1", "560.0"),
        ("system kernel", "6.1.0", "6.8.0"),
        ("package torch", "2.4.0", "2.5.0"),
        ("package scipy", "-", "1.14"),
    ]


def test_machines_that_differ_within_one_side_are_named() -> None:
    mixed = [MACHINE, changed(cpu__model="EPYC")]

    (found,) = environment_differences(mixed, mixed)

    assert (found.what, found.a, found.b) == ("cpu model", "Xeon 8275 or EPYC", "Xeon 8275 or EPYC")


def test_a_malformed_environment_record_causes_no_error() -> None:
    odd: dict[str, Any] = {
        "cpu": "fast",
        "gpus": {"devices": 3},
        "python": [],
        "mounts": {"data": None},
        "disks": [1],
    }

    assert all(each.b == "-" for each in environment_differences([MACHINE], [odd]))
    assert environment_differences([], [MACHINE]) == []


JOB = Job(
    job=Identity(id="a", labels={"task_name": "x"}),
    benchmark=Benchmark(argv=("python3", "train.py", "--batch", "64"), env={"THREADS": "1"}),
    metrics=(Metric(name="loss", pattern="loss=(.*)"),),
    git=Git(commit="1" * 40),
)


def test_descriptors_differ_by_their_job_not_by_their_user() -> None:
    same = replace(JOB, job=Identity(id="b", labels={"task_name": "x", "variant": "b"}))
    assert descriptor_differences([JOB], [same]) == []

    sent = replace(
        JOB, prometheus=Prometheus(pushgateway="http://host:9091"), cloudwatch=CloudWatch(log_group="runs")
    )
    assert descriptor_differences([JOB], [sent]) == []

    other = replace(
        JOB,
        benchmark=Benchmark(argv=("python3", "train.py", "--batch", "128"), env={"THREADS": "2"}),
        sources=(Source(src="s3://data/x", path="x", sha256="a" * 64),),
        set={"ml.args": "--batch 128"},
        git=Git(commit="1" * 40, dirty=True),
    )
    found = {each.what: (each.a, each.b) for each in descriptor_differences([JOB, JOB], [other])}
    assert found == {
        "benchmark.argv": ("python3 train.py --batch 64", "python3 train.py --batch 128"),
        "benchmark.env.THREADS": ("1", "2"),
        "source x": ("-", "s3://data/x (aaaaaaaaaaaa)"),
        "--set ml.args": ("-", "--batch 128"),
        "git": ("111111111111", "111111111111, with uncommitted changes"),
    }


def test_a_metric_searched_in_another_section_or_context_is_a_named_difference() -> None:
    (metric,) = JOB.metrics
    other = replace(metric, after="^reads", context=("in (?P<unit>ms)", "(?P<test>a)"))

    found = descriptor_differences([JOB], [replace(JOB, metrics=(other,))])

    assert {each.what: (each.a, each.b) for each in found} == {
        "metric loss: after": ("-", "^reads"),
        "metric loss: context": ("-", "in (?P<unit>ms), (?P<test>a)"),
    }


def test_a_metric_with_other_labels_or_warmup_is_a_named_difference() -> None:
    (metric,) = JOB.metrics
    json = replace(metric, pattern="", json="loss")
    other = replace(json, json_step="step", json_labels=("split",), warmup=timedelta(seconds=30))

    found = descriptor_differences([replace(JOB, metrics=(json,))], [replace(JOB, metrics=(other,))])

    assert {each.what: (each.a, each.b) for each in found} == {
        "metric loss: json_step": ("-", "step"),
        "metric loss: json_labels": ("-", "split"),
        "metric loss: warmup": ("-", "0:00:30"),
    }


def test_result_files_that_are_read_differently_are_a_named_difference() -> None:
    table = Results(path="out/*.json", format=ResultFormat.JSON, values=("mean",), better=Better.LOWER)
    more = Results(path="out/*.json", format=ResultFormat.JSON, values=("max",))
    one = replace(JOB, results=(table, more))
    other = replace(JOB, results=(replace(table, headline=Headline.MIN, better=None, tolerance=0.1), more))

    found = {each.what: (each.a, each.b) for each in descriptor_differences([one], [other])}
    gone = {each.what: (each.a, each.b) for each in descriptor_differences([one], [JOB])}

    # What only decides how a change is judged is no difference of what is measured.
    assert found == {"results out/*.json: headline": ("-", "min")}
    assert gone == {
        "results out/*.json": ("json", "-"),
        "results out/*.json: values": ("mean", "-"),
        "results out/*.json (2)": ("json", "-"),
        "results out/*.json (2): values": ("max", "-"),
    }


def test_scripts_are_compared_by_content_and_not_by_path() -> None:
    def of(job_id: str, digest: str) -> Job:
        src = f"file:///store/{job_id}/scripts/"
        scripts = Source(src=src, path=".", kind=SourceKind.SCRIPTS, directory=True, sha256=digest)
        return replace(JOB, sources=(scripts,))

    assert descriptor_differences([of("one", "a" * 64)], [of("other", "a" * 64)]) == []
    (found,) = descriptor_differences([of("one", "a" * 64)], [of("other", "b" * 64)])
    assert (found.what, found.a, found.b) == ("scripts", "a" * 12, "b" * 12)


def test_long_scripts_that_differ_at_their_end_are_distinguished() -> None:
    scripts = ["echo 1\n" * 100 + end for end in ("a", "b")]
    sides = [[replace(JOB, benchmark=Benchmark(script=script))] for script in scripts]

    (found,) = descriptor_differences(*sides)

    assert found.what == "benchmark.script"
    assert found.a.startswith("101 lines (")
    assert found.a != found.b
