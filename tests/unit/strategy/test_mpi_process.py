"""The wrapper of one process under mpirun, as a program of its own: real children, real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from agent_runs import is_alive, wait_until
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.strategy import mpi_process
from bai_agent.strategy.mpi_process import LineCopy

SECONDS = 60
COUNT_SIGNALS = """
import os, signal, sys, time
seen = []
def note(number, frame):
    print("got", number, flush=True)
    seen.append(number)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, note)
print("pid", os.getpid(), os.getpgid(0), flush=True)
while signal.SIGUSR1 not in seen or len(seen) < 2:
    time.sleep(0.01)
time.sleep(0.3)
sys.exit(5)
"""


def wrapped(folder: Path, *command: str, rank: str | None = "3", **variables: str) -> list[Any]:
    """Return arguments for Popen: the wrapper around `command`, in a process group of its own, as mpirun starts it."""
    (folder / "processes").mkdir(exist_ok=True)
    env = {key: value for key, value in os.environ.items() if key not in mpi_process.RANKS}
    env |= {"BAI_RUN_DIR": str(folder), **variables}
    if rank is not None:
        env["OMPI_COMM_WORLD_RANK"] = rank
    return [[sys.executable, "-I", "-S", mpi_process.__file__, *command], env]


@contextmanager
def started(folder: Path, *command: str, **keys: Any) -> Iterator[subprocess.Popen[bytes]]:
    argv, env = wrapped(folder, *command, **keys)
    child = subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def run(folder: Path, *command: str, **keys: Any) -> tuple[int, str, str]:
    """Run a wrapped command to its end; return its exit code, what was copied, and what the wrapper itself said."""
    with started(folder, *command, **keys) as child:
        output, errors = child.communicate(timeout=SECONDS)
        return child.returncode, output.decode(), errors.decode()


def log_of(folder: Path, rank: str = "3") -> str:
    return (folder / "processes" / f"{rank}.log").read_text()


def end_of(folder: Path, rank: str = "3") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "processes" / f"{rank}.json").read_text())
    return found


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_output_of_a_process_is_written_to_a_file_and_copied_to_mpirun(tmp_path: Path) -> None:
    code, copied, _ = run(tmp_path, "/bin/sh", "-c", "echo one; echo two >&2; printf three; exit 7")

    assert (code, log_of(tmp_path), copied) == (7, "one\ntwo\nthree", "one\ntwo\nthree\n")
    said = end_of(tmp_path)
    assert abs(said.pop("time") - time.time() * 1000) < SECONDS * 1000
    assert said == {"code": 7, "signal": None, "asked": None, "output_bytes": 13}


def test_open_mpi_5_names_the_rank_by_another_variable(tmp_path: Path) -> None:
    assert run(tmp_path, "echo", "x", rank=None, PMIX_RANK="12")[0] == 0
    assert log_of(tmp_path, "12") == "x\n"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_the_wrapper_ends_by_the_same_signal_as_its_process(tmp_path: Path, number: signal.Signals) -> None:
    code, _, _ = run(tmp_path, "/bin/sh", "-c", f"kill -{int(number)} $$")

    assert code == -number
    assert {key: end_of(tmp_path)[key] for key in ("code", "signal", "asked")} == {
        "code": None,
        "signal": int(number),
        "asked": None,
    }


@pytest.mark.parametrize("to_the_group", [True, False])
def test_a_signal_arrives_once_and_is_noted_if_mpirun_sent_it(tmp_path: Path, to_the_group: bool) -> None:
    with started(tmp_path, *python(COUNT_SIGNALS)) as child:
        wait_until(lambda: (tmp_path / "processes" / "3.log").exists() and "pid" in log_of(tmp_path))
        # We are the parent, as mpirun is; another process is somebody else.
        if to_the_group:
            os.killpg(child.pid, signal.SIGTERM)
        else:
            subprocess.run(["sh", "-c", f"kill -TERM {child.pid}"], check=True)
        wait_until(lambda: "got 15" in log_of(tmp_path))
        if to_the_group:
            os.killpg(child.pid, signal.SIGUSR1)
        else:
            subprocess.run(["sh", "-c", f"kill -USR1 {child.pid}"], check=True)
        assert child.wait(timeout=SECONDS) == 5

    assert log_of(tmp_path).split("\n", 1)[1] == "got 15\ngot 10\n"
    assert end_of(tmp_path)["asked"] == (15 if to_the_group else None)


def test_a_process_in_its_own_process_group_gets_mpiruns_signals(tmp_path: Path) -> None:
    with started(tmp_path, *python("import os; os.setsid()\n" + COUNT_SIGNALS)) as child:
        wait_until(lambda: (tmp_path / "processes" / "3.log").exists() and "pid" in log_of(tmp_path))
        for number, name in ((signal.SIGINT, "got 2"), (signal.SIGUSR1, "got 10")):
            os.killpg(child.pid, number)
            wait_until(lambda name=name: name in log_of(tmp_path))  # type: ignore[misc]
        assert child.wait(timeout=SECONDS) == 5

    assert log_of(tmp_path).count("got") == 2


def test_the_process_is_killed_when_its_wrapper_is_killed(tmp_path: Path) -> None:
    with started(tmp_path, "/bin/sh", "-c", "echo $$; exec sleep 300") as child:
        wait_until(lambda: (tmp_path / "processes" / "3.log").exists() and log_of(tmp_path).endswith("\n"))
        pid = int(log_of(tmp_path))
        assert is_alive(pid)

        child.kill()

        wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize("interrupt", [signal.SIG_DFL, signal.SIG_IGN])
def test_the_process_inherits_signal_handling_and_environment_unchanged(
    tmp_path: Path, interrupt: signal.Handlers
) -> None:
    code = (
        "import os, signal, json; status = open('/proc/self/status').read();"
        "print([line for line in status.splitlines() if line.startswith(('SigBlk', 'SigIgn'))], sorted(os.environ))"
    )
    shell = f'exec {sys.executable} -S -c "$CODE"'
    variables = {"CODE": code, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}

    argv, env = wrapped(tmp_path, "/bin/sh", "-c", shell, **variables)
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        direct = subprocess.run(argv[4:], env=env, check=True, stdout=subprocess.PIPE, timeout=SECONDS)
        run(tmp_path, "/bin/sh", "-c", shell, **variables)
    finally:
        signal.signal(signal.SIGINT, before)

    assert log_of(tmp_path) == direct.stdout.decode()


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"BAI_RUN_DIR": ""}, "BAI_RUN_DIR is not set"),
        ({"BAI_RUN_DIR": "/proc/nothing"}, "/proc/nothing/processes/3.log: No such"),
    ],
)
def test_a_process_without_a_folder_for_its_output_is_not_started(
    tmp_path: Path, variables: dict[str, str], words: str
) -> None:
    code, copied, errors = run(tmp_path, "touch", str(tmp_path / "ran"), **variables)

    assert (code, copied) == (mpi_process.NOT_STARTED, "")
    assert words in errors
    assert not (tmp_path / "ran").exists()


def test_a_command_that_cannot_start_says_so(tmp_path: Path) -> None:
    code, copied, _ = run(tmp_path, "no-such-command")

    assert code == mpi_process.NOT_STARTED
    assert (
        copied
        == log_of(tmp_path)
        == '[bai] the command "no-such-command" cannot be started: No such file or directory\n'
    )


def test_a_slow_reader_of_the_copied_output_does_not_delay_the_process(tmp_path: Path) -> None:
    # given more than a pipe holds
    line = "x" * 99
    with started(tmp_path, *python(f"for _ in range(20_000): print('{line}')")) as child:
        # when nobody reads until the process has ended
        wait_until(lambda: (tmp_path / "processes" / "3.json").exists())
        copied, _ = child.communicate(timeout=SECONDS)

    # then all of it arrives
    assert child.returncode == 0
    assert copied.decode() == log_of(tmp_path) == f"{line}\n" * 20_000


def test_output_of_a_remaining_child_does_not_delay_the_end(tmp_path: Path) -> None:
    # given a child that prints faster than can be copied, up to 100 MB
    command = "echo own; ulimit -f 200000; yes left & echo $! > left"
    with started(tmp_path, "/bin/sh", "-c", f"cd {tmp_path}; {command}") as child:
        try:
            copied, _ = child.communicate(timeout=SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)

    assert child.returncode == 0
    assert copied.startswith(b"own\n")
    assert len(copied) <= end_of(tmp_path)["output_bytes"] + 1


def test_the_process_continues_if_nothing_reads_its_copied_output(tmp_path: Path) -> None:
    with started(
        tmp_path, *python("import time\nfor _ in range(30): print('x', flush=True); time.sleep(0.02)")
    ) as child:
        assert child.stdout is not None
        child.stdout.close()
        assert child.wait(timeout=SECONDS) == 0

    assert log_of(tmp_path) == "x\n" * 30


@given(
    st.lists(st.binary(max_size=9000) | st.sampled_from([b"\n", b"line\n", b"\r", b"a" * 5000]), max_size=12)
)
def test_all_output_is_copied_in_whole_lines(pieces: list[bytes]) -> None:
    source = os.memfd_create("log")
    # Keeps writes apart.
    reading, target = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    writes: list[bytes] = []

    def take() -> None:
        with suppress(BlockingIOError):
            while True:
                writes.append(reading.recv(65536))

    with reading, target:
        reading.setblocking(False)
        target.setblocking(False)
        copy = LineCopy(source, target.fileno())
        for piece in pieces:
            os.write(source, piece)
            while copy.copy():
                take()
        while copy.copy(to_the_end=True) or copy.blocked:
            take()
        take()
    os.close(source)

    whole = b"".join(pieces)
    assert b"".join(writes) == whole + (b"" if not whole or whole[-1:] in b"\r\n" else b"\n")
    for write in writes:
        # What mpirun takes at once, and nothing else: whole lines, or a piece of one that is longer.
        assert len(write) <= 4096
        assert write[-1:] in b"\r\n" or not set(write) & set(b"\r\n") or len(whole) > 65536
