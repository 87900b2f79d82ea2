"""How a match becomes a value: units, number formats, labels, and doubtful matches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.descriptor.metric_tables import Metric, NumberForm
from bai_agent.metrics.search.extract import Extraction
from bai_agent.metrics.search.patterns import compile_patterns
from bai_agent.metrics.search.reading import LABEL_LIMIT, Doubt


class Listener:
    """Notes what is doubtful or no number; lets every search take its time."""

    careful = False

    def __init__(self) -> None:
        self.others: list[str] = []
        self.doubts: list[tuple[Doubt, str, str]] = []
        self.lines_shown: list[str] = []

    def not_a_number(self, index: int, text: str) -> None:
        self.others.append(text)

    def doubtful(self, index: int, doubt: Doubt, taken: str, whole: str, line: str) -> None:
        self.doubts.append((doubt, taken, whole))
        self.lines_shown.append(line)

    def lines(self) -> None: ...
    def search(self, index: int, offset: int) -> None: ...
    def rest(self) -> None: ...
    def resume(self) -> None: ...


def read(
    line: str | bytes, pattern: str, listener: Listener | None = None, **keys: Any
) -> list[dict[str, Any]]:
    """Return value, step and labels of each match in `line`."""
    listener = listener or Listener()
    metric = Metric(name="m", pattern=pattern, **keys)
    data = (line if isinstance(line, bytes) else line.encode()) + b"\n"
    found = Extraction(compile_patterns([metric], fast=True), findings=listener, guard=listener).find(data, 0)
    return [json.loads(f'{{"value":{number}{extra}}}') for batch in found for *_, number, extra in batch]


def value(line: str | bytes, pattern: str, listener: Listener | None = None, **keys: Any) -> Any:
    (found,) = read(line, pattern, listener, **keys)
    return found["value"]


UNIT = r"max=(?P<value>[\d.:]+) ?(?P<unit>[A-Za-zµμ%/]*)"


@pytest.mark.parametrize(
    ("text", "units", "expected"),
    [
        ("1.14s", "ms", 1140),
        ("561.99us", "ms", 0.56199),
        ("561.99µs", "ms", 0.56199),
        ("2 min", "s", 120),
        ("1.5h", "min", 90),
        ("15.43M/s", "req/s", 15_430_000),
        ("15.43k", "IOPS", 15430),
        ("900", "kIOPS", 0.9),
        ("900", "IOPS", 900),
        ("2GFLOPS", "TFLOPS", 0.002),
        ("3MiB", "B", 3 * 2**20),
        ("3MB", "KiB", 2929.6875),
        ("8Gbps", "GB/s", 1),
        ("1MB/s", "Mbit/s", 8),
        ("60kB/min", "B/s", 1000),
        ("12.5%", "ratio", 0.125),
        ("0.125ratio", "%", 12.5),
        ("4s/it", "it/s", 0.25),
        ("01:02:03", "s", 3723),
        ("1:30", "min", 1.5),
        ("512Bytes/Second", "B/s", 512),
    ],
)
def test_a_value_is_converted_from_the_lines_unit_to_that_of_the_metric(
    text: str, units: str, expected: float
) -> None:
    assert value(f"max={text}, end", UNIT, units=units) == expected


@pytest.mark.parametrize(
    ("text", "units"), [("12parsec", "ms"), ("12%", "ms"), ("3MB", "MB/s"), ("0s/it", "it/s"), ("5k", "keys")]
)
def test_a_unit_that_cannot_be_converted_is_reported_as_not_a_number(text: str, units: str) -> None:
    listener = Listener()
    assert read(f"max={text}, end", UNIT, listener, units=units) == []
    assert len(listener.others) == 1


def documented(heading: str) -> list[list[str]]:
    """Return the cells of the documented table that has this heading."""
    page = Path(__file__).parents[3] / "docs" / "extraction.md"
    rows = page.read_text("utf-8").split(heading, 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.parametrize(("text", "units", "recorded"), documented("| in the line | `units` | recorded |"))
def test_unit_conversions_equal_the_documented_ones(text: str, units: str, recorded: str) -> None:
    listener = Listener()
    pattern = r"t=(?P<value>\d+m\d[\d.]*s|[\d.:]+) ?(?P<unit>\S*)"
    found = read(f"t={text}", pattern, listener, units=units)
    assert [each["value"] for each in found] == ([] if recorded == "nothing" else [json.loads(recorded)])
    assert bool(listener.others) == (recorded == "nothing")


FORMS = documented("| `number` |")


@pytest.mark.parametrize("row", FORMS, ids=[row[0] for row in FORMS])
def test_number_formats_are_read_as_documented(row: list[str]) -> None:
    form, _, *expected = row
    texts = ("60,911.3", "1.2k", "4Ki", "1,200.5M")
    taken = [value(f"rate={text}", r"rate=([\d.]+)", number=NumberForm(form.strip('"'))) for text in texts]
    assert taken == [json.loads(each) for each in expected]


def test_a_unit_continues_after_a_slash() -> None:
    assert value("3MB/s", r"(\d+)(?P<unit>[kMG]B)", units="B/s") == 3_000_000


@given(
    hours=st.integers(0, 30),
    minutes=st.integers(1, 59),
    milliseconds=st.integers(0, 59_999),
    pattern=st.sampled_from([UNIT, r"max=(?P<value>[\d.]+)(?P<unit>\S+)"]),
)
def test_a_duration_in_several_units_is_read_whole(
    hours: int, minutes: int, milliseconds: int, pattern: str
) -> None:
    spelled = (f"{hours}h" if hours else "") + f"{minutes}m{milliseconds / 1000:g}s"
    listener = Listener()

    found = read(f"min=1ms max={spelled} p(90)=2s", pattern, listener, units="ms")

    assert [each["value"] for each in found] == [(hours * 60 + minutes) * 60_000 + milliseconds]
    assert listener.doubts == []


@pytest.mark.parametrize(
    ("text", "pattern", "taken", "whole"),
    [
        ("max=1m2.5s", r"(?P<value>[\d.]+)(?P<unit>s)", "2.5s", "1m2.5s"),
        ("max=1ms5us", UNIT, "1ms", "1ms5us"),
    ],
)
def test_a_duration_that_was_matched_only_partly_is_reported(
    text: str, pattern: str, taken: str, whole: str
) -> None:
    listener = Listener()

    read(text, pattern, listener, units="ms")

    assert listener.doubts == [(Doubt.GOES_ON, taken, whole)]


def test_a_unit_is_read_from_bytes_that_are_not_utf8() -> None:
    listener = Listener()
    assert read(b"max=3\xb5s", r"max=(\d+)(?P<unit>\S+)", listener, units="ms") == []
    assert listener.others == ["3 \N{REPLACEMENT CHARACTER}s"]


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("thousands", "60,911.3", 60911.3),
        ("thousands", "18,446,744,073,709,551,615", 18446744073709551615),
        ("thousands", "1_000", 1000),
        ("thousands", "12", 12),
        ("si", "1.2k", 1200),
        ("si", "4Ki", 4096),
        ("si", "15.43M/s", 15_430_000),
        ("si", "250m", 0.25),
        ("si", "3GB", 3 * 10**9),
        ("auto", "1,200.5k", 1_200_500),
        ("auto", "7", 7),
    ],
)
@pytest.mark.parametrize("pattern", [r"rate=([\d.]+)", r"rate=([\d.,_]+)", r"rate=(\S+?)(?:/s|B)?$"])
def test_numbers_are_read_in_the_configured_format(
    form: str, text: str, expected: float, pattern: str
) -> None:
    listener = Listener()
    assert value(f"rate={text}", pattern, listener, number=NumberForm(form)) == expected
    assert not listener.others


@pytest.mark.parametrize(
    ("text", "taken", "whole"),
    [
        ("60,911.3", "60", "60,911.3"),
        ("1.2k", "1.2", "1.2k"),
        ("3Mi", "3", "3Mi"),
        ("1'000", "1", "1'000"),
        ("01:02:03", "01", "01:02:03"),
    ],
)
def test_a_number_that_was_matched_only_partly_is_reported_with_its_line(
    text: str, taken: str, whole: str
) -> None:
    listener = Listener()
    assert value(f"rate={text} end", r"rate=([\d.]+)", listener) == float(taken)
    assert listener.doubts == [(Doubt.GOES_ON, taken, whole)]
    assert listener.lines_shown == [f"rate={text} end"]


def test_a_decimal_number_matched_without_its_fraction_is_reported() -> None:
    listener = Listener()
    assert value("rate=0.25", r"rate=(\d+)", listener) == 0
    assert listener.doubts == [(Doubt.GOES_ON, "0", "0.25")]


@pytest.mark.parametrize(
    ("line", "pattern", "keys"),
    [
        ("rate=1.2k", r"rate=([\d.]+)", {"units": "k"}),
        ("rate=15M/s", r"rate=([\d.]+)", {"units": "M/s"}),
        ("rate=15M/s", r"rate=([\d.]+)M/s", {"units": "M/s"}),
        ("rate=15kops/s", r"rate=([\d.]+)", {"units": "kops/s"}),
        ("loss=3epochs", r"loss=([\d.]+)", {}),
        ("loss=0.5, acc 1", r"loss=([\d.]+)", {}),
        ("loss=0.5.", r"loss=([\d.]+\d)", {}),
        ("1,200,7", r"^(\d+),(\d+)", {}),
        ("took 1.5ms", r"took ([\d.]+)", {"units": "ms"}),
        ("took 1.5 ms", r"took ([\d.]+)", {"units": "ms"}),
        ("took 1.5 step", r"took ([\d.]+)", {"units": "ms"}),
        ("took 1.5ms", r"took ([\d.]+)", {}),
        ("took 1.5µs", r"took ([\d.]+)", {"units": "us"}),
    ],
)
def test_a_number_matched_whole_is_not_reported(line: str, pattern: str, keys: dict[str, str]) -> None:
    listener = Listener()
    assert len(read(line, pattern, listener, **keys)) == 1
    assert listener.doubts == []


@pytest.mark.parametrize(
    ("line", "pattern", "units"),
    [
        ("max=1.14s", r"max=([\d.]+)", "ms"),
        ("max=1.14 s", r"max=([\d.]+)", "ms"),
        ("max=1.14s", r"max=([\d.]+)s", "ms"),
        ("max=561.99us", r"max=([\d.]+)", "ms"),
        ("max=561.99µs", r"max=([\d.]+)", "ms"),
        ("max=12.5%", r"max=([\d.]+)", "ratio"),
        ("max=15 MiB/s", r"max=([\d.]+)", "MB/s"),
        ("max=15MB", r"max=([\d.]+).*", "GB"),
    ],
)
def test_a_unit_in_the_line_that_contradicts_the_metrics_is_reported(
    line: str, pattern: str, units: str
) -> None:
    listener = Listener()
    assert value(line, pattern, listener, units=units) == float(line[4:].rstrip("sMmuµiB%/ "))
    assert [doubt for doubt, *_ in listener.doubts] == [Doubt.OTHER_UNIT]


def test_named_groups_other_than_value_become_labels() -> None:
    line = "threads=4 size=64KiB: 12.5 ops"
    pattern = r"threads=(?P<threads>\d+) size=(?P<size>\S+): (?P<value>\S+)(?P<missing> never)?"
    assert read(line, pattern) == [{"value": 12.5, "labels": {"threads": "4", "size": "64KiB:"[:-1]}}]


def test_a_label_is_text_with_any_bytes() -> None:
    assert read(b"\xffm\xc3\xa9=1", r"(?P<who>\S+)=(\d)") == [
        {"value": 1, "labels": {"who": "\N{REPLACEMENT CHARACTER}mé"}}
    ]
    (found,) = read("x" * 1000 + "=1", r"(?P<who>\S+)=(\d)")
    assert len(found["labels"]["who"]) == LABEL_LIMIT


def test_step_and_labels_can_be_combined() -> None:
    assert read("epoch 3 [b]: 0.5", r"epoch (?P<step>\d+) \[(?P<phase>\w)\]: ([\d.]+)") == [
        {"value": 0.5, "step": 3, "labels": {"phase": "b"}}
    ]


def test_backspaces_overwrite_as_on_a_terminal() -> None:
    assert value("loss=1\b2", r"loss=(\d+)") == 2
    assert value("loss=12\b\b9\x1b[0m", r"loss=(\d+)") == 92
    assert value("\b\bé\b\bloss=7", r"^loss=(\d+)$") == 7
    assert value(b"\xff\xff\b\bloss=7\b", r"^loss=(\d+)$") == 7
