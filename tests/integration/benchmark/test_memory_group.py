"""The memory of all processes of a benchmark together, counted by the kernel where it allows a cgroup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shim_runs import Bench, until

from bai_agent.benchmark.environment import find_user
from bai_agent.benchmark.stopping import end_lost
from bai_agent.shim.memory_group import make_memory_group, own_memory_group

MIB = 2**20
BLOCK = 80 * MIB
PYTHON = "/usr/bin/python3"
"""One that every user may run."""
CHILD = f"block = b'x' * {BLOCK}; print(flush=True); input()"
TWO = f"""
import subprocess, sys
other = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
other.stdout.readline()
block = b"x" * {BLOCK}
other.communicate(b"\\n")
"""


@pytest.fixture
def counted() -> bool:
    """Whether this machine lets this process have a group."""
    group = make_memory_group()
    if group is not None:
        group.remove()
    return group is not None


def _group_of(bench: Bench) -> Path | None:
    found = own_memory_group()
    name = f"bai-{bench.started['shim_pid']}-{bench.started['shim_start']}"
    return Path(found[0]) / name if found else None


@pytest.mark.root
@pytest.mark.parametrize("user", [None, "nobody"])
def test_peak_memory_of_all_processes_is_summed(bench: Bench, counted: bool, user: str | None) -> None:
    bench.launch(PYTHON, "-c", TWO, cwd=Path("/"), user=find_user(user) if user else None)

    ended = bench.ended()

    assert ended["code"] == 0, bench.output
    assert BLOCK < ended["peak_memory_bytes"] < 2 * BLOCK
    assert (ended["tree_peak_memory_bytes"] is not None) is counted
    if counted:
        # The shim and the agent's are not in it.
        assert 2 * BLOCK < ended["tree_peak_memory_bytes"] < 3 * BLOCK
        group = _group_of(bench)
        assert group is not None
        assert not group.exists()


@pytest.mark.root
def test_the_cgroup_of_a_killed_shim_is_removed_with_its_benchmark(bench: Bench, counted: bool) -> None:
    bench.launch("sleep", "60")
    group = _group_of(bench)
    if counted:
        assert group is not None
        until(lambda: "\n" in (group / "cgroup.procs").read_text(), "the benchmark is in its group")
    os.kill(bench.started["shim_pid"], signal.SIGKILL)

    end_lost(bench.rundir)

    assert bench.ended()["lost"]
    assert group is None or not group.exists()


@pytest.mark.root
def test_the_cgroup_of_a_living_shim_is_kept(bench: Bench, counted: bool) -> None:
    bench.launch("sleep", "60")

    subprocess.run(
        [sys.executable, "-c", "from bai_agent.shim import memory_group as m; m.remove_abandoned_groups()"],
        check=True,
        timeout=60,
    )

    group = _group_of(bench)
    assert group is not None
    assert group.exists() is counted
