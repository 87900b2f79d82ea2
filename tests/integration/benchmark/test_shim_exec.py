"""A command that cannot be executed is distinguished from one that failed."""

from __future__ import annotations

import errno
import os
import pwd
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shim_runs import Bench, classified

from bai_agent.benchmark.start import launch
from bai_agent.files.user_rights import User
from bai_agent.job.outcome import Outcome
from bai_agent.job.run_directory import RunDir

Make = Callable[[Path], None]


def _write(content: bytes, mode: int) -> Make:
    def make(path: Path) -> None:
        path.write_bytes(content)
        path.chmod(mode)

    return make


@pytest.mark.parametrize(
    ("make", "number", "outcome", "says"),
    [
        (lambda path: None, errno.ENOENT, Outcome.NOT_FOUND, "does not exist"),
        (
            _write(b"#!/no/such/interpreter\n", 0o755),
            errno.ENOENT,
            Outcome.NOT_EXECUTABLE,
            '"/no/such/interpreter"',
        ),
        (
            _write(b"#!/bin/sh\r\necho\r\n", 0o755),
            errno.ENOENT,
            Outcome.NOT_EXECUTABLE,
            "Windows line endings",
        ),
        (_write(b"#!/bin/sh\n", 0o644), errno.EACCES, Outcome.NOT_EXECUTABLE, "chmod \\+x"),
        (_write(b"echo no first line\n", 0o755), errno.ENOEXEC, Outcome.NOT_EXECUTABLE, "needs a first line"),
        (
            _write(b"\x7fELF\x02\x01\x01" + bytes(100), 0o755),
            errno.ENOEXEC,
            Outcome.NOT_EXECUTABLE,
            "built for this CPU",
        ),
        (lambda path: path.mkdir(), errno.EACCES, Outcome.NOT_EXECUTABLE, "is a folder"),
    ],
)
def test_a_command_may_be_a_path(
    bench: Bench, tmp_path: Path, make: Make, number: int, outcome: Outcome, says: str
) -> None:
    make(tmp_path / "command")

    bench.launch(tmp_path / "command")

    ended = bench.ended()
    assert (ended["code"], ended["signal"], ended["exec_error"]["errno"]) == (None, None, number)
    got, sentence = classified(ended)
    assert got is outcome
    assert str(tmp_path / "command") in sentence
    assert re.search(says, sentence)
    assert bench.output == ""


def test_a_command_that_is_not_on_path_is_reported_as_not_found(bench: Bench) -> None:
    bench.launch("no-such-benchmark", env={"PATH": "/usr/bin:/nowhere"})

    outcome, sentence = classified(bench.ended())

    assert outcome is Outcome.NOT_FOUND
    assert (
        sentence == 'The benchmark\'s command "no-such-benchmark" was not found on PATH (/usr/bin:/nowhere).'
    )


def test_the_whole_path_of_the_benchmarks_environment_is_searched_for_an_executable(
    bench: Bench, tmp_path: Path
) -> None:
    for name, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / name).mkdir()
        _write(f"#!/bin/sh\necho {name}\n".encode(), mode)(tmp_path / name / "thing")

    bench.launch("thing", env={"PATH": f"{tmp_path}/nowhere:{tmp_path}/first:{tmp_path}/second:/bin"})

    assert bench.ended()["code"] == 0
    assert bench.output == "second\n"


def test_arguments_that_are_too_long_are_reported_as_not_executable(bench: Bench) -> None:
    bench.launch("echo", "x" * 200_000)

    ended = bench.ended()

    assert ended["exec_error"]["errno"] == errno.E2BIG
    assert classified(ended)[0] is Outcome.NOT_EXECUTABLE


def test_a_missing_working_directory_is_reported_by_name(bench: Bench, tmp_path: Path) -> None:
    bench.launch("true", cwd=tmp_path / "missing")

    outcome, sentence = classified(bench.ended())

    assert outcome is Outcome.NOT_EXECUTABLE
    assert f"folder {tmp_path}/missing cannot be entered" in sentence


@pytest.fixture
def open_bench() -> Iterator[Bench]:
    """A run directory that another user may enter, which pytest's own folders do not allow."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield Bench(RunDir(folder))
    shutil.rmtree(folder)


NOBODY = pwd.getpwnam("nobody")
AS_NOBODY = User(name="nobody", uid=NOBODY.pw_uid, gid=NOBODY.pw_gid, groups=(NOBODY.pw_gid,), home="/")


@pytest.mark.root
def test_another_user_can_print_and_emit(open_bench: Bench) -> None:
    open_bench.launch(
        "sh",
        "-c",
        f'id -un; id -G; echo opened > /dev/stdout; echo "{{}}" > {open_bench.rundir.fifo}',
        user=AS_NOBODY,
    )

    assert open_bench.ended()["code"] == 0
    assert open_bench.output.splitlines()[-1] == "opened"
    assert open_bench.rundir.emit.read_text() == "{}\n"


def test_a_user_id_that_the_kernel_refuses_is_an_exec_error(open_bench: Bench) -> None:
    # Given a user id that the kernel refuses whoever asks.
    refused = User(name="nobody", uid=2**32 - 1, gid=NOBODY.pw_gid, groups=(), home="/")
    order = open_bench.order("true", user=refused)
    open_bench.rundir.output.touch()

    launch(order, open_bench.rundir)

    ended = open_bench.ended()
    assert ended["exec_error"]["errno"] in (errno.EPERM, errno.EINVAL)
    assert 'as the user "nobody"' in classified(ended)[1]
    assert os.geteuid() != 2**32 - 1


def test_cpu_time_of_the_shim_before_exec_is_not_counted(bench: Bench) -> None:
    # All that the process has used since its fork, as the command itself sees it right before its end.
    code = "import os, resource; u = resource.getrusage(resource.RUSAGE_SELF); os.write(1, str(u.ru_utime + u.ru_stime).encode()); os._exit(0)"

    bench.launch(sys.executable, "-I", "-S", "-c", code)

    ended = bench.ended()
    assert ended["code"] == 0
    assert ended["user_seconds"] + ended["system_seconds"] < float(bench.output)
