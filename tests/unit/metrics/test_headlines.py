"""The number that stands for a run: the same whether it is kept while records are made, or made of all records at the end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.descriptor.metric_tables import Headline, Metric, OverRanks
from bai_agent.job.figures import LIMIT, median_of
from bai_agent.job.job_headlines import headline_of, headlines_of_nodes
from bai_agent.job.record_types import HeadlineValue
from bai_agent.metrics import headlines as module
from bai_agent.metrics import spilled_values
from bai_agent.metrics.headlines import Headlines, NodeHeadlines
from bai_agent.metrics.records import BlockOrigin, RecordFile, Value


def records(
    path: Path,
    *values: float,
    name: str = "loss",
    src: str = "log",
    labels: Mapping[str, str] | None = None,
    repeat: int | None = None,
) -> Path:
    """Add records, one a second."""
    file = RecordFile(path, [])
    more = f',"labels":{json.dumps(labels)}' if labels else ""
    for i, value in enumerate(values):
        each = Value(i, name, repr(value), "", more)
        file.add_values(src, file.seq, [each], timestamp=1000 + i * 1000, repeat=repeat)
    file.close()
    return path


def headlines(
    path: Path, metrics: Sequence[Metric], *, began: int | None, **more: Any
) -> dict[str, HeadlineValue]:
    """Return the headlines that are made of the records at `path`."""
    found = Headlines(metrics, started=lambda _: began)
    found.miss()
    return found.values(path, **more).of_job


def loss(**more: Any) -> Metric:
    return Metric(name="loss", pattern="x", units="nats", **more)


@pytest.mark.parametrize(
    ("how", "value"), [("last", 4.0), ("min", 1.0), ("max", 9.0), ("mean", 5.0), ("median", 5.0)]
)
def test_the_headline_of_a_metric_is_the_statistic_chosen_for_it(
    tmp_path: Path, how: str, value: float
) -> None:
    file = records(tmp_path / "metrics.jsonl", 6, 1, 9, 5, 4)
    (found,) = headlines(file, [loss(headline=Headline(how))], began=1000).items()
    assert (found[0], found[1].value, found[1].units) == ("loss", value, "nats")


@given(
    st.lists(st.floats(-LIMIT, LIMIT), min_size=1, max_size=9),
    st.sampled_from(Headline),
)
def test_the_headline_lies_between_the_least_and_the_greatest_value(
    values: list[float], how: Headline
) -> None:
    found = headline_of(how, values)

    assert min(values) <= found <= max(values)


def test_computing_headlines_is_abandoned_on_a_stop(tmp_path: Path) -> None:
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


def test_each_set_of_labels_has_its_own_headline(tmp_path: Path) -> None:
    file = records(tmp_path / "metrics.jsonl", 1, labels={"size": "8"})
    records(file, 2, labels={"size": "16"})
    found = headlines(file, [loss(over_ranks=OverRanks.SUM)], began=1000)
    assert values_of(found) == {"loss{size=8}": 1, "loss{size=16}": 2}


def test_arms_are_distinguished_and_failed_runs_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for repeat, value in enumerate((1.0, 100.0, 3.0, 300.0, 9.0, 900.0)):
        records(file, value, repeat=repeat)
    found = headlines(file, [loss()], began=1000, arms=["old", "new"] * 3, failed=[4, 5])
    assert values_of(found) == {"loss{arm=old}": 2.0, "loss{arm=new}": 200.0}


@pytest.mark.parametrize(
    ("how", "value"),
    [("each", 30.0), ("mean", 30.0), ("sum", 60.0), ("min", 20.0), ("max", 40.0)],
)
def test_headlines_of_several_nodes_are_combined_over_ranks_for_each_run(
    tmp_path: Path, how: str, value: float
) -> None:
    metric = loss(over_ranks=OverRanks(how))
    nodes = []
    for rank, values in enumerate([(2.0, 20.0, 900.0, 200.0), (4.0, 40.0, 900.0, 400.0)]):
        file = tmp_path / f"{rank}.jsonl"
        for repeat, each in enumerate(values):
            records(file, each, repeat=repeat)
        nodes.append(headlines(file, [metric], began=1000, of_several_nodes=True))

    (found,) = headlines_of_nodes(nodes, failed=[2]).values()

    assert (found.value, found.ranks, found.runs) == (value, 2, None)


def test_the_headline_of_repeats_is_their_median(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for repeat, values in enumerate([(1.0, 10.0), (2.0, 30.0), (3.0, 20.0)]):
        records(file, *values, repeat=repeat)
    assert headlines(file, [loss()], began=1000)["loss"].value == 20.0


def test_other_records_and_incomplete_lines_are_ignored(tmp_path: Path) -> None:
    file = records(tmp_path / "metrics.jsonl", 5)
    records(file, 7, src="host")
    records(file, 8, name="other")
    with file.open("a") as more:
        more.write('{"src":"log","name":"loss","val')
    assert headlines(file, [loss()], began=None)["loss"].value == 5


def test_a_missing_metrics_file_has_no_headlines(tmp_path: Path) -> None:
    assert headlines(tmp_path / "gone", [loss()], began=1000) == {}


METRICS = (
    Metric(name="last", pattern="x"),
    Metric(name="least", pattern="x", headline=Headline.MIN, warmup_values=2),
    Metric(name="greatest", pattern="x", headline=Headline.MAX, warmup=timedelta(milliseconds=20)),
    Metric(name="mean", pattern="x", headline=Headline.MEAN),
    Metric(name="middle", pattern="x", headline=Headline.MEDIAN, warmup_values=1),
    Metric(name='a "name" \\ and é', pattern="x", headline=Headline.MEDIAN),
    Metric(name="middle", pattern="y", headline=Headline.MEDIAN, warmup_values=1),
)
numbers = st.one_of(
    st.integers(-(2**63), 2**64 - 1).map(str),
    st.sampled_from(
        ("0", "-0.0", "5e-324", "1e300", "-1e300", "1e301", "-1.7e308", "1E+2", "0.1", "0.2", "0.3")
    ),
    st.floats(-LIMIT, LIMIT).map(repr),
)
extras = st.sampled_from(
    (
        "",
        *(',"step":12', ',"step":1e3,"labels":{"a": "b}"}', ',"labels":{"a": "b}"}'),
        *(
            ',"labels":{"a": "\\"host\\""}',
            ',"labels":{"b": "1", "a": "2"}',
            ',"labels":{"a": "2", "b": "1"}',
        ),
    )
)
found = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, len(METRICS) - 1), st.integers(0, 3), numbers, extras),
    max_size=30,
).map(lambda each: sorted(each, key=lambda one: one[:3]))
batches = st.lists(
    st.tuples(
        found,
        st.sampled_from(("log", "emit", "log/3", "host", "run", "file")),
        st.sampled_from((None, 0, 1, 2)),
        st.booleans(),
    ),
    max_size=12,
)


def made_of(path: Path, started: int | None) -> dict[tuple[Any, ...], float]:
    """Return the number of each series and run, in the plainest way."""
    series: dict[tuple[Any, ...], list[float]] = {}
    starts: dict[int | None, int] = {}
    wanted = {metric.name: metric for metric in METRICS}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        metric = wanted.get(record["name"])
        if record["src"] in ("host", "run") or metric is None:
            continue
        run = record.get("generation", record.get("repeat"))
        if abs(record["value"]) > LIMIT:
            continue
        if metric.warmup is not None:
            start = starts.setdefault(run, record["timestamp"] if started is None else started)
            if record["timestamp"] - start < 20:
                continue
        labels = record.get("labels", {})
        key = metric.name, tuple(sorted(labels.items())), run
        series.setdefault(key, []).append(float(record["value"]))
    return {
        key: headline_of(wanted[key[0]].headline, values[wanted[key[0]].warmup_values :])
        for key, values in series.items()
        if len(values) > wanted[key[0]].warmup_values
    }


@pytest.mark.parametrize("kept", [0, 20, module.MOST_KEPT])
@given(
    batches=batches,
    began=st.sampled_from((None, 1010)),
    restarts=st.booleans(),
    room=st.sampled_from((None, 10, 1000)),
)
def test_the_headline_covers_all_values_in_memory_or_on_disk(
    kept: int,
    batches: list[tuple[Any, str, int | None, bool]],
    began: int | None,
    restarts: bool,
    room: int | None,
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # given that medians may keep so many values in memory, and so many others in a file
        patch.setattr(module, "MOST_KEPT", kept)
        patch.setattr(spilled_values, "MOST_SPILLED", room or 0)
        patch.setattr(spilled_values, "_PENDING", 4)
        path = Path(folder) / "metrics.jsonl"
        live = Headlines(
            METRICS,
            started=lambda _: began,
            restarts=restarts,
            spill_folder=None if room is None else Path(folder),
        )
        file = RecordFile(path, METRICS, headlines=live, restarts=restarts)

        # when records are made
        for number, (found, src, repeat, late) in enumerate(batches):
            where: dict[str, Any] = {"timestamp": 1000 + 10 * number, "late": late, "repeat": repeat}
            if src.startswith("log"):
                labels = '"process_rank":"3"' if src != "log" else ""
                file.add_found(
                    [(off + 10 * number, *rest) for off, *rest in found],
                    BlockOrigin(src=src, labels=labels, **where),
                )
            else:
                values = [Value(i, METRICS[i].name, value, "", extra) for _, i, _, value, extra in found]
                file.add_values(src, number, sorted(values, key=lambda each: each.i), **where)
        file.close()

        # then the headlines that were kept are those that are read, and those of all values
        kept_live = numbers_of(live, path)
        fresh = Headlines(METRICS, started=lambda _: began, restarts=restarts)
        fresh.miss()
        assert kept_live == numbers_of(fresh, path) == made_of(path, began)


def numbers_of(headlines: Headlines, path: Path) -> dict[tuple[Any, ...], float]:
    """Return the number of each series and run, as `made_of` does."""
    return {
        (name, tuple(sorted([*labels, *([("process_rank", process)] if process else [])])), repeat): number
        for (name, labels, process, repeat), number in headlines._numbers(path, lambda: False).items()
    }


@pytest.fixture
def few_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 100)
    monkeypatch.setattr(spilled_values, "_PENDING", 40)


def emitted(path: Path, values: Sequence[float], *, spill_folder: Path | None) -> Headlines:
    """Return the headlines of values that were emitted, while their records were made."""
    metric = Metric(name="m", pattern="x", headline=Headline.MEDIAN)
    live = Headlines([metric], started=lambda _: 1000, spill_folder=spill_folder)
    file = RecordFile(path, [metric], headlines=live)
    for number in range(0, len(values), 7):
        some = [Value(i, "m", repr(value)) for i, value in enumerate(values[number : number + 7])]
        file.add_values("emit", number, some, timestamp=1000 + number)
    file.close()
    return live


@pytest.mark.parametrize("order", [sorted, list, lambda each: [*each[::2], *each[1::2]]])
def test_a_median_of_more_values_than_fit_in_memory_is_computed_from_a_spill_file(
    tmp_path: Path, few_kept: None, order: Callable[[list[float]], list[float]]
) -> None:
    values = order([math.sin(number) + number / 1000 for number in range(3000)])
    path = tmp_path / "metrics.jsonl"
    live = emitted(path, values, spill_folder=tmp_path)

    # nothing of it has a name, and memory keeps few
    assert list(tmp_path.iterdir()) == [path]
    assert live._kept <= 100

    path.unlink()
    assert live.values(path).of_job["m"].value == median_of(values)


@pytest.mark.parametrize("room", [0, 1000])
def test_without_disk_space_a_median_is_read_from_the_records(
    tmp_path: Path, few_kept: None, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    values = [math.sin(number) for number in range(3000)]
    folder = tmp_path / "folder"
    if room:
        # else there is no such folder
        folder.mkdir()
        monkeypatch.setattr(spilled_values, "MOST_SPILLED", room or 0)

    live = emitted(tmp_path / "metrics.jsonl", values, spill_folder=folder)

    assert live.values(tmp_path / "metrics.jsonl").of_job["m"].value == median_of(values)
    # and the benchmark has the room
    assert sizes_of_open_files(folder) == ([0] if room else [])


def sizes_of_open_files(folder: Path) -> list[int]:
    """Return the sizes of this process's open files in `folder`, also of those without a name."""
    files = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [
        path.stat().st_size
        for path in files
        if path.is_symlink() and str(path.readlink()).startswith(f"{folder}/")
    ]


def test_if_the_start_is_recorded_late_headlines_are_computed_from_all_records(tmp_path: Path) -> None:
    # given a warm-up of 20 ms, and a start that is not known when the first record is made
    path, start = tmp_path / "metrics.jsonl", [None, 1000]
    metric = Metric(name="m", pattern="x", headline=Headline.MIN, warmup=timedelta(milliseconds=20))
    live = Headlines([metric], started=lambda _: start[-1] if len(start) == 1 else start.pop(0))
    file = RecordFile(path, [metric], headlines=live)
    for number, value in enumerate((1, 2, 3, 4)):
        file.add_values("emit", number, [Value(0, "m", str(value))], timestamp=1000 + 10 * number)
    file.close()
    assert live.values(path).of_job["m"].value == 3


def of_generations(
    path: Path, told: Sequence[tuple[int, str, float]], metrics: Sequence[Metric], **more: Any
) -> NodeHeadlines:
    """Return the headlines of a job whose generations emitted these names and values, in this order."""
    live = Headlines(metrics, started=lambda _: 1000, restarts=True)
    file = RecordFile(path, [], headlines=live, restarts=True)
    for number, (generation, name, value) in enumerate(told):
        each = Value(0, name, repr(value))
        file.add_values("emit", number, [each], timestamp=1000 + number, repeat=generation)
    file.close()
    return live.values(path, **more)


def test_each_metric_uses_the_last_generation_with_a_number(tmp_path: Path) -> None:
    metrics = [loss(headline=Headline.MAX, warmup_values=1), Metric(name="setup", pattern="x")]
    told = [(0, "loss", 9.0), (0, "loss", 8.0), (0, "setup", 3.0), (1, "loss", 7.0), (1, "loss", 5.0)]
    # The last generation has nothing but warm-up.
    found = of_generations(tmp_path / "metrics.jsonl", [*told, (2, "loss", 99.0)], metrics)

    assert {name: (each.value, each.generation) for name, each in found.of_job.items()} == {
        "loss": (5.0, 1),
        "setup": (3.0, 0),
    }
    assert {number: values_of(each) for number, each in found.of_generations.items()} == {
        0: {"loss": 8.0, "setup": 3.0},
        1: {"loss": 5.0},
    }


def test_headlines_of_a_job_combine_only_nodes_of_the_same_generation(tmp_path: Path) -> None:
    metric = loss(over_ranks=OverRanks.SUM)
    told: list[list[tuple[int, str, float]]] = [[(0, "loss", 1.0), (2, "loss", 4.0)], [(0, "loss", 20.0)]]
    nodes = [
        of_generations(tmp_path / f"{node}.jsonl", each, [metric], of_several_nodes=True).of_job
        for node, each in enumerate(told)
    ]

    (found,) = headlines_of_nodes(nodes, failed=()).values()

    assert (found.value, found.ranks, found.generation) == (4.0, 1, 2)


def test_with_too_many_series_the_oldest_generations_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SERIES", 3)
    told = [(generation, "loss", float(generation)) for generation in (0, 1, 2, 3, 0, 4)]

    found = of_generations(tmp_path / "metrics.jsonl", told, [loss()])

    assert (values_of(found.of_job), list(found.of_generations)) == ({"loss": 4.0}, [2, 3, 4])


def test_more_series_than_a_list_shows_have_no_headlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SERIES", 3)
    path = tmp_path / "metrics.jsonl"
    live = Headlines([loss()], started=lambda _: None)
    file = RecordFile(path, [], headlines=live)
    for number in range(4):
        more = f',"labels":{{"n":"{number}"}}'
        file.add_values("emit", number, [Value(0, "loss", "1", "", more)], timestamp=0)
        assert len(live.values(path).of_job) == (number + 1 if number < 3 else 0)
        assert len(headlines(path, [loss()], began=0)) == (number + 1 if number < 3 else 0)
    file.close()
