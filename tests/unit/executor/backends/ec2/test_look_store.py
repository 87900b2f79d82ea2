from __future__ import annotations

from pathlib import Path

import pytest

from bai_agent.job.record import JobRecord
from bai_agent.job.store import StoredObject
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.ec2.look_store import LookStore


class NotingStore(DirectoryStore):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lists: list[str] = []

    def around(self, folder: str) -> tuple[list[StoredObject], list[str]]:
        self.lists.append(folder)
        return super().around(folder)

    def find(self, prefix: str) -> list[StoredObject]:
        self.lists.append(prefix)
        return super().find(prefix)


@pytest.fixture
def inner(tmp_path: Path) -> NotingStore:
    store = NotingStore(tmp_path)
    for key in (
        "job/job.toml",
        "job/cancel.json",
        "job/attempts/0/launched.json",
        "job/attempts/0/nodes/0/log/0",
    ):
        store.put(key, b"{}")
    return store


def test_all_lookups_in_one_folder_take_one_list_request(inner: NotingStore) -> None:
    store = LookStore(inner)
    record = JobRecord(store, "job")

    assert record.exists()
    assert record.cancelled()
    assert record.result() is None

    assert inner.lists == ["job"]


def test_a_folder_known_to_be_empty_is_not_listed(inner: NotingStore) -> None:
    store = LookStore(inner)
    store.find("job/attempts/0/launched.json")

    assert store.find("job/attempts/0/refused/") == []
    assert inner.lists == ["job/attempts/0"]
    assert [each.key for each in store.find("job/attempts/0/nodes/")] == ["job/attempts/0/nodes/0/log/0"]


@pytest.mark.parametrize("change", ["forget", "put", "remove"])
def test_a_new_check_and_a_write_refresh_the_listing(inner: NotingStore, change: str) -> None:
    store = LookStore(inner)
    record = JobRecord(store, "job")
    assert record.result() is None
    inner.put("job/result.json", b'{"sentence": "x"}')
    assert record.result() is None

    if change == "forget":
        store.forget()
    elif change == "put":
        store.put("job/other", b"x")
    else:
        store.remove("job/cancel.json")

    assert record.result() == {"sentence": "x"}


@pytest.mark.parametrize(
    "prefix", ["", "job", "job/", "job/job", "job/attempts/0/no", "job/attempts/0/nodes/", "nothing/"]
)
def test_the_look_store_finds_the_same_objects_as_the_store(inner: NotingStore, prefix: str) -> None:
    known = LookStore(inner)
    for each in ("", "job", "job/attempts/0", "job/attempts/0/nodes"):
        known.around(each)

    assert known.find(prefix) == LookStore(inner).find(prefix) == inner.find(prefix)
    assert known.folders("job/") == inner.folders("job/")
