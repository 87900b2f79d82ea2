"""`scripts/demo-service`, as somebody runs it who wants to see the service at work."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "demo-service"
METRICS = "Metrics available for job {0} at https://grafana.example.com/d/bai?var-job={0}"
SAID = [
    ("demo-works", "PENDING", "Processing benchmark submission request..."),
    ("demo-works", "SUCCEEDED", "Benchmark successfully created..."),
    ("demo-works", "PENDING", "Benchmark starting"),
    ("demo-works", "RUNNING", "Benchmark running"),
    ("demo-works", "METRICS AVAILABLE", METRICS.format("demo-works")),
    ("demo-works", "SUCCEEDED", "Benchmark finished successfully"),
    ("demo-works", "METRICS AVAILABLE", METRICS.format("demo-works")),
    ("demo-works", "metric", "accuracy = 0.3"),
    ("demo-works", "metric", "accuracy = 0.6"),
    ("demo-works", "metric", "accuracy = 0.9"),
    ("demo-mistaken", "PENDING", "Processing benchmark submission request..."),
    ("demo-mistaken", "ERROR", "env.user: is decided by the service's configuration alone"),
    ("demo-cancelled", "PENDING", "Processing benchmark submission request..."),
    ("demo-cancelled", "SUCCEEDED", "Benchmark successfully created..."),
    ("demo-cancelled", "PENDING", "Benchmark starting"),
    ("demo-cancelled", "RUNNING", "Benchmark running"),
    ("demo-cancelled", "METRICS AVAILABLE", METRICS.format("demo-cancelled")),
    ("demo-cancelled", "SUCCEEDED", "Execution successfully cancelled..."),
    ("demo-cancelled", "CANCELED", "Benchmark cancelled - watch ended"),
]


def test_demo_service_shows_each_answer_and_cleans_up(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()

    done = subprocess.run(
        [SCRIPT],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd="/",
        env={**os.environ, "TMPDIR": str(folder)},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(SAID), done.stdout
    for line, (action_id, status, text) in zip(lines, SAID, strict=True):
        assert line.split()[0] == action_id
        rest = line.partition(action_id)[2].strip()
        assert rest.startswith(status)
        assert rest.removeprefix(status).strip().startswith(text)
    assert "demo: its answer: return code 0, Cancel command processed successfully\n" in done.stderr
    assert done.stderr.endswith("demo: bai serve ended with exit code 0\ndemo: done\n")
    assert list(folder.iterdir()) == []
    assert _processes_in(folder) == []


def _processes_in(folder: Path) -> list[str]:
    """Return the processes that were started with files in a folder, or for which it is the one of temporary files."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in told:
            found.append(process.name)
    return found
