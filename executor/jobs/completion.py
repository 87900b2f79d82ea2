"""Finds job ids for the shell completion of commands. The user waits for the completion, so records are not
validated, and no bucket is read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bai_agent.job.schema.field_types import is_job_id

_MOST = 200
_DESCRIBED = 50
"""Number of jobs whose results are read to describe the jobs in the completion."""
_RESULT_BYTES = 2**16
LAST = "last"


def complete_job_ids(folder: Path, incomplete: str) -> list[tuple[str, str]]:
    """Return the jobs of a store in `folder` whose ids begin with `incomplete`, the newest first, each job
    with its status."""
    found: list[tuple[float, str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(incomplete) and is_job_id(entry.name):
                    found += _created(Path(entry.path))
    except OSError:
        return []
    found.sort(reverse=True)
    ids = [
        (job_id, _how(folder / job_id) if index < _DESCRIBED else "")
        for index, (_, job_id) in enumerate(found[:_MOST])
    ]
    return [*ids, *([(LAST, "the newest job")] if LAST.startswith(incomplete) else [])]


def _created(job: Path) -> list[tuple[float, str]]:
    try:
        return [((job / "job.toml").stat().st_mtime, job.name)]
    except OSError:
        return []


def _how(job: Path) -> str:
    """Return a job's outcome from its record."""
    try:
        with (job / "result.json").open("rb") as file:
            result: Any = json.loads(file.read(_RESULT_BYTES))
    except FileNotFoundError:
        return "no result yet"
    except (OSError, ValueError, RecursionError):
        return ""
    outcome = result.get("outcome") if isinstance(result, dict) else None
    # An outcome with any other characters is not shown, because a shell splits the text at line ends and
    # colons.
    return (
        outcome
        if isinstance(outcome, str) and outcome.isascii() and outcome.replace("_", "").isalnum()
        else ""
    )
