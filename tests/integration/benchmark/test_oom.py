"""The kernel's out-of-memory killer, for real, in a cgroup of the test."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shim_runs import Bench, classified, until

from bai_agent.job.outcome import Outcome
from bai_agent.shim.memory_group import OomWatch

EATS = "block = bytearray(400_000_000)"


def _launch_inside(members: Path, bench: Bench, program: str) -> None:
    """Launch from a process that has entered the cgroup, as an agent in a container would be."""
    launcher = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from bai_agent.benchmark.start import Order, launch\n"
        "from bai_agent.job.run_directory import RunDir\n"
        "from datetime import timedelta\n"
        f"Path({str(members)!r}).write_text(str(os.getpid()))\n"
        f"order = Order(argv=(sys.executable, '-c', {program!r}), env=dict(os.environ), "
        f"cwd=Path({str(bench.rundir.path)!r}), grace=timedelta(seconds=2))\n"
        f"launch(order, RunDir(Path({str(bench.rundir.path)!r})))\n"
    )
    subprocess.run([sys.executable, "-c", launcher], check=True, timeout=60)


@pytest.mark.root
def test_a_benchmark_that_needs_too_much_memory_is_reported(bench: Bench, small_cgroup: Path) -> None:
    _launch_inside(small_cgroup, bench, EATS)

    ended = bench.ended()

    assert (ended["signal"], ended["oom"]) == (signal.SIGKILL, True)
    assert classified(ended)[0] is Outcome.OOM


@pytest.mark.root
def test_a_grandchild_that_needs_too_much_memory_is_reported(bench: Bench, small_cgroup: Path) -> None:
    _launch_inside(
        small_cgroup,
        bench,
        f"import subprocess, sys\nsys.exit(3 if subprocess.run([sys.executable, '-c', {EATS!r}]).returncode else 0)",
    )

    ended = bench.ended()

    assert (ended["code"], ended["signal"], ended["oom"]) == (3, None, True)
    assert classified(ended)[0] is Outcome.OOM


@pytest.mark.root
def test_a_benchmark_that_survives_an_oom_kill_succeeds(bench: Bench, small_cgroup: Path) -> None:
    _launch_inside(
        small_cgroup, bench, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {EATS!r}])"
    )

    ended = bench.ended()

    assert (ended["code"], ended["oom"]) == (0, True)
    assert classified(ended)[0] is Outcome.SUCCEEDED


@pytest.mark.root
def test_an_oom_kill_of_an_unrelated_process_is_not_attributed_to_the_benchmark(
    bench: Bench, small_cgroup: Path
) -> None:
    bench.launch("sh", "-c", f"until [ -e {bench.rundir.path}/go ]; do sleep 0.02; done; exit 1")
    before = _machine_kills()
    subprocess.run(
        ["sh", "-c", f'echo $$ > {small_cgroup}; exec {sys.executable} -c "{EATS}"'], check=False, timeout=60
    )
    until(lambda: _machine_kills() > before, "the neighbour is killed")

    (bench.rundir.path / "go").touch()

    ended = bench.ended()
    assert (ended["code"], ended["oom"]) == (1, False)


def test_the_oom_killer_prefers_the_benchmark_to_the_shim(bench: Bench) -> None:
    bench.launch("sleep", "60")
    until(lambda: _comm(bench.started["pid"]) == "sleep", "the benchmark runs")

    score = int(Path(f"/proc/{bench.started['pid']}/oom_score_adj").read_text())

    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert score == min(1000, own + 500)
    assert int(Path(f"/proc/{bench.started['shim_pid']}/oom_score_adj").read_text()) == own


def test_no_end_counts_as_out_of_memory_without_an_oom_kill() -> None:
    watch = OomWatch()

    assert not watch.struck(code=0, signal=None)
    assert not watch.struck(code=None, signal=None)


def _machine_kills() -> int:
    return int(
        next(
            line.split()[1]
            for line in Path("/proc/vmstat").read_text().splitlines()
            if line.startswith("oom_kill ")
        )
    )


def _comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
