"""A folder of checkpoints, and a store for them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from saved_files import save

from bai_agent.checkpoint.keep import Keeper
from bai_agent.generations.checkpoint_marker import CheckpointRecord
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoints"
    made.mkdir()
    save(made / "model.pt", "weights")
    return made


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    (tmp_path / "store").mkdir()
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def record(store: DirectoryStore) -> CheckpointRecord:
    return CheckpointRecord(AttemptRecord(JobRecord(store, "job")))


@pytest.fixture
def make_keeper(record: CheckpointRecord) -> Callable[..., Keeper]:
    def make(**more: Any) -> Keeper:
        return Keeper(
            **{"record": record, "node": 0, "generation": 0, "patience": timedelta(seconds=30), **more}
        )

    return make
