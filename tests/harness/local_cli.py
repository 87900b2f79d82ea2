"""Runs `bai` with jobs on this machine, and benchmarks that wait for a file before they end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_runs import environment
from cli_harness import CliHarness

from bai_agent.benchmark.orphans import kill_remains
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir, is_locked
from bai_agent.job.store.directory import DirectoryStore

PATIENCE = 120.0

_DESCRIPTOR = """\
spec_version = "0.1.0"
[info]
description = "Waits for a word"
execution_engine = "local"
labels = {{ task_name = "waits" }}
[hardware]
instance_type = "local"
strategy = "{strategy}"
[limits]
{limits}
[host_metrics]
enabled = false
[ml]
benchmark_code = '''
#!{python}
{code}
'''
[[output.metrics]]
name = "loss"
units = "nats"
pattern = 'loss=(\\S+)'
better = "lower"
{more}
"""

WAITS = """
import os, sys, time
print("pid", os.getpid(), flush=True)
print("loss=0.5 loss=0.25", flush=True)
deadline = time.monotonic() + 120
while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
    time.sleep(0.02)
print("loss=0.125")
"""
"""Prints its pid and two values, waits for the file that its argument names, and prints a third."""

IGNORES_SIGTERM = (
    """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
    + WAITS
)


@dataclass(frozen=True)
class LocalCli(CliHarness):
    """A harness with a store and a descriptor in its folder. Made by `local_cli`."""

    @property
    def store(self) -> Path:
        return self.folder / "the store"

    @property
    def go_file(self) -> Path:
        """File that a waiting benchmark waits for before it ends."""
        return self.folder / "go"

    def descriptor(
        self,
        code: str = WAITS,
        *,
        limits: str = 'grace = "20s"',
        strategy: str = "single_node",
        more: str = "",
        interpreter: str = sys.executable,
    ) -> Path:
        """Write a descriptor of a benchmark that runs `code`, by default Python. more: tables at its end."""
        path = self.folder / "benchmark.toml"
        path.write_text(
            _DESCRIPTOR.format(python=interpreter, code=code, limits=limits, strategy=strategy, more=more)
        )
        return path

    def record(self, job_id: str) -> JobRecord:
        return JobRecord(DirectoryStore(self.store), job_id)

    def rundir(self, job_id: str) -> RunDir:
        return RunDir(self.store / self.record(job_id).node().place)

    def result(self, job_id: str) -> dict[str, Any]:
        found = self.record(job_id).result()
        assert found is not None
        return found

    def output(self, job_id: str) -> str:
        return self.rundir(job_id).output.read_text()

    def kill_agent(self, job_id: str) -> None:
        ready = json.loads(self.rundir(job_id).ready.read_text())
        os.kill(int(ready["pid"]), signal.SIGKILL)

    def await_jobs(self, count: int) -> list[str]:
        """Wait until there are `count` jobs; return their ids."""
        deadline = time.monotonic() + PATIENCE
        while len(found := [each.parent.name for each in self.store.glob("*/job.toml")]) < count:
            assert time.monotonic() < deadline, f"there are only {found}"
            time.sleep(0.02)
        return found

    def await_output(self, job_id: str, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        path = self.rundir(job_id).output
        while not (path.exists() and text in path.read_text()):
            assert time.monotonic() < deadline, f"{text!r} was never printed"
            time.sleep(0.02)

    def await_value(self, job_id: str, value: float) -> None:
        """Wait until the agent's extractor has found `value` in the output."""
        deadline = time.monotonic() + PATIENCE
        path = self.rundir(job_id).metrics
        while not (path.exists() and f'"value":{value},' in path.read_text()):
            assert time.monotonic() < deadline, f"{value} was never found"
            time.sleep(0.02)


def local_cli(folder: Path, **more: str) -> LocalCli:
    """Return a harness whose store and cache are in `folder`. more: further variables."""
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
    made = LocalCli(folder, environment(**own, **more))
    return replace(made, environment={**made.environment, "BAI_STORE": str(made.store)})


@contextmanager
def open_local_cli(folder: Path) -> Iterator[LocalCli]:
    """Make a harness. At the end, end the processes that benchmarks of its jobs have left."""
    made = local_cli(folder)
    yield made
    for node in made.store.glob("*/attempts/0/nodes/*"):
        if not is_locked(RunDir(node).shim_lock):
            kill_remains(RunDir(node), None)
