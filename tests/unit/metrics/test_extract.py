"""What patterns find in lines: the same by the fast way, the plain way, and the plainest way one can think of."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from line_extraction import Careful, Notes, Unbounded, extract_metrics

from bai_agent.job.descriptor.metric_tables import Metric, NumberForm
from bai_agent.metrics.records import BlockOrigin, RecordFile
from bai_agent.metrics.search.dense import Columns
from bai_agent.metrics.search.extract import Extraction
from bai_agent.metrics.search.number import JSON, are_json, fast_number, needs_look
from bai_agent.metrics.search.patterns import Found, compile_patterns, line_counter
from bai_agent.metrics.search.reading import Doubt

Number = tuple[int, int, int, float]


def metrics(*patterns: str) -> list[Metric]:
    return [Metric(name=f"m{i}", pattern=pattern) for i, pattern in enumerate(patterns)]


def extract(
    data: bytes, patterns: Sequence[str], *, fast: bool = True, notes: Notes | None = None
) -> list[Found]:
    return extract_metrics(data, metrics(*patterns), fast=fast, notes=notes)


def values(data: bytes, *patterns: str, notes: Notes | None = None) -> list[object]:
    found = extract(data, patterns, notes=notes)
    assert found == extract(data, patterns, fast=False)
    return [json.loads(each[3]) for each in found]


ANSI = rb"\x1b\[[0-9;]*m"


def plainest(data: bytes, patterns: Sequence[str]) -> list[Number]:
    """Extract line by line with `re` on bytes; knows only colours, and no numbers cut in their exponent."""
    found = []
    for start, line in ((m.start(), re.sub(ANSI, b"", m[0])) for m in re.finditer(rb"[^\n]+", data)):
        for i, pattern in enumerate(patterns):
            if pattern.isascii():
                matches = [m[1 if m.re.groups else 0] for m in re.compile(pattern.encode()).finditer(line)]
            else:
                text = line.decode("utf-8", "replace")
                matches = [m[1 if m.re.groups else 0].encode() for m in re.compile(pattern).finditer(text)]
            for k, value in enumerate(matches):
                if re.fullmatch(rb"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", value or b""):
                    number = float(value)
                    if math.isfinite(number):
                        found.append((start, i, k, number))
    return found


PATTERNS = (
    r"loss=([-+]?\d+\.?\d*)",
    r"train_loss=(\d+)",
    r"oss=(\d\d?)",
    r"(?i)LOSS=(\d)",
    r"ss=\D*(\d)",
    r"(\d)x",
    r"^step (\d+)",
    r"µs=(\d)",
    r"\wé(\d)",
    r"acc\b.(\d+)$",
    r"(?:ab)+(\d)?",
    r"\d*",
)
WORDS = (
    *(
        "loss=",
        "train_loss=",
        "LOSS=",
        "oss=",
        "ss=",
        "ss=4",
        "lo",
        "step",
        "step 7",
        "acc",
        "acc.77",
        "abab",
        "ab5",
    ),
    *("0", "1", "2.5", "-3", ".5", "007", "9x", "e", "µs=", "é", "é7", " ", "\n", "\n\n", "\r"),
    *("\x1b[31m", "\x1b[0m", "\x1b", "lo\x1b[1mss=8"),
)
words = st.sampled_from(WORDS)
texts = st.lists(words, max_size=60).map(lambda each: "".join(each).encode())
blocks = st.lists(st.one_of(texts, st.binary(max_size=8)), max_size=6).map(
    lambda each: b"".join(each).replace(b"\r", b"\n") + b"\n"
)


READ = (
    Metric(name="time", pattern=r"t=([\d.:]+)(?P<unit>[a-zµ%/]*)", units="ms"),
    Metric(name="unchecked", pattern=r"t=([\d.]+)", units="s"),
    Metric(name="attached", pattern=r"([\d.]+)ms", units="s"),
    Metric(name="counter", pattern=r"(?P<who>\w+)=([\d.,]+)", number=NumberForm.THOUSANDS),
    Metric(
        name="rate", pattern=r"r (?P<step>\d+)?:? ?(?P<value>[\d.]+)", units="req/s", number=NumberForm.SI
    ),
    Metric(name="any", pattern=r"=(\S+)", number=NumberForm.AUTO),
    Metric(name="labelled", pattern=r"(?P<a>é|\S)=(?P<value>\d+)(?: (?P<b>\w+))?"),
)
READ_WORDS = (
    *(
        "t=",
        "r ",
        "7: ",
        "who=",
        "é=",
        "=",
        "60",
        "1,234",
        ".5",
        "911",
        ",911",
        "e-3",
        "k",
        "Mi",
        "ms",
        " s",
        "µs",
        "us",
        "%",
    ),
    *("/s", "01:02:03", "1.14", "\x08", "\x08\x08", "\x1b[1m", " ", "\n", "\r", "x"),
)
read_blocks = st.lists(
    st.one_of(
        st.lists(st.sampled_from(READ_WORDS), max_size=40).map(lambda each: "".join(each).encode()),
        st.binary(max_size=6),
    ),
    max_size=6,
).map(lambda each: b"".join(each).replace(b"\r", b"\n") + b"\n")
specs = st.one_of(
    st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=6, unique=True).map(lambda each: metrics(*each)),
    st.lists(st.sampled_from(READ), min_size=1, max_size=6, unique=True),
)


@given(data=st.one_of(blocks, read_blocks), chosen=specs)
def test_fast_and_plain_search_find_the_same_values(data: bytes, chosen: list[Metric]) -> None:
    fast, plain = Notes(), Notes()

    found = extract_metrics(data, chosen, fast=True, notes=fast)

    assert found == extract_metrics(data, chosen, fast=False, notes=plain)
    assert sorted(fast.not_numbers) == sorted(plain.not_numbers)
    assert sorted(fast.doubts) == sorted(plain.doubts)
    assert found == sorted(found, key=lambda each: each[:3])


@given(data=read_blocks, chosen=specs, cuts=st.lists(st.integers(0, 400), max_size=5))
def test_the_block_size_does_not_change_the_found_values(
    data: bytes, chosen: list[Metric], cuts: list[int]
) -> None:
    ends = sorted({data.rfind(b"\n", 0, cut) + 1 for cut in cuts} | {0, len(data)})
    whole, parts = Notes(), Notes()

    pieces = [
        each
        for begin, end in itertools.pairwise(ends)
        for each in extract_metrics(data[begin:end], chosen, offset=begin, notes=parts)
    ]

    assert pieces == extract_metrics(data, chosen, notes=whole)
    # Of each metric in its order; what two metrics say of one line has none.
    of_metric = itemgetter(0)
    assert sorted(parts.not_numbers, key=of_metric) == sorted(whole.not_numbers, key=of_metric)
    assert sorted(parts.doubts, key=of_metric) == sorted(whole.doubts, key=of_metric)


@given(data=blocks, chosen=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=6, unique=True))
def test_fast_and_plain_search_equal_a_loop_over_lines_and_patterns(data: bytes, chosen: list[str]) -> None:
    # without what the plainest way does not know: other escapes than colours, numbers with exponents, backspaces
    data = re.sub(rb"\x1b(?!\[[0-9;]*m)", b"", data)
    data = re.sub(rb"[eE]", b"_", data).replace(b"\x08", b"")

    found = [(off, i, k, float(value)) for off, i, k, value, _ in extract(data, chosen)]

    assert found == plainest(data, chosen)


@given(data=blocks)
def test_fast_and_plain_search_count_the_same_lines(data: bytes) -> None:
    assert line_counter(fast=True)(data) == line_counter(fast=False)(data)


def test_matches_come_in_order_of_line_metric_and_match() -> None:
    found = extract(b"a=1 b=2 a=3\nb=4\n", [r"a=(\d)", r"b=(\d)"])

    assert found == [(0, 0, 0, "1", ""), (0, 0, 1, "3", ""), (0, 1, 0, "2", ""), (12, 1, 0, "4", "")]


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (r"a (\d) b (?P<value>\d)", 2),
        (r"a (\d) b (\d)", 1),
        (r"a (?P<step>\d) b (\d)", 2),
        (r"(?P<letter>a) (?P<step>\d) b (\d)", 2),
        (r"a (?P<step>\d) b (?P<loss>\d)", 2),
        (r"\d$", 2),
        (r"(?<=a )\d", 1),
    ],
)
def test_the_value_is_the_group_named_value_or_else_the_only_sensible_group(pattern: str, value: int) -> None:
    assert values(b"a 1 b 2\n", pattern) == [value]


def test_a_step_is_recorded_with_its_value() -> None:
    assert extract(b"step 12: loss 0.5\n", [r"step (?P<step>\d+): loss (?P<value>[\d.]+)"]) == [
        (0, 0, 0, "0.5", ',"step":12')
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-0012", -12),
        ("+5", 5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e-05", 1e-05),
        ("1.5E+3", 1500.0),
        ("9223372036854775807", 9223372036854775807),
        ("18446744073709551615", 18446744073709551615),
        ("123456789012345678901", 1.2345678901234568e20),
        ("0.1234567890123456789012345", 0.12345678901234568),
    ],
)
def test_numbers_in_every_notation_are_read(text: str, value: float) -> None:
    (found,) = values(f"value: {text} end\n".encode(), r"value: (\S+)")

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1_000", "1,000", "0x10", "1e999", "12a", "--1"])
def test_values_that_are_not_finite_are_counted_and_left_out(text: str) -> None:
    notes = Notes()

    assert values(f"value: {text} end\n".encode(), r"value: (\S+)", notes=notes) == []

    assert notes.not_numbers == [(0, text)]


def test_a_value_group_that_did_not_take_part_in_the_match_is_counted_as_no_number() -> None:
    notes = Notes()
    assert values(b"loss\n", r"loss(=\d+)?", notes=notes) == []
    assert notes.not_numbers == [(0, "")]


COMMON = r"loss ([-+]?\d*\.\d+|\d+)"


@pytest.mark.parametrize("text", ["1.5e-05", "1e-05", "2.5E+3", "1.5e5", "3e4"])
def test_a_number_matched_without_its_exponent_is_recorded_whole_with_a_warning(text: str) -> None:
    notes = Notes()

    assert values(f"loss {text} acc 1\n".encode(), COMMON, notes=notes) == [float(text)]

    assert [each[:4] for each in notes.doubts] == [(0, Doubt.CUT, text[: text.lower().index("e")], text)]


def test_an_exponent_followed_by_a_unit_is_read() -> None:
    assert values(b"loss 1.5e-05s\n", COMMON) == [1.5e-05]


@pytest.mark.parametrize(("line", "value"), [("loss 12e5f", 12), ("loss 3 e5", 3), ("loss 3epochs", 3)])
def test_text_that_only_looks_like_an_exponent_is_not_read_as_one(line: str, value: float) -> None:
    assert values(f"{line}\n".encode(), COMMON) == [value]


def test_the_rest_of_a_completed_number_is_not_found_as_a_second_value() -> None:
    assert values(b"1.5e-05 2.5\n", r"\d*\.\d+|\d+") == [1.5e-05, 2.5]


def test_escape_sequences_are_removed_before_the_search() -> None:
    link = b"\x1b]8;;http://x/loss=9\x1b\\"
    assert values(b"\x1b[1;31mlo\x1b[0mss\x1b[K=" + link + b"0.5\x1b(B\n", r"^loss=([\d.]+)$") == [0.5]


def test_the_recorded_offset_is_that_of_the_original_line_despite_escape_sequences() -> None:
    data = b"\x1b[31mred\x1b[0m\n\x1b[1m\nloss=1\n"
    assert [each[0] for each in extract(data, [r"loss=(\d)"])] == [data.index(b"loss")]


def test_a_pattern_with_non_ascii_characters_searches_text_and_others_search_bytes() -> None:
    line = "µ² é5\n".encode()
    assert values(line, "é(.)") == [5]
    assert values(line, r"^.{6}(\d)$") == []
    assert values(line, r"^.{7}(\d)$") == [5]
    assert values(line, r"(?u)^.{4}(\d)$") == [5]
    assert values(b"\xff\xfe x=5 \xc3\n", "x=([0-9é]+)") == [5]


def test_a_pattern_that_matches_empty_text_gives_no_value_and_no_error() -> None:
    notes = Notes()
    assert values(b"ab\n\n\ncd\n", r"x*", notes=notes) == []
    assert len(notes.not_numbers) == 6


def test_all_matches_of_a_very_long_line_come_in_several_batches() -> None:
    line = b"a=1 " * 200_000
    extraction = Extraction(
        compile_patterns(metrics(r"a=(\d)"), fast=True), findings=Notes(), guard=Unbounded()
    )

    batches = list(extraction.find(line + b"\n", 0))

    assert max(map(len, batches)) < 5000
    assert [each[2] for batch in batches for each in batch] == list(range(200_000))


def test_each_of_thousands_of_metrics_finds_its_own_lines() -> None:
    names = [f"metric_{i}=" for i in range(3000)]
    data = b"".join(f"{name}{i}\n".encode() for i, name in enumerate(names))

    found = extract(data, [rf"{name}(\d+)" for name in names])

    assert [(i, value) for _, i, _, value, _ in found] == [(i, str(i)) for i in range(3000)]


def test_a_disabled_metric_is_not_searched() -> None:
    patterns = compile_patterns(metrics(r"a=(\d)", r"b=(\d)"), without=frozenset({0}), fast=True)
    extraction = Extraction(patterns, findings=Notes(), guard=Unbounded())
    assert list(extraction.find(b"a=1 b=2\n", 0)) == [[(0, 1, 0, "2", "")]]


DENSE = (
    *PATTERNS,
    r"\bloss=([-+]?\d*\.\d+|\d+)",
    r"loss=\s*(\d+)",
    r"\s+loss=(\S+)",
    r"loss=([^ ]+)",
    r"loss=([-+]?\d+\.\d+)(?!\d)",
    r"loss=(?=(\d+))",
    r"(?<=loss)=(\d+)",
    r"(?<!train_)loss=(\S+)",
    r"loss=(\d+)?",
    r"loss=.*?(\d+)",
    r"(?s)loss=.*?(\d+)",
    r"(?P<label_kind>\w+)loss=(?P<value>[\d.e+-]+)",
    r"loss=(?P<value>\d+)(?P<unit>ms|s)?",
    r"loss=(\d+)[\s,]",
    r"loss=(\d+)\W",
    r"loss=(\d+)$",
    r"ss=(?P<step>\d)(?P<value>\d)",
    r"((?i:L)oss)=(?P<value>\d)",
    r"(?P<step>\d+)?.*loss=(?P<value>[\d.]+)",
    r"(?P<step>\S+) loss=(?P<value>[\d.]+)(?P<rest>.*)",
    r"^.*loss=(\d+)",
    r"\Aloss=(\d+)\Z",
    r"loss=([\d.]+)[^,]*$",
    r"loss=(\d+)[\D]",
    r"loss=(\d+)[\s\W]?",
    r"loss=(\d+)[\t-z]?",
    r"loss=(\d+)(?!\s)",
    r"loss=\S*?(\d+)",
    r"(?m)^loss=(\d+)$",
)
VALUES = (
    "0.5",
    "1",
    "-3",
    "12",
    "1.5e-5",
    "1e5f",
    "1,234",
    "1.",
    ".5",
    "007",
    "nan",
    "",
    "3ms",
    "4 s",
    "5%",
    "1:02",
    "6.é",
)
dense_lines = st.builds(
    "{}loss={}{}".format,
    st.sampled_from(("", " ", "train_", "loss=1 ", "\x1b[31m", "é", "step 7 ", "\x08")),
    st.sampled_from(VALUES),
    st.sampled_from(("", " ", "  ", ".", "...", ",", " loss=2", "loss=", " ms", "\x1b[0m", "\t")),
)
dense_blocks = st.lists(
    st.tuples(
        st.one_of(
            dense_lines.map(str.encode), dense_lines.map(str.encode), st.just(b""), st.binary(max_size=6)
        ),
        st.sampled_from((1, 1, 2, 300)),
    ),
    min_size=1,
    max_size=6,
).map(lambda parts: b"".join((line.replace(b"\r", b"\n") + b"\n") * times for line, times in parts))


@settings(deadline=None)
@given(
    data=dense_blocks,
    before=dense_blocks,
    chosen=st.lists(st.sampled_from(DENSE), min_size=1, max_size=4, unique=True),
    units=st.sampled_from(("", "ms", "s")),
)
def test_searching_many_lines_at_once_finds_the_same_in_dense_logs(
    data: bytes, before: bytes, chosen: list[str], units: str
) -> None:
    notes, plain = Notes(), Notes()
    every = [replace(each, units=units) for each in metrics(*chosen) if units or "<unit>" not in each.pattern]
    extraction = Extraction(compile_patterns(every, fast=True), findings=notes, guard=Unbounded())

    # What one block was like decides how the next one is searched.
    found = [
        [each for batch in extraction.find(block, 0) for each in batch] for block in (before, data, data)
    ]

    wanted = [extract_metrics(block, every, fast=False, notes=plain) for block in (before, data, data)]
    assert found == wanted
    assert sorted(notes.not_numbers) == sorted(plain.not_numbers)
    assert sorted(notes.doubts) == sorted(plain.doubts)


@settings(deadline=None)
@given(
    blocks=st.lists(dense_blocks, min_size=1, max_size=3),
    chosen=st.lists(st.sampled_from(DENSE), min_size=1, max_size=4, unique=True),
    before=st.sampled_from((0, 9, 995, 999, 1000, 123_456)),
    labels=st.sampled_from(("", '"process_rank":"3"')),
    truncations=st.integers(0, 1),
    late=st.booleans(),
    repeat=st.sampled_from((None, 0, 7)),
)
def test_fast_and_plain_extraction_write_identical_records(
    blocks: list[bytes], chosen: list[str], before: int, labels: str, **where: Any
) -> None:
    # given patterns, and logs in which nearly each line matches them, or few do
    every = metrics(*chosen)
    ways = []
    for fast in (True, False):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "metrics.jsonl"
            path.write_bytes(b"")
            file = RecordFile(path, every, seq=before)
            guard = Unbounded() if fast else Careful()
            extraction = Extraction(compile_patterns(every, fast=fast), findings=Notes(), guard=guard)
            offset = 0
            # when they are extracted in whatever pieces
            for block in blocks:
                for each in extraction.find_many(block, offset):
                    origin = BlockOrigin(17, labels=labels, **where)
                    if isinstance(each, Columns):
                        assert fast
                        file.add_columns(each, origin)
                    else:
                        file.add_found(each, origin)
                offset += len(block)
            file.close()
            ways.append((path.read_bytes(), file.last, file.seq, file.size))
    # then the fast way makes what the plain way makes
    assert ways[0] == ways[1]


def test_a_dense_log_is_searched_many_lines_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def search_each(*about: object) -> Iterator[list[Found]]:
        raise AssertionError("lines were searched one by one")
        yield []

    monkeypatch.setattr(Extraction, "_search", search_each)
    data = b"".join(b"a=%d.5 b=%d\n" % (n, n) for n in range(2000))
    extraction = Extraction(
        compile_patterns(metrics(r"a=(\S+)", r"b=\s*(\d+)"), fast=True), findings=Notes(), guard=Unbounded()
    )

    for _ in range(2):
        found = [each for batch in extraction.find(data, 0) for each in batch]
        assert len(found) == 4000


@given(
    st.lists(
        st.from_regex(JSON, fullmatch=True) | st.text("0123456789.eE+-", max_size=12),
        max_size=5,
    )
)
def test_a_batch_of_numbers_is_valid_json_if_each_number_is(texts: list[str]) -> None:
    assert are_json(texts) == all(re.fullmatch(JSON, each) for each in texts)


@given(
    form=st.from_regex(JSON, fullmatch=True) | st.text("09.eE+-", min_size=1, max_size=5),
    digits=st.lists(st.text("0159٣²", min_size=1, max_size=3), min_size=1, max_size=4),
)
def test_numbers_that_differ_in_digits_alone_are_valid_json_if_each_is(form: str, digits: list[str]) -> None:
    texts = [form]
    for some in map(itertools.cycle, digits):
        texts.append("".join(next(some) if each.isdigit() else each for each in form))

    assert are_json(texts) == all(re.fullmatch(JSON, each) for each in texts)


@given(
    value=st.from_regex(JSON, fullmatch=True),
    behind=st.text(st.characters(max_codepoint=255), min_size=1, max_size=2),
    more=st.sampled_from(("", "ms", "0")),
    open_end=st.booleans(),
    with_units=st.booleans(),
)
def test_the_fast_number_pattern_matches_unambiguous_numbers_whole(
    value: str, behind: str, more: str, open_end: bool, with_units: bool
) -> None:
    value, behind = value.lower().partition("e")[0], behind + more
    if re.match(needs_look("ms", open_end=open_end, with_units=with_units), behind):
        return

    fast = re.compile(fast_number("ms", open_end=open_end, with_units=with_units, decodes=False))

    match = fast.match(value + behind)
    assert match is not None
    assert match[0] == value


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"pattern": r"lr=(\d+\.\d+)(?:e-\d+)? loss"}, "step {0} lr={0}.5e-05 loss=1"),
        ({"pattern": r"lr=(\d+\.\d+)\S* loss"}, "step {0} lr={0}.5e-05 loss=1"),
        ({"pattern": r"(?i)size (\d+)", "units": "kB", "number": NumberForm.SI}, "size {0}KB"),
        ({"pattern": r"(?i)size (\d+)", "units": "gb", "number": NumberForm.AUTO}, "size {0}GB"),
        ({"pattern": r"(?i)time (\d+)", "units": "GB"}, "time {0}Gb"),
    ],
)
def test_many_similar_lines_give_the_same_values_as_a_plain_search(keys: dict[str, Any], line: str) -> None:
    data = "".join(f"{line.format(number)}\n" for number in range(1, 41)).encode()
    fast, plain = Notes(), Notes()

    found = extract_metrics(data, [Metric(name="m", **keys)], notes=fast)

    assert found == extract_metrics(data, [Metric(name="m", **keys)], fast=False, notes=plain)
    assert sorted(fast.doubts) == sorted(plain.doubts)
