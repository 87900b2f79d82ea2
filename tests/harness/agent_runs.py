"""Starts real agents on real jobs, for all tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import tomli_w
from cli_harness import BAI_AGENT
from forked_programs import ForkedProgram, forked_program
from preloaded_bai import PreloadedAgent, can_be_preloaded

AGENT = (*BAI_AGENT, "run")

RUN_SECONDS = 120
"""Time limit of a run (seconds), far longer than any run of a test, so that a hang fails only its test."""


def write_job(folder: Path, argv: Sequence[str | Path], *, name: str = "job", **tables: Any) -> Path:
    """Write a job descriptor that runs `argv`; `tables` are merged over the defaults."""
    benchmark = {"argv": [str(each) for each in argv], "inherit_env": True, **tables.pop("benchmark", {})}
    table = {
        "version": 1,
        "job": {"id": name},
        "benchmark": benchmark,
        "host_metrics": {"enabled": False},
        "limits": {"grace": "2s", "drain": "30s", **tables.pop("limits", {})},
        **tables,
    }
    path = folder / f"{name}.toml"
    path.write_text(tomli_w.dumps(table))
    return path


def python_job(folder: Path, program: str, *, arguments: Sequence[str] = (), **tables: Any) -> Path:
    """Write a job that runs `program` (Python) with this Python."""
    script = folder / "benchmark.py"
    script.write_text(program)
    return write_job(folder, [sys.executable, script, *arguments], **tables)


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without the variables that change Python's buffering."""
    return {**{key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}, **more}


def popen_agent(
    arguments: Sequence[str | Path],
    output: IO[bytes],
    *,
    env: Mapping[str, str],
    prefix: Sequence[str] = (),
    command: Sequence[str] = AGENT,
) -> subprocess.Popen[bytes]:
    """Start an agent in its own session.

    It is a fork of a process with all imports, unless `prefix` or `command` choose what starts it.
    """
    options: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": output,
        "stderr": output,
        "start_new_session": True,
        "env": dict(env),
    }
    run = ["run", *arguments]
    if not prefix and command == AGENT and can_be_preloaded(run, Path.cwd(), env, options):
        return PreloadedAgent(run, **options)
    return subprocess.Popen([*prefix, *command, *arguments], **options)


def start_agent(
    job: Path,
    rundir: Path,
    *,
    prefix: Sequence[str] = (),
    more: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start an agent in the background. Its output goes to a file beside the run directory or the job."""
    beside = rundir if rundir.parent.is_dir() else job
    with beside.with_suffix(".out").open("ab") as output:
        return popen_agent(
            [job, "--dir", rundir, "--quiet", *more], output, env=env or environment(), prefix=prefix
        )


def run_agent(job: Path, rundir: Path, **options: Any) -> int:
    """Run an agent to its end and return its exit code."""
    with start_agent(job, rundir, **options) as agent:
        try:
            return agent.wait(timeout=RUN_SECONDS)
        finally:
            agent.kill()


@dataclass(frozen=True)
class ForkedAgent:
    """Agents that are forked from a process that has already loaded the agent."""

    _program: ForkedProgram

    def run(self, job: Path, rundir: Path, *, call: str | None = None, number: int = 0) -> int:
        """Run an agent to its end, or to its `number`th `call`, and return its exit code."""
        return self._program.run(
            ["run", job, "--dir", rundir, "--quiet"],
            output=rundir.with_suffix(".out"),
            env=environment(),
            call=call,
            number=number,
        )

    def killed_at_each(
        self, call: str, folder: Path, make_job: Callable[[str], Path], *, least: int = 2
    ) -> Iterator[tuple[Path, str]]:
        """Kill one agent at its first `call`, the next at its second `call`, and so on; start each one again.

        Ends when an agent is not killed. Yields each run directory with a text for failures. make_job:
        returns the job for a run directory's name. least: minimum number of runs, so that there were enough
        kills.
        """
        number, killed = 0, True
        while killed:
            number += 1
            rundir = folder / f"{call}-{number}"
            job = make_job(rundir.name)
            # A thread counts its own calls. The shims and the extractor are other programs and are not
            # killed.
            code = self.run(job, rundir, call=call, number=number)
            killed = code == -signal.SIGKILL
            if killed:
                code = self.run(job, rundir)
            where = f"after a kill at {call} {number}"
            assert code == 0, where
            yield rundir, where
        assert number >= least, f"the agent hardly called {call}: the test killed next to nothing"


@contextmanager
def forked_agent(folder: Path, *modules: str) -> Iterator[ForkedAgent]:
    """Load the agent, and `modules` that only some jobs need."""
    whenever_it_runs = ("bai_agent.phases.run", "bai_agent.machine.probe", "bai_agent.run.stop_sources")
    with forked_program(folder, "bai_agent.cli:main", *whenever_it_runs, *modules) as program:
        yield ForkedAgent(program)


def result_of(rundir: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((rundir / "result.json").read_bytes())
    return result


def records_of(rundir: Path) -> list[dict[str, Any]]:
    """Return the complete records. Each line must be a record."""
    return [json.loads(line) for line in (rundir / "metrics.jsonl").read_bytes().splitlines()]


def events_of(rundir: Path) -> list[dict[str, Any]]:
    """Return the events so far, without a last line that is still being written."""
    return [
        json.loads(line) for line in (rundir / "events.jsonl").read_bytes().rpartition(b"\n")[0].splitlines()
    ]


def is_alive(pid: int) -> bool:
    """Return whether the process runs; False for a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def extractors(rundir: Path) -> list[int]:
    """Return the extractors that work on `rundir`."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"bai_agent.run.extractor" in words and bytes(rundir) in words:
            found.append(int(each.parent.name))
    return found


def wait_until(condition: Callable[[], object], *, seconds: float = 120, every: float = 0.02) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(every)


def begun(rundir: Path) -> Callable[[], bool]:
    """Return a function that returns whether the benchmark has printed "begun"."""
    return lambda: (rundir / "output.log").exists() and b"begun" in (rundir / "output.log").read_bytes()
