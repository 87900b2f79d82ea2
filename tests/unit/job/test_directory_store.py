"""The store in a folder keeps the promises of a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_contract import StoreContract

from bai_agent.errors import StoreError
from bai_agent.job.store import JobStore, open_store


class TestDirectoryStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> JobStore:
        return open_store((tmp_path / "the jobs").as_uri())


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "file://elsewhere/x", "relative/folder", "", "s3://", "s3://bucket/a//b"]
)
def test_what_is_no_store_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(StoreError, match="not a job store"):
        open_store(url)
