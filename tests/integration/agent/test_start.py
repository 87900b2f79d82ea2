"""Imports of a run delay its benchmark: a simple run imports only what it needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from agent_runs import write_job
from extraction_runs import entries, make_run

_INSPECT = ("inspect",) if sys.version_info < (3, 12) else ()
"""Later Pythons use it for each dataclass."""

_NEEDLESS = (
    *_INSPECT,
    "bai_agent.aws.http",
    "bai_agent.aws.imds",
    "bai_agent.aws.s3",
    "bai_agent.benchmark.node_setup",
    "bai_agent.benchmark.openssh",
    "bai_agent.job.attempt",
    "bai_agent.job.launches",
    "bai_agent.nodes.peer_services",
    "bai_agent.peers",
    "bai_agent.phases.enough",
    "bai_agent.phases.gang_failure",
    "bai_agent.pull",
    "bai_agent.requirements",
    "bai_agent.shim.shim",
    "bai_agent.sinks.",
    "bai_agent.strategy.mpi",
    "bai_agent.strategy.torchrun",
    "backports.zstd",
    "bz2",
    "compression",
    "concurrent",
    "ctypes",
    "hashlib",
    "hmac",
    "http",
    "kafka",
    "lzma",
    "obstore",
    "platform",
    "psutil",
    "random",
    "secrets",
    "shutil",
    "ssl",
)
"""Beginnings of the names of modules that belong to nodes, sinks, sources, packages, or SSH."""


_NEEDLESS_TO_EXTRACT = (
    *_INSPECT,
    *("bai_agent.benchmark.children", "ctypes", "hashlib", "platform", "random", "shutil", "subprocess"),
    *("base64", "bai_agent.job.peers", "bai_agent.job.schema.source_schemes", "bai_agent.strategy.launch"),
)
"""Beginnings of the names of modules that an extraction of numbers from a log does without."""


def imported(errors: str) -> list[str]:
    """Return the modules that `python -X importtime` lists."""
    return re.findall(r"(?m)^import time: +\d+ \| +\d+ \| +([\w.]+)$", errors)


def test_a_run_without_nodes_sources_and_sinks_imports_no_modules_for_them(tmp_path: Path) -> None:
    job = write_job(tmp_path, ["true"])

    agent = subprocess.run(
        [
            sys.executable,
            "-X",
            "importtime",
            "-m",
            "bai_agent",
            "run",
            job,
            "--dir",
            tmp_path / "run",
            "--quiet",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    modules = imported(agent.stderr)
    assert "bai_agent.phases.run" in modules
    assert [each for each in modules if each.startswith(_NEEDLESS)] == []


def test_an_extraction_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [("loss", r"loss=(\d+)")], output=b"loss=5\n")

    extractor = subprocess.run(
        [sys.executable, "-S", "-X", "importtime", "-m", "bai_agent.run.extractor", rundir.path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    modules = imported(extractor.stderr)
    assert "bai_agent.metrics.process" in modules
    assert [each for each in modules if each.startswith(_NEEDLESS_TO_EXTRACT)] == []
    assert entries(rundir)["log"][0][-1] == 5
