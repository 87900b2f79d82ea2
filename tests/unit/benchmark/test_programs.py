from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import pytest

from bai_agent.benchmark.programs import ProgramOutput, ask, find_program
from bai_agent.errors import NoAnswerError
from bai_agent.files.user_rights import User
from bai_agent.shim.proc import read_process


def asked(script: str, **how: object) -> ProgramOutput:
    return ask(["sh", "-c", script], env={"PATH": os.environ["PATH"], "A": "b"}, **{"timeout_s": 30.0, **how})  # type: ignore[arg-type]


def test_the_exit_code_and_output_lines_of_a_program_are_returned(tmp_path: Path) -> None:
    answer = asked('echo; echo " $A"; pwd; echo no >&2; exit 3', cwd=tmp_path)

    assert (answer.code, answer.lines) == (3, ["b", str(tmp_path)])
    assert asked("echo no >&2", with_stderr=True).text == "no\n"
    assert asked("kill -9 $$").code == -9


def test_the_first_file_on_the_path_that_may_be_executed_is_found(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    (a / "tool").mkdir(parents=True)
    for folder, mode in ((b, 0o644), (c, 0o755)):
        folder.mkdir()
        (folder / "tool").touch(mode)
    path = f"/no/such/folder::{a}:{b}:{c}/"

    assert find_program("tool", path=path) == f"{c}/tool"
    assert find_program(f"{c}/tool", path="") == f"{c}/tool"
    assert [find_program(name, path=path) for name in (f"{a}/tool", f"{b}/tool", "other")] == [None] * 3
    assert find_program("tool", path="") is None


def test_a_missing_program_raises_an_error() -> None:
    with pytest.raises(NoAnswerError, match="no-such-program does not run"):
        ask(["no-such-program"], env={}, timeout_s=5)


@pytest.mark.parametrize(
    "late",
    [
        "sleep 100 & echo $! > {pid}; exit 0",
        "echo $$ > {pid}; exec sleep 100",
        "echo $$ > {pid}; exec sleep 100 >&- 2>&-",
    ],
    ids=["a child has the pipe", "it does not end", "it has closed its output"],
)
def test_a_program_that_exceeds_its_timeout_is_killed_with_its_descendants(tmp_path: Path, late: str) -> None:
    pid = tmp_path / "pid"

    # A busy machine may not have come to its first word by then.
    for timeout_s in (0.5, 5.0, 50.0):
        with pytest.raises(NoAnswerError, match=f"sh did not answer within {timeout_s:g} s"):
            asked(late.format(pid=pid), timeout_s=timeout_s)
        if pid.exists() and pid.read_text():
            break

    deadline = time.monotonic() + 60
    while (left := read_process(int(pid.read_text()))) is not None and left.state != "Z":
        assert time.monotonic() < deadline


def test_only_the_beginning_of_endless_output_is_read() -> None:
    answer = asked("exec yes")

    assert (len(answer.text), answer.code < 0) == (2**20, True)


@pytest.mark.root
def test_a_program_runs_as_the_user() -> None:
    entry = pwd.getpwnam("nobody")
    user = User(name="nobody", uid=entry.pw_uid, gid=entry.pw_gid, groups=(), home="/")

    assert asked("id -u", user=user).lines == [str(entry.pw_uid)]
