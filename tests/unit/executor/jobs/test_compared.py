"""The runs that are compared: of jobs, of repeats, of labels and arms; only those that succeeded."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from handmade_job import START, HandmadeJob

from bai_agent.job.descriptor.benchmark_tables import Arm, Identity, Repeat
from bai_agent.job.descriptor.metric_tables import OverRanks
from bai_agent.job.descriptor_file import job_table
from executor.errors import UsageError
from executor.jobs.compared import RunReader, job_runs
from executor.jobs.job_lookup import find_job


def made(
    store: Path, job_id: str, *, at: int = 0, labels: dict[str, str] | None = None, **more: Any
) -> HandmadeJob:
    job = HandmadeJob(store, job_id, started=START + at, **more)
    if labels is not None:
        described(job, job=Identity(id=job_id, name="digits", labels=labels))
    return job


def described(made: HandmadeJob, /, **changes: Any) -> None:
    made.job = replace(made.job, **changes)
    made.store.put(made.record.key("job.toml"), tomli_w.dumps(job_table(made.job)).encode())


def ended(store: Path, job_id: str, *values: float, outcome: str = "succeeded", **more: Any) -> HandmadeJob:
    job = made(store, job_id, **more)
    job.measures("loss", *values)
    job.ends(outcome, 0 if outcome == "succeeded" else 1)
    return job


def reader(store: Path) -> RunReader:
    directory = HandmadeJob(store, "unused", written=False).store
    return RunReader(lambda name: find_job([directory], name), lambda: [directory])


def repeat(number: int, outcome: str = "succeeded", arm: str | None = None) -> dict[str, Any]:
    return {
        "repeat": number,
        "outcome": outcome,
        "arm": arm,
        "started": START + 1000 * number,
        "wall_seconds": 2.5,
    }


def measured_repeats(job: HandmadeJob, *values: float) -> None:
    for number, value in enumerate(values):
        job._append(
            "metrics.jsonl",
            {
                "seq": number, "src": "log", "repeat": number, "off": number, "i": 0, "k": 0, "name": "loss",
                "value": value, "units": "nats", "timestamp": START + 1000 * number + 1,
            },
        )  # fmt: skip


def test_each_named_job_is_a_side_and_vs_groups_several(tmp_path: Path) -> None:
    for name, value in (("a1", 1.0), ("a2", 2.0), ("b1", 3.0)):
        ended(tmp_path, name, 9.0, value)

    two = reader(tmp_path).sides(["a1", "b1"])
    joined = reader(tmp_path).sides(["a1", "a2", "vs", "b1"])

    assert [side.name for side in two] == ["a1", "b1"]
    assert [[run.values["loss"].value for run in side.runs] for side in joined] == [[1.0, 2.0], [3.0]]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["a1"], "is only one side"),
        (["a1", "a1"], "named 2 times"),
        (["a1", "vs"], "a side is empty"),
        (["a1", "bad"], "bad has no successful run.*bad ended as failed"),
        (["a1", "open"], "open has not ended"),
        (["a1", "x=y"], "no job with the label x=y"),
        (["a1", "x="], "write KEY=VALUE"),
    ],
)
def test_contradictory_sides_are_refused(tmp_path: Path, words: list[str], why: str) -> None:
    ended(tmp_path, "a1", 1.0)
    ended(tmp_path, "bad", 1.0, outcome="failed")
    made(tmp_path, "open")

    with pytest.raises(UsageError, match=why):
        reader(tmp_path).sides(words)


def test_a_label_selects_all_its_successful_jobs(tmp_path: Path) -> None:
    for i, outcome in enumerate(("succeeded", "failed", "succeeded")):
        ended(tmp_path, f"j{i}", float(i), outcome=outcome, at=-i, labels={"variant": "a"})
    ended(tmp_path, "other", 1.0, labels={"variant": "b"})

    side, other = reader(tmp_path).sides(["variant=a", "variant=b"])
    newest = reader(tmp_path).labelled("variant=a", last=1)

    # In order of time
    assert [run.job_id for run in side.runs] == ["j2", "j0"]
    assert [run.job_id for run in other.runs] == ["other"]
    assert [job.runs.job_id for job in newest] == ["j0"]


def test_each_repeat_that_succeeded_is_a_run(tmp_path: Path) -> None:
    job = made(tmp_path, "r")
    measured_repeats(job, 1.0, 2.0, 3.0)
    job.ends(repeats=[repeat(0), repeat(1, "failed"), repeat(2)])

    found = job_runs(job.record)

    assert [(run.name, run.values["loss"].value) for run in found.runs] == [("r #0", 1.0), ("r #2", 3.0)]
    assert found.runs[0].values["wall time"].value == 2.5
    assert found.left_out == ("r #1 ended as failed",)


def test_the_arms_of_one_job_are_its_sides(tmp_path: Path) -> None:
    job = made(tmp_path, "ab")
    described(job, repeat=Repeat(runs=4, arms=(Arm(name="a", argv=("x",)), Arm(name="b", argv=("y",)))))
    measured_repeats(job, 1.0, 5.0, 2.0, 6.0)
    job.ends(repeats=[repeat(i, arm="ab"[i % 2]) for i in range(4)])

    a, b = reader(tmp_path).sides(["ab"])

    assert [(side.name, [run.values["loss"].value for run in side.runs]) for side in (a, b)] == [
        ("ab a", [1.0, 2.0]),
        ("ab b", [5.0, 6.0]),
    ]
    assert [[run.block for run in side.runs] for side in (a, b)] == [[0, 1], [0, 1]]


def test_arms_of_a_job_compared_with_other_jobs_are_separate_metrics(tmp_path: Path) -> None:
    for name in ("one", "two"):
        job = made(tmp_path, name)
        measured_repeats(job, 1.0, 5.0)
        job.ends(repeats=[repeat(0, arm="a"), repeat(1, arm="b")])

    side, _ = reader(tmp_path).sides(["one", "two"])

    assert [{name: each.value for name, each in run.values.items()} for run in side.runs] == [
        {"loss{arm=a}": 1.0, "wall time{arm=a}": 2.5},
        {"loss{arm=b}": 5.0, "wall time{arm=b}": 2.5},
    ]


def test_the_machines_of_a_job_are_named_as_far_as_they_are_known(tmp_path: Path) -> None:
    ended(tmp_path, "here", 1.0)
    there = made(tmp_path, "there", nodes=2)
    for rank in (0, 1):
        key = there.record.node(rank=rank).key("environment.json")
        there.store.put(key, b'{"instance": {"type": "c5.large"}}')
    there.ends()
    reads = reader(tmp_path)

    assert reads.job(find_job([there.store], "here")).machines == "1 node"
    assert reads.job(find_job([there.store], "there")).machines == "2 x c5.large"


def test_values_of_several_nodes_are_combined_for_a_run(tmp_path: Path) -> None:
    job = made(tmp_path, "n", nodes=2)
    job.on(0).measures("loss", 1.0)
    job.on(1).measures("loss", 3.0)
    job.on(1).measures("cpu_percent", 50.0, src="host")
    job.ends()

    (run,) = job_runs(job.record).runs
    assert (run.values["loss"].value, run.values["loss"].ranks) == (2.0, 2)
    assert "cpu_percent" not in run.values

    described(job, metrics=tuple(replace(each, over_ranks=OverRanks.SUM) for each in job.job.metrics))
    assert job_runs(job.record).runs[0].values["loss"].value == 4.0


def test_the_expected_scatter_is_estimated_from_earlier_runs(tmp_path: Path) -> None:
    for i, value in enumerate((100.0, 102.0, 99.0, 101.0, 100.0)):
        ended(tmp_path, f"old{i}", value, at=i)
    ended(tmp_path, "elsewhere", 5.0, name="other")
    ended(tmp_path, "new", 100.0, at=9)
    reads = reader(tmp_path)

    scatter = reads.earlier_scatter(reads.sides(["new", "old0"])[0], but=["new", "old0"])

    assert 0.005 < scatter["loss"] < 0.05


def generation(number: int, *members: int) -> dict[str, Any]:
    return {
        "generation": number,
        "outcome": "failed",
        "started": START + 1000 * number,
        "wall_seconds": 10.0 + number,
        "members": list(members),
    }


def of_generations(store: Path, job_id: str, *sizes: int, **more: Any) -> HandmadeJob:
    """Make a job whose generation n has the loss n on so many nodes."""
    job = made(store, job_id, nodes=max(sizes), **more)
    for number in range(len(sizes)):
        job.on(0).record_of("loss", float(number), generation=number)
    job.ends(generations=[generation(number, *range(size)) for number, size in enumerate(sizes)])
    return job


def test_only_generations_with_as_many_nodes_as_the_last_are_compared(tmp_path: Path) -> None:
    of_generations(tmp_path, "a", 4, 2, 4, 2)
    of_generations(tmp_path, "b", 2, 4, 3)
    of_generations(tmp_path, "c", 4)

    sides = reader(tmp_path).sides(["a", "b", "c"])

    values = [(side.runs[0].values["loss"].value, side.runs[0].values["wall time"].value) for side in sides]
    assert values == [(3.0, 13.0), (0.0, 10.0), (0.0, 10.0)]
    assert [side.left_out for side in sides] == [
        ["a: the comparison uses generation 1, 3 on 2 nodes; left out: 0 on 4 nodes, 2 on 4 nodes"],
        ["b: the comparison uses generation 0 on 2 nodes; left out: 1 on 4 nodes, 2 on 3 nodes"],
        ["c: no generation ran on 2 nodes"],
    ]
    assert [side.jobs[0].machines for side in sides] == ["2 nodes", "2 nodes", "4 nodes"]


def test_warm_up_is_left_out_in_each_generation(tmp_path: Path) -> None:
    job = made(tmp_path, "one")
    warm = (replace(each, warmup=timedelta(seconds=1)) for each in job.job.metrics)
    described(job, metrics=tuple(warm))
    for number, second, value in ((0, 0, 1.0), (0, 2, 2.0), (1, 5, 30.0), (1, 7, 4.0)):
        job.record_of("loss", value, time=START + 1000 * second, generation=number)
    job.ends(generations=[generation(0, 0), {**generation(1, 0), "started": START + 5000}])

    (run,) = job_runs(job.record).runs

    assert (run.values["loss"].value, run.values["loss"].count) == (4.0, 1)
