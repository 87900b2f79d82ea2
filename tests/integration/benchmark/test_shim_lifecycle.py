"""The shim from the benchmark's start to its end, each with real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from shim_runs import Bench, until

from bai_agent.benchmark import shim
from bai_agent.benchmark.ending import classify
from bai_agent.benchmark.launch import ShimError, _order_bytes
from bai_agent.benchmark.proc import boot_id, read_process
from bai_agent.benchmark.started import read_started
from bai_agent.benchmark.state import State, read_exit, running_seconds, state
from bai_agent.benchmark.stopping import end_lost
from bai_agent.errors import BusyError
from bai_agent.job.outcome import Outcome
from bai_agent.job.run_directory import is_locked


def test_exit_code_and_output_are_kept(bench: Bench) -> None:
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
    assert classify(ended)[0] is Outcome.FAILED


def test_started_json_tells_who_runs(bench: Bench) -> None:
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


def test_benchmark_inherits_nothing_of_ours(bench: Bench) -> None:
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


def test_resources_are_measured(bench: Bench) -> None:
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


def test_launching_twice_starts_once(bench: Bench) -> None:
    count = bench.rundir.path / "count"
    bench.launch("sh", "-c", f"echo x >> {count}; sleep 60")
    pid = bench.started["pid"]

    bench.launch("sh", "-c", f"echo again >> {count}")

    until(count.exists, "the benchmark counts")
    assert bench.started["pid"] == pid
    assert count.read_text() == "x\n"


@pytest.mark.parametrize(("argv", "code"), [(("sleep", "60"), shim.BUSY), (("true",), shim.STARTED_BEFORE)])
def test_a_second_shim_refuses(bench: Bench, argv: tuple[str, ...], code: int) -> None:
    bench.launch(*argv)
    if code == shim.STARTED_BEFORE:
        bench.ended()
    again = bench.order("touch", bench.rundir.path / "twice")

    second = subprocess.run(
        [sys.executable, "-I", "-S", shim.__file__, str(bench.rundir.path)],
        input=_order_bytes(again, bench.rundir),
        timeout=20,
        check=False,
    )

    assert second.returncode == code
    assert not (bench.rundir.path / "twice").exists()


def test_half_an_order_starts_nothing(bench: Bench) -> None:
    order = _order_bytes(bench.order("touch", bench.rundir.path / "ran"), bench.rundir)

    half = subprocess.run(
        [sys.executable, "-I", "-S", shim.__file__, "x"],
        input=order[:-20],
        timeout=20,
        check=False,
        capture_output=True,
    )

    assert half.returncode == shim.NO_ORDER
    assert state(bench.rundir) is State.NOT_STARTED


def test_a_shim_outlives_whoever_launched_it(bench: Bench) -> None:
    order = bench.rundir.path / "order"
    order.write_bytes(_order_bytes(bench.order("sh", "-c", "sleep 0.5; exit 3"), bench.rundir))
    # A launcher that hands over the order and is killed at once, its whole group with it.
    launcher = (
        "import os, signal, subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-I', '-S', {shim.__file__!r}, 'x'], stdin=open({str(order)!r}), start_new_session=True)\n"
        "os.killpg(0, signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", launcher], start_new_session=True, timeout=20, check=False)
    assert killed.returncode == -signal.SIGKILL

    until(bench.rundir.exit.exists, "the shim comes to its end")

    assert read_exit(bench.rundir)["code"] == 3


def test_a_launch_that_fails_says_why_and_may_be_repeated(bench: Bench) -> None:
    bench.rundir.fifo.write_text("in the way")

    with pytest.raises(ShimError, match=r"something that is not a FIFO is in the way.*fifo"):
        bench.launch("true")

    bench.rundir.fifo.unlink()
    bench.launch("true")
    assert bench.ended()["code"] == 0


def test_killed_shim_means_lost_and_nothing_remains(bench: Bench) -> None:
    bench.launch("sh", "-c", "setsid sleep 61 & env -i setsid sleep 62 & sleep 63 & trap '' TERM; sleep 64")
    until(lambda: len(bench.processes()) >= 4, "all have started")
    everything = bench.processes()

    os.kill(bench.started["shim_pid"], signal.SIGKILL)
    until(lambda: state(bench.rundir) is State.LOST, "the shim's death is seen")
    end_lost(bench.rundir)

    until(
        lambda: all((p := read_process(pid)) is None or p.state == "Z" for pid in everything), "all have gone"
    )
    ended = read_exit(bench.rundir)
    assert ended["lost"] is True
    assert ended["left_behind"] >= 4
    assert classify(ended)[0] is Outcome.LOST
    bench.launch("touch", bench.rundir.path / "twice")
    assert not (bench.rundir.path / "twice").exists()


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
        assert read_exit(bench.rundir)["left_behind"] == 0
    finally:
        bystander.kill()
        bystander.wait()


def test_after_a_reboot_nothing_is_killed(bench: Bench) -> None:
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


def test_remains_of_a_living_shim_are_not_touched(bench: Bench) -> None:
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
    assert read_exit(bench.rundir)["lost"] is True


def test_running_seconds_count_from_the_start(bench: Bench) -> None:
    bench.launch("sleep", "60")

    first = running_seconds(read_started(bench.rundir))

    until(lambda: running_seconds(read_started(bench.rundir)) > first + 0.05, "time passes")
    assert first < 60


def test_grace_of_the_order_reaches_the_shim(bench: Bench) -> None:
    bench.grace = timedelta(seconds=0)
    bench.launch("sh", "-c", "(trap '' TERM; sleep 60) & sleep 0.1")

    ended = bench.ended()

    assert ended["code"] == 0
    assert ended["left_behind"] == 1
    assert bench.processes() == []


def test_work_of_other_names_does_not_matter(tmp_path: Path) -> None:
    from bai_agent.job.run_directory import RunDir

    folder = tmp_path / "a 0; 'x' \"ä\" $HOME\n"
    folder.mkdir()
    weird = Bench(RunDir(folder))
    weird.launch("sh", "-c", 'echo "$0 $BAI_RUN_DIR"', "ü $(NAME) 'q'")

    weird.ended()

    assert weird.output == f"ü $(NAME) 'q' {folder}\n"
