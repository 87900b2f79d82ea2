"""`bai` forked from a process with all imports, as most tests start it, behaves like a freshly started one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cli_harness import CliHarness
from preloaded_bai import PreloadedBai

_READS_STDIN = ("metrics-test", "b.toml", "-")


@pytest.fixture(params=[False, True], ids=["own start", "preloaded"])
def bai(request: pytest.FixtureRequest, tmp_path: Path) -> CliHarness:
    (tmp_path / "b.toml").write_text(
        """\
spec_version = "0.1.0"
[info]
description = "d"
execution_engine = "local"
[hardware]
instance_type = "local"
[ml]
benchmark_code = "true"
[[output.metrics]]
name = "loss"
pattern = 'loss=(\\S+)'
"""
    )
    plain = {name: os.environ[name] for name in ("PATH", "BAI_MACHINE")}
    # What it is killed over stays in the test's folder.
    plain |= {"HOME": str(tmp_path), "BAI_CONFIG": "/dev/null", "TMPDIR": str(tmp_path)}
    return CliHarness(tmp_path, plain, preloads=request.param)


@pytest.fixture
def waiting(bai: CliHarness) -> Iterator[subprocess.Popen[str]]:
    """One that waits for what is on its standard input."""
    with bai.start(*_READS_STDIN, stdin=subprocess.PIPE) as started:
        assert isinstance(started, PreloadedBai) == bai.preloads
        assert started.stdin is not None
        # More than a pipe holds: when it is written, some has been read.
        started.stdin.write("a line\n" * 50_000)
        started.stdin.flush()
        assert started.poll() is None
        yield started
        started.kill()


def test_a_forked_bai_gets_arguments_folder_environment_and_streams(bai: CliHarness) -> None:
    store = bai.folder / "other"

    found = bai.bai("metrics-test", "b.toml", "-", "--json", stdin="loss=0.5\n")
    nothing = bai.bai("list", "--json", env={"BAI_STORE": str(store)})
    wrong = bai.bai("validate", "no \udcff.toml")
    unknown = bai.bai("status", "nobody")

    assert found.code == 0, found.stderr
    assert "0.5" in found.stdout
    assert (nothing.code, nothing.stderr) == (0, "")
    assert json.loads(nothing.stdout or "[]") == []
    assert (wrong.code, wrong.stderr) == (2, "")
    assert "there is: b.toml" in wrong.stdout
    assert (unknown.code, unknown.stdout) == (2, "")
    assert unknown.stderr.startswith("bai: ")


def test_the_job_has_the_umask_of_the_process_that_starts_it(bai: CliHarness) -> None:
    descriptor = bai.folder / "b.toml"
    descriptor.write_text(descriptor.read_text().replace('"true"', '"""\necho loss=1\numask\n"""'))
    before = os.umask(0)
    printed = []
    try:
        for umask in (0o027, 0o077):
            os.umask(umask)
            printed.append(bai.bai("run", "b.toml").stdout.split())
    finally:
        os.umask(before)

    assert "0027" in printed[0]
    assert "0077" in printed[1]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGINT, 130)]
)
def test_a_signal_ends_the_process_and_wakes_each_waiting_thread(
    waiting: subprocess.Popen[str], number: signal.Signals, code: int
) -> None:
    heard: list[int] = []
    threads = [threading.Thread(target=lambda: heard.append(waiting.wait(300))) for _ in range(3)]
    for each in threads:
        each.start()

    waiting.send_signal(number)
    # Python handles a signal after a read that it was about to begin.
    assert waiting.stdin is not None
    with suppress(BrokenPipeError):
        os.write(waiting.stdin.fileno(), b"a line\n")

    for each in threads:
        each.join()
    assert heard == [code] * 3
    assert waiting.poll() == code


def test_an_environment_variable_for_python_starts_a_new_interpreter(bai: CliHarness) -> None:
    other = replace(bai, environment={**bai.environment, "PYTHONUTF8": "1"})
    with other.start("--version") as started:
        out, _ = started.communicate(timeout=60)

    assert not isinstance(started, PreloadedBai)
    assert out.startswith("bai ")
