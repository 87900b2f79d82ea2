"""The shim from the benchmark's start to its end, each with real processes."""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import resource
import signal
import struct
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from shim_runs import Bench, classified, ended_of, until

from bai_agent.benchmark.ending import classify
from bai_agent.benchmark.environment import find_user
from bai_agent.benchmark.start import _order_bytes, launch
from bai_agent.benchmark.state import State, read_started, running_seconds, state
from bai_agent.benchmark.stopping import end_lost
from bai_agent.errors import BusyError, ShimError
from bai_agent.job.outcome import Outcome
from bai_agent.job.run_directory import is_locked
from bai_agent.light_dataclass import replace
from bai_agent.peers.reachability import is_refused
from bai_agent.shim import shim
from bai_agent.shim.proc import boot_id, read_process
from bai_agent.shim.spawn import SHORT_SLICE_NS


def test_exit_code_and_output_of_the_benchmark_are_recorded(bench: Bench) -> None:
    bench.launch("sh", "-c", "echo out; echo err >&2; exit 7")

    ended = bench.ended()

    assert (ended["code"], ended["signal"], ended["exec_error"], ended["stop"], ended["oom"]) == (
        7,
        None,
        None,
        None,
        False,
    )
    assert bench.output == "out\nerr\n"
    assert classified(ended)[0] is Outcome.FAILED


def test_started_json_names_the_running_process(bench: Bench) -> None:
    bench.launch("sleep", "60")

    started = bench.started

    benchmark, watcher = read_process(started["pid"]), read_process(started["shim_pid"])
    assert benchmark is not None
    assert watcher is not None
    assert (benchmark.start, watcher.start, started["boot_id"]) == (
        started["start"],
        started["shim_start"],
        boot_id(),
    )
    assert benchmark.session == benchmark.group == benchmark.pid
    assert benchmark.parent == watcher.pid
    assert watcher.session == watcher.pid != os.getsid(0)


def test_the_benchmark_inherits_no_file_descriptors_or_signals_of_the_shim(bench: Bench) -> None:
    bench.python(
        "import os, signal\n"
        "print(sorted(os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{n}')))\n"
        "print(open('/proc/self/status').read())\n"
    )
    bench.ended()

    output = str(bench.rundir.output)
    assert bench.output.startswith(f"{['/dev/null', output, output]}\n")
    # What Python itself ignores (SIGPIPE, SIGXFSZ), and nothing else.
    ignored = int(re.findall(r"SigIgn:\s*(\w+)", bench.output)[0], 16)
    assert ignored == 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    assert re.findall(r"SigBlk:\s*(\w+)", bench.output) == ["0" * 16]


def test_a_plain_program_starts_with_default_signals(bench: Bench) -> None:
    bench.launch("grep", "-E", "SigIgn|SigBlk", "/proc/self/status")
    bench.ended()

    assert re.findall(r"\t(\w+)", bench.output) == ["0" * 16] * 2


def test_cpu_time_and_peak_memory_of_the_benchmark_are_measured(bench: Bench) -> None:
    bench.python(
        "import time\n"
        "end = time.process_time() + 0.3\n"
        "block = bytearray(60_000_000)\n"
        "while time.process_time() < end: pass\n"
    )
    ended = bench.ended()

    assert ended["user_seconds"] + ended["system_seconds"] >= 0.3
    assert ended["wall_seconds"] >= 0.3
    assert ended["peak_memory_bytes"] > 60_000_000
    assert ended["context_switches_voluntary"] >= 1


def test_a_second_launch_does_not_start_the_benchmark_again(bench: Bench) -> None:
    count = bench.rundir.path / "count"
    bench.launch("sh", "-c", f"echo x >> {count}; sleep 60")
    pid = bench.started["pid"]

    bench.launch("sh", "-c", f"echo again >> {count}")

    until(lambda: count.exists() and count.stat().st_size > 0, "the benchmark counts")
    assert bench.started["pid"] == pid
    assert count.read_text() == "x\n"


@pytest.mark.parametrize(("argv", "code"), [(("sleep", "60"), shim.BUSY), (("true",), shim.STARTED_BEFORE)])
def test_a_second_shim_in_the_same_run_directory_refuses_to_start(
    bench: Bench, argv: tuple[str, ...], code: int
) -> None:
    bench.launch(*argv)
    if code == shim.STARTED_BEFORE:
        bench.ended()
    again = bench.order("touch", bench.rundir.path / "twice")

    second = subprocess.run(
        [sys.executable, "-I", "-S", shim.__file__, str(bench.rundir.path)],
        input=_order_bytes(again, bench.rundir),
        timeout=60,
        check=False,
    )

    assert second.returncode == code
    assert not (bench.rundir.path / "twice").exists()


def test_a_truncated_launch_order_starts_nothing(bench: Bench) -> None:
    order = _order_bytes(bench.order("touch", bench.rundir.path / "ran"), bench.rundir)

    half = subprocess.run(
        [sys.executable, "-I", "-S", shim.__file__, "x"],
        input=order[:-20],
        timeout=60,
        check=False,
        capture_output=True,
    )

    assert half.returncode == shim.NO_ORDER
    assert state(bench.rundir) is State.NOT_STARTED


def test_a_shim_outlives_its_launcher(bench: Bench) -> None:
    order = bench.rundir.path / "order"
    order.write_bytes(_order_bytes(bench.order("sh", "-c", "sleep 0.5; exit 3"), bench.rundir))
    # A launcher that hands over the order and is killed at once, its whole group with it.
    launcher = (
        "import os, signal, subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-I', '-S', {shim.__file__!r}, 'x'], stdin=open({str(order)!r}), start_new_session=True)\n"
        "os.killpg(0, signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", launcher], start_new_session=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL

    until(bench.rundir.exit.exists, "the shim comes to its end")

    assert ended_of(bench.rundir).code == 3


def test_a_failed_launch_reports_the_reason_and_may_be_repeated(bench: Bench) -> None:
    bench.rundir.fifo.write_text("in the way")

    with pytest.raises(ShimError, match=r"the path exists and is not a FIFO.*fifo"):
        bench.launch("true")

    bench.rundir.fifo.unlink()
    bench.launch("true")
    assert bench.ended()["code"] == 0


def test_a_killed_shim_makes_the_benchmark_lost_and_all_its_processes_are_killed(bench: Bench) -> None:
    bench.launch("sh", "-c", "setsid sleep 61 & env -i setsid sleep 62 & sleep 63 & trap '' TERM; sleep 64")
    until(lambda: len(bench.processes()) >= 4, "all have started")
    everything = bench.processes()

    os.kill(bench.started["shim_pid"], signal.SIGKILL)
    until(lambda: state(bench.rundir) is State.LOST, "the shim's death is seen")
    end_lost(bench.rundir)

    until(
        lambda: all((p := read_process(pid)) is None or p.state == "Z" for pid in everything), "all have gone"
    )
    ended = ended_of(bench.rundir)
    assert ended.lost is True
    assert (ended.left_behind or 0) >= 4
    assert classify(ended)[0] is Outcome.LOST
    bench.launch("touch", bench.rundir.path / "twice")
    assert not (bench.rundir.path / "twice").exists()


@pytest.mark.parametrize("killed", [True, False])
def test_only_a_living_shim_listens_on_its_port(bench: Bench, killed: bool) -> None:
    order = bench.order("sh", "-c", "setsid sleep 61 & ls -l /proc/self/fd; sleep 62")
    launch(replace(order, listens_at="127.0.0.1"), bench.rundir)
    port = bench.started["port"]

    for _ in range(3):
        assert not is_refused("127.0.0.1", port)
    until(lambda: "/proc" in bench.output, "the benchmark has listed its files")
    assert "socket:" not in bench.output

    if killed:
        # What it started lives on.
        os.kill(bench.started["shim_pid"], signal.SIGKILL)
    else:
        bench.stop(grace_s=0)
    until(lambda: is_refused("127.0.0.1", port), "nobody listens any more")


def test_a_shim_that_cannot_listen_still_runs_the_benchmark(bench: Bench) -> None:
    launch(replace(bench.order("true"), listens_at="192.0.2.1"), bench.rundir)

    bench.ended()
    assert ended_of(bench.rundir).code == 0
    started = read_started(bench.rundir)
    assert started is not None
    assert started.port == 0
    assert started.warnings


def test_a_reused_pid_is_not_killed(bench: Bench) -> None:
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        real = read_process(bystander.pid)
        assert real is not None
        # Given a started.json of a benchmark that had the bystander's pid before it.
        bench.rundir.started.write_text(
            f'{{"shim_pid": {bystander.pid}, "shim_start": 1, "pid": {bystander.pid}, "start": {real.start - 1}, '
            f'"boot_id": "{boot_id()}", "time": 0}}'
        )
        assert state(bench.rundir) is State.LOST

        end_lost(bench.rundir)

        assert bystander.poll() is None
        assert ended_of(bench.rundir).left_behind == 0
    finally:
        bystander.kill()
        bystander.wait()


def test_no_process_is_killed_by_its_recorded_pid_after_a_reboot(bench: Bench) -> None:
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        real = read_process(bystander.pid)
        assert real is not None
        bench.rundir.started.write_text(
            f'{{"shim_pid": {bystander.pid}, "shim_start": {real.start}, "pid": {bystander.pid}, "start": {real.start}, '
            '"boot_id": "another boot", "time": 0}'
        )

        end_lost(bench.rundir)

        assert bystander.poll() is None
        assert running_seconds(read_started(bench.rundir)) == 0
    finally:
        bystander.kill()
        bystander.wait()


def test_processes_of_a_living_shim_are_not_killed(bench: Bench) -> None:
    from bai_agent.benchmark.orphans import kill_remains

    bench.launch("sleep", "60")

    with pytest.raises(BusyError, match="still watched by its shim"):
        kill_remains(bench.rundir, read_started(bench.rundir))

    assert read_process(bench.started["pid"]) is not None


def test_a_shim_that_hangs_is_ended_with_its_benchmark(bench: Bench) -> None:
    bench.launch("sleep", "60")
    os.kill(bench.started["shim_pid"], signal.SIGSTOP)

    end_lost(bench.rundir)

    assert not is_locked(bench.rundir.shim_lock)
    assert bench.processes() == []
    assert ended_of(bench.rundir).lost is True


def test_running_time_counts_from_the_benchmarks_start(bench: Bench) -> None:
    bench.launch("sleep", "60")

    first = running_seconds(read_started(bench.rundir))

    until(lambda: running_seconds(read_started(bench.rundir)) > first + 0.05, "time passes")
    assert first < 60


def test_the_shim_applies_the_grace_in_its_launch_order(bench: Bench) -> None:
    bench.grace = timedelta(seconds=0)
    bench.launch("sh", "-c", "(trap '' TERM; sleep 60) & sleep 0.1")

    ended = bench.ended()

    assert ended["code"] == 0
    assert ended["left_behind"] == 1
    assert bench.processes() == []


def test_odd_characters_in_folder_and_arguments_reach_the_benchmark_unchanged(tmp_path: Path) -> None:
    from bai_agent.job.run_directory import RunDir

    folder = tmp_path / "a 0; 'x' \"ä\" $HOME\n"
    folder.mkdir()
    weird = Bench(RunDir(folder))
    weird.launch("sh", "-c", 'echo "$0 $BAI_RUN_DIR"', "ü $(NAME) 'q'")

    weird.ended()

    assert weird.output == f"ü $(NAME) 'q' {folder}\n"


@pytest.mark.root
def test_the_limit_on_locked_memory_is_raised_for_a_benchmark_of_another_user(bench: Bench) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard))
    try:
        bench.launch("/bin/bash", "-c", "ulimit -l; id -u", cwd=Path("/"), user=find_user("nobody"))
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))

    assert bench.ended()["code"] == 0
    limit, uid = bench.output.split()
    # A container may forbid root to exceed the hard limit.
    assert limit in ("unlimited", str(hard // 1024))
    assert int(uid) == pwd.getpwnam("nobody").pw_uid


def test_only_the_shim_has_a_short_time_slice(bench: Bench) -> None:
    bench.launch("sleep", "60")

    assert _slice_ns(bench.started["shim_pid"]) in (SHORT_SLICE_NS, 0)
    until(lambda: _slice_ns(bench.started["pid"]) != SHORT_SLICE_NS, "the benchmark has the ordinary slice")
    assert _slice_ns(bench.started["pid"]) == _slice_ns(os.getpid())
    assert os.getpriority(os.PRIO_PROCESS, bench.started["pid"]) == os.getpriority(os.PRIO_PROCESS, 0)


def _slice_ns(pid: int) -> int:
    """Return a process's time slice as sched_getattr(2) has it; 0 on a kernel that has none of one's own."""
    buffer = ctypes.create_string_buffer(48)
    number = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
    assert ctypes.CDLL(None).syscall(number, pid, buffer, len(buffer), 0) == 0
    (runtime,) = struct.unpack_from("=Q", buffer, 24)
    return int(runtime)
