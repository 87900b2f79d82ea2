"""Cancel commands: their arguments and their effects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from service_events import CLIENT, JSON, cancel_event, encoded, fetcher_event

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.record import JobRecord
from bai_agent.job.store import StoredObject
from bai_agent.job.store.directory import DirectoryStore
from executor.configuration.service_config import Topics
from executor.planning.job_toml import job_toml
from executor.service.commands import (
    CancelArguments,
    Commands,
    InvalidArgumentsError,
    is_by_command,
    read_arguments,
)
from executor.service.counters import ServiceCounters
from executor.service.entries import Entries, Kind
from executor.service.events.event import read_event
from executor.service.events.messages import Message, MessageWriter


@pytest.mark.parametrize(
    ("args", "read"),
    [
        ({"target_action_id": "x"}, CancelArguments("x", cascade=False)),
        ({"target_action_id": "x", "cascade": True}, CancelArguments("x", cascade=True)),
        ({"target_action_id": "x", "cascade": None}, CancelArguments("x", cascade=False)),
        (["x"], CancelArguments("x", cascade=False)),
        (["x", True], CancelArguments("x", cascade=True)),
    ],
)
def test_arguments_are_a_table_or_a_list(args: Any, read: CancelArguments) -> None:
    assert read_arguments(read_event(encoded(cancel_event(args)))) == read


@given(JSON)
def test_any_arguments_are_read_or_refused(args: Any) -> None:
    event = read_event(
        json.dumps({"action_id": "a", "client_id": "c", "payload": {"args": _finite(args)}}).encode()
    )
    try:
        said = read_arguments(event).target
    except InvalidArgumentsError as error:
        said = str(error)
    assert said


class CommandHarness:
    """Users of the service, and a store with their jobs."""

    def __init__(self, folder: Path) -> None:
        self.entries = Entries(DirectoryStore(folder))
        self.jobs = DirectoryStore(folder / "jobs")
        self.sent: list[Message] = []
        self.commands = self.new_commands()

    def new_commands(self) -> Commands:
        ids = (str(number) for number in range(1000))
        return Commands(
            self.entries,
            self.jobs,
            writer=MessageWriter(
                topics=Topics(), version="1", node=None, now_ms=lambda: 7, new_id=lambda: next(ids)
            ),
            send=self.sent.append,
            counters=ServiceCounters(),
        )

    def job(
        self, action_id: str, *, client_id: str = CLIENT, parent: str | None = None, ended: bool = False
    ) -> JobRecord:
        event = read_event(encoded(fetcher_event(action_id=action_id, client_id=client_id, parent=parent)))
        name = self.entries.accept(Kind.JOB, event, received_ms=1, size=1)
        record = JobRecord(self.jobs, name)
        identity = Identity(id=name, action_id=action_id, client_id=client_id)
        self.jobs.put(
            record.key("job.toml"), job_toml(Job(job=identity, benchmark=Benchmark(argv=("x",)))).encode()
        )
        if ended:
            self.jobs.put(record.key("result.json"), b"{}")
        return record

    def command(self, args: Any, *, action_id: str = "c-1", client_id: str = CLIENT) -> tuple[int, str]:
        event = read_event(encoded(cancel_event(args, action_id=action_id, client_id=client_id)))
        name = self.entries.accept(Kind.COMMAND, event, received_ms=1, size=1)
        entry = self.entries.read(name)
        if entry is not None:
            self.commands.process(entry)
        found = [
            each.table["payload"]
            for each in self.sent
            if each.topic == "CMD_RETURN" and each.table["action_id"] == action_id
        ]
        assert len(found) == 1
        assert found[0]["cmd_submit"] == event.table
        return found[0]["return_code"], found[0]["message"]

    def statuses(self, action_id: str) -> list[tuple[str, str]]:
        return [
            (each.table["payload"]["status"], each.table["payload"]["message"])
            for each in self.sent
            if each.topic == "BAI_APP_STATUS" and each.table["action_id"] == action_id
        ]


CANCELLED = ("SUCCEEDED", "Execution successfully cancelled...")
DONE = (0, "Cancel command processed successfully")


@pytest.fixture
def harness(tmp_path: Path) -> CommandHarness:
    return CommandHarness(tmp_path)


def test_a_job_of_the_client_is_cancelled_and_answered(harness: CommandHarness) -> None:
    record = harness.job("job-1")

    assert harness.command({"target_action_id": "job-1"}) == DONE
    assert record.cancelled()
    assert harness.statuses("job-1") == [CANCELLED]
    assert harness.entries.open_names() == ["job-1"]


def test_a_repeated_command_is_answered_once(harness: CommandHarness) -> None:
    harness.job("job-1")

    assert harness.command(["job-1"]) == harness.command(["job-1"]) == DONE
    assert harness.statuses("job-1") == [CANCELLED]


def test_a_second_cancel_is_answered_without_repeating_the_status(harness: CommandHarness) -> None:
    harness.job("job-1")

    assert harness.command(["job-1"]) == harness.command(["job-1"], action_id="c-2") == DONE
    assert harness.statuses("job-1") == [CANCELLED]


def test_another_clients_job_is_treated_as_missing(harness: CommandHarness) -> None:
    record = harness.job("job-1")

    code, text = harness.command(["job-1"], client_id="mallory")
    nobody = harness.command(["job-2"], client_id="mallory", action_id="c-2")

    assert (code, nobody[0]) == (1, 1)
    assert text.replace("job-1", "job-2") == nobody[1]
    assert text.startswith("Cancel command failed: ")
    assert not record.cancelled()
    assert harness.statuses("job-1") == []


def test_a_job_submitted_without_the_service_cannot_be_cancelled_by_its_clients(
    harness: CommandHarness,
) -> None:
    # given a request under the id of a person's job, which is an error for its client
    event = read_event(encoded(fetcher_event(action_id="theirs", client_id="mallory")))
    name = harness.entries.accept(Kind.JOB, event, received_ms=1, size=1)
    record = JobRecord(harness.jobs, name)
    job = Job(job=Identity(id=name, client_id="alice"), benchmark=Benchmark(argv=("x",)))
    harness.jobs.put(record.key("job.toml"), job_toml(job).encode())

    assert harness.command(["theirs"], client_id="mallory")[0] == 1
    assert not record.cancelled()


def test_a_job_whose_record_is_broken_is_answered(harness: CommandHarness) -> None:
    record = harness.job("job-1")
    harness.jobs.put(record.key("job.toml"), b"version = 99")

    assert harness.command(["job-1"]) == (1, "Cancel command failed: job-1 has a record that cannot be read")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"by": 7}', b'{"by": "\\ud800"}', b"[" * 100_000]
)
def test_a_cancel_object_with_unknown_content_counts_as_a_cancel(
    harness: CommandHarness, content: bytes
) -> None:
    record = harness.job("job-1")
    harness.jobs.put(record.key("cancel.json"), content)

    assert record.cancelled()
    assert not is_by_command(record)
    assert harness.command(["job-1"]) == DONE
    assert harness.jobs.get(record.key("cancel.json")) == content
    assert harness.statuses("job-1") == [CANCELLED]


def test_a_job_that_has_ended_cannot_be_cancelled(harness: CommandHarness) -> None:
    record = harness.job("job-1", ended=True)

    code, text = harness.command(["job-1"])

    assert code == 1
    assert "has ended before" in text
    assert not record.cancelled()
    assert harness.statuses("job-1") == []


def test_children_are_cancelled_with_their_parent_if_requested(harness: CommandHarness) -> None:
    harness.job("parent")
    children = [harness.job(f"child-{n}", parent="parent", ended=n == 1) for n in range(3)]
    harness.job("stranger", client_id="mallory", parent="parent")

    assert harness.command({"target_action_id": "parent", "cascade": True}) == DONE
    assert [each.cancelled() for each in children] == [True, False, True]
    assert not JobRecord(harness.jobs, "stranger").cancelled()
    assert harness.statuses("child-0") == harness.statuses("child-2") == [CANCELLED]


class CountingStore(DirectoryStore):
    """Counts what is asked of it."""

    asked = 0

    def find(self, prefix: str) -> list[StoredObject]:
        self.asked += 1
        return super().find(prefix)

    def get(self, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        self.asked += 1
        return super().get(key, start=start, limit=limit)


def test_a_cascading_cancel_sends_no_requests_for_ended_children(tmp_path: Path) -> None:
    asked = []
    for ended in (0, 40):
        harness = CommandHarness(tmp_path / str(ended))
        harness.entries = Entries(store := CountingStore(tmp_path / str(ended)))
        harness.commands = harness.new_commands()
        harness.job("parent")
        for number in range(ended):
            harness.job(f"ended-{number}", parent="parent")
            entry = harness.entries.read(f"ended-{number}")
            assert entry is not None
            harness.entries.close(entry)
        child = harness.job("child", parent="parent")
        store.asked = 0

        assert harness.command(["parent", True]) == DONE

        assert child.cancelled()
        asked.append(store.asked)
    assert asked[0] == asked[1]


def test_a_repeated_cascading_cancel_affects_the_same_children(harness: CommandHarness) -> None:
    # given a command that was killed when it had noted its targets, and a child that comes later
    harness.job("parent")
    child = harness.job("child", parent="parent")
    event = read_event(encoded(cancel_event(["parent", True], action_id="c-1")))
    name = harness.entries.accept(Kind.COMMAND, event, received_ms=1, size=1)
    assert harness.entries.keep_targets(name, lambda: ["child"]) == ["child"]
    harness.job("late", parent="parent")

    assert harness.command(["parent", True], action_id="c-1") == DONE

    assert child.cancelled()
    assert harness.statuses("late") == []


def test_a_cancel_without_cascade_leaves_children_running(harness: CommandHarness) -> None:
    harness.job("parent")
    child = harness.job("child", parent="parent")

    assert harness.command({"target_action_id": "parent", "cascade": False}) == DONE
    assert not child.cancelled()


def test_a_cascading_cancel_of_a_schedule_cancels_its_children(harness: CommandHarness) -> None:
    child = harness.job("child", parent="cron-1")

    assert harness.command(["cron-1", True]) == DONE
    assert child.cancelled()


def test_a_request_that_waits_for_its_launch_is_cancelled(harness: CommandHarness) -> None:
    event = read_event(encoded(fetcher_event(action_id="job-1")))
    harness.entries.accept(Kind.JOB, event, received_ms=1, size=1)

    assert harness.command(["job-1"]) == DONE
    assert JobRecord(harness.jobs, "job-1").cancelled()


@pytest.mark.parametrize("args", [["x" * 600_000], {"x" * 600_000: 1}])
def test_large_arguments_are_not_repeated_in_the_answer(harness: CommandHarness, args: Any) -> None:
    code, text = harness.command(args)

    assert code == 2
    assert len(text) < 200


def test_a_child_that_waits_for_its_launch_is_cancelled_with_its_parent(harness: CommandHarness) -> None:
    event = read_event(encoded(fetcher_event(action_id="child", parent="parent")))
    harness.entries.accept(Kind.JOB, event, received_ms=1, size=1)

    assert harness.command({"target_action_id": "parent", "cascade": True}) == DONE
    assert JobRecord(harness.jobs, "child").cancelled()


@pytest.mark.parametrize(
    "args", [None, {}, [], "x", {"target_action_id": 3}, ["x", "y"], ["x", True, 1], {"x": 1}]
)
def test_invalid_arguments_are_reported(harness: CommandHarness, args: Any) -> None:
    code, text = harness.command(args)

    assert code == 2
    assert text.startswith("Cancel command failed: Invalid args")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return 1.5
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return {key: _finite(each) for key, each in value.items()} if isinstance(value, dict) else value
