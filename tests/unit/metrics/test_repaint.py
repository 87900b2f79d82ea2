"""Which states of a progress bar were repainted: the same in any pieces, and from any place on."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from extraction_runs import entries, extracted, make_run
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.descriptor_file import read_job
from bai_agent.metrics.follow import LogPosition
from bai_agent.metrics.process import Extractor
from bai_agent.metrics.repaint import RepaintFollower, repainted_states
from bai_agent.metrics.search.terminal import last_lines, on_screen

State = tuple[int, bytes, bool]
"""Where it begins, its first bytes, and whether it was repainted."""
LIMIT = 40


def expected(data: bytes) -> list[State]:
    """Find the states of each line of `data` the simplest way."""
    found = []
    for line in re.finditer(rb"[^\n]+", data):
        repainted = repainted_states(line[0])
        for state in re.finditer(rb"[^\r]+", line[0]):
            found.append((line.start() + state.start(), state[0][:LIMIT], state.start() in repainted))
    return found


def followed(
    data: bytes, pieces: list[int], folder: Path
) -> tuple[list[State], list[tuple[LogPosition, int]]]:
    """Return the states as a follower tells them while the file grows, and each place with how many came before it."""
    path = folder / "log"
    path.write_bytes(b"")
    follower = RepaintFollower([path], chunk=16, line_limit=LIMIT)
    found: list[State] = []
    places = [(follower.place, 0)]

    def take(blocks: list[object]) -> None:
        for block in blocks:
            offset = block.offset  # type: ignore[attr-defined]
            for line in block.data[:-1].split(b"\n"):  # type: ignore[attr-defined]
                if line:
                    found.append((offset, line, offset in block.repainted))  # type: ignore[attr-defined]
                offset += len(line) + 1
        places.append((follower.place, len(found)))

    at = 0
    for size in [*pieces, len(data)]:
        with path.open("ab") as file:
            file.write(data[at : at + size])
        at += size
        while True:
            new, blocks = follower.read()
            if not new:
                break
            take(list(blocks))
    take(list(follower.finish()))
    follower.close()
    return found, places


logs = st.lists(
    st.sampled_from(
        [b"10%", b"x", b" ", b"\r", b"\r", b"\n", b"\r\n", b"\x1b[K", b"\x1b[0m", b"\xff", b"y" * 50]
    ),
    max_size=60,
).map(b"".join)


@given(data=logs, pieces=st.lists(st.integers(0, 30), max_size=6))
def test_progress_bar_states_are_recognised_in_pieces_of_any_size(data: bytes, pieces: list[int]) -> None:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        found, _ = followed(data, pieces, Path(folder))
    assert found == expected(data)


@given(data=logs, pieces=st.lists(st.integers(0, 30), max_size=6))
def test_reading_resumed_at_any_position_gives_the_same_rest(data: bytes, pieces: list[int]) -> None:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        found, places = followed(data, pieces, Path(folder))
        for place, count in places:
            follower = RepaintFollower([Path(folder) / "log"], place=place, line_limit=LIMIT)
            rest = []
            while True:
                new, blocks = follower.read()
                if not new:
                    break
                rest += blocks
            rest += follower.finish()
            follower.close()
            offsets = [
                block.offset + match.start()
                for block in rest
                for match in re.finditer(rb"[^\n]+", block.data)
            ]
            assert offsets == [offset for offset, _, _ in found[count:]]


BAR = b"10% loss=3\r20% loss=2\r\x1b[32m30% loss=1\x1b[0m\r   \r\nepoch loss=9\n40% loss=8\r50% loss=7"


@pytest.mark.parametrize(("repaint", "values"), [("all", [3, 2, 1, 9, 8, 7]), ("last", [1, 9, 7])])
def test_values_of_all_states_of_a_progress_bar_or_of_the_last_are_recorded(
    tmp_path: Path, repaint: str, values: list[int]
) -> None:
    rundir = make_run(tmp_path, [("loss", r"loss=(\d)"), ("percent", r"(\d+)%")], output=BAR, repaint=repaint)

    Extractor(rundir, read_job(rundir.job)).run()

    found = entries(rundir)["log"]
    assert [each[6] for each in found if each[5] == "loss"] == values
    assert [each[6] for each in found if each[5] == "percent"] == [10, 20, 30, 40, 50]
    assert [each[1:5] for each in found] == sorted(each[1:5] for each in found)
    assert extracted(rundir)["lines"] == 7


def test_many_blank_states_do_not_hide_the_state_before_them(tmp_path: Path) -> None:
    output = b"loss=1\r" + b" \r" * 40_000 + b"loss=2\n"
    rundir = make_run(tmp_path, [("loss", r"loss=(\d)")], output=output, repaint="last")

    Extractor(rundir, read_job(rundir.job)).run()

    assert [each[6] for each in entries(rundir)["log"]] == [1, 2]


def test_overwritten_progress_bar_states_cause_no_warnings(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [("loss", r"loss=(\S+)")], output=b"loss=nan\rloss=1\n", repaint="last")

    Extractor(rundir, read_job(rundir.job)).run()

    assert extracted(rundir)["not_numbers"] == {}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("10%\r20%\r30%", "30%"),
        ("done: 100%\rok", "okne: 100%"),
        ("100%\r\x1b[Kok", "ok"),
        ("abc\x08\x08X", "aXc"),
        ("10%\x08\x08\x0820%\r", "20%"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("100%\r    \r", ""),
        ("line\r", "line"),
    ],
)
def test_a_line_equals_what_a_screen_shows(line: str, shown: str) -> None:
    assert on_screen(line) == shown


def test_a_progress_bar_counts_as_one_of_the_last_lines() -> None:
    bar = "".join(f"{number}% of it\r" for number in range(100))
    assert last_lines(f"begin\n{bar}\n\n  \nend", 2) == ["99% of it", "end"]
    assert last_lines(f"begin\n{bar}", 20) == ["begin", "99% of it"]
