"""Logs of several nodes: whole lines, each with its node's rank."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.view.log import LogView, RawLog

LINES = st.lists(st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"")), max_size=6)


def test_an_unfinished_line_is_not_mixed_with_another_nodes(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    with RawLog(follow=True, with_ranks=True) as view:
        view.feed(b"step 1", 0)
        view.feed(b"of the other\nand", 1)
        view.feed(b" of 2\n", 0)

    assert capsysbinary.readouterr().out == b"[1] of the other\n[0] step 1 of 2\n[1] and\n"


def test_a_nodes_last_line_precedes_the_next_nodes(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with RawLog(follow=False, with_ranks=True) as view:
        view.feed(b"no newline", 0)
        view.feed(b"one\n", 1)

    assert capsysbinary.readouterr().out == b"[0] no newline\n[1] one\n"


def test_an_endless_line_is_split_instead_of_buffered(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with RawLog(follow=True, with_ranks=True) as view:
        for _ in range(5):
            view.feed(b"x" * 2**19, 0)
        shown = capsysbinary.readouterr().out

    assert len(shown) > 2**20
    assert {line[:5] for line in shown.splitlines()} == {b"[0] x"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.tuples(LINES, LINES), cuts=st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=30))
def test_each_nodes_lines_are_complete_and_in_order(
    capsysbinary: pytest.CaptureFixture[bytes],
    lines: tuple[list[bytes], list[bytes]],
    cuts: list[tuple[bool, int]],
) -> None:
    left = [b"".join(line + b"\n" for line in each) for each in lines]
    with RawLog(follow=True, with_ranks=True) as view:
        for rank, size in [*cuts, (False, 1000), (True, 1000)]:
            view.feed(left[rank][:size], int(rank))
            left[rank] = left[rank][size:]

    found = capsysbinary.readouterr().out.split(b"\n")[:-1]
    for which in range(2):
        before = f"[{which}] ".encode()
        assert [line.removeprefix(before) for line in found if line.startswith(before)] == lines[which]


def test_json_says_the_rank_of_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    with LogView(json_=True, follow=True, with_ranks=True) as view:
        view.feed(b"half", 1)
        view.feed(b"10%\r20%\n", 0)
        view.feed(b" and half", 1)

    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"rank": 0, "line": "20%"},
        {"rank": 1, "line": "half and half"},
    ]
