"""Whatever benchmarks call their metrics and labels, Prometheus' own parser reads the text."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from bai_agent.sinks.exposition import MOST_SERIES, LatestValues, label_names, metric_name

# Any text that a JSON file can hold, half surrogates among them.
texts = st.text(st.characters(), max_size=8)
records = st.fixed_dictionaries(
    {
        "name": texts,
        "value": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70),
        "units": texts,
        "labels": st.dictionaries(
            texts | st.sampled_from(["name", "job", "rank", "__name__", "a-b", "a_b"]), texts
        ),
    }
)


def latest(folder: Path, *, host_metrics: bool = False) -> LatestValues:
    return LatestValues(folder / "metrics.jsonl", {"job_id": "j"}, host_metrics=host_metrics)


def append(folder: Path, *lines: dict[str, Any]) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        for seq, line in enumerate(lines):
            file.write(json.dumps({"seq": seq, "src": "log", "timestamp": 1, **line}) + "\n")


def series(values: LatestValues) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Each series of the text, which has it once."""
    found = {}
    family: Any
    for family in text_string_to_metric_families(values.text().decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


@given(st.lists(records, max_size=6))
def test_any_names_and_labels_are_read_by_prometheus_parser(lines: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as name:
        append(Path(name), *lines)
        values = latest(Path(name))
        values.look()
        found = series(values)

    assert values.malformed == 0
    assert sum(value for (name, _), value in found.items() if name == "bai_values_total") == len(lines)
    assert all(dict(labels)["job_id"] == "j" for _, labels in found)
    if lines:
        last = lines[-1]
        assert float(last["value"]) in [
            value for (name, _), value in found.items() if name == metric_name(last["name"])
        ]


def test_the_last_value_is_exposed_and_all_values_are_counted(tmp_path: Path) -> None:
    values = latest(tmp_path)
    append(tmp_path, *({"name": "loss", "value": value} for value in (3, 2.5, 1e-05)))
    assert values.look()
    append(tmp_path, {"name": "loss", "value": 0.5}, {"name": "loss", "value": 7, "labels": {"kind": "test"}})

    assert values.look()
    assert not values.look()

    assert series(values) == {
        ("BAI_METRICS_loss", frozenset({("job_id", "j")})): 0.5,
        ("BAI_METRICS_loss", frozenset({("job_id", "j"), ("kind", "test")})): 7,
        ("bai_values_total", frozenset({("job_id", "j"), ("name", "loss")})): 4,
        ("bai_values_total", frozenset({("job_id", "j"), ("kind", "test"), ("name", "loss")})): 1,
    }


def test_the_original_metric_name_is_kept_in_a_label(tmp_path: Path) -> None:
    append(tmp_path, {"name": "loss/train", "value": 1}, {"name": "loss.train", "value": 2})
    values = latest(tmp_path)
    values.look()

    found = {
        dict(labels)["name"]: value
        for (name, labels), value in series(values).items()
        if name == "BAI_METRICS_loss_train"
    }
    assert found == {"loss/train": 1, "loss.train": 2}


def test_the_help_text_contains_the_units(tmp_path: Path) -> None:
    append(tmp_path, {"name": "rate", "value": 1, "units": "images/s"})
    values = latest(tmp_path)
    values.look()

    assert (
        "# HELP BAI_METRICS_rate rate, in images/s\n# TYPE BAI_METRICS_rate gauge\n" in values.text().decode()
    )


def test_labels_get_names_that_prometheus_accepts() -> None:
    labels = {"action-id": "a", "9th": "b", "__name__": "c", "rank": "d", "x-y": "e", "x_y": "f", "": "g"}

    assert label_names(labels) == {
        "action_id": "a",
        "label_9th": "b",
        "label___name__": "c",
        "exported_rank": "d",
        "x_y": "e;f",
        "label_": "g",
    }


def test_each_repeat_is_a_separate_series(tmp_path: Path) -> None:
    append(tmp_path, *({"name": "loss", "value": repeat, "repeat": repeat} for repeat in (0, 1)))
    values = latest(tmp_path)
    values.look()

    found = {
        dict(labels)["repeat"]: value
        for (name, labels), value in series(values).items()
        if name == "BAI_METRICS_loss"
    }
    assert found == {"0": 0, "1": 1}


def test_host_metrics_are_recorded_if_requested(tmp_path: Path) -> None:
    append(tmp_path, {"name": "cpu", "value": 1, "src": "host"})
    without, among = latest(tmp_path), latest(tmp_path, host_metrics=True)
    without.look()
    among.look()

    assert (without.records, among.records) == (0, 1)


def test_the_number_of_series_of_a_label_with_many_values_is_bounded(tmp_path: Path) -> None:
    append(tmp_path, *({"name": "m", "value": 1, "labels": {"id": str(n)}} for n in range(MOST_SERIES + 3)))
    values = latest(tmp_path)
    values.look()

    assert (values.records, values.left_out) == (MOST_SERIES, 3)


def test_malformed_metric_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        'nonsense\n{"seq": 0, "name": "x", "timestamp": 1, "value": 1e999}\n'
    )
    values = latest(tmp_path)
    values.look()

    assert (values.records, values.malformed) == (0, 2)
