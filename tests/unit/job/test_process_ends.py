"""How processes ended, as it is noted in a folder of the benchmark's own user."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.process_ends import ProcessEnd, open_regular, process_end, process_ends, process_logs

ENDED = {"code": 7, "signal": None, "asked": None, "output_bytes": 5, "time": 12}


def test_each_end_is_read_by_its_rank(tmp_path: Path) -> None:
    for rank in (0, 2, 10):
        (tmp_path / f"{rank}.log").touch()
    for name in ("notes.log", "01.log", "3.log.old", "-1.log"):
        (tmp_path / name).touch()
    (tmp_path / "2.json").write_text(json.dumps(ENDED))
    (tmp_path / "10.json").write_text(json.dumps({**ENDED, "code": None, "signal": 9, "asked": 15}))

    first, second = process_ends(tmp_path)

    assert list(process_logs(tmp_path)) == [0, 2, 10]
    assert first == ProcessEnd(rank=2, code=7, signal=None, asked=False, time=12, output_bytes=5)
    assert (second.rank, second.signal, second.asked, second.failed) == (10, 9, True, False)
    assert first.failed


def test_without_the_folder_there_are_none(tmp_path: Path) -> None:
    assert process_ends(tmp_path / "processes") == []


@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ENDED, "x"]), inner),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode())
)
def test_whatever_lies_there_is_an_end_or_nothing(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "0.json").write_bytes(content)
        found = process_end(Path(folder), 0)
    if found is not None:
        assert (found.code is None) != (found.signal is None)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_only_a_plain_file_is_opened(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "0.log")
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "0.log")
