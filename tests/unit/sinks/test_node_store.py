"""Who may take a node's place in the store, where more machines came up than were wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bai_agent.errors import ClaimedError, StoreRefusedError
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.sinks.job_store.node_store import LAUNCH_SECONDS, NodeStore


class Denying(DirectoryStore):
    """Says of what is not there what S3 says to those who may not list the whole bucket."""

    def get(self, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        if not self.find(key):
            raise StoreRefusedError(f"{key}: access denied")
        return super().get(key, start=start, limit=limit)


class SleepClock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(params=[DirectoryStore, Denying])
def record(tmp_path: Path, request: pytest.FixtureRequest) -> JobRecord:
    return JobRecord(request.param(tmp_path), "job-1")


def write(record: JobRecord, name: str, **content: object) -> None:
    record.store.put(record.key(f"attempts/0/{name}"), json.dumps(content).encode())


def claim(record: JobRecord, instance: str | None, clock: SleepClock) -> bool:
    return NodeStore(record=record, rank=0, attempt=0).claim(
        {"instance_id": instance, "host": "here"},
        descriptor=b"",
        until=lambda: False,
        sleep=clock.sleep,
        clock=clock,
    )


def holder(record: JobRecord) -> str | None:
    ready = record.node().read_object("ready.json")
    return None if ready is None else str(ready["instance_id"])


def test_a_machine_that_is_not_in_the_launch_record_cannot_claim_a_rank(
    record: JobRecord,
) -> None:
    write(record, "launch.json")
    write(record, "launched.json", instances=["i-good"])
    clock = SleepClock()

    with pytest.raises(ClaimedError, match=r"i-surplus is not among the machines .*\(i-good\)"):
        claim(record, "i-surplus", clock)
    assert holder(record) is None
    assert claim(record, "i-good", clock)

    assert holder(record) == "i-good"
    assert clock.now == 0


@pytest.mark.parametrize("instances", [[], None, 1, "i-late"])
def test_a_machine_of_a_refused_launch_cannot_claim_a_rank(record: JobRecord, instances: object) -> None:
    write(record, "launch.json")
    write(record, "launched.json", instances=instances, sentence="No zone had room.")

    with pytest.raises(ClaimedError, match=r"\(none\)"):
        claim(record, "i-late", SleepClock())

    assert holder(record) is None


def test_a_machine_waits_for_the_record_of_its_launch(record: JobRecord) -> None:
    write(record, "launch.json")

    class DecidedMeanwhile(SleepClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.now > LAUNCH_SECONDS / 3:
                write(record, "launched.json", instances=["i-other"])

    with pytest.raises(ClaimedError):
        claim(record, "i-first", DecidedMeanwhile())
    assert holder(record) is None


def test_if_the_launch_is_never_recorded_the_first_machine_claims_the_rank(record: JobRecord) -> None:
    write(record, "launch.json")
    clock = SleepClock()

    assert claim(record, "i-first", clock)

    assert LAUNCH_SECONDS <= clock.now < 2 * LAUNCH_SECONDS
    with pytest.raises(ClaimedError, match="taken by i-first"):
        claim(record, "i-second", clock)


@pytest.mark.parametrize("instance", ["i-by-hand", None])
def test_a_machine_launched_by_hand_does_not_wait(record: JobRecord, instance: str | None) -> None:
    clock = SleepClock()

    assert claim(record, instance, clock)

    assert clock.now == 0


def test_a_claim_does_not_change_the_submitted_descriptor(record: JobRecord) -> None:
    record.store.put(record.key("job.toml"), b"submitted")

    assert claim(record, None, SleepClock())

    assert record.store.get(record.key("job.toml")) == b"submitted"


def test_a_result_that_the_store_wrongly_reports_as_existing_is_stored_again(tmp_path: Path) -> None:
    """S3 answers so if another put was under way, which then failed."""

    class Conflicting(DirectoryStore):
        conflicts = 1

        def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
            if if_absent and self.conflicts:
                self.conflicts -= 1
                return False
            return super().put(key, content, if_absent=if_absent)

    record = JobRecord(Conflicting(tmp_path), "job")

    NodeStore(record=record, rank=0, attempt=0).put_result(b"{}", b'{"outcome": "succeeded"}')

    assert record.store.get("job/result.json") == b'{"outcome": "succeeded"}'


LATER = "launches/2/launched.json"


def claim_later(record: JobRecord, instance: str, *, node: int, until: float = 100.0) -> bool:
    clock = SleepClock()
    return NodeStore(record=record, rank=node, attempt=0, launch=2).claim(
        {"instance_id": instance, "host": "here"},
        descriptor=b"",
        until=lambda: clock.now > until,
        sleep=clock.sleep,
        clock=clock,
    )


def test_a_replacement_machine_claims_only_the_rank_in_its_launch_record(record: JobRecord) -> None:
    write(record, "launch.json")
    write(record, "launched.json", instances=["i-0", "i-1"])
    write(record, LATER, instances=["i-4", "i-5"], first_node=4)

    assert claim_later(record, "i-5", node=5)

    for instance, node in (("i-4", 5), ("i-9", 4), ("i-0", 0)):
        with pytest.raises(ClaimedError, match="not among the machines"):
            claim_later(record, instance, node=node)


def test_a_replacement_machine_claims_no_rank_before_its_launch_is_recorded(record: JobRecord) -> None:
    # The job's first launch, and what an instance may write in a folder of the same name, say nothing about it.
    write(record, "launched.json", instances=["i-0", "i-4"])
    write(record, "launches/2/nodes/launched.json", instances=["i-4"], first_node=4)

    with pytest.raises(ClaimedError, match="i-4 is not recorded as a machine of launch 2"):
        claim_later(record, "i-4", node=4)

    assert record.node(4).read_object("ready.json") is None
