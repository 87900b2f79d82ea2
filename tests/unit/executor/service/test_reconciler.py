"""What the service asks of the job store for an open job, minute by minute, and how soon it learns of an end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from instance_events import INSTANCE, REGION
from service_events import ACTION, CLIENT, encoded, fetcher_event

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.generation_records import DecisionKind, NextGeneration
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Members, Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult, as_table
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store import StoredObject
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.ec2.instances import Instance
from executor.configuration.config import Settings
from executor.configuration.service_config import ServiceTable, Topics
from executor.errors import SendError
from executor.planning.job_toml import job_toml
from executor.service import reconciler as reconciler_module
from executor.service.counters import ServiceCounters
from executor.service.entries import Entries, Kind
from executor.service.events.ec2_events import InstanceEvent
from executor.service.events.event import read_event
from executor.service.events.messages import Message, MessageWriter
from executor.service.outbox import Outbox
from executor.service.reconciler import Reconciler
from executor.service.service_jobs import EXECUTOR
from executor.service.status_reporter import StatusReporter

MINUTE = 60.0
SECOND = "i-0123456789abcdef2"


class CountingStore(DirectoryStore):
    """Counts its requests. `find` of a folder on disk asks the disk itself, as `around` does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked: Counter[str] = Counter()

    def find(self, prefix: str) -> list[StoredObject]:
        self.asked["LIST"] += 1
        return super().find(prefix)

    def around(self, folder: str) -> tuple[list[StoredObject], list[str]]:
        self.asked["LIST"] += 1
        return super().around(folder)

    def folders(self, prefix: str) -> list[str]:
        self.asked["LIST"] += 1
        return super().folders(prefix)

    def get(self, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        self.asked["GET"] += 1
        return super().get(key, start=start, limit=limit)


class Looks:
    """A launched job whose node sends heartbeats, and a service whose time the test advances."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.every = ServiceTable().look_interval.total_seconds()
        self.state = "running"
        self.one_more = False
        """Whether EC2 shows a second machine, which runs."""
        self.sent: list[Message] = []
        self.send: Callable[[Message], None] = self.sent.append
        self.store = CountingStore(folder / "jobs")
        self.looked: list[float] = []
        monkeypatch.setattr(reconciler_module, "find_job_instances", self._instances)
        self._launch(folder)
        self.reconciler = Reconciler(
            self.entries,
            self.store,
            Settings(),
            reporter=StatusReporter(writer=self.writer, dashboard=None, said=lambda status: None),
            send=lambda message: self.send(message),
            holds=lambda client: True,
            counters=ServiceCounters(),
            every=timedelta(seconds=self.every),
            clock=lambda: self.now,
        )

    @property
    def closed(self) -> bool:
        return not self.entries.open_names()

    def tick(self) -> None:
        """Let the shortest pause pass, a little more or less, and look at what is due."""
        self.now += self.every + 0.05
        self.sign()
        for name in self.reconciler.due():
            self.looked.append(self.now)
            self.reconciler.reconcile_one(name)

    def minutes(self, minutes: int) -> Counter[str]:
        """Let minutes pass; return what was asked for in them."""
        before = Counter(self.store.asked)
        for _ in range(int(minutes * MINUTE / self.every)):
            self.tick()
        return self.store.asked - before

    def sign(self) -> None:
        self._put("attempts/0/nodes/0/heartbeat.json", {"time": now_ms()})

    def write_events(self, *phases: str) -> None:
        lines = [
            json.dumps({"type": "phase", "time": 1, "phase": each, "state": "started"}) for each in phases
        ]
        self.record.store.put(self.record.node().key("events.jsonl"), "\n".join([*lines, ""]).encode())

    def end(self) -> None:
        outcome = Outcome.SUCCEEDED
        result = JobResult(
            outcome=outcome.value, status=outcome.status.value, exit_code=int(outcome.exit_code), sentence="x"
        )
        self._put("result.json", as_table(result))

    def _launch(self, folder: Path) -> None:
        self.entries = Entries(DirectoryStore(folder))
        self.record = JobRecord(DirectoryStore(folder / "jobs"), ACTION)
        numbers = iter(range(1000))
        self.writer = MessageWriter(
            topics=Topics(), version="1", node=None, now_ms=lambda: 7, new_id=lambda: str(next(numbers))
        )
        event = read_event(encoded(fetcher_event()))
        self.entries.accept(Kind.JOB, event, received_ms=1, size=1)
        self._put_job(StrategyTable())
        Outbox(self.entries.store, ACTION, self.sent.append).post(
            EXECUTOR, lambda: self.writer.executor_event(event, {"id": ACTION})
        )
        launch = {
            "version": 1, "job_id": ACTION, "attempt": 0, "region": REGION, "token": "t", "boot_limit": 600,
            "candidates": [{"subnet": "subnet-1", "az": "a"}], "request": {},
            "expires": "2100-01-01T00:00:00Z", "created": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        self._put("attempts/0/launch.json", launch)
        self._put("attempts/0/launched.json", {"instances": [INSTANCE], "az": "a"})
        self._put("attempts/0/nodes/0/ready.json", {"instance_id": INSTANCE})
        self.sign()

    @property
    def texts(self) -> list[str]:
        return [str(json.loads(each.value)["payload"].get("message")) for each in self.sent]

    def make_elastic(self) -> None:
        """Let the job be of one or two nodes, and have begun."""
        self._put_job(StrategyTable(name="torchrun", nodes=2, min_nodes=1))
        self._put("attempts/0/launched.json", {"instances": [INSTANCE, SECOND], "az": "a"})
        self._put("attempts/0/nodes/1/heartbeat.json", {"time": now_ms()})
        self.change(0, NextGeneration(kind=DecisionKind.RUN, members=[0, 1], why="start"))
        AttemptRecord(self.record).begin_generation(0, Members(peers=(Peer(rank=0, address="10.0.0.1"),)))

    def change(self, number: int, decision: NextGeneration) -> None:
        AttemptRecord(self.record).settle_generation(number, decision)

    def _put_job(self, strategy: StrategyTable) -> None:
        identity = Identity(id=ACTION, action_id=ACTION, client_id=CLIENT)
        job = Job(job=identity, benchmark=Benchmark(argv=("x",)), strategy=strategy)
        self.record.store.put(self.record.key("job.toml"), job_toml(job).encode())

    def _put(self, name: str, table: Any) -> None:
        self.record.store.put(self.record.key(name), json.dumps(table).encode())

    def _instances(self, _: object, __: object, jobs: Any) -> dict[str, list[Instance]]:
        tags = {"bai:job-id": ACTION, "bai:attempt": "0"}
        found = [Instance(id=INSTANCE, state=self.state, tags=tags)]
        if self.one_more:
            found.append(Instance(id=SECOND, state="running", index=1, tags=tags))
        return dict.fromkeys(jobs, found)


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(tmp_path, monkeypatch)


def test_an_unchanged_job_costs_at_most_two_list_requests_a_minute(looks: Looks) -> None:
    looks.write_events("prepare", "run")
    looks.minutes(3)

    asked = looks.minutes(20)

    assert asked["LIST"] <= 2 * 20
    assert asked["GET"] == 0
    assert not looks.closed


def test_checks_become_less_frequent_without_news_and_frequent_again_with_news(looks: Looks) -> None:
    looks.write_events("prepare")
    looks.minutes(8)
    pauses = [round((later - now) / looks.every) for now, later in pairwise(looks.looked)]
    assert pauses[:2] == [1, 2]
    assert set(pauses[2:]) == {4}

    looks.write_events("prepare", "run")
    before = len(looks.looked)
    looks.minutes(5)

    after = looks.looked[before:]
    assert [round((later - now) / looks.every) for now, later in pairwise(after)][:3] == [1, 2, 4]


def test_the_end_of_a_job_is_noticed_within_a_minute(looks: Looks) -> None:
    looks.write_events("prepare", "run")
    looks.minutes(10)

    looks.end()
    looks.minutes(1)

    assert looks.closed


def test_a_job_whose_machine_is_gone_is_checked_at_the_next_ec2_description(looks: Looks) -> None:
    looks.write_events("prepare", "run")
    looks.minutes(10)
    looked = len(looks.looked)

    looks.state = "terminated"
    looks.tick()

    assert len(looks.looked) == looked + 1


def test_a_lost_node_of_an_elastic_job_is_reported_once(looks: Looks) -> None:
    looks.make_elastic()
    looks.minutes(10)
    looks.change(1, NextGeneration(kind=DecisionKind.RUN, members=[1], why="lost", nodes=[0]))
    looks.one_more = True
    looks.state = "terminated"

    looks.minutes(2)

    assert looks.texts[-1] == "Benchmark running on 1 node: node 0 sent no heartbeat"
    assert looks.texts[-2] == "Benchmark running"
    before = len(looks.looked)
    looks.minutes(20)
    assert len(looks.looked) - before <= 20
    assert not looks.closed


def test_an_ec2_event_makes_checks_of_its_job_frequent_again(looks: Looks) -> None:
    looks.write_events("prepare", "run")
    looks.minutes(10)

    event = InstanceEvent(kind="state-change", instance_id=INSTANCE, region=REGION, what="running")
    names = set(looks.reconciler.changed([event]).values())
    for name in names:
        looks.reconciler.reconcile_one(name)
    looked = len(looks.looked)
    looks.tick()

    assert names == {ACTION}
    assert len(looks.looked) == looked + 1


def test_a_message_that_kafka_refused_is_sent_at_the_next_check(looks: Looks) -> None:
    looks.write_events("prepare", "run")
    looks.minutes(10)

    def refuse(_: Message) -> None:
        raise SendError("away")

    send = looks.sent.append
    looks.send = refuse
    looks.end()
    for _ in range(4):
        with suppress(SendError):
            looks.tick()
    tried = len(looks.looked)
    for _ in range(3):
        with pytest.raises(SendError):
            looks.tick()
    assert len(looks.looked) == tried + 3

    looks.send = send
    looks.tick()
    assert looks.closed
