"""`bai` if its own output cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_harness import BAI, CliHarness, CliResult
from handmade_job import HandmadeJob


def through_a_shell(command: str, *, folder: Path) -> CliResult:
    """Run `bai` with a command line that a shell reads."""
    shell = ("sh", "-c", f'"$@" {command}', "sh", *BAI)
    environment = {**os.environ, "BAI_STORE": str(folder / "store")}
    return CliHarness(folder, environment, bai_program=shell).bai()


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_closed_standard_stream_causes_no_error(tmp_path: Path, closed: str) -> None:
    HandmadeJob(tmp_path / "store").ends()

    done = through_a_shell(f"list --json {closed}", folder=tmp_path)

    assert (done.code, done.stderr) == (0, "")
    assert ("digits-1" in done.stdout) == ("1>&-" not in closed)


@pytest.mark.parametrize("command", ["list", "logs digits-1", "schema"])
def test_output_to_a_full_disk_gives_one_sentence(tmp_path: Path, command: str) -> None:
    job = HandmadeJob(tmp_path / "store")
    job.prints("hello\n")
    job.ends()

    done = through_a_shell(f"{command} > /dev/full", folder=tmp_path)

    assert done.code == 5
    assert done.stderr == "bai: the output cannot be written: No space left on device\n"


def test_following_onto_a_full_disk_says_that_the_job_continues(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path / "store")
    job.ends()

    done = through_a_shell("resume digits-1 --follow > /dev/full", folder=tmp_path)

    assert done.code == 5
    assert "cannot be written: No space left on device; the job goes on: bai status digits-1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("bundle --output file/folder", 2, "bai: --output: file/folder cannot be made: Not a directory\n"),
        (
            "bundle",
            5,
            "bai: the agent's bundle cannot be kept in file/bai: Not a directory; free some space, or name another folder",
        ),
    ],
)
def test_a_cache_folder_that_cannot_be_created_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int, told: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", "file")

    done = through_a_shell(command, folder=tmp_path)

    assert done.code == code
    assert done.stderr.startswith(told)
