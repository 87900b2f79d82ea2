"""`container_run.py` ends as the container did. A stand-in engine, a shell script, takes podman's place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bai_agent.shim import container_run
from bai_agent.shim.container_run import PIDFILE
from bai_agent.shim.spawn import REPORT

PATIENCE = 60.0


def start(folder: Path, engine: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    ours = [sys.executable, "-I", "-S", container_run.__file__, str(folder)]
    return subprocess.Popen([*ours, "sh", "-c", engine, str(folder), *words], **options)


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (0, 0),
        (7, 7),
        (126, 126),
        (128 + signal.SIGKILL, -signal.SIGKILL),
        (128 + signal.SIGSEGV, -signal.SIGSEGV),
        (255, 255),
    ],
)
def test_container_run_ends_with_the_containers_exit_code_or_signal(
    tmp_path: Path, code: int, ended: int
) -> None:
    with start(tmp_path, f"touch {tmp_path}/{PIDFILE}; exit {code}") as child:
        assert child.wait(PATIENCE) == ended


@pytest.mark.parametrize(("code", "not_found"), [(125, False), (126, False), (127, True)])
def test_a_container_that_was_not_started_is_reported(tmp_path: Path, code: int, not_found: bool) -> None:
    (tmp_path / PIDFILE).write_text("of an earlier run")
    reader, writer = os.pipe()
    with start(tmp_path, f"exit {code}", pass_fds=[writer], env={**os.environ, REPORT: str(writer)}) as child:
        os.close(writer)
        assert child.wait(PATIENCE) == code

    with os.fdopen(reader, "rb") as file:
        report = json.loads(file.read())
    assert (report["not_found"], f"code {code}" in report["message"]) == (not_found, True)


_PROGRAM = """
trap 'echo told >>"$0/said"; exit 3' TERM
touch "$0/ready"
while :; do sleep 0.05; done
"""
_MONITOR = """
trap 'echo the monitor was told >>"$0/said"' TERM
sh -c "$1" "$0"
echo $? >"$0/code"
sleep 0.3
touch "$0/removed"
"""
"""As conmon: in a session of its own, its parent gone, and ended a moment after the container."""
_ENGINE = """
(setsid sh -c "$2" "$0" "$1" &)
touch "$0/container.pid"
until [ -s "$0/code" ]; do sleep 0.05; done
exit $(cat "$0/code")
"""


def test_sigterm_reaches_the_processes_below_the_container_monitor(tmp_path: Path) -> None:
    """SIGTERM goes to the processes below the monitor, not to the monitor, and all are waited for."""
    with start(tmp_path, _ENGINE, _PROGRAM, _MONITOR) as child:
        wait_for(tmp_path / "ready")
        child.send_signal(signal.SIGTERM)

        assert child.wait(PATIENCE) == 3
    assert (tmp_path / "said").read_text() == "told\n"
    assert (tmp_path / "removed").exists()


_LEAVES = """
trap '' TERM
sleep 1000 >/dev/null 2>&1 &
echo $! >"$0/left"
trap 'exit 0' TERM
touch "$0/ready"
while :; do sleep 0.05; done
"""
_PATIENT = """
import sys
from bai_agent.shim import container_run
container_run._REMOVAL_S = 1000.0
container_run.main()
"""


def test_processes_left_behind_by_a_container_are_not_waited_for(tmp_path: Path) -> None:
    """It is the shim's to end, and the time would count as the benchmark's."""
    engine = ["sh", "-c", _ENGINE, str(tmp_path), _LEAVES, _MONITOR]
    with subprocess.Popen([sys.executable, "-c", _PATIENT, str(tmp_path), *engine]) as child:
        wait_for(tmp_path / "ready")
        child.send_signal(signal.SIGTERM)
        try:
            assert child.wait(PATIENCE) == 0
        finally:
            os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)  # it lived
    assert (tmp_path / "removed").exists()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.02)
