"""Jobs in a list, and metrics as they move, on screens of any width."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from handmade_job import HandmadeJob

from executor.given import Given
from executor.jobs import last_values, standing
from executor.view.listing import print_listing, print_standing
from executor.view.records import print_statistics

RECORD = b'{"name": "loss", "src": "log", "value": 1, "timestamp": 1}\n'


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (40, ["job", "status"]),
        (60, ["job", "status", "outcome"]),
        (80, ["job", "status", "outcome", "started", "duration"]),
        (120, ["job", "name", "status", "outcome", "started", "duration"]),
    ],
)
def test_a_narrow_screen_keeps_id_and_status_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
    headings: list[str],
) -> None:
    monkeypatch.setattr("executor.view.listing.screen_width", lambda: width)
    job = HandmadeJob(tmp_path, "digits-20261121-5209fd")
    job.ends()

    print_listing([(standing(job.record), "digits")])

    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == headings
    assert row.startswith("digits-20261121-5209fd  ")
    assert "SUCCEEDED" in row


def test_a_long_name_leaves_room_for_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("executor.view.listing.screen_width", lambda: 40)
    job = HandmadeJob(tmp_path)
    job.measures("a_name_that_is_as_long_as_the_whole_screen", 0.5, src="emit", units="nats")
    job.ends()

    print_standing(job.job, standing(job.record), last_values(job.record), Given())

    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("a_name_that")
    assert row.index("0.5000") < 40


def test_a_table_that_moves_has_the_signs_of_the_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    screen = io.TextIOWrapper(raw, "utf-8", write_through=True)
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")

    print_statistics(HandmadeJob(tmp_path).job, iter([RECORD]), True)

    assert "loss ↓" in raw.getvalue().decode()
