"""The screen of a user who follows a job shows the newest view once, without remains of older ones."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from local_cli import LocalCli
from pseudo_terminal import Terminal
from terminal_screen import Screen

COUNTS = """
import os, sys, time
print("loss=0.5", flush=True)
deadline = time.monotonic() + 120
while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
    time.sleep(0.05)
print("loss=0.125")
"""

MOVES = """
import os, sys, time
print("begins", flush=True)
deadline = time.monotonic() + 120
count = 0
while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
    if not os.path.exists(sys.argv[1] + ".pause"):
        count += 1
        sys.stdout.write(f"\\rstep {count} " + "=" * 100 + ">")
        sys.stdout.flush()
    time.sleep(0.05)
print("\\ndone")
"""
"""Moves a progress bar that is wider than half a screen, but not while a file says that it pauses."""


def screen(
    cli: LocalCli, *arguments: str | Path, columns: int = 120, first: str = "", resizes: bool = False
) -> Screen:
    environment = {name: value for name, value in cli.environment.items() if name != "TERM"}
    return Screen(
        *cli.bai_program,
        *arguments,
        folder=cli.folder,
        environment=environment,
        columns=columns,
        first=f"TERM=screen-256color; export TERM; {first}",
        resizes=resizes,
    )


def headings(lines: list[str]) -> int:
    return sum("one  run" in line or "one  cancelling" in line for line in lines)


def tables(lines: list[str]) -> int:
    return sum(line.lstrip().startswith("metric ") for line in lines)


def clean(lines: list[str], columns: int) -> bool:
    """Return whether one picture stands there, whose heading is drawn to the window's edge, and no piece of another one."""
    heading = [line for line in lines if "one  run" in line]
    pieces = [line for line in lines if line and not line.strip("─ ")]
    return len(heading) == tables(lines) == 1 and len(heading[0]) == columns and not pieces


def test_resizing_the_window_leaves_one_intact_view(cli: LocalCli) -> None:
    file = cli.descriptor(COUNTS)
    run = ("run", file, "--job-id", "one", "--", cli.go_file)
    with screen(cli, *run, first="seq 40", resizes=True) as window:
        window.await_lines(lambda lines: tables(lines) == 1 and "loss=0.5" in lines)

        for columns in (100, 60, 45, 90, 60):
            window.resize(columns)
            window.await_lines(partial(clean, columns=columns))

            # Where lines are wrapped, the terminal moves the first ones out of its screen: they are not lost.
            history = window.history
            assert history[:42] == [*map(str, range(1, 41)), "[bai] job one; Ctrl-C cancels it", "loss=0.5"]
            assert clean(history, columns)
        cli.go_file.touch()
        assert window.wait() == 0
        assert headings(window.history) == 0


def test_typing_in_the_terminal_leaves_one_intact_view(cli: LocalCli) -> None:
    file = cli.descriptor(COUNTS)
    with screen(cli, "run", file, "--job-id", "one", "--", cli.go_file) as window:
        window.await_lines(lambda lines: tables(lines) == 1)

        for key in ("Enter", "x", "Enter"):
            before = window.lines
            window.press(key)
            window.await_lines(lambda lines, before=before: lines != before)  # type: ignore[misc]
        window.await_lines(partial(clean, columns=120))
        window.press("C-c")

        assert window.wait() == 4
        history = window.history
        assert headings(history) == 0
        assert not [line for line in history if "^C" in line or line.strip() == "x"]
        assert any("cancelled" in line and "exit" in line for line in history), history


@pytest.mark.parametrize("keys", [("C-c",), ("C-c", "C-c"), ("C-z",)])
def test_the_terminals_echo_is_restored_however_bai_ends(cli: LocalCli, keys: tuple[str, ...]) -> None:
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + COUNTS
    file = cli.descriptor(code, limits='grace = "2s"')
    with screen(cli, "run", file, "--job-id", "one", "--", cli.go_file) as window:
        window.await_lines(lambda lines: tables(lines) == 1)
        for key in keys:
            window.press(key)
            if len(keys) > 1 and key == keys[0]:
                window.await_text("press Ctrl-C again")

        window.wait()
        window.press("typed")
        window.await_text("typed")
        assert headings(window.lines) == 0


def steps(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.startswith("step ")]


def test_a_followed_log_redraws_a_progress_bar_in_place(cli: LocalCli) -> None:
    pause = cli.go_file.with_name(f"{cli.go_file.name}.pause")
    cli.bai("run", cli.descriptor(MOVES), "--job-id", "one", "--detach", "--", cli.go_file)

    def still(window: Screen) -> int:
        """Pause the benchmark and return the step that is drawn when the window has come to rest."""
        pause.touch()
        time.sleep(0.2)
        lines = window.await_lines(lambda lines: steps(lines) == [cli.output("one").count("step ")])
        return steps(lines)[0]

    with screen(cli, "logs", "-f", "one", first="seq 40", resizes=True) as window:
        window.await_text("step ")
        for columns in (60, 90, 45):
            # What is on its way to the terminal while it is resized was drawn for another width: nothing is.
            seen = still(window)
            window.resize(columns)
            pause.unlink()
            window.await_lines(lambda lines, past=seen + 10: max(steps(lines), default=0) > past)  # type: ignore[misc]

            still(window)
            history = window.history
            assert [line.split()[0] for line in history] == [*map(str, range(1, 41)), "begins", "step"]
            assert len(history[-1]) == columns
            pause.unlink()

        cli.go_file.touch()
        assert window.wait() == 0
        assert "done" in window.lines
        assert len(steps(window.history)) == 1


@pytest.mark.parametrize("kind", ["dumb", "pipe"])
def test_a_followed_log_is_not_redrawn_on_a_simple_terminal(cli: LocalCli, kind: str) -> None:
    cli.bai("run", cli.descriptor(MOVES), "--job-id", "one", "--detach", "--", cli.go_file)
    if kind == "pipe":
        cli.go_file.touch()
        done = cli.bai("logs", "-f", "one")
        assert done.stdout == cli.output("one")
        assert "\x1b" not in done.stdout
        return
    with screen(cli, "logs", "-f", "one", first="TERM=dumb") as window:
        window.await_text("begins")
        cli.await_output("one", "step 20 ")
        assert not any("step" in line for line in window.lines)
        cli.go_file.touch()
        assert window.wait() == 0


COLOURS = 'print("\\x1b[32mgreen\\x1b[0m and \\x1b]0;title\\x07plain"); print("loss=0.5"); print("\\x1b[31mlast", end="")'


@pytest.mark.parametrize("kind", ["dumb", "pipe"])
def test_a_run_fits_80_columns_on_a_simple_terminal(cli: LocalCli, kind: str) -> None:
    file = cli.descriptor(COLOURS)
    file.write_text(file.read_text().replace('"loss"', f'"{"a_long_name_of_a_metric_" * 2}"'))
    if kind == "pipe":
        done = cli.bai("run", file, "--job-id", "one")
        assert "\x1b[32mgreen\x1b[0m" in done.stdout
        _, _, drawn = done.stdout.partition("[bai] drain finished")
    else:
        environment = {**cli.environment, "TERM": "dumb"}
        with Terminal("run", file, "--job-id", "one", cli=cli, environment=environment) as terminal:
            assert terminal.wait() == 0
        drawn = terminal.drawn
        assert "green and plain\r\n" in drawn
        assert "\r\nlast\r\n" in drawn
    assert "a_long_name" in drawn
    assert "\x1b" not in drawn
    # A path is there to be copied: the terminal wraps it.
    copied = ("files", "artifacts", "more")
    assert [line for line in drawn.splitlines() if len(line) > 80 and not line.startswith(copied)] == []
