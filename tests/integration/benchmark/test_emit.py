"""emit() of the real client library, through the FIFO into emit.log."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import stat
import sys
import termios
from pathlib import Path

import pytest
from shim_runs import Bench, until

CLIENT = "import os, sys\nfrom benchmarkai import emit\n"


def _contract(bench: Bench) -> dict[str, str]:
    return {
        "BENCHMARK_AI": "fifo",
        "BENCHMARK_AI_FIFO_FILEPATH": str(bench.rundir.fifo),
        "BENCHMARK_AI_FIFO_MAX_WAIT_TIME": "60",
    }


def _lines(bench: Bench) -> list[dict[str, object]]:
    return [json.loads(line) for line in bench.rundir.emit.read_text().splitlines()]


def test_the_fifo_exists_before_the_benchmark(bench: Bench) -> None:
    bench.launch("sh", "-c", f"test -p {bench.rundir.fifo}")

    assert bench.ended()["code"] == 0
    assert not bench.rundir.fifo.exists()


def test_processes_can_emit_one_after_the_other(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "emits.py"
    script.write_text(CLIENT + "emit({'step': int(sys.argv[1]), 'loss': 0.5})\n")
    bench.launch(
        "sh", "-c", f"for i in 1 2 3 4 5; do python3 {script} $i; done", env={**_contract(bench), **_path()}
    )

    assert bench.ended()["code"] == 0
    assert _lines(bench) == [{"step": step, "loss": 0.5} for step in range(1, 6)]


def _fork_writers(writers: int, lines: int, size: int) -> str:
    return (
        CLIENT + f"for rank in range({writers}):\n"
        "    if not os.fork():\n"
        f"        for step in range({lines}):\n"
        f"            emit({{'rank': rank, 'step': step, 'text': 'x' * {size}}})\n"
        "        os._exit(0)\n"
        f"sys.exit(max(os.wait()[1] for _ in range({writers})))\n"
    )


# Lines of up to PIPE_BUF (4096 bytes) in any number; longer ones as long as the pipe holds them.
@pytest.mark.parametrize(("lines", "size"), [(2000, 10), (500, 4000), (8, 17_000)])
def test_lines_of_many_concurrent_writers_all_arrive(bench: Bench, lines: int, size: int) -> None:
    bench.python(_fork_writers(6, lines, size), env=_contract(bench))

    assert bench.ended()["code"] == 0
    emitted = _lines(bench)
    assert len(emitted) == 6 * lines
    for rank in range(6):
        assert [line["step"] for line in emitted if line["rank"] == rank] == list(range(lines))


def test_values_emitted_right_before_the_end_of_the_benchmark_are_recorded(bench: Bench) -> None:
    # More than a shim that is stopped meanwhile has read, less than the FIFO holds.
    bench.python(
        CLIENT + "print('ready', flush=True)\nimport time\n"
        "while not os.path.exists(os.environ['GO']): time.sleep(0.01)\n"
        "for n in range(2000): emit({'n': n})\n"
        "open(os.environ['DONE'], 'w').close()\n",
        env={
            **_contract(bench),
            "GO": str(bench.rundir.path / "go"),
            "DONE": str(bench.rundir.path / "done"),
        },
    )
    bench.wait_for_output("ready")
    os.kill(bench.started["shim_pid"], signal.SIGSTOP)
    (bench.rundir.path / "go").touch()
    until((bench.rundir.path / "done").exists, "all is emitted while nobody reads")
    os.kill(bench.started["shim_pid"], signal.SIGCONT)

    assert bench.ended()["code"] == 0
    assert _lines(bench) == [{"n": n} for n in range(2000)]


def test_a_writer_that_dies_mid_line_corrupts_no_other_line(bench: Bench) -> None:
    bench.python(
        CLIENT + "if os.fork() == 0:\n"
        "    os.write(os.open(os.environ['BENCHMARK_AI_FIFO_FILEPATH'], os.O_WRONLY), b'{\"half\"')\n"
        "    os._exit(1)\n"
        "os.wait()\n"
        "emit({'whole': 1})\n",
        env=_contract(bench),
    )

    assert bench.ended()["code"] == 0
    assert bench.rundir.emit.read_text() == '{"half"{"whole": 1}\n'


@pytest.mark.root
def test_a_full_disk_blocks_writers_and_loses_nothing(bench: Bench, small_disk: Path) -> None:
    # Given an emit.log on a file system with no room.
    filler = small_disk / "filler"
    bench.rundir.emit.symlink_to(small_disk / "emit.log")
    (small_disk / "emit.log").touch()
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(descriptor, b"x" * 4096)
    os.close(descriptor)
    bench.python(
        CLIENT + "for n in range(20_000): emit({'n': n, 'text': 'x' * 100})\nprint('emitted', flush=True)\n",
        env=_contract(bench),
    )
    until(lambda: _waiting_bytes(bench.rundir.fifo) > 500_000, "what is emitted waits in the FIFO")

    filler.unlink()

    assert bench.ended()["code"] == 0
    assert bench.output == "emitted\n"
    assert [line["n"] for line in _lines(bench)] == list(range(20_000))


def test_emitted_bytes_lost_to_a_full_disk_are_counted(bench: Bench) -> None:
    # Given an emit.log that takes nothing, ever.
    bench.rundir.emit.symlink_to("/dev/full")

    bench.launch("sh", "-c", f"echo '{{}}' > {bench.rundir.fifo}")

    ended = bench.ended()
    assert (ended["code"], ended["emit_lost_bytes"]) == (0, 3)


def test_a_benchmark_may_delete_the_fifo(bench: Bench) -> None:
    bench.launch("sh", "-c", f"echo '{{}}' > {bench.rundir.fifo}; rm {bench.rundir.fifo}; exit 2")

    assert bench.ended()["code"] == 2
    assert bench.rundir.emit.read_text() == "{}\n"


def test_other_users_cannot_write_into_the_fifo(bench: Bench) -> None:
    bench.launch("sleep", "60")

    assert stat.S_IMODE(bench.rundir.fifo.stat().st_mode) == 0o600


def _waiting_bytes(fifo: Path) -> int:
    descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
    finally:
        os.close(descriptor)


def _path() -> dict[str, str]:
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
