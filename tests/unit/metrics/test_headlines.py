from __future__ import annotations

import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.descriptor import Headline, Metric, OverRanks
from bai_agent.job.job_headlines import headline_of, headlines_of_nodes
from bai_agent.job.record_types import HeadlineValue
from bai_agent.metrics import headlines as module
from bai_agent.metrics.headlines import headlines


def records(path: Path, *values: float, name: str = "loss", step_ms: int = 1000, **more: Any) -> Path:
    with path.open("a") as file:
        for i, value in enumerate(values):
            each = {"src": "log", "name": name, "value": value, "timestamp": 1000 + i * step_ms, **more}
            file.write(json.dumps(each, separators=(",", ":")) + "\n")
    return path / "metrics.jsonl" if path.is_dir() else path


def loss(**more: Any) -> Metric:
    return Metric(name="loss", pattern="x", units="nats", **more)


@pytest.mark.parametrize(
    ("how", "value"), [("last", 4.0), ("min", 1.0), ("max", 9.0), ("mean", 5.0), ("median", 5.0)]
)
def test_the_metric_says_which_number_stands_for_the_run(tmp_path: Path, how: str, value: float) -> None:
    file = records(tmp_path / "metrics.jsonl", 6, 1, 9, 5, 4)
    (found,) = headlines(file, [loss(headline=Headline(how))], began=1000).items()
    assert (found[0], found[1].value, found[1].units) == ("loss", value, "nats")


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9),
    st.sampled_from(Headline),
)
def test_any_finite_values_have_a_finite_headline_between_them(values: list[float], how: Headline) -> None:
    found = headline_of(how, values)

    assert math.isfinite(found)
    assert min(values) <= found <= max(values)


def test_nobody_waits_for_headlines_that_are_not_wanted(tmp_path: Path) -> None:
    file = records(tmp_path / "metrics.jsonl", 6, 1)
    assert headlines(file, [loss()], began=1000, stopping=lambda: True) == {}


def test_warm_up_is_left_out(tmp_path: Path) -> None:
    file = records(tmp_path / "metrics.jsonl", 100, 50, 2, 3)
    by_values = loss(headline=Headline.MAX, warmup_values=2)
    by_time = loss(headline=Headline.MAX, warmup=timedelta(seconds=2))
    for metric in (by_values, by_time):
        assert headlines(file, [metric], began=1000)["loss"].value == 3
    assert headlines(file, [loss(warmup_values=4)], began=1000) == {}


def values_of(found: dict[str, HeadlineValue]) -> dict[str, float]:
    return {name: each.value for name, each in found.items()}


def test_each_set_of_labels_has_its_own_number(tmp_path: Path) -> None:
    file = records(tmp_path / "metrics.jsonl", 1, labels={"size": "8"})
    records(file, 2, labels={"size": "16"})
    found = headlines(file, [loss(over_ranks=OverRanks.SUM)], began=1000)
    assert values_of(found) == {"loss{size=8}": 1, "loss{size=16}": 2}


def test_arms_are_told_apart_and_failed_runs_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for repeat, value in enumerate((1.0, 100.0, 3.0, 300.0, 9.0, 900.0)):
        records(file, value, repeat=repeat)
    found = headlines(file, [loss()], began=1000, arms=["old", "new"] * 3, failed=[4, 5])
    assert values_of(found) == {"loss{arm=old}": 2.0, "loss{arm=new}": 200.0}


@pytest.mark.parametrize(
    ("how", "value"),
    [("each", 30.0), ("mean", 30.0), ("sum", 60.0), ("min", 20.0), ("max", 40.0)],
)
def test_headlines_of_nodes_are_over_the_ranks_of_each_run(tmp_path: Path, how: str, value: float) -> None:
    metric = loss(over_ranks=OverRanks(how))
    nodes = []
    for rank, values in enumerate([(2.0, 20.0, 900.0, 200.0), (4.0, 40.0, 900.0, 400.0)]):
        file = tmp_path / f"{rank}.jsonl"
        for repeat, each in enumerate(values):
            records(file, each, repeat=repeat)
        nodes.append(headlines(file, [metric], began=1000, of_several_nodes=True))

    (found,) = headlines_of_nodes(nodes, failed=[2]).values()

    assert (found.value, found.ranks, found.runs) == (value, 2, None)


def test_repeats_are_told_by_their_median(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for repeat, values in enumerate([(1.0, 10.0), (2.0, 30.0), (3.0, 20.0)]):
        records(file, *values, repeat=repeat)
    assert headlines(file, [loss()], began=1000)["loss"].value == 20.0


def test_other_records_and_a_cut_line_do_not_count(tmp_path: Path) -> None:
    file = records(tmp_path / "metrics.jsonl", 5)
    records(file, 7, src="host")
    records(file, 8, name="other")
    with file.open("a") as more:
        more.write('{"src":"log","name":"loss","val')
    assert headlines(file, [loss()], began=None)["loss"].value == 5


def test_too_many_records_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = records(tmp_path / "metrics.jsonl", 5)
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    assert headlines(file, [loss()], began=1000) == {}
    assert headlines(tmp_path / "gone", [loss()], began=1000) == {}
