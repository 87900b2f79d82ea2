"""In which part of a log a metric counts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from extraction_runs import (
    entries,
    extract,
    extract_after_any_prefix,
    extract_until_killed,
    extracted,
    finish_run,
    make_run,
)
from hypothesis import given
from hypothesis import strategies as st
from line_extraction import Notes, Unbounded

from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.metrics.search.extract import Extraction
from bai_agent.metrics.search.patterns import Found, compile_patterns
from bai_agent.metrics.sections import SectionMarkers, Sections

TABLES = b"""\
p99 1
== reads ==
p99 2
p50 3
== writes ==
p99 4
end
p99 5
== writes ==
p99 6
"""
VALUE = ("p99", r"p99 (\d+)")


def find(
    blocks: Sequence[bytes], metrics: Sequence[Metric], *, fast: bool = True, notes: Notes | None = None
) -> list[Found]:
    """Return what is found in `blocks`, whole lines each, that follow each other in a log."""
    extraction = Extraction(
        compile_patterns(metrics, fast=fast), findings=notes or Notes(), guard=Unbounded()
    )
    sections = Sections(SectionMarkers(metrics, guard=Unbounded(), fast=fast))
    found: list[Found] = []
    offset = 0
    for block in blocks:
        closed = sections.read(block, offset)
        found += [each for batch in extraction.find(block, offset, frozenset(), closed) for each in batch]
        offset += len(block)
    return found


def values(data: bytes, after: str | None, until: str | None) -> list[object]:
    found = find([data], [Metric(name="m", pattern=VALUE[1], after=after, until=until)])
    return [json.loads(number) for _, _, _, number, _ in found]


@pytest.mark.parametrize(
    ("after", "until", "expected"),
    [
        (None, None, [1, 2, 4, 5, 6]),
        ("== reads", "^==", [2]),
        ("== writes", "^end", [4, 6]),
        ("== writes", "^== writes", [4, 5, 6]),
        ("== reads", None, [2, 4, 5, 6]),
        (None, "== reads", [1]),
        ("p99 4", "p99 6", [5]),
        ("nowhere", None, []),
        ("(?i)== WRITES", "e.d$", [4, 6]),
    ],
)
def test_a_metric_is_searched_only_between_its_section_lines(
    after: str | None, until: str | None, expected: list[int]
) -> None:
    assert values(TABLES, after, until) == expected


def test_sections_apply_to_json_lines_too() -> None:
    metric = Metric(name="m", json="x", after="^begin", until='"done"')

    found = find([b'{"x":1}\nbegin\n{"x":2}\n{"done":1,"x":3}\n{"x":4}\n'], [metric])

    assert [each[3] for each in found] == ["2"]


def test_outside_of_its_section_a_metric_causes_no_warnings() -> None:
    notes = Notes()

    find([b"x=none\nbegin\nx=3\n"], [Metric(name="m", pattern=r"x=(\S+)", after="begin")], notes=notes)

    assert notes.not_numbers == []


def test_a_reset_closes_all_sections() -> None:
    metrics = [
        Metric(name="a", pattern=r"(\d)", after="begin"),
        Metric(name="b", pattern=r"(\d)", until="end"),
    ]
    sections = Sections(SectionMarkers(metrics, guard=Unbounded(), fast=True))

    before = sections.read(b"begin\nend\n1\n", 0)[-1].metrics
    sections.reset()
    behind = sections.read(b"2\n", 12)[-1].metrics

    assert (before, behind) == (frozenset({1}), frozenset({0}))


MARKS = ("== a", "== b", "a$", "(?i)=A", r"\d\d", "é")
WORDS = ("== a", "== A", "== b", "a", "x=1", "x=2 x=3", "y=4", "12", "é", "\n", "\n", "\n\n", "\x1b[1m", " ")
logs = st.lists(st.sampled_from(WORDS), max_size=60).map(lambda each: "".join(each).encode() + b"\n")
marks = st.one_of(st.none(), st.sampled_from(MARKS))
sectioned = st.lists(
    st.builds(
        lambda pattern, after, until: Metric(name="m", pattern=pattern, after=after, until=until),
        st.sampled_from([r"x=(\d)", r"y=(\d)", r"\d"]),
        marks,
        marks,
    ),
    min_size=1,
    max_size=4,
)


@given(data=logs, metrics=sectioned, cuts=st.lists(st.integers(0, 200), max_size=5))
def test_sections_are_found_the_same_by_every_search_method_and_block_size(
    data: bytes, metrics: list[Metric], cuts: list[int]
) -> None:
    ends = sorted({data.rfind(b"\n", 0, cut) + 1 for cut in cuts} | {0, len(data)})
    blocks = [data[begin:end] for begin, end in pairwise(ends)]

    found = find([data], metrics)

    assert [(off, i, k, int(number)) for off, i, k, number, _ in found] == plainest(data, metrics)
    assert find([data], metrics, fast=False) == found
    assert find(blocks, metrics) == found
    assert find(blocks, metrics, fast=False) == found


def plainest(data: bytes, metrics: Sequence[Metric]) -> list[tuple[int, int, int, int]]:
    found = []
    for index, metric in enumerate(metrics):
        is_open = metric.after is None
        for match in re.finditer(rb"[^\n]+", data):
            line = match[0].replace(b"\x1b[1m", b"").decode()
            begins, ends = (
                mark is not None and re.search(mark, line) for mark in (metric.after, metric.until)
            )
            if begins or ends:
                is_open = bool(begins)
            elif is_open:
                numbers = re.findall(metric.pattern, line)
                found += [(match.start(), index, k, int(number)) for k, number in enumerate(numbers)]
    return sorted(found)


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_restarting_after_any_prefix_gives_the_same_sections(tmp_path: Path, with_checkpoint: bool) -> None:
    whole = make_run(tmp_path, [VALUE], output=TABLES, after="== writes", until="^end")
    extract(whole)
    expected, last = entries(whole), extracted(whole)
    assert [each[6] for each in expected["log"]] == [4, 6]

    for _ in extract_after_any_prefix(whole, with_checkpoint=with_checkpoint, step=7):
        assert entries(whole) == expected
        assert extracted(whole) == last


def test_an_extractor_killed_after_any_line_continues_in_the_section(tmp_path: Path) -> None:
    lines = TABLES.splitlines(keepends=True)
    rundir = make_run(tmp_path, [VALUE], output=b"", exited=False, after="== writes", until="^end")
    for line in lines:
        extract_until_killed(rundir)
        with rundir.output.open("ab") as file:
            file.write(line)
    finish_run(rundir)

    extract(rundir)

    assert [each[6] for each in entries(rundir)["log"]] == [4, 6]


def test_a_truncated_log_begins_outside_of_any_section(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [VALUE], output=b"begin\np99 1\n", exited=False, after="begin")
    extract_until_killed(rundir, rounds=2)
    rundir.output.write_bytes(b"p99 2\n")
    extract_until_killed(rundir, rounds=2)
    with rundir.output.open("ab") as file:
        file.write(b"p99 3\nbegin\np99 4\n")
    finish_run(rundir)

    extract(rundir)

    assert [each[6] for each in entries(rundir)["log"]] == [1, 4]


def test_each_process_log_has_separate_sections(tmp_path: Path) -> None:
    printed = [b"begin\np99 1\n", b"p99 2\nbegin\np99 3\n"]
    rundir = make_run(tmp_path, [VALUE], processes=printed, after="begin")

    extract(rundir)

    found = entries(rundir, "log/0", "log/1")
    assert [each[6] for each in found["log/0"]] == [1]
    assert [each[6] for each in found["log/1"]] == [3]


def test_a_job_without_sections_stores_no_section_state(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [VALUE], output=TABLES)

    extract(rundir)

    assert json.loads(rundir.extractor_offset.read_bytes())["sections"] == {}
