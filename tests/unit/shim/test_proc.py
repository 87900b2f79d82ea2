from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bai_agent.shim import memory_group
from bai_agent.shim.proc import Process, descendants, read_process, send_signal


def _process(pid: int, parent: int, *, name: str = "x", state: str = "S") -> Process:
    return Process(
        pid,
        f"{pid} ({name}) {state} {parent} {pid} {pid} 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 {pid * 10} 0 0".encode(),
    )


def test_a_process_name_may_contain_anything() -> None:
    process = _process(7, 3, name="a) S 1 (b")

    assert (process.pid, process.parent, process.state, process.start) == (7, 3, "S", 70)


def test_descendants_are_found_at_any_depth_without_zombies() -> None:
    table = [_process(2, 1), _process(3, 2, state="Z"), _process(4, 3), _process(5, 4), _process(6, 99)]

    assert [process.pid for process in descendants({1}, table)] == [2, 4, 5]


def test_a_cycle_in_the_process_table_does_not_loop_for_ever() -> None:
    assert {process.pid for process in descendants({1}, [_process(1, 2), _process(2, 1)])} == {2}


def test_memory_excludes_parents_and_children() -> None:
    large = 300_000_000
    child = f"""
import json, subprocess, sys
from bai_agent.shim.proc import own_usage
subprocess.run([sys.executable, "-c", "bytearray({large})"], check=True)
print(json.dumps(own_usage()))
"""
    block = bytearray(large)
    done = subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE, check=True, timeout=60)
    del block

    found = json.loads(done.stdout)
    assert found["cpu_seconds"] > 0
    assert 2**20 < found["peak_memory_bytes"] < large


def test_a_signal_is_not_sent_to_a_process_that_reuses_the_pid() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        real = read_process(child.pid)
        assert real is not None
        other = _process(child.pid, os.getpid())

        assert not send_signal(other, signal.SIGKILL)
        assert child.poll() is None
        assert send_signal(real, signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL
        assert not send_signal(real, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("cgroup", "mount", "file"),
    [
        ("0::/user.slice/a\n", "cgroup2 cgroup2 rw", "user.slice/a/memory.events"),
        ("4:memory,x:/job\n0::/\n", "cgroup cgroup rw,memory", "job/memory.oom_control"),
    ],
)
def test_both_cgroup_versions_have_an_own_counter(tmp_path: Path, cgroup: str, mount: str, file: str) -> None:
    proc, mounted = tmp_path / "proc", tmp_path / "mounted"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text(f"30 20 0:26 / {mounted} rw,nosuid shared:4 - {mount}\n")
    (mounted / file).parent.mkdir(parents=True)
    (mounted / file).write_text("low 0\noom 2\noom_kill 3\n")

    assert memory_group._own_counter_file(str(proc)) == str(mounted / file)
    assert memory_group._read_counter(str(mounted / file)) == 3


def test_mount_points_of_any_name_are_skipped(tmp_path: Path) -> None:
    proc, mounted = tmp_path / "proc", tmp_path / "with space"
    proc.mkdir()
    (proc / "cgroup").write_bytes(b"not a line\n0::/job\n")
    odd = b"29 20 0:25 / /mnt/\xff\xfe rw - tmpfs tmpfs rw\n28 20 0:25 / /mnt/x rw\n"
    point = os.fsencode(mounted).replace(b" ", b"\\040")
    (proc / "mountinfo").write_bytes(odd + b"30 20 0:26 / " + point + b" rw - cgroup2 cgroup2 rw\n")
    (mounted / "job").mkdir(parents=True)
    (mounted / "job/memory.events").write_text("oom_kill 3\n")

    assert memory_group._own_counter_file(str(proc)) == str(mounted / "job/memory.events")


def test_a_missing_oom_counter_is_read_as_none(tmp_path: Path) -> None:
    assert memory_group._own_counter_file(str(tmp_path)) is None
    assert memory_group._read_counter(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("own", "machine", "code", "number", "struck"),
    [
        ((0, 1), (0, 1), None, 9, True),
        ((0, 1), (0, 1), 3, None, True),
        # A process of it died, whatever became of the whole.
        ((0, 1), (0, 1), 0, None, True),
        ((0, 0), (0, 1), 0, None, False),
        ((None, None), (0, 1), 0, None, False),
        # A neighbour's death: no reason to think it is ours, unless ours died the same way.
        ((0, 0), (0, 1), 3, None, False),
        ((0, 0), (0, 1), None, 15, False),
        ((0, 0), (0, 1), None, 9, True),
        ((0, 0), (0, 1), 137, None, True),
        ((0, 0), (0, 0), None, 9, False),
        # No counter of our own: the machine's is all there is.
        ((None, None), (0, 1), 3, None, True),
        ((None, None), (0, 0), None, 9, False),
        ((None, None), (None, None), None, 9, False),
    ],
)
def test_an_oom_kill_is_inferred_from_counters_and_the_exit_status(
    monkeypatch: pytest.MonkeyPatch,
    own: tuple[int | None, int | None],
    machine: tuple[int | None, int | None],
    code: int | None,
    number: int | None,
    struck: bool,
) -> None:
    values = {"/own": iter(own), "/proc/vmstat": iter(machine)}
    monkeypatch.setattr(memory_group, "_own_counter_file", lambda: "/own")
    monkeypatch.setattr(memory_group, "_read_counter", lambda path: next(values[path]))

    assert memory_group.OomWatch().struck(code=code, signal=number) is struck
