"""The store in a folder keeps the promises of a store."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from store_contract import StoreContract

from bai_agent.errors import StoreError
from bai_agent.job.store import JobStore, open_store


class TestDirectoryStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> JobStore:
        return open_store((tmp_path / "the jobs").as_uri())

    def test_an_object_removed_meanwhile_is_not_listed(self, store: JobStore) -> None:
        store.put("job-1/0", b"x")
        ended = threading.Event()

        def change() -> None:
            while not ended.is_set():
                for number in range(1, 20):
                    store.put(f"job-1/{number}", b"x")
                for number in range(1, 20):
                    store.remove(f"job-1/{number}")

        changes = threading.Thread(target=change)
        changes.start()
        try:
            for _ in range(300):
                assert "job-1/0" in [each.key for each in store.find("job-1/")]
        finally:
            ended.set()
            changes.join(timeout=60)


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "file://elsewhere/x", "relative/folder", "", "s3://", "s3://bucket/a//b"]
)
def test_an_invalid_store_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(StoreError, match="not a job store"):
        open_store(url)
