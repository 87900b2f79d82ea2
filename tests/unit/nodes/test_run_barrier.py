"""The nodes of a job agree about the next run despite failures."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bai_agent.errors import StoreError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor.benchmark_tables import Repeat
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir, boot_id, read_json, write_json
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.nodes import run_barrier as turns
from bai_agent.nodes.run_barrier import RunBarrier

REPEAT = Repeat(runs=20, until=0.02, metric="m")


class SlowStore(DirectoryStore):
    """Does not answer in time when it is told whether a run begins, as long as it is `slow`; it takes that at once, or `late`."""

    slow = True
    late: Callable[[], bool] | None = None

    def __init__(self, folder: Path, *, takes_it_late: bool) -> None:
        super().__init__(folder)
        self._takes_it_late = takes_it_late

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        put = partial(super().put, key, content, if_absent=if_absent)
        if not self.slow or not key.endswith("turn-10"):
            return put()
        if self._takes_it_late:
            self.late = put
        else:
            put()
        raise StoreError("no answer")


@pytest.fixture
def ready(rundir: RunDir) -> RunDir:
    """The run directory of a node that has done 10 runs, and is ready for the next."""
    rundir.path.mkdir()
    lines: list[dict[str, Any]] = []
    for run in range(10):
        place = {"run": run, "repeat": run, "output_bytes": 0, "emit_bytes": 0, "time": 5}
        lines.append({"event": "began", **place, "pid": 1, "start": 1, "boot_id": "x"})
        lines.append({"event": "ended", **place, "code": 0})
    lines.append({"event": "ready", "run": 10, "repeat": 10})
    rundir.repeats.write_text("".join(json.dumps(each) + "\n" for each in lines))
    write_json(rundir.repeat_word, {"runs": 10, "enough": False})
    return rundir


@pytest.mark.parametrize("takes_it_late", [False, True])
def test_the_first_stored_decision_about_the_next_run_is_final(
    ready: RunDir, tmp_path: Path, takes_it_late: bool
) -> None:
    # given a coordinator that has decided, and a store that did not say whether it took that
    store = SlowStore(tmp_path / "store", takes_it_late=takes_it_late)
    attempt = AttemptRecord(JobRecord(store, "job-1"))
    coordinator = RunBarrier(attempt, ready, REPEAT, rank=0, nodes=1)
    with pytest.raises(StoreError):
        coordinator.look()

    # when its agent was killed, and the next one would decide otherwise
    store.slow = False
    write_json(ready.repeat_word, {"runs": 10, "enough": True})
    RunBarrier(attempt, ready, REPEAT, rank=0, nodes=1).look()
    if store.late is not None:
        assert not store.late()

    # then all nodes hear one word: the one that the store took first
    begins = not takes_it_late
    assert attempt.turn(10) is begins
    assert read_json(ready.turn) == {"run": 10, "begins": begins}


def test_a_change_of_the_clock_does_not_end_max_time(ready: RunDir, tmp_path: Path) -> None:
    # given a first run that began a moment ago, in the year 1970 by the clock of then
    begun = round(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    lines = ready.repeats.read_text().replace(
        '"start": 1, "boot_id": "x"', f'"start": {begun}, "boot_id": "{boot_id()}"'
    )
    ready.repeats.write_text(lines)
    attempt = AttemptRecord(JobRecord(DirectoryStore(tmp_path / "store"), "job-1"))

    RunBarrier(attempt, ready, replace(REPEAT, max_time=timedelta(hours=1)), rank=0, nodes=1).look()

    assert attempt.turn(10) is True


def test_a_decision_that_cannot_be_written_is_logged_once(
    ready: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given a node that cannot tell its shim
    (ready.turn / "in the way").mkdir(parents=True)
    looks = 0

    class CountedTurns(RunBarrier):
        def look(self) -> None:
            nonlocal looks
            looks += 1
            if looks == 4:
                self.end()
            super().look()

    monkeypatch.setattr(turns, "_LOOK_SECONDS", 0.001)
    attempt = AttemptRecord(JobRecord(DirectoryStore(tmp_path / "store"), "job-1"))

    # when it has tried some times
    CountedTurns(attempt, ready, REPEAT, rank=0, nodes=1).run()

    # then it has said so once
    assert looks == 4
    said = [each for each in caplog.records if "the next run waits" in each.getMessage()]
    assert len(said) == 1
    assert "Is a directory" in said[0].getMessage()
