"""The combinations of a group with headline, interval and cost, and the plot of the headline."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from handmade_job import START, HandmadeJob, job_status

from bai_agent.errors import RecordError
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store.directory import DirectoryStore
from executor.documents.group_document import combination_blocks, scaling_plot
from executor.jobs.group_comparison import GroupComparison, compared_group, group_view, rated
from executor.jobs.job_group import Decision, GroupNamedError, GroupRecord, new_decision
from executor.jobs.job_lookup import find_job
from executor.jobs.prune import prune_groups
from executor.planning.matrix import matrix_plan
from executor.planning.request import JobRequest
from executor.report.html import html_page

SWEEP = """\
spec_version = "0.1.0"
[info]
description = "A sweep"
[hardware]
instance_type = "t3.small"
strategy = "torchrun"
[hardware.distributed]
num_instances = 1
[ml]
benchmark_code = "echo hello"
[matrix]
rounds = 2
"ml.args" = ["a", "b"]
"hardware.distributed.num_instances" = [1, 2, 4]
"""
HOUR_MS = 3_600_000


def compared(
    folder: Path, values: dict[str, float], *, units: str = "images/s", first: Sequence[Decision] = ()
) -> GroupComparison:
    """Return a group of which these jobs have ended, an hour after their launch; their machines cost 2 USD an hour.

    first: decisions before theirs.
    """
    (folder / "b.toml").write_text(SWEEP)
    plan, _ = matrix_plan(JobRequest(file=folder / "b.toml"), "g")
    store = DirectoryStore(folder / "store")
    group = GroupRecord(store, "g")
    assert group.create(plan)
    statuses: dict[str, Any] = {}
    for number, decision in enumerate(first):
        assert group.decide(number, decision)
    for number, job in enumerate((each for each in plan.jobs if each.job_id in values), len(first)):
        assert group.decide(number, new_decision(job, bound=100.0, hourly=2.0))
        made = HandmadeJob(store.folder, job.job_id, keeps=True)
        made.measures("loss", values[job.job_id], units=units)
        made.ends(ended=START + HOUR_MS)
        store.put(made.record.key("attempts/0/launched.json"), b"{}")
        os.utime(store.folder / made.record.key("attempts/0/launched.json"), (START / 1000, START / 1000))
        statuses[job.job_id] = job_status(made.record)
    return compared_group(group_view(group, statuses))


def test_a_combination_has_its_headline_its_interval_and_its_cost_per_unit(tmp_path: Path) -> None:
    found = compared(tmp_path, {"g.001.1": 10.0, "g.001.2": 14.0, "g.002.1": 20.0})

    both, one, none = found.rows[:3]
    assert (found.metric, both.units, both.values) == ("loss", "images/s", (10.0, 14.0))
    assert both.mean == 12
    assert both.half_width == pytest.approx(12.706205 * math.sqrt(8) / math.sqrt(2))
    # two jobs of an hour and two minutes each
    assert both.dollars == pytest.approx(2 * 2.0 * 62 / 60)
    assert both.per_unit == pytest.approx(2.0 / 3600 / 12)
    assert both.state == "2 SUCCEEDED"
    assert (one.mean, one.half_width, one.state) == (20.0, None, "1 SUCCEEDED, 1 NOT STARTED")
    assert (none.mean, none.dollars, none.per_unit, none.state) == (None, None, None, "2 NOT STARTED")
    json.dumps(found.as_table(), allow_nan=False)


def test_a_combinations_cost_is_shown_although_one_of_its_jobs_was_refused(tmp_path: Path) -> None:
    # given a combination that is refused in the first round
    values = {"g.001.2": 14.0}
    (tmp_path / "b.toml").write_text(SWEEP)
    plan, _ = matrix_plan(JobRequest(file=tmp_path / "b.toml"), "g")
    refused = next(each for each in plan.jobs if each.job_id == "g.001.1")

    found = compared(tmp_path, values, first=[new_decision(refused, refused="no credentials", exit_code=5)])

    assert found.rows[0].state == "1 REFUSED, 1 SUCCEEDED"
    assert found.rows[0].per_unit == pytest.approx(2.0 / 3600 / 14)


@pytest.mark.parametrize(
    ("units", "what"), [("images/s", "images"), ("MiB/sec", "MiB"), ("ms", None), ("/s", None), ("m/h", None)]
)
def test_a_cost_per_unit_is_shown_only_for_rates_per_second(units: str, what: str | None) -> None:
    assert rated(units) == what


def test_a_plot_has_the_number_of_machines_as_its_axis_and_a_line_for_each_other_value(
    tmp_path: Path,
) -> None:
    found = compared(tmp_path, {f"g.{number:03}.1": float(number) for number in (1, 2, 3, 4, 6)})

    plot = scaling_plot(found)

    assert plot is not None
    assert plot.title.text == "loss over hardware.distributed.num_instances"
    assert [each.name for each in plot.lines] == ["ml.args=a", "ml.args=b"]
    assert [len(each.points) for each in plot.lines] == [3, 2]
    for line in plot.lines:
        xs, ys = [x for x, _, _ in line.points], [y for _, y, _ in line.points]
        assert xs == sorted(xs)
        assert ys == sorted(ys, reverse=True)
        assert all(0 <= x <= plot.width for x in xs)
        assert all(0 <= y <= plot.height for y in ys)
    page = html_page("<g>", combination_blocks(found))
    assert page.count("<polyline") == 2
    assert "&lt;g&gt;" in page


def test_a_single_point_and_an_axis_of_words_have_no_plot(tmp_path: Path) -> None:
    assert scaling_plot(compared(tmp_path, {"g.001.1": 1.0})) is None


def test_a_group_id_given_as_a_job_is_refused_with_advice(tmp_path: Path) -> None:
    found = compared(tmp_path, {"g.001.1": 1.0})

    with pytest.raises(GroupNamedError, match="`bai status g` lists its jobs"):
        find_job([found.view.group.store], "g")
    assert find_job([found.view.group.store], "g.001").job_id == "g.001.1"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("jobs", [{"job_id": "other.001", "set": {}}], "is not a job of the group"),
        ("jobs", [{"job_id": "../g.001", "set": {}}], "is not a job of the group"),
        ("max_parallel", "two", "max_parallel: expected a count"),
        ("max_cost", "much", "max_cost: expected a number"),
    ],
)
def test_a_malformed_group_record_is_refused_with_its_key(
    tmp_path: Path, key: str, value: object, problem: str
) -> None:
    group = compared(tmp_path, {}).view.group
    file = tmp_path / "store" / "g" / "group.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))

    with pytest.raises(RecordError, match=problem) as raised:
        group.plan()

    assert "group.json" in str(raised.value)


def test_an_old_group_is_pruned_only_after_its_last_job(tmp_path: Path) -> None:
    store = compared(tmp_path, {"g.001.1": 1.0}).view.group.store
    assert isinstance(store, DirectoryStore)
    later = now_ms() + HOUR_MS

    prune_groups(store, before_ms=later)
    assert (tmp_path / "store" / "g").exists()
    store.delete("g.001.1/")
    prune_groups(store, before_ms=now_ms() - HOUR_MS)
    assert (tmp_path / "store" / "g").exists()

    prune_groups(store, before_ms=later)
    assert not (tmp_path / "store" / "g").exists()
