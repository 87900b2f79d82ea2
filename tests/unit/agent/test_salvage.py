import logging
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bai_agent.job.events import EventLog
from bai_agent.job.run_directory import RunDir
from bai_agent.run.open_file import OpenFile
from bai_agent.run.salvage import Salvage


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    rundir = RunDir(tmp_path)
    for file, link in ((rundir.output, rundir.kept_output), (rundir.metrics, rundir.kept_metrics)):
        link.parent.mkdir()
        file.write_text(file.name)
        link.hardlink_to(file)
    return rundir


@pytest.fixture
def salvage(rundir: RunDir) -> Iterator[Salvage]:
    with closing(EventLog(rundir.events)) as events, closing(Salvage(rundir, events)) as salvage:
        yield salvage


def test_a_file_that_still_has_a_name_gets_the_other_one_back(rundir: RunDir, salvage: Salvage) -> None:
    # given
    rundir.kept_output.unlink()
    rundir.metrics.unlink()
    # when
    gone = salvage.put_back()
    # then
    assert gone == ["log/00000000000000000000", "metrics.jsonl"]
    assert rundir.kept_output.samefile(rundir.output)
    assert rundir.metrics.samefile(rundir.kept_metrics)
    assert salvage.put_back() == []


def test_what_cannot_be_put_back_is_looked_for_again_and_logged_once(
    rundir: RunDir, salvage: Salvage, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    caplog.set_level(logging.WARNING)
    rundir.output.unlink()
    rundir.kept_output.unlink()
    # when
    gone = [salvage.put_back() for _ in range(3)]
    # then
    assert gone == [["log/00000000000000000000"]] * 3
    assert caplog.text.count(f"{rundir.kept_output} has gone and cannot be put back") == 1


def test_nobody_waits_for_the_writer_of_a_fifo_in_a_files_place(tmp_path: Path) -> None:
    # given
    os.mkfifo(tmp_path / "emit.log")
    # when
    with closing(OpenFile(tmp_path / "emit.log")) as file:
        status = file.stat()
    # then
    assert status is not None
    assert status.st_size == 0
