from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bai_agent.benchmark.state import read_started
from bai_agent.job.run_directory import RunDir

_TABLE = {"shim_pid": 7, "shim_start": 1, "pid": 8, "start": 2, "boot_id": "x"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "", None, 3, ["c"], "b"], ["a", "b"]),
        ("a", []),
        (None, []),
        ({"a": "b"}, []),
    ],
)
def test_a_started_process_is_known_whatever_its_warnings_are(
    written: Any, read: list[str], tmp_path: Path
) -> None:
    rundir = RunDir(tmp_path)
    rundir.started.parent.mkdir(parents=True, exist_ok=True)
    rundir.started.write_text(json.dumps({**_TABLE, "warnings": written}))

    started = read_started(rundir)

    assert started is not None
    assert (started.pid, started.warnings) == (8, read)


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({**_TABLE, "pid": "8"})])
def test_a_started_file_that_names_no_process_is_none(content: str, tmp_path: Path) -> None:
    rundir = RunDir(tmp_path)
    rundir.started.parent.mkdir(parents=True, exist_ok=True)
    rundir.started.write_text(content)

    assert read_started(rundir) is None
