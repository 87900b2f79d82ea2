"""Jobs in a list, and metrics as they move, on screens of any width."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from handmade_job import HandmadeJob, job_status
from rich.cells import cell_len

from bai_agent.job.record_types import HeadlineValue
from executor.documents.listing import jobs_table
from executor.documents.screen import show_blocks
from executor.documents.status import StatusView, status_blocks
from executor.jobs.job_list import ListedJob, last_values
from executor.records.reading import result_of
from executor.records.series_lines import RecordLines
from executor.view.records import print_statistics

RECORD = b'{"name": "loss", "src": "log", "value": 1, "timestamp": 1}\n'


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (40, ["job", "status", "age"]),
        (60, ["job", "status", "outcome", "age", "duration"]),
        (72, ["job", "status", "outcome", "parameters", "age", "duration"]),
        (80, ["job", "name", "status", "outcome", "parameters", "age", "duration"]),
        (120, ["job", "name", "status", "outcome", "parameters", "age", "duration"]),
    ],
)
def test_a_narrow_screen_keeps_id_and_status_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
    headings: list[str],
) -> None:
    monkeypatch.setattr("executor.documents.screen.screen_width", lambda: width)
    job = HandmadeJob(tmp_path, "digits-20261121-5209fd")
    job.ends()

    listed = ListedJob(status=job_status(job.record), name="digits", arguments=("train.py",))
    show_blocks([jobs_table([listed])])

    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == headings
    assert row.startswith("digits-20261121-5209fd  ")
    assert "SUCCEEDED" in row


@pytest.mark.parametrize("width", [40, 47, 55, 66, 80, 100, 160])
def test_no_line_is_wider_than_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr("executor.documents.screen.screen_width", lambda: width)
    job = HandmadeJob(tmp_path, "a-benchmark-with-a-rather-long-name-20261121-5209fd")
    job.ends()
    hostile = ListedJob(
        status=replace(job_status(job.record), where="ec2"),
        name="ein größerer Name\x1b[2J",
        arguments=("--batch", "64", "--text", "a b\n漢字" * 20),
        set={"limits.max_runtime": "2h"},
        headlines={f"metric {i}": HeadlineValue(value=1e12 / 7**i, units="images/s") for i in range(3)},
        dollars=1234.567,
    )

    show_blocks([jobs_table([hostile] * 2)])

    lines = capsys.readouterr().out.splitlines()
    assert all(cell_len(line) <= width for line in lines), lines
    assert not any("\x1b" in line for line in lines)
    assert "SUCCEEDED" in "".join(lines)


def test_a_wide_screen_shows_headlines_parameters_and_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("executor.documents.screen.screen_width", lambda: 200)
    job = HandmadeJob(tmp_path)
    job.ends()
    shown = ListedJob(
        status=job_status(job.record),
        arguments=("--text", "a b"),
        set={"limits.max_runtime": "2h", "ml.args": "--text 'a b'"},
        headlines={"loss": HeadlineValue(value=0.125, units="nats"), "accuracy": HeadlineValue(value=0.5)},
        dollars=0.4211,
    )

    show_blocks([jobs_table([shown])])

    row = capsys.readouterr().out.splitlines()[1]
    assert "loss 0.1250 nats, accuracy 0.5000" in row
    assert "limits.max_runtime=2h --text 'a b'" in row
    assert row.endswith("12.0 s  0.42 USD")


def test_a_long_name_leaves_room_for_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("executor.documents.screen.screen_width", lambda: 40)
    job = HandmadeJob(tmp_path)
    job.measures("a_name_that_is_as_long_as_the_whole_screen", 0.5, src="emit", units="nats")
    job.ends()

    values = last_values(job.record)
    show_blocks(status_blocks(StatusView(job=job.job, status=job_status(job.record), values=values)))

    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("a_name_that")
    assert row.index("0.5000") < 40


def test_the_live_metrics_table_shows_directions_like_the_final_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    screen = io.TextIOWrapper(raw, "utf-8", write_through=True)
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")

    print_statistics(HandmadeJob(tmp_path).job, iter([RecordLines(RECORD)]), True)

    assert "loss ↓" in raw.getvalue().decode()


def test_an_ended_jobs_status_names_the_failure_and_the_log(
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

    view = StatusView(job=job.job, status=job_status(job.record), values={}, result=result)
    show_blocks(status_blocks(view))

    said = capsys.readouterr().out
    assert "3 messages delivered, 2 not delivered (broker-1:9092 is away)" in said
    assert "The clock is off." in said
    assert "KeyError: 'x'" in said
    assert "bai logs digits-1" in said


def test_status_warns_of_an_unreachable_sink_until_it_recovers(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    message = "Kafka has been out of reach for 10 s: refused"
    job.event("warning", message="Careful.")
    job.event("sink", sink="Kafka", error="refused", message=message)

    assert job_status(job.record).warnings == ("Careful.", message)

    job.event("sink", sink="Kafka", error=None, message="Kafka takes everything again.")
    assert job_status(job.record).warnings == ("Careful.",)


def test_a_restarted_agent_clears_the_unreachable_sinks(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    message = "Kafka has been out of reach for 10 s: refused"
    job.event("agent_started", pid=1)
    job.event("warning", message="Careful.")
    job.event("sink", sink="Kafka", error="refused", message=message)

    job.event("agent_started", pid=2)
    assert job_status(job.record).warnings == ("Careful.",)

    job.event("sink", sink="Kafka", error="refused", message=message)
    assert job_status(job.record).warnings == ("Careful.", message)
