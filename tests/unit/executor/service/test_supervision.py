"""A launched job is supervised until all its messages are sent, even if the service is killed meanwhile."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from instance_events import INSTANCE, REGION
from service_events import ACTION, CLIENT, encoded, fetcher_event

from bai_agent.errors import StoreError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult, as_table
from bai_agent.job.store import StoredObject
from bai_agent.job.store.directory import DirectoryStore
from executor.configuration.config import Settings
from executor.configuration.service_config import Topics
from executor.planning.job_toml import job_toml
from executor.service.broker import PartitionOwnership
from executor.service.counters import ServiceCounters
from executor.service.entries import Entries, Kind
from executor.service.events.ec2_events import InstanceEvent
from executor.service.events.event import read_event
from executor.service.events.messages import AppStatus, Message, MessageWriter
from executor.service.outbox import Outbox
from executor.service.reconciler import Reconciler
from executor.service.service_jobs import EXECUTOR
from executor.service.status_reporter import StatusReporter
from executor.service.supervision import Supervisor

LIFE = [
    "Benchmark starting",
    "Benchmark running",
    f"Metrics available for job {ACTION} at http://d/{ACTION}",
    "Benchmark finished successfully",
    f"Metrics available for job {ACTION} at http://d/{ACTION}",
]


class MortalStore(DirectoryStore):
    """A store that its process loses after some writes, as one that is killed."""

    def __init__(self, folder: Path, *, lives: int) -> None:
        super().__init__(folder)
        self.lives = lives

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        self._die()
        return super().put(key, content, if_absent=if_absent)

    def remove(self, key: str) -> None:
        self._die()
        super().remove(key)

    def _die(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise StoreError("killed")


class BusyStore(DirectoryStore):
    """A job store in which something happens between two requests: right after the job's own folder was listed."""

    def __init__(self, folder: Path, happens: Callable[[], None]) -> None:
        super().__init__(folder)
        self.happens = happens

    def around(self, folder: str) -> tuple[list[StoredObject], list[str]]:
        found = super().around(folder)
        if folder == ACTION:
            self.happens()
        return found


class SupervisionHarness:
    """A launched job, and replicas that look after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries = Entries(DirectoryStore(folder))
        self.sent: list[Message] = []
        self.record = JobRecord(DirectoryStore(folder / "jobs"), ACTION)
        ids = (str(number) for number in itertools.count())
        self.writer = MessageWriter(
            topics=Topics(), version="1", node=None, now_ms=lambda: 7, new_id=lambda: next(ids)
        )
        event = read_event(encoded(fetcher_event()))
        self.entries.accept(Kind.JOB, event, received_ms=1, size=1)
        job = Job(
            job=Identity(id=ACTION, action_id=ACTION, client_id=CLIENT), benchmark=Benchmark(argv=("x",))
        )
        self.record.store.put(self.record.key("job.toml"), job_toml(job).encode())
        launched = self.writer.executor_event(event, {"id": ACTION})
        Outbox(self.entries.store, ACTION, self.sent.append).post(EXECUTOR, lambda: launched)

    def write(self, *phases: str, outcome: Outcome | None = None) -> None:
        """Write what a job's agent writes."""
        lines = [
            json.dumps({"type": "phase", "time": 1, "phase": each, "state": "started"}) for each in phases
        ]
        self.record.store.put(self.record.node().key("events.jsonl"), "\n".join([*lines, ""]).encode())
        if outcome is not None:
            result = JobResult(
                outcome=outcome.value,
                status=outcome.status.value,
                exit_code=int(outcome.exit_code),
                sentence="x",
            )
            self.record.store.put(self.record.key("result.json"), json.dumps(as_table(result)).encode())

    def supervise(
        self,
        done: Callable[[], bool],
        *,
        lives: int = 1_000_000,
        holds: bool = True,
        happens: Callable[[], None] = lambda: None,
        looks: timedelta = timedelta(seconds=0.02),
        begun: Callable[[Supervisor], None] = lambda supervisor: None,
    ) -> None:
        """Let a replica look after the job until `done`. lives: writes before it dies. happens: see `BusyStore`.

        looks: between two. begun: called when it has begun.
        """
        share = PartitionOwnership()
        share.update([0] if holds else [], 1)
        mortal = MortalStore(self.folder, lives=lives)
        reconciler = Reconciler(
            Entries(mortal),
            BusyStore(self.folder / "jobs", happens),
            Settings(),
            reporter=StatusReporter(
                writer=self.writer, dashboard="http://d/{action_id}", said=lambda status: None
            ),
            send=self.sent.append,
            holds=share.owns,
            counters=ServiceCounters(),
        )
        supervisor = Supervisor(reconciler, share=share, every=looks)
        supervisor.start()
        try:
            begun(supervisor)
            deadline = time.monotonic() + 60
            while not done() and mortal.lives >= 0:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            assert supervisor.stop(timeout_s=60)

    @property
    def closed(self) -> bool:
        return not (self.folder / "open" / ACTION / "event.json").exists()

    def texts(self) -> list[str]:
        """Return the statuses that readers see, each message once."""
        found: dict[str, str] = {}
        for each in self.sent:
            if each.topic == Topics().status:
                table = each.table
                text = table["payload"]["message"]
                assert found.setdefault(table["message_id"], text) == text
        return list(found.values())


@pytest.fixture
def harness(tmp_path: Path) -> SupervisionHarness:
    return SupervisionHarness(tmp_path)


def test_all_statuses_of_an_ended_job_are_sent_and_it_is_closed(harness: SupervisionHarness) -> None:
    harness.write("prepare", "pull", "join", "run", "drain", "end", outcome=Outcome.SUCCEEDED)

    harness.supervise(lambda: harness.closed)

    assert harness.texts() == LIFE
    assert harness.entries.is_closed(ACTION)


def test_a_kill_after_any_write_changes_no_message(tmp_path: Path) -> None:
    for lives in range(2 * len(LIFE) + 2):
        folder = tmp_path / str(lives)
        folder.mkdir()
        harness = SupervisionHarness(folder)
        harness.write("prepare", "pull", "join", "run", outcome=Outcome.SUCCEEDED)

        harness.supervise(lambda: False, lives=lives)
        assert not harness.closed
        harness.supervise(lambda harness=harness: harness.closed)  # type: ignore[misc]

        assert harness.texts() == LIFE, lives


def test_all_statuses_of_a_job_that_ends_during_a_check_are_sent(harness: SupervisionHarness) -> None:
    harness.supervise(lambda: harness.closed, happens=lambda: harness.write("run", outcome=Outcome.SUCCEEDED))

    assert harness.texts() == LIFE


def test_another_replicas_jobs_are_not_touched(harness: SupervisionHarness) -> None:
    harness.write("run", outcome=Outcome.SUCCEEDED)
    end = time.monotonic() + 0.3

    harness.supervise(lambda: time.monotonic() > end, holds=False)

    assert harness.texts() == []
    assert not harness.closed


def test_the_end_of_a_job_is_reported_after_the_answer_to_its_cancel(harness: SupervisionHarness) -> None:
    harness.write("run", outcome=Outcome.CANCELLED)
    harness.record.cancel(by="_command-1 of the service")
    cancelled = "Execution successfully cancelled..."

    def answered() -> bool:
        if LIFE[2] in harness.texts() and cancelled not in harness.texts():
            event = read_event(encoded(fetcher_event()))
            outbox = Outbox(harness.entries.store, ACTION, harness.sent.append)
            outbox.post(
                "50-cancelled",
                lambda: harness.writer.status(event, AppStatus.SUCCEEDED, cancelled, about=None),
            )
        return harness.closed

    harness.supervise(answered)

    assert harness.texts() == [*LIFE[:3], cancelled, "Benchmark cancelled - watch ended"]


def test_a_job_whose_record_is_missing_is_reported_as_failed(harness: SupervisionHarness) -> None:
    harness.record.store.remove(harness.record.key("job.toml"))

    harness.supervise(lambda: harness.closed)

    assert harness.texts() == [LIFE[0], "Benchmark failed: The job's record is gone from the bucket."]


def test_an_ec2_event_about_a_machine_causes_a_check_of_its_job(harness: SupervisionHarness) -> None:
    launched = {"instances": [INSTANCE], "az": "a"}
    harness.record.store.put(harness.record.key("attempts/0/launched.json"), json.dumps(launched).encode())

    def happen(supervisor: Supervisor) -> None:
        deadline = time.monotonic() + 60
        while harness.texts() != LIFE[:1]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        harness.write("run", outcome=Outcome.SUCCEEDED)
        time.sleep(0.1)
        assert harness.texts() == LIFE[:1]
        supervisor.changed(
            [
                InstanceEvent(kind="state-change", instance_id=each, region=REGION, what="terminated")
                for each in ("i-00000000", INSTANCE, INSTANCE)
            ]
        )

    harness.supervise(lambda: harness.closed, looks=timedelta(hours=1), begun=happen)

    assert harness.texts() == LIFE
