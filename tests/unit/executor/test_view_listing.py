"""Jobs in a list, and metrics as they move, on screens of any width."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from handmade_job import HandmadeJob, job_status

from executor.jobs.jobs import last_values
from executor.records.reading import result_of
from executor.view.listing import print_listing, print_status
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

    print_listing([(job_status(job.record), "digits")])

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

    print_status(job.job, job_status(job.record), last_values(job.record.node()))

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


def test_of_an_ended_job_the_status_says_what_went_wrong_and_where_to_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = HandmadeJob(tmp_path, "digits-1")
    job.ends(
        outcome="failed",
        status="FAILED",
        exit_code=1,
        sentence="The benchmark failed: it exited with code 7.",
        kafka={"delivered": 3, "undelivered": 2, "error": "broker-1:9092 is away"},
        warnings=["The clock is off."],
        last_lines=["Traceback", "KeyError: 'x'"],
    )
    result = result_of(job.record)

    print_status(job.job, job_status(job.record), {}, result=result)

    said = capsys.readouterr().out
    assert "3 messages delivered, 2 not delivered (broker-1:9092 is away)" in said
    assert "The clock is off." in said
    assert "KeyError: 'x'" in said
    assert "bai logs digits-1" in said


def test_while_a_sink_is_out_of_reach_the_status_says_so(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    message = "Kafka has been out of reach for 10 s: refused"
    job.event("warning", message="Careful.")
    job.event("sink", sink="Kafka", error="refused", message=message)

    assert job_status(job.record).warnings == ("Careful.", message)

    job.event("sink", sink="Kafka", error=None, message="Kafka takes everything again.")
    assert job_status(job.record).warnings == ("Careful.",)


def test_a_restarted_agent_voids_what_was_out_of_reach(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    message = "Kafka has been out of reach for 10 s: refused"
    job.event("agent_started", pid=1)
    job.event("warning", message="Careful.")
    job.event("sink", sink="Kafka", error="refused", message=message)

    job.event("agent_started", pid=2)
    assert job_status(job.record).warnings == ("Careful.",)

    job.event("sink", sink="Kafka", error="refused", message=message)
    assert job_status(job.record).warnings == ("Careful.", message)
