"""How processes ended, as it is noted in a folder of the benchmark's own user."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.strategy.process_ends import (
    ProcessEnd,
    ProcessLog,
    open_regular,
    process_end,
    process_ends,
    process_logs,
    runs_of_processes,
)

ENDED = {"code": 7, "signal": None, "asked": None, "output_bytes": 5, "time": 12}


def test_the_end_of_each_process_is_read_with_its_rank(tmp_path: Path) -> None:
    for rank in (0, 2, 10):
        (tmp_path / f"{rank}.log").touch()
    for name in ("notes.log", "01.log", "3.log.old", "-1.log"):
        (tmp_path / name).touch()
    (tmp_path / "2.json").write_text(json.dumps(ENDED))
    (tmp_path / "10.json").write_text(json.dumps({**ENDED, "code": None, "signal": 9, "asked": 15}))

    logs = process_logs(tmp_path)
    first, second = process_ends(logs)

    assert [(each.rank, each.run) for each in logs] == [(0, None), (2, None), (10, None)]
    assert first == ProcessEnd(
        rank=2, log=tmp_path / "2.log", code=7, signal=None, asked=False, time=12, output_bytes=5
    )
    assert (second.rank, second.signal, second.asked, second.failed) == (10, 9, True, False)
    assert first.failed


def test_without_a_folder_of_process_logs_none_are_found(tmp_path: Path) -> None:
    assert process_logs(tmp_path / "processes") == []


def test_each_repeat_has_separate_process_logs(tmp_path: Path) -> None:
    for name, time in (("3-10", 50), ("3-2", 40), ("1-2", 30), ("3-warmup-1", 20), ("3-warmup-0", 10)):
        (tmp_path / f"{name}.log").touch()
        (tmp_path / f"{name}.json").write_text(json.dumps({**ENDED, "time": time}))
    for name in ("3-02.log", "3-.log", "3-warm-1.log", "3-1-1.log"):
        (tmp_path / name).touch()

    logs = process_logs(tmp_path)

    assert [each.path.stem for each in logs] == ["1-2", "3-warmup-0", "3-warmup-1", "3-2", "3-10"]
    assert [each.repeat for each in logs] == [2, None, None, 2, 10]
    # Each run from where the one before has ended
    assert runs_of_processes(logs) == [(0, None), (11, None), (21, 2), (41, 10)]


@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ENDED, "x"]), inner),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_content_of_an_end_file_is_a_valid_end_or_none(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "0.json").write_bytes(content)
        found = process_end(ProcessLog(path=Path(folder, "0.log"), rank=0))
    if found is not None:
        assert (found.code is None) != (found.signal is None)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_a_fifo_folder_or_link_in_place_of_a_process_log_is_not_opened(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "0.log")
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "0.log")
