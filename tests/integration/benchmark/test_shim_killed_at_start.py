"""The shim, killed at every system call by which it changes anything, from its lock to the benchmark's first moment."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from shim_runs import Bench, ended_of, until

from bai_agent.benchmark.start import _order_bytes
from bai_agent.benchmark.state import State, state
from bai_agent.benchmark.stopping import end_lost
from bai_agent.job.run_directory import RunDir, is_locked, read_json
from bai_agent.shim import shim
from bai_agent.shim.proc import read_process

CALLS = (
    "flock", "prctl", "mkdir", "mknod", "mknodat", "fork", "vfork", "clone", "clone3", "pipe", "pipe2", "write", "pwrite64",
    "fsync", "ftruncate", "rename", "renameat", "renameat2", "dup2", "dup3", "unlink", "unlinkat", "wait4", "fcntl", "fchown",
)  # fmt: skip


def _run(bench: Bench, *strace: str) -> int:
    order = _order_bytes(
        bench.order("sh", "-c", f"echo ran >> {bench.rundir.path}/count; exit 7"), bench.rundir
    )
    # Of this machine's calls, those that it has: `?` lets strace pass over the others.
    calls = ",".join(f"?{call}" for call in CALLS)
    traced = [sys.executable, "-I", "-S", "-X", "utf8", shim.__file__, str(bench.rundir.path)]
    trace = ["-qq", "-o", str(bench.rundir.path / "trace"), "-e", f"trace={calls}"]
    return subprocess.run(
        ["strace", *trace, *strace, *traced],
        input=order,
        timeout=60,
        check=False,
        start_new_session=True,
    ).returncode


def _calls(bench: Bench) -> Iterator[str]:
    for line in (bench.rundir.path / "trace").read_text().splitlines():
        if found := re.match(r"(\w+)\(", line):
            yield found[1]


def _undisturbed(folder: Path) -> Counter[str]:
    folder.mkdir()
    bench = Bench(RunDir(folder))
    assert _run(bench) == 0
    assert ended_of(bench.rundir).code == 7
    return Counter(_calls(bench))


def test_a_shim_killed_at_any_call_of_its_start_runs_the_benchmark_at_most_once(tmp_path: Path) -> None:
    counts = _undisturbed(tmp_path / "undisturbed")
    assert {"flock", "prctl", "write", "fsync", "rename"} <= set(counts)
    assert sum(counts.values()) >= 20
    seen = Counter[State]()

    for call, count in sorted(counts.items()):
        for number in range(1, count + 1):
            folder = tmp_path / f"{call}-{number}"
            folder.mkdir()
            bench = Bench(RunDir(folder))
            # When the shim is killed on entering this call …
            killed = _run(bench, "-e", f"inject={call}:signal=SIGKILL:when={number}")
            # … then whatever it had forked comes to its end, and
            started = read_json(bench.rundir.started)
            if started is not None:
                until(lambda pid=started["pid"]: _gone(pid), "the benchmark ends")  # type: ignore[misc]
            until(lambda rundir=bench.rundir: not is_locked(rundir.shim_lock), "the lock is free")  # type: ignore[misc]
            now = state(bench.rundir)
            seen[now] += 1
            ran = (folder / "count").read_text() if (folder / "count").exists() else ""
            where = (call, number, now, ran)
            # the benchmark ran at most once, and not without started.json;
            assert ran in ("", "ran\n"), where
            assert started is not None or not ran, where
            # (Where it did not come to this call, as it need not look as often each time, it came to its end.)
            assert killed == -signal.SIGKILL or now is State.EXITED, where
            # the next agent finds its way on, and still it has run at most once.
            if now is State.LOST:
                end_lost(bench.rundir)
                bench.launch("touch", folder / "twice")
            elif now is State.NOT_STARTED:
                assert not ran, where
                bench.launch("sh", "-c", f"echo ran >> {folder}/count; exit 7")
                assert bench.ended()["code"] == 7, where
                assert (folder / "count").read_text() == "ran\n", where
            assert not (folder / "twice").exists(), where
            assert read_json(bench.rundir.exit) is not None, where

    assert seen[State.NOT_STARTED] >= 5
    assert seen[State.LOST] >= 5


def _gone(pid: int) -> bool:
    process_now = read_process(pid)
    return process_now is None or process_now.state == "Z"
