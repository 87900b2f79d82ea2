"""An agent whose bundle has no native packages for the machine's Python reports what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.metric_tables import Metric
from executor.backends.ec2.bundle.bundle import agent_files
from executor.planning.job_toml import job_toml


def test_a_job_runs_with_a_warning_event_if_a_native_package_is_missing(tmp_path: Path) -> None:
    # given a bundle with nothing native in it, and a Python without packages
    for name, content in agent_files().items():
        (tmp_path / "agent" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "agent" / name).write_bytes(content)
    for folder in ("native", "pure"):
        (tmp_path / "agent" / folder).mkdir()
    job = Job(
        job=Identity(id="bare"),
        benchmark=Benchmark(argv=("echo", "loss=1")),
        metrics=(Metric(name="loss", pattern="loss=(.)"),),
    )
    (tmp_path / "job.toml").write_text(job_toml(job))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    python = tmp_path / "venv" / "bin" / "python"
    if sys.version_info < (3, 11):  # the agent needs it to read its descriptor at all
        import tomli

        (tmp_path / "agent" / "pure" / "tomli").symlink_to(Path(tomli.__file__).parent)

    # when a job runs
    done = subprocess.run(
        [
            python,
            tmp_path / "agent" / "start_agent.py",
            "run",
            "job.toml",
            "--dir",
            tmp_path / "run",
            "--quiet",
        ],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    # then it succeeds, with its metric, and tells
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [each["value"] for each in records if each["name"] == "loss"] == [1]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    said = [each["message"] for each in events if each["type"] == "warning"]
    assert any("module obstore is not installed" in each for each in said)
    assert any("module ahocorasick_rs is not installed" in each for each in said)
