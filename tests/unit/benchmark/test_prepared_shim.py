"""A shim that is started before its order is known."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from agent_runs import wait_until

from bai_agent.benchmark.prepared_shim import PreparedShim
from bai_agent.job.run_directory import RunDir

_AGENT = """
import sys, time
from pathlib import Path
from bai_agent.benchmark.prepared_shim import PreparedShim
from bai_agent.job.run_directory import RunDir
print(PreparedShim(RunDir(Path(sys.argv[1]))).take().pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[PreparedShim]:
    prepared = PreparedShim(RunDir(tmp_path))
    yield prepared
    prepared.close()


def shims(folder: Path) -> list[int]:
    """Return our shims of a run directory."""
    return [each.pid for each in psutil.Process().children() if str(folder) in each.cmdline()]


def started_shim(folder: Path) -> int:
    """Return the shim once it is seen: its command line is empty for a moment after its start."""
    wait_until(lambda: shims(folder))
    (shim,) = shims(folder)
    return shim


def end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate(timeout=60)


def test_a_waiting_shim_that_died_is_replaced(prepared: PreparedShim, tmp_path: Path) -> None:
    first = started_shim(tmp_path)
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)

    second = prepared.take()

    assert second.poll() is None
    assert second.pid != first
    end(second)


def test_a_shim_that_is_not_needed_is_ended(tmp_path: Path) -> None:
    prepared = PreparedShim(RunDir(tmp_path))
    assert started_shim(tmp_path)

    prepared.close()
    prepared.close()

    assert shims(tmp_path) == []


def test_a_waiting_shim_ends_with_its_agent(tmp_path: Path) -> None:
    agent = subprocess.Popen([sys.executable, "-c", _AGENT, tmp_path], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    shim = os.pidfd_open(int(agent.stdout.readline()))

    end(agent)

    assert select.select([shim], [], [], 30)[0], "the shim still runs"
    os.close(shim)
    assert list(tmp_path.iterdir()) == []
