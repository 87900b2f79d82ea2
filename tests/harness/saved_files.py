"""Writes checkpoint files as a benchmark saved them some time ago, and as an agent stores them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from bai_agent.generations.checkpoint_marker import CheckpointFile, CheckpointMarker, CheckpointRecord
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.record import JobRecord


def save(path: Path, content: str, *, age_s: float = 10.0) -> None:
    """Write a file whose time is `age_s` seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    then = time.time() - age_s
    os.utime(path, (then, then))


def saved(folder: Path) -> dict[str, str]:
    """Return the contents of all files below a folder, by their paths in the folder."""
    return {
        each.relative_to(folder).as_posix(): each.read_text() for each in folder.rglob("*") if each.is_file()
    }


def keep_checkpoint(record: JobRecord, files: Mapping[str, str], *, number: int = 0) -> CheckpointMarker:
    """Write a checkpoint of a job's first generation into its record."""
    checkpoints = CheckpointRecord(AttemptRecord(record, 0))
    marker = CheckpointMarker(
        generation=0,
        number=number,
        node=0,
        slot=number % 3,
        files=[
            CheckpointFile(name=name, size=len(text), sha256=hashlib.sha256(text.encode()).hexdigest())
            for name, text in files.items()
        ],
        time=1,
    )
    for place, text in enumerate(files.values()):
        record.store.put(checkpoints.file_key(marker, place), text.encode())
    assert checkpoints.write(marker)
    return marker
