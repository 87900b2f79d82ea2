"""Lines that came out of the FIFO."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.metrics.emit import Emitted, parse_emitted

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(values=st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False), max_size=5))
def test_an_object_of_numbers_is_read_unchanged(values: dict[str, float]) -> None:
    emitted = parse_emitted(json.dumps(values).encode())

    assert {name: json.loads(value) for _, name, value in emitted.values} == values
    assert [position for position, _, _ in emitted.values] == list(range(len(values)))
    assert not emitted.bad


@given(cut=st.integers(1, 20))
def test_an_object_cut_off_by_a_dead_writer_does_not_corrupt_the_next(cut: int) -> None:
    half = b'{"accuracy": {"x": 12345}}'[:cut]

    emitted = parse_emitted(half + b'{"loss": 0.5}')

    assert emitted == Emitted([(0, "loss", "0.5")], [], bad=True)


def test_emitted_values_that_are_not_numbers_are_counted_and_the_others_recorded() -> None:
    line = b'{"a": NaN, "b": "1", "c": true, "d": null, "e": [1], "f": {"x": 1}, "g": 1e999, "h": 2}'

    emitted = parse_emitted(line)

    assert emitted.values == [(7, "h", "2")]
    assert [name for name, _ in emitted.not_numbers] == list("abcdefg")
    assert not emitted.bad


@pytest.mark.parametrize(
    "line",
    [
        b"rubbish",
        b"[1, 2]",
        b"3",
        b'{"a": 1} trailing',
        b"\xff\xfe",
        b'{"": 1}',
        b'{"%s": 1}' % (b"n" * 300),
        b'{"\\ud800": 1}',
        b"{" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": ' + b"1" * 5000 + b"}",
    ],
)
def test_malformed_emitted_lines_give_no_values(line: bytes) -> None:
    emitted = parse_emitted(line)
    assert emitted.values == []
    assert emitted.bad or emitted.not_numbers


def test_emitted_integers_up_to_64_bits_stay_exact() -> None:
    emitted = parse_emitted(
        b'{"a": -9223372036854775808, "b": 18446744073709551615, "c": 18446744073709551616}'
    )
    assert [value for _, _, value in emitted.values] == [
        "-9223372036854775808",
        "18446744073709551615",
        "1.8446744073709552e+19",
    ]
