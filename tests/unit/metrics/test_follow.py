"""A follower yields a file's lines, whatever pieces they come in."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bai_agent.metrics.follow import Follower, LineBlock

Line = tuple[int, bytes]

pieces = st.lists(
    st.one_of(st.binary(max_size=12), st.sampled_from([b"\n", b"\r", b"\r\n", b"a" * 30, b"loss=1\n"])),
    max_size=30,
)


def lines_of(blocks: list[LineBlock]) -> list[Line]:
    found = []
    for block in blocks:
        offset = block.offset
        for line in block.data.split(b"\n"):
            if line:
                found.append((offset, line))
            offset += len(line) + 1
    return found


def expected(content: bytes, *, ends: bytes, limit: int) -> list[Line]:
    return [(match.start(), match[0][:limit]) for match in re.finditer(rb"[^" + ends + rb"]+", content)]


def drain(follower: Follower) -> list[LineBlock]:
    blocks: list[LineBlock] = []
    while True:
        new, more = follower.read()
        blocks += more
        if not new:
            return blocks


@given(pieces=pieces, chunk=st.integers(1, 40), limit=st.integers(1, 40), carriage_return=st.booleans())
def test_a_file_written_in_any_pieces_gives_the_same_lines(
    pieces: list[bytes], chunk: int, limit: int, carriage_return: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "output.log"
        path.touch()
        follower = Follower(
            (path,), chunk=min(chunk, limit), line_limit=limit, carriage_return=carriage_return
        )
        blocks: list[LineBlock] = []

        with path.open("ab", buffering=0) as file:
            for piece in pieces:
                file.write(piece)
                blocks += follower.read()[1]
        blocks += drain(follower)
        blocks += follower.finish()
        follower.close()

        content = b"".join(pieces)
        ends = rb"\r\n" if carriage_return else rb"\n"
        assert lines_of(blocks) == expected(content, ends=ends, limit=limit)
        beyond = sum(max(0, len(match[0]) - limit) for match in re.finditer(rb"[^" + ends + rb"]+", content))
        assert follower.place.unsearched == beyond
        assert follower.place.offset == len(content)


@given(pieces=pieces, stop=st.integers(0, 30), chunk=st.integers(1, 20))
def test_a_restarted_follower_continues_at_its_position(pieces: list[bytes], stop: int, chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "output.log"
        path.write_bytes(b"".join(pieces))
        first = Follower((path,), chunk=chunk, line_limit=20)
        blocks = [block for _ in range(stop) for block in first.read()[1]]
        first.close()

        second = Follower((path,), place=first.place, chunk=chunk, line_limit=20)
        blocks += drain(second) + second.finish()
        second.close()

        assert lines_of(blocks) == expected(b"".join(pieces), ends=rb"\r\n", limit=20)


def test_a_file_that_does_not_exist_yet_is_waited_for(tmp_path: Path) -> None:
    follower = Follower((tmp_path / "output.log",))
    assert follower.read() == (False, [])

    (tmp_path / "output.log").write_bytes(b"one\n")

    assert follower.read() == (True, [LineBlock(0, 0, b"one\n")])


def test_a_replaced_file_is_read_through_its_hard_link(tmp_path: Path) -> None:
    # given a hard link to the log, made before the benchmark replaced the log itself
    (tmp_path / "output.log").write_bytes(b"first\n")
    os.link(tmp_path / "output.log", tmp_path / "link")
    (tmp_path / "output.log").unlink()
    (tmp_path / "output.log").write_bytes(b"replaced\n")

    follower = Follower((tmp_path / "link", tmp_path / "output.log"))

    assert lines_of(drain(follower)) == [(0, b"first")]


def test_a_truncated_file_is_read_from_its_start_and_lost_bytes_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"one\ntwo\nunfin")
    follower = Follower((path,), chunk=10)
    assert lines_of(follower.read()[1]) == [(0, b"one"), (4, b"two")]

    os.truncate(path, 0)
    new, blocks = follower.read()
    assert (new, blocks) == (True, [])
    assert follower.place.truncations == 1
    # "unfin": two bytes of it were read, three were only seen
    assert follower.place.lost == 5

    with path.open("ab") as file:
        file.write(b"three\n")
    assert follower.read()[1] == [LineBlock(1, 0, b"three\n")]


def test_a_file_shorter_than_the_recorded_position_counts_as_truncated(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"new\n" * 10)

    follower = Follower((path,), seen=50)

    assert follower.read() == (True, [])
    assert follower.place.truncations == 1
    assert follower.read()[1][0].truncations == 1


def test_a_very_long_line_is_buffered_only_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"x" * 5_000_000 + b"\nnext\n")
    follower = Follower((path,), line_limit=2**20)

    blocks = drain(follower)

    assert [(block.offset, len(block.data)) for block in blocks] == [(0, 2**20 + 1), (5_000_001, 5)]
    assert follower.place.unsearched == 5_000_000 - 2**20
