"""Tests for every job store. Each kind of store has a test class that provides the fixture `store`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bai_agent.errors import MissingObjectError, StoreError
from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore


class StoreContract:
    def test_an_object_is_read_back_whole_or_from_a_position(self, store: JobStore) -> None:
        store.put("job-1/result.json", b"0123456789")

        assert store.get("job-1/result.json") == b"0123456789"
        assert store.get("job-1/result.json", start=4, limit=3) == b"456"
        assert store.get("job-1/result.json", start=99) == b""

    def test_an_object_is_replaced_whole(self, store: JobStore) -> None:
        store.put("job-1/heartbeat.json", b"a long first version")
        store.put("job-1/heartbeat.json", b"short")

        assert store.get("job-1/heartbeat.json") == b"short"

    def test_a_conditional_put_does_not_replace_an_object(self, store: JobStore) -> None:
        assert store.put("job-1/launch.json", b"first", if_absent=True)
        assert not store.put("job-1/launch.json", b"second", if_absent=True)
        assert store.get("job-1/launch.json") == b"first"

    def test_one_of_many_concurrent_conditional_puts_wins(self, store: JobStore) -> None:
        won: list[int] = []

        def claim(rank: int) -> None:
            if store.put("job-1/ready.json", str(rank).encode(), if_absent=True):
                won.append(rank)

        threads = [threading.Thread(target=claim, args=(rank,)) for rank in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)

        assert len(won) == 1
        assert store.get("job-1/ready.json") == str(won[0]).encode()

    def test_a_missing_object_is_reported_as_missing(self, store: JobStore) -> None:
        with pytest.raises(MissingObjectError, match=r"nowhere\.json"):
            store.get("job-1/nowhere.json")

    def test_objects_are_listed_by_prefix_in_order(self, store: JobStore) -> None:
        for key in ("b/log/2", "b/log/1", "b/logs", "bb/x", "a/1"):
            store.put(key, b"x" * 3)

        assert [each.key for each in store.find("b/log/")] == ["b/log/1", "b/log/2"]
        assert [each.key for each in store.find("b/log")] == ["b/log/1", "b/log/2", "b/logs"]
        assert [each.size for each in store.find("a/")] == [3]
        assert store.find("nowhere/") == []

    def test_folders_are_listed(self, store: JobStore) -> None:
        for key in ("job-2/job.toml", "job-1/job.toml", "job-1/attempts/0/launch.json"):
            store.put(key, b"")

        assert store.folders("") == ["job-1", "job-2"]
        assert store.folders("job-1/") == ["attempts"]
        assert store.folders("job-3/") == []

    def test_listing_a_folder_is_not_recursive(self, store: JobStore) -> None:
        for key in ("job-1/result.json", "job-1/job.toml", "job-1/attempts/0/launch.json", "job-10/job.toml"):
            store.put(key, b"12")

        objects, folders = store.around("job-1")

        assert [(each.key, each.size) for each in objects] == [
            ("job-1/job.toml", 2),
            ("job-1/result.json", 2),
        ]
        assert folders == ["attempts"]
        assert store.around("") == ([], ["job-1", "job-10"])
        assert store.around("job-3") == ([], [])

    def test_a_deleted_folder_is_gone_and_its_neighbour_is_not(self, store: JobStore) -> None:
        for key in ("job-1/a", "job-1/b/c", "job-10/a"):
            store.put(key, b"")

        store.delete("job-1/")
        store.delete("job-1/")

        assert [each.key for each in store.find("job-1")] == ["job-10/a"]

    def test_a_removed_object_is_gone_and_its_neighbours_are_not(self, store: JobStore) -> None:
        for key in ("open/a", "open/a/b" if store.folder is None else "open/b", "open/ab"):
            store.put(key, b"")

        store.remove("open/a")
        store.remove("open/a")

        assert "open/a" not in [each.key for each in store.find("open/")]
        assert len(store.find("open/")) == 2

    def test_a_file_is_stored_as_an_object(self, store: JobStore, tmp_path: Path) -> None:
        path = tmp_path / "weights, final: 100%.bin"
        path.write_bytes(bytes(range(256)) * 4096)

        store.put_file("job-1/artifacts/weights, final: 100%.bin", path)

        assert store.get("job-1/artifacts/weights, final: 100%.bin") == path.read_bytes()

    @pytest.mark.parametrize("key", ["../outside", "a/../../b", "/etc/passwd", "a//b", ""])
    def test_a_key_cannot_leave_the_store(self, store: JobStore, key: str) -> None:
        with pytest.raises(StoreError):
            store.put(key, b"")

    def test_a_stream_reads_the_same_from_one_object_or_many(self, store: JobStore) -> None:
        content = b"".join(b"line %d\n" % number for number in range(1000))
        one, many = JobRecord(store, "one"), JobRecord(store, "many")
        store.put(one.node().key(f"log/{0:020}"), content)
        for start in range(0, len(content), 700):
            store.put(many.node().key(f"log/{start:020}"), content[start : start + 700])

        for record in (one, many):
            position = 0
            read = b""
            while piece := record.node().read("log", position, limit=333):
                read += piece
                position += len(piece)
            assert read == content
            assert record.node().size("log") == len(content)

    def test_a_record_holds_the_state_and_result_of_a_job(self, store: JobStore) -> None:
        record = JobRecord(store, "job-1")
        assert not record.exists()
        assert record.result() is None
        with pytest.raises(StoreError, match='no job "job-1"'):
            record.job()

        store.put(record.key("job.toml"), b'version = 1\n[job]\nid = "job-1"\n[benchmark]\nargv = ["true"]\n')
        store.put(record.key("result.json"), b'{"outcome": "succeeded"}\n')

        assert record.job().benchmark.argv == ("true",)
        assert record.result() == {"outcome": "succeeded"}

    def test_a_second_cancel_of_a_job_changes_nothing(self, store: JobStore) -> None:
        record = JobRecord(store, "job-1")

        assert record.cancel(by="anna")
        assert not record.cancel(by="ben")
        assert record.cancelled()

    def test_listed_objects_have_the_time_of_their_last_write(self, store: JobStore) -> None:
        store.put("job-1/a", b"x")
        store.put("job-1/b", b"x")

        first, second = (each.modified for each in store.find("job-1/"))
        assert first is not None
        assert second is not None
        assert 1_600_000_000_000 < first <= second
