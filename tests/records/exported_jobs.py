"""Jobs that are exported in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from handmade_job import HandmadeJob


def append(job: HandmadeJob, *records: dict[str, Any], rank: int = 0) -> None:
    """Append records, each a change to an ordinary one, to the metrics of a node."""
    with (job.on(rank).node / "metrics.jsonl").open("a") as file:
        for n, record in enumerate(records):
            whole = {
                "seq": n, "src": "log", "off": 10 * n, "i": 0, "k": 0, "name": "loss", "value": n / 2, "units": "nats",
                "timestamp": job.started + n, **record,
            }  # fmt: skip
            file.write(json.dumps(whole) + "\n")


def rewrite_job(job: HandmadeJob, old: str, new: str) -> None:
    """Change the job's descriptor."""
    path = Path(job.store.folder) / job.record.job_id / "job.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def two_repeats(job: HandmadeJob) -> list[dict[str, Any]]:
    """How two repeats of a job ended, the second one by failing."""
    return [
        {
            "repeat": 0,
            "arm": None,
            "outcome": "succeeded",
            "started": job.started,
            "ended": job.started + 100,
        },
        {
            "repeat": 1,
            "arm": None,
            "outcome": "failed",
            "started": job.started + 200,
            "ended": job.started + 300,
        },
    ]


def job_of_arms(job: HandmadeJob) -> None:
    """Make it one of two arms with a command and an environment each, and of one run of both."""
    arms = [
        f'[[repeat.arms]]\nname = "{name}"\nargv = ["sort", "{option}"]\nenv = {{ MODE = "{name}" }}\n'
        for name, option in (("old", "-n"), ("new", "-g"))
    ]
    rewrite_job(job, "[job]\n", f"[repeat]\nruns = 2\nseed = 1\n{''.join(arms)}\n[job]\n")
    names = job.record.job().repeat.arms_of_runs  # type: ignore[union-attr]
    append(job, *({"repeat": run, "arm": arm, "value": run + 1} for run, arm in enumerate(names)))
    job.ends(repeats=[{**each, "arm": arm} for each, arm in zip(two_repeats(job), names, strict=True)])
