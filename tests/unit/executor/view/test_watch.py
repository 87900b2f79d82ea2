"""What following does about an agent that dies again and again."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from handmade_job import HandmadeJob

from bai_agent.errors import StoreError, StoreRefusedError
from bai_agent.job.attempt import AttemptRecord, StopOrder
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult
from bai_agent.job.store import StoredObject
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import dataclass, field
from executor.backends.local.agent import AgentWatcher
from executor.documents.job_view import JobView
from executor.errors import NextStep, NoResultError
from executor.records.follower import News
from executor.view.plain import JsonView, PlainView
from executor.view.watch import LeftError, watch


@dataclass
class MortalAgent:
    """Never lives; at its start number `ends_at` it ends the job."""

    job: HandmadeJob
    ends_at: int | None = None
    starts: int = 0
    says: str = "{letter} is wrong"
    """How its log ends; with another letter, or number, after each start."""
    at_look: list[int] = field(default_factory=list)
    """Signals that this process gets at the first looks."""

    others_live: bool = False
    """Whether other nodes' agents live, of an elastic job."""

    def alive(self) -> bool:
        return self.others_live

    def proposed(self) -> int | None:
        return None

    def scale(self, desired: int) -> list[int]:
        raise AssertionError("nothing is proposed")

    def complete(self) -> bool:
        if self.at_look:
            os.kill(os.getpid(), self.at_look.pop(0))
        return False

    def last_words(self) -> str:
        return self.says.format(letter="abcd"[self.starts], number=self.starts)

    def start(self) -> None:
        self.starts += 1
        if self.starts == self.ends_at:
            self.job.ends()


def follow(job: HandmadeJob, agent: Any, stream: io.StringIO) -> JobResult:
    job_view, view = JobView(job_id="digits-1", job=job.job, place=""), JsonView(stream)
    return watch(job.record, job_view, view, AgentWatcher(agent, job.record, view.notice, look_s=0))


def notices(stream: io.StringIO) -> list[str]:
    objects = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [each["message"] for each in objects if each["type"] == "notice"]


def test_an_agent_is_restarted_at_most_three_times(tmp_path: Path) -> None:
    job, stream = HandmadeJob(tmp_path), io.StringIO()
    agent = MortalAgent(job)

    with pytest.raises(NoResultError) as given_up:
        follow(job, agent, stream)

    assert agent.starts == 3
    assert str(given_up.value) == "the agent died 4 times. The agent's log ends with: d is wrong"
    assert given_up.value.next_step == NextStep(("resume", "digits-1"), "starts it again")
    assert notices(stream) == [
        "the agent died; starting it again (1 of 3). The agent's log ends with: a is wrong",
        "the agent died; starting it again (2 of 3). The agent's log ends with: b is wrong",
        "the agent died; starting it again (3 of 3). The agent's log ends with: c is wrong",
    ]


def test_an_agent_that_keeps_dying_at_start_is_not_restarted(tmp_path: Path) -> None:
    job, stream = HandmadeJob(tmp_path), io.StringIO()
    agent = MortalAgent(job, says="OSError: no room for .ready.{number}.tmp")

    with pytest.raises(NoResultError) as given_up:
        follow(job, agent, stream)

    assert agent.starts == 1
    assert str(given_up.value) == (
        "the agent died again right after its start, so the cause has to be removed first. "
        "The agent's log ends with: OSError: no room for .ready.1.tmp"
    )


def test_a_job_that_ends_after_a_restart_has_its_result(tmp_path: Path) -> None:
    job, stream = HandmadeJob(tmp_path), io.StringIO()
    agent = MortalAgent(job, ends_at=2)

    result = follow(job, agent, stream)

    assert result.outcome == "succeeded"
    assert agent.starts == 2


@dataclass
class BlockedView(JsonView):
    """Nobody reads for a moment what it writes first; counts how often a pause asks it for a new picture."""

    job: HandmadeJob
    blocked: bool = False
    pictures: int = 0

    def __post_init__(self) -> None:
        super().__init__(io.StringIO())

    def show(self, job_view: JobView, news: News) -> None:
        if not self.blocked:
            self.blocked = True
            time.sleep(1)
            self.job.ends()

    def refresh(self, job_view: JobView) -> None:
        self.pictures += 1


def test_following_catches_up_without_pauses_after_a_slow_reader(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    view = BlockedView(job)
    agent: Any = MortalAgent(job)

    watch(
        job.record,
        JobView(job_id="digits-1", job=job.job, place=""),
        view,
        AgentWatcher(agent, job.record, view.notice, look_s=60),
    )

    assert view.pictures < 10


def test_an_elastic_job_continues_without_a_node_whose_agent_keeps_dying(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, nodes=4, min_nodes=2)
    agent: Any = MortalAgent(job, others_live=True)
    watcher = AgentWatcher(agent, job.record, lambda sentence: None, look_s=0)

    said = [watcher.observe(news=False, cancelling=False) for _ in range(6)]

    assert agent.starts == 3
    assert said == [
        *[None] * 3,
        "the agent died 4 times. The agent's log ends with: d is wrong; the job continues without this node",
        *[None] * 2,
    ]


def test_the_first_ctrl_c_cancels_and_the_second_stops_following(tmp_path: Path) -> None:
    job, stream = HandmadeJob(tmp_path), io.StringIO()
    agent = MortalAgent(job, at_look=[signal.SIGINT])
    before = signal.getsignal(signal.SIGINT)

    with pytest.raises(NoResultError):
        follow(job, agent, stream)
    assert job.record.cancelled()
    assert len([each for each in notices(stream) if each.startswith("cancelling")]) == 1

    agent = MortalAgent(job, at_look=[signal.SIGINT, signal.SIGINT])
    with pytest.raises(LeftError) as left:
        follow(job, agent, stream)
    assert left.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is before


@dataclass
class FarWatcher:
    """Looks after a job elsewhere: says something new each time, and ends the job at its look number `ends_at`."""

    job: HandmadeJob
    ends_at: int = 1
    looks: list[tuple[bool, bool]] = field(default_factory=list)
    pause_s: float = 0.0

    def observe(self, *, news: bool, cancelling: bool) -> str | None:
        self.looks.append((news, cancelling))
        if len(self.looks) == self.ends_at:
            self.job.ends("lost", 5)
        return f"look {len(self.looks)}"


@dataclass(frozen=True)
class FlakyStore(DirectoryStore):
    """Cannot be reached the first times that it is asked."""

    failures: list[StoreError] = field(default_factory=list)

    def find(self, prefix: str) -> list[StoredObject]:
        if self.failures:
            raise self.failures.pop()
        return super().find(prefix)


def test_a_remote_job_is_checked_and_changes_are_reported(tmp_path: Path) -> None:
    job, stream = HandmadeJob(tmp_path), io.StringIO()
    job.prints("a line\n")
    watcher = FarWatcher(job, ends_at=3)
    job_view = JobView(job_id="digits-1", job=job.job, place="")

    result = watch(job.record, job_view, JsonView(stream), watcher, remote=True)

    assert result.outcome == "lost"
    assert notices(stream) == ["look 1", "look 2", "look 3"]
    assert watcher.looks == [(True, False), (False, False), (False, False)]


@pytest.mark.parametrize("finished", [False, True])
def test_the_reason_that_ends_several_nodes_is_shown_once(tmp_path: Path, finished: bool) -> None:
    job, stream = HandmadeJob(tmp_path, nodes=2), io.StringIO()
    sentence = "Node 1: The benchmark ended with exit code 7."
    AttemptRecord(job.record).order_stop(
        StopOrder(finished=finished, rank=1, outcome="failed", sentence=sentence)
    )
    job_view = JobView(job_id="digits-1", job=job.job, place="")

    watch(job.record, job_view, JsonView(stream), FarWatcher(job, ends_at=3), remote=True)

    said = [] if finished else [f"The job is being ended: {sentence}"]
    assert notices(stream) == [*said, "look 1", "look 2", "look 3"]


def test_the_reason_that_the_first_node_reported_is_not_repeated(tmp_path: Path) -> None:
    job, stream = HandmadeJob(tmp_path, nodes=2), io.BytesIO()
    sentence = "Node 1 sent no heartbeat for 20 s."
    AttemptRecord(job.record).order_stop(StopOrder(rank=1, outcome="peer_lost", sentence=sentence))
    job.phases("prepare", "pull", "join", until="run")
    job.event("stop", reason="peer_lost", message=sentence)
    job_view = JobView(job_id="digits-1", job=job.job, place="")

    watch(job.record, job_view, PlainView(stream), FarWatcher(job, ends_at=2), remote=True)

    assert stream.getvalue().decode().count(sentence) == 1


def test_an_unreachable_remote_store_is_asked_again(tmp_path: Path) -> None:
    job, stream = HandmadeJob(tmp_path), io.StringIO()
    store = FlakyStore(tmp_path, [StoreError("away"), StoreError("away")])
    job_view = JobView(job_id="digits-1", job=job.job, place="")

    watch(JobRecord(store, "digits-1"), job_view, JsonView(stream), FarWatcher(job), remote=True)

    assert notices(stream)[:2] == ["away; trying again"] * 2


def test_a_store_that_refuses_is_not_asked_again(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    record = JobRecord(FlakyStore(tmp_path, [StoreRefusedError("no rights")]), "digits-1")
    job_view = JobView(job_id="digits-1", job=job.job, place="")

    with pytest.raises(StoreRefusedError):
        watch(record, job_view, JsonView(io.StringIO()), FarWatcher(job), remote=True)
