"""What a line says about the values below it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from extraction_runs import (
    extract,
    extract_until_killed,
    extracted,
    finish_run,
    make_run,
    records,
)
from hypothesis import example, given
from hypothesis import strategies as st
from line_extraction import Notes, Unbounded

from bai_agent.job.descriptor.metric_tables import Metric, check_patterns
from bai_agent.metrics.context import ContextMarkers, LogContext
from bai_agent.metrics.search.extract import Extraction
from bai_agent.metrics.search.patterns import Found, compile_patterns

TEST = r"^== (?P<test>\w+)"
UNIT = r"in (?P<unit>\w+):"
TABLES = b"""\
p99 1
== reads ==
percentiles in usec:
p99 2
== writes ==
p99 3
percentiles in nsec:
p99 4500
"""


def find(
    blocks: Sequence[bytes], metrics: Sequence[Metric], *, fast: bool = True, notes: Notes | None = None
) -> list[Found]:
    """Return what is found in `blocks`, whole lines each, that follow each other in a log."""
    notes = notes or Notes()
    extraction = Extraction(compile_patterns(metrics, fast=fast), findings=notes, guard=Unbounded())
    context = LogContext(ContextMarkers(metrics, guard=Unbounded(), fast=fast))
    found: list[Found] = []
    offset = 0
    for block in blocks:
        changes = context.read(block, offset)
        for batch in extraction.find(block, offset):
            found += context.apply(batch, changes, notes)
        offset += len(block)
    return found


def read(data: bytes, notes: Notes | None = None, **keys: Any) -> list[dict[str, Any]]:
    """Return value, step and labels of each value of one metric in `data`."""
    return [
        json.loads(f'{{"value":{number}{extra}}}')
        for *_, number, extra in find([data], [Metric(name="m", **keys)], notes=notes)
    ]


def test_earlier_context_lines_give_values_their_labels_and_unit() -> None:
    notes = Notes()

    found = read(TABLES, notes, pattern=r"p99 (\d+)", units="us", context=(TEST, UNIT))

    assert found == [
        {"value": 2, "labels": {"test": "reads"}},
        {"value": 3, "labels": {"test": "writes"}},
        {"value": 4.5, "labels": {"test": "writes"}},
    ]
    assert notes.not_numbers == [(0, "1 (unit not known)")]


def test_a_unit_that_cannot_be_converted_is_reported() -> None:
    notes = Notes()

    assert read(b"in MB:\np99 1\n", notes, pattern=r"p99 (\d+)", units="us", context=(UNIT,)) == []
    assert notes.not_numbers == [(0, "1 MB")]


def test_column_headers_label_the_values_of_a_line() -> None:
    data = b"type 16 bytes  64 bytes\nsha1 10.5k 20.5k 30.5k\nsha2  1.5k\n"

    found = read(data, pattern=r"([\d.]+)k", context=(r"(?P<bytes>\d+) bytes", r"^(?P<name>sha\d)"))

    assert found == [
        {"value": 10.5, "labels": {"bytes": "16", "name": "sha1"}},
        {"value": 20.5, "labels": {"bytes": "64", "name": "sha1"}},
        {"value": 30.5, "labels": {"name": "sha1"}},
        {"value": 1.5, "labels": {"bytes": "16", "name": "sha2"}},
    ]


def test_labels_of_the_line_itself_override_the_context() -> None:
    data = b"epoch 3 of a\nloss=1\nstep=7 of=b loss=2\n"

    found = read(
        data,
        pattern=r"(?:step=(?P<step>\d+) of=(?P<of>\w) )?loss=(?P<value>\d)",
        context=(r"epoch (?P<step>\d) of (?P<of>\w)",),
    )

    assert found == [
        {"value": 1, "step": 3, "labels": {"of": "a"}},
        {"value": 2, "step": 7, "labels": {"of": "b"}},
    ]


def test_context_applies_to_json_lines_too() -> None:
    assert read(b'== a\n{"x": 5}\n', json="x", context=(TEST,)) == [{"value": 5, "labels": {"test": "a"}}]


def test_a_clock_time_is_refused_if_the_unit_comes_from_an_earlier_line() -> None:
    notes = Notes()

    assert read(b"in ms:\nt=1:30\n", notes, pattern=r"t=(\S+)", units="s", context=(UNIT,)) == []
    assert notes.not_numbers == [(0, "1:30")]


@pytest.mark.parametrize(
    ("context", "pattern", "units", "problem"),
    [
        ("x", r"(\d)", "ms", "no named group"),
        ("(?P<value>x)", r"(\d)", "ms", 'has a group "value"'),
        ("(?P<rank>x)", r"(\d)", "ms", 'has a group "rank"'),
        ("(?P<mine>x)", r"(\d)", "ms", 'has a group "mine"'),
        ("(?P<a>x*)", r"(\d)", "ms", "matches an empty text"),
        ("(?P<unit>x)", r"(\d)", "", "units must name"),
        ("(?P<unit>x)", r"(?P<value>\d)(?P<unit>s)", "ms", "takes a unit"),
        ("(?P<a>", r"(\d)", "ms", "does not compile"),
    ],
)
def test_an_invalid_context_pattern_is_refused(context: str, pattern: str, units: str, problem: str) -> None:
    metric = Metric(name="m", pattern=pattern, units=units, context=(context,))

    with pytest.raises(ValueError, match=re.escape(problem)):
        check_patterns([metric], labels=["mine"])


CONTEXTS = (r"== (?P<a>\w)", r"(?P<b>[yz])=", r"(?i)IN (?P<unit>\w+)", "(?P<c>é)", r"(?P<c>\d)\d")
WORDS = ("== a", "== b", "x=1", "x=2 x=3", "y=4 z=5", "in s", "In ms", "12", "é", "\n", "\n", "\n\n", " ")
logs = st.lists(st.sampled_from(WORDS), max_size=60).map(lambda each: "".join(each).encode() + b"\n")
metrics_with_context = st.lists(
    st.builds(
        lambda pattern, context: Metric(name="m", pattern=pattern, units="ms", context=tuple(context)),
        st.sampled_from([r"x=(\d)", r"[yz]=(?P<value>\d)", r"(?P<b>\w)=(?P<value>\d)"]),
        st.lists(st.sampled_from(CONTEXTS), unique=True, max_size=3),
    ),
    min_size=1,
    max_size=3,
)


@example(
    data="x=1in sé\nx=2\n".encode(),
    metrics=[Metric(name="m", pattern=r"x=(\d)", units="ms", context=(r"(?i)IN (?P<unit>\w+)",))],
    cuts=[],
)
@given(data=logs, metrics=metrics_with_context, cuts=st.lists(st.integers(0, 200), max_size=5))
def test_context_is_found_the_same_by_every_search_method_and_block_size(
    data: bytes, metrics: list[Metric], cuts: list[int]
) -> None:
    ends = sorted({data.rfind(b"\n", 0, cut) + 1 for cut in cuts} | {0, len(data)})
    blocks = [data[begin:end] for begin, end in pairwise(ends)]

    found = find([data], metrics)

    assert [
        (off, i, k, json.loads(number), json.loads(f"{{{extra[1:]}}}").get("labels", {}))
        for off, i, k, number, extra in found
    ] == plainest(data, metrics)
    assert find([data], metrics, fast=False) == found
    assert find(blocks, metrics) == found
    assert find(blocks, metrics, fast=False) == found


def matches_in(pattern: str, text: str) -> list[re.Match[str]]:
    """Return all matches. A pattern of ASCII characters searches bytes, where `\\w` is an ASCII character."""
    return list(re.finditer(pattern, text, re.ASCII if pattern.isascii() else 0))


def plainest(data: bytes, metrics: Sequence[Metric]) -> list[tuple[int, int, int, float, dict[str, str]]]:
    found = []
    for index, metric in enumerate(metrics):
        known: dict[str, list[dict[str, str]]] = {}
        for line in re.finditer(rb"[^\n]+", data):
            text = line[0].decode()
            for each in metric.context:
                known[each] = [match.groupdict() for match in matches_in(each, text)] or known.get(each, [])
            for k, match in enumerate(matches_in(metric.pattern, text)):
                labels: dict[str, str] = {}
                for each in metric.context:
                    said = known[each]
                    labels |= said[0] if len(said) == 1 else said[k] if k < len(said) else {}
                unit = labels.pop("unit", None)
                labels |= {"b": match["b"]} if "b" in match.groupdict() else {}
                value = float(match["value"] if "value" in match.groupdict() else match[1])
                if metric.context_has_unit:
                    if unit is None:
                        continue
                    value *= 1000 if unit == "s" else 1
                if not metric.context_has_unit or unit in ("s", "ms"):
                    found.append((line.start(), index, k, value, labels))
    return sorted(found, key=lambda each: each[:3])


def test_a_restarted_extractor_keeps_the_context_of_earlier_lines(tmp_path: Path) -> None:
    rundir = make_run(
        tmp_path, [("p99", r"p99 (\d+)")], output=b"", exited=False, units="us", context=[TEST, UNIT]
    )
    for line in TABLES.splitlines(keepends=True):
        extract_until_killed(rundir)
        with rundir.output.open("ab") as file:
            file.write(line)
    finish_run(rundir)

    extract(rundir)

    found = [(each["value"], each["labels"]["test"]) for each in records(rundir) if each["src"] == "log"]
    assert found == [(2, "reads"), (3, "writes"), (4.5, "writes")]
    assert extracted(rundir)["per_metric"] == {"p99": 3}
    assert extracted(rundir)["not_numbers"] == {"p99": 1}


def test_a_truncated_log_clears_the_context(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [("m", r"m (\d+)")], output=b"== one\nm 1\n", exited=False, context=[TEST])
    extract_until_killed(rundir, rounds=2)
    rundir.output.write_bytes(b"m 2\n")
    extract_until_killed(rundir, rounds=2)
    finish_run(rundir)

    extract(rundir)

    found = [(each["value"], each.get("labels")) for each in records(rundir) if each["src"] == "log"]
    assert found == [(1, {"test": "one"}), (2, None)]
