"""Text in a job's record may come from others: it never controls the terminal that shows it."""

from __future__ import annotations

import io

import pytest
from handmade_job import HandmadeJob, Unwatched
from local_cli import LocalCli
from rich.console import Console

from executor.documents.job_view import JobView
from executor.view.live import LiveView
from executor.view.watch import watch

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31mevil\x1b[31m"
"""Sets the window's title, clears the screen, and leaves a colour switched on."""


@pytest.fixture
def job(cli: LocalCli) -> HandmadeJob:
    made = HandmadeJob(cli.store)
    made.event("agent_started", pid=1)
    made.event("phase", phase=EVIL, state="started")
    made.event("phase", phase=EVIL, state="finished", seconds=1)
    made.event("stop", message=f"stopped: {EVIL}")
    made.event("warning", message=f"a warning: {EVIL}")
    made.measures(f"loss {EVIL}", 0.5, src="emit", units=EVIL)
    made.measures(f"bai_run_{EVIL}", 0.5, src="host", units=EVIL)
    artifact = made.node.parents[3] / "artifacts" / f"{EVIL}.txt"
    artifact.parent.mkdir()
    artifact.write_text("x")
    made.ends(
        outcome=EVIL,
        sentence=f"It ended: {EVIL}",
        git={"commit": EVIL, "branch": EVIL, "dirty": False},
        warnings=[f"a warning: {EVIL}"],
        last_lines=["a line"],
    )
    return made


@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("status", "digits-1"),
        ("metrics", "digits-1"),
        ("cancel", "digits-1"),
        ("resume", "digits-1"),
        ("resume", "digits-1", "--follow"),
        ("fetch", "digits-1", "folder"),
        ("status", EVIL),
    ],
)
def test_commands_print_foreign_text_without_control_characters(
    cli: LocalCli, job: HandmadeJob, command: tuple[str]
) -> None:
    answer = cli.bai(*command)

    told = answer.stdout + answer.stderr
    assert "digits-1" in told or "evil" in told
    assert [each for each in ("\x1b", "\x07", "\x9b") if each in told] == []


def test_a_lone_surrogate_in_an_event_is_shown_as_a_question_mark(cli: LocalCli) -> None:
    job = HandmadeJob(cli.store)
    job.event("warning", message="half: \ud83d")
    job.ends()

    answer = cli.bai("resume", "last", "-f")

    assert "[bai] half: ?" in answer.stdout.splitlines()
    assert (answer.code, answer.stderr) == (0, "")


def test_foreign_text_on_a_screen_does_not_move_the_cursor(job: HandmadeJob) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "utf-8", write_through=True)
    console = Console(file=stream, force_terminal=True, width=100, height=40, color_system="standard")

    watch(job.record, JobView(job_id="digits-1", job=job.job, place="/x"), LiveView(console), Unwatched())

    shown = raw.getvalue().decode()
    assert "It ended: 31mevil" in shown
    assert [each for each in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "evil\x1b[31m") if each in shown] == []
