"""What foreign text and odd numbers become before they reach a screen."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.documents.text import plain_text, safe_line, sparkline, speaks_unicode
from executor.quantities import aligned, counted, listed, number, percent, quantity, seconds, size
from executor.view.log import Scroll


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (3.0, "3"),
        (1234567.0, "1,234,567"),
        (0.23101, "0.2310"),
        (1.5e-05, "1.500e-05"),
        (0.0123456, "0.0123"),
        (0.00123456, "0.001235"),
        (2.30258, "2.303"),
        (40799.53, "40,799.5"),
        (1762420.81, "1,762,421"),
        (1e300, "1.000e+300"),
        (-0.5, "-0.5000"),
    ],
)
def test_numbers_are_formatted_with_few_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "units", "shown"),
    [
        (2.269e10, "B", ("21.1 GiB", "")),
        (3.5e6, "B/s", ("3.3 MiB/s", "")),
        (-2048.0, "bytes", ("-2.0 KiB", "")),
        (1e300, "B", ("1.000e+300", "B")),
        (97.5, "%", ("97.500", "%")),
    ],
)
def test_bytes_are_shown_as_a_size(value: float, units: str, shown: tuple[str, str]) -> None:
    assert quantity(value, units) == shown


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["", "B", "B/s"]))
def test_any_number_fits_a_column(value: float, units: str) -> None:
    assert 1 <= len(number(value)) <= 11
    assert 1 <= len(quantity(value, units)[0]) <= 11


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (3599.7, "1 h 00 min"), (200_000, "2 d 7 h")],
)
def test_durations_are_formatted_in_suitable_units(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (2**20, "1.0 MiB"), (5 * 2**40, "5.0 TiB")],
)
def test_sizes_are_formatted_in_suitable_units(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 runs"), (1, "1 run"), (2000, "2,000 runs")])
def test_only_one_thing_is_singular(count: int, text: str) -> None:
    assert counted(count, "run") == text


def test_long_lists_are_shortened() -> None:
    assert listed(["a", "b", "c"], 3) == "a, b, c"
    assert listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"


def test_shares_read_well() -> None:
    assert [percent(0.1254), percent(-0.05, "+.0f"), percent(12.0, ",.0f")] == ["12.5 %", "-5 %", "1,200 %"]


def test_colours_are_kept_and_cursor_movements_removed() -> None:
    nasty = "\x1b[31mred\x1b[0m \x1b[2J\x1b[1;1H\x1b]0;title\x07\x1b[?25l\x1bc\x07\x08end\x9b2J\u202e"

    assert safe_line(nasty) == "\x1b[31mred\x1b[0m end2J"


def test_an_unfinished_title_sequence_does_not_hide_the_following_text() -> None:
    assert safe_line("before\x1b]0;never ended") == "before"
    assert safe_line("before\x1b[12") == "before12"


@pytest.mark.parametrize(
    ("line", "shown"),
    [("10%\r20%\r30%", "30%"), ("done\r", "done"), ("a\r\r", "a"), ("\r", ""), ("plain", "plain")],
)
def test_only_the_last_state_of_a_progress_bar_is_shown(line: str, shown: str) -> None:
    assert safe_line(line) == shown


@given(st.text())
def test_no_control_character_survives_but_those_of_colours(line: str) -> None:
    shown = safe_line(line)

    assert all(each.isprintable() or each in "\x1b\xa0\xad" or ord(each) > 0x9F for each in shown)


def test_tabs_and_newlines_in_a_sentence_become_spaces() -> None:
    assert plain_text("no\tsuch\nfile: \x1b[2J\u00e9\U0001f600") == "no such file: \u00e9\U0001f600"


def test_an_overlong_line_is_truncated_with_a_note() -> None:
    shown = safe_line("x" * 10_000)

    assert len(shown) < 4100
    assert "6,000 more characters" in shown


def test_a_sparkline_shows_the_course_in_any_width() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 7], 8, unicode=False) == "_@"
    assert sparkline([5, 5, 5], 8) == "▄▄▄"
    assert sparkline([], 8) == ""
    assert len(sparkline([float(each) for each in range(1000)], 10)) == 10
    assert sparkline([-1e300, -1e300, 1e300, 1e300], 2) == "▁█"


def test_an_ascii_terminal_is_detected() -> None:
    assert speaks_unicode(io.TextIOWrapper(io.BytesIO(), "utf-8"))
    assert not speaks_unicode(io.TextIOWrapper(io.BytesIO(), "ascii"))


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=30))
def test_output_split_into_any_pieces_gives_the_same_lines(content: bytes, cuts: list[int]) -> None:
    whole, pieces = Scroll(), Scroll()
    whole.feed(content)
    position = 0
    for cut in [*cuts, len(content)]:
        pieces.feed(content[position : position + cut])
        position += cut

    assert pieces.take() == whole.take()
    assert pieces.take_rest() == whole.take_rest()


def test_text_beyond_the_screens_limit_is_counted_and_the_newest_kept() -> None:
    scroll = Scroll(keep=3)
    scroll.feed(b"".join(b"line %d\n" % each for each in range(10)))
    scroll.feed(b"line 10\nunfinished")

    assert scroll.take() == (8, ["line 8", "line 9", "line 10"])
    assert scroll.current == "unfinished"
    assert scroll.take() == (0, [])


def test_an_endless_line_does_not_fill_the_memory() -> None:
    scroll = Scroll()
    for _ in range(100):
        scroll.feed(b"x" * 2**20)

    assert len(scroll.current) < 5000

    # And a progress bar that has run for long still shows its last state
    bar = Scroll()
    for each in range(30_000):
        bar.feed(b"\rstep %d" % each)
    assert bar.current == "step 29999"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["0.5", "12.25", "1,000", "-3"], ["0.5 ", "12.25", "1,000   ", "-3   "]),
        (["-", "1.5"], ["-", "1.5"]),
        (["3.4 MiB", "512 B"], ["3.4 MiB", "512 B    "]),
        ([], []),
    ],
)
def test_decimal_points_are_aligned(texts: list[str], expected: list[str]) -> None:
    assert aligned(texts) == expected


def test_text_overwritten_by_backspaces_is_not_shown() -> None:
    assert safe_line("10%\x08\x08\x0820%\x08\x08\x0830%") == "30%"
