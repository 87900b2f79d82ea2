"""Metrics of lines that are JSON objects."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from line_extraction import Notes, extract_metrics

from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.job.schema.json_path import last_key, read_json_path, value_at


def taken(data: bytes, path: str, **keys: Any) -> list[dict[str, Any]]:
    """Return value, step and labels of each record; the same by the fast and the plain way."""
    metric = Metric(name="m", json=path, **keys)
    found = extract_metrics(data, [metric])
    assert found == extract_metrics(data, [metric], fast=False)
    return [json.loads(f'{{"value":{number}{extra}}}') for _, _, _, number, extra in found]


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        ('{"loss": 0.5, "step": 3}', "loss", 0.5),
        ('  {"loss": 1e-05}\t', "loss", 1e-05),
        ('{"train": {"loss": 2}}', "train.loss", 2),
        ('{"train.loss": 2}', '"train.loss"', 2),
        ('{"a.b": {"c": [1, {"d": 4}]}}', '"a.b".c[1].d', 4),
        ('{"train/loss": 7, "train_loss": 8}', "train/loss", 7),
        ('{"train\\/loss": 7}', "train/loss", 7),
        ('{"a\\\\b": 7}', '"a\\\\b"', 7),
        ('{"a\\\\b": 7}', "a\\b", 7),
        ('{"\\u00e9": 7}', "é", 7),
        ('{"é": 7}', "é", 7),
        ('{"loss": 1, "loss": 2}', "loss", 2),
        ('{"other": NaN, "loss": 2}', "loss", 2),
        ('{"loss": 18446744073709551615}', "loss", 18446744073709551615),
        ('\x1b[1m{"loss": 3}\x1b[0m', "loss", 3),
    ],
)
def test_a_json_path_finds_its_number(line: str, path: str, value: float) -> None:
    assert taken(f"{line}\n".encode(), path) == [{"value": value}]


@pytest.mark.parametrize(
    "line",
    [
        'x {"loss": 1}',
        '{"loss": 1} x',
        '[{"loss": 1}]',
        '{"train": {"loss": 1}}',
        '{"note": "the \\"loss\\" is 1"}',
        '{"loss": 1',
        '{"loss": 01}',
        '{"loss": 1}{"loss": 2}',
        '{"loss": ' + "[" * 100_000,
        '{"loss":' * 100_000 + "1" + "}" * 100_000,
        "{'loss': 1}",
        "",
    ],
)
def test_other_lines_are_skipped(line: str) -> None:
    notes = Notes()

    assert extract_metrics(line.encode() + b"\n", [Metric(name="m", json="loss")], notes=notes) == []
    assert notes.not_numbers == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("1e999", "1e999"),
        ("true", "true"),
        ("null", "null"),
        ('"0.5"', "0.5"),
        ('"\\ud800"', "?"),
        ("[1]", "a list"),
        ("{}", "an object"),
        ("9" * 100_000, "9" * 400),
    ],
)
def test_a_json_value_that_is_not_a_finite_number_is_counted(value: str, shown: str) -> None:
    notes = Notes()
    data = f'{{"loss": {value}}}\n'.encode()

    assert extract_metrics(data, [Metric(name="m", json="loss")], notes=notes) == []
    assert notes.not_numbers == [(0, shown)]


def test_step_and_labels_come_from_the_same_object() -> None:
    data = b'{"l": 1, "n": {"step": 8}, "split": "eval", "cfg": {"bs": 32, "amp": true}, "gone": null}\n{"l": 2, "n": 3}\n'

    found = taken(data, "l", json_step="n.step", json_labels=("split", "cfg.bs", "cfg.amp", "gone", "cfg"))

    assert found == [
        {"value": 1, "step": 8, "labels": {"split": "eval", "bs": "32", "amp": "true"}},
        {"value": 2},
    ]


def test_labels_are_truncated_and_unprintable_characters_replaced() -> None:
    line = json.dumps({"loss": 1, "a": "one\nline\x1b[2J", "b": "x" * 1000, "c": "\ud800"})

    (found,) = taken(line.encode() + b"\n", "loss", json_labels=("a", "b", "c"))

    assert found["labels"] == {"a": "one line [2J", "b": "x" * 256, "c": "?"}


def test_patterns_and_paths_are_combined_in_order() -> None:
    chosen = [Metric(name="a", pattern=r'"a": (\d)'), Metric(name="b", json="b"), Metric(name="c", json="a")]

    found = extract_metrics(b'{"a": 1, "b": 2}\n"a": 3\n', chosen)

    assert [each[:4] for each in found] == [(0, 0, 0, "1"), (0, 1, 0, "2"), (0, 2, 0, "1"), (17, 0, 0, "3")]


KEYS = ("loss", "a.b", "é", "a/b", 'q"', "<", "x y")
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["", "loss", '"loss"'])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from(KEYS), values, max_size=4)
lines = st.one_of(
    st.builds(lambda value, plain: json.dumps(value, ensure_ascii=plain), objects, st.booleans()),
    st.sampled_from(['"loss"', "{", "}", '{"loss":1}', '{"loss":', "loss=1", "\x1b[1m", ""]),
).map(str.encode)
PATHS = ("loss", '"a.b"', "é", "a/b", r'"q\""', '"<"', "loss.loss", '"a.b"[0].loss', "x y")


@given(
    data=st.lists(lines, max_size=12).map(lambda each: b"\n".join([*each, b""])),
    paths=st.lists(st.sampled_from(PATHS), min_size=1, max_size=4),
)
def test_fast_and_plain_search_agree_with_the_json_module(data: bytes, paths: list[str]) -> None:
    chosen = [Metric(name="m", json=path) for path in paths]
    fast, plain = Notes(), Notes()

    found = extract_metrics(data, chosen, notes=fast)

    assert found == extract_metrics(data, chosen, fast=False, notes=plain)
    assert sorted(fast.not_numbers) == sorted(plain.not_numbers)
    assert [(each[0], each[1], float(each[3])) for each in found] == expected(data, paths)


def expected(data: bytes, paths: list[str]) -> list[tuple[int, int, float]]:
    found = []
    offset = 0
    for line in data.split(b"\n"):
        try:
            value = json.loads(line.replace(b"\x1b[1m", b""))
        except ValueError:
            value = None
        for index, path in enumerate(paths):
            try:
                number = value_at(value, read_json_path(path))
            except LookupError:
                continue
            if type(number) in (int, float) and math.isfinite(number):
                found.append((offset, index, float(number)))
        offset += len(line) + 1
    return found


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("loss", ("loss",)),
        ("train.loss", ("train", "loss")),
        ('"a.b".c', ("a.b", "c")),
        (r'"\u00e9\""', ('é"',)),
        ("x[0][12].y", ("x", 0, 12, "y")),
        ("it's here/now", ("it's here/now",)),
    ],
)
def test_a_json_path_consists_of_keys_and_positions(text: str, path: tuple[str | int, ...]) -> None:
    assert read_json_path(text) == path


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "[0]", "a[-1]", "a[x]", "a[", '"a', '"a"b', "a]", '"\\q"', "a.\n"]
)
def test_an_invalid_json_path_is_refused_with_the_position(text: str) -> None:
    with pytest.raises(ValueError, match="character"):
        read_json_path(text)


@given(st.text(max_size=30))
def test_any_text_is_a_valid_json_path_or_refused_with_a_sentence(text: str) -> None:
    with suppress(ValueError):
        assert isinstance(last_key(read_json_path(text)), str)
