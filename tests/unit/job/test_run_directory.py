from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.errors import BusyError
from bai_agent.job.record_types import PhaseEvent, WarningEvent
from bai_agent.job.run_directory import is_locked, locked, open_append, read_json, write_json
from bai_agent.runtime.event_log import EventLog, read_events

HOLDER = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"


def test_a_lock_is_held_until_its_process_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "agent.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()

        assert is_locked(lock)
        with pytest.raises(BusyError, match="another live process"), locked(lock):
            pass

        holder.kill()
        with locked(lock, wait_s=10):
            assert is_locked(lock)
    assert not is_locked(lock)
    assert not is_locked(tmp_path / "never.lock")


@given(
    complete=st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)),
    rest=st.binary(max_size=30),
)
def test_an_unfinished_last_line_is_removed_before_appending(
    tmp_path_factory: pytest.TempPathFactory, complete: list[bytes], rest: bytes
) -> None:
    path = tmp_path_factory.mktemp("x") / "file"
    whole = b"".join(line + b"\n" for line in complete)
    path.write_bytes(whole + rest.replace(b"\n", b""))

    os.close(open_append(path))

    assert path.read_bytes() == whole


def test_a_long_unfinished_last_line_is_removed_before_appending(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first\n" + b"x" * 300_000)

    os.close(open_append(path))

    assert path.read_bytes() == b"first\n"


def test_missing_or_broken_json_is_read_as_none(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_bytes(b'{"a": ')
    (tmp_path / "list.json").write_bytes(b"[]")
    write_json(tmp_path / "good.json", {"a": "ü"})

    assert [read_json(tmp_path / name) for name in ("none.json", "broken.json", "list.json")] == [
        None,
        None,
        None,
    ]
    assert read_json(tmp_path / "good.json") == {"a": "ü"}


def test_events_survive_an_unfinished_line_and_tell_what_has_finished(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = EventLog(path)
    events.add(PhaseEvent(phase="pull", state="started"))
    events.add(PhaseEvent(phase="pull", state="finished", seconds=1.5))
    events.close()
    with path.open("ab") as file:
        file.write(b'{"time": 1, "type": "phase", "phase": "run", "state": "finis')

    again = EventLog(path)
    again.add(WarningEvent(message="back"))
    again.close()

    assert again.finished_phases() == {"pull": 1.5}
    assert [event.type for event in read_events(path)] == ["phase", "phase", "warning"]
