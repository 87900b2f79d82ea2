"""Functions for benchmarks of whole runs: write a job descriptor, start an agent, and wait for the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

ROOT = Path(__file__).parents[1]
AGENT = (sys.executable, "-m", "bai_agent", "run")

RUN_SECONDS = 1800


def write_job(folder: Path, argv: Sequence[str], *, buffering: str = "own", **tables: Any) -> Path:
    """Write the job descriptor of a run of `argv`, in this process's environment."""
    path = folder / "job.toml"
    table = {
        "version": 1,
        "job": {"id": "benchmark"},
        "benchmark": {"argv": list(argv), "inherit_env": True, "buffering": buffering},
        **tables,
    }
    path.write_text(tomli_w.dumps(table))
    return path


def start_agent(job: Path, rundir: Path) -> subprocess.Popen[bytes]:
    """Start the agent like `bai run`: without a terminal, and with messages only in the agent's log."""
    return subprocess.Popen(
        [*AGENT, job, "--dir", rundir, "--quiet"], cwd=ROOT, stdin=subprocess.DEVNULL, env=plain_environment()
    )


def finish(agent: subprocess.Popen[bytes], rundir: Path) -> dict[str, Any]:
    """Wait for the run's end, and return the content of exit.json. Raises SystemExit if the run failed."""
    code = agent.wait(timeout=RUN_SECONDS)
    if code != 0:
        raise SystemExit(f"the run failed with exit code {code}; see {rundir}")
    ended: dict[str, Any] = json.loads((rundir / "exit.json").read_bytes())
    return ended


def plain_environment() -> dict[str, str]:
    """Return this process's environment without PYTHONUNBUFFERED."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
