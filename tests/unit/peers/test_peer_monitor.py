from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from bai_agent.errors import StoreError
from bai_agent.job.attempt import AttemptRecord, StopOrder
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.restart_tables import Restart
from bai_agent.job.generation_records import GenerationEnd, Ledger
from bai_agent.job.job_result import job_result
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Members, Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import NodeOutcome
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store import StoredObject
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.peers import node_monitor
from bai_agent.peers.direct_question import PeerAnswer, new_key
from bai_agent.peers.generation_control import GenerationControl
from bai_agent.peers.node_monitor import SignAges
from bai_agent.peers.peer_monitor import PeerMonitor

SILENCE = 20.0
LIMITS = Limits(peer_silence=timedelta(seconds=SILENCE), store_away=timedelta(minutes=10))


@dataclass
class Time:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class AwayStore(DirectoryStore):
    """A store that can be out of reach."""

    away = False

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        if self.away:
            raise StoreError("the store is away")
        return super().put(key, content, if_absent=if_absent)

    def find(self, prefix: str) -> list[StoredObject]:
        if self.away:
            raise StoreError("the store is away")
        return super().find(prefix)


class MonitoredNodes:
    """The nodes of one job, which look when they are told to."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.time = Time()
        self.stores = [AwayStore(folder) for _ in range(nodes)]
        """The same folder, as each node sees it."""
        self.attempt = AttemptRecord(JobRecord(DirectoryStore(folder), "digits-1"))
        self.dumb: set[int] = set()
        """Nodes that answer no question."""
        self.peers = tuple(
            Peer(rank=rank, address=f"10.0.0.{rank}", instance_id=f"i-{rank}") for rank in range(nodes)
        )
        self.monitors = [
            PeerMonitor(
                AttemptRecord(JobRecord(store, "digits-1")),
                rank=rank,
                nodes=nodes,
                limits=LIMITS,
                clock=self.time,
                ask=self._ask,
            )
            for rank, store in enumerate(self.stores)
        ]
        self._signs = 0

    def meet(self) -> None:
        for monitor in self.monitors:
            monitor.met(self.peers, key=new_key())
        self.look(*range(len(self.peers)))

    def look(self, *ranks: int, after: float = 0.0) -> None:
        """Have these nodes look, after some seconds."""
        self.time.now += after
        for rank in ranks:
            # As a phase that goes on: two signs within a millisecond are to differ.
            self._signs += 1
            self.monitors[rank].phase = "x" * self._signs
            self.monitors[rank].observe()

    def miss_store(self, *ranks: int, seconds: float) -> None:
        """Have these nodes miss the store for so long; the others look meanwhile, and all ask each other."""
        for rank in ranks:
            self.stores[rank].away = True
        for _ in range(round(seconds / 5)):
            self.time.now += 5
            for rank in range(len(self.peers)):
                with suppress(StoreError):
                    self.look(rank)
                self.monitors[rank].look_for_store()

    def _ask(self, peer: Peer, key: bytes) -> PeerAnswer | None:
        return None if peer.rank in self.dumb else self.monitors[peer.rank].absence.answer()

    def reasons(self) -> list[Outcome | None]:
        found = [monitor.reason(None) for monitor in self.monitors]
        return [each.outcome if each is not None else None for each in found]

    def sentence(self, rank: int) -> str:
        reason = self.monitors[rank].reason(None)
        assert reason is not None
        return reason.message


@pytest.fixture
def job(tmp_path: Path) -> MonitoredNodes:
    made = MonitoredNodes(tmp_path, 3)
    made.meet()
    return made


def ended(rank: int, outcome: str = "succeeded", *, at: int = 1, complete: bool = True) -> NodeOutcome:
    return NodeOutcome(rank=rank, outcome=outcome, sentence=f"It {outcome}.", ended=at, complete=complete)


def test_nodes_that_give_signs_of_life_continue(job: MonitoredNodes) -> None:
    for _ in range(20):
        job.look(0, 1, 2, after=5.0)

    assert job.reasons() == [None, None, None]


def test_a_silent_worker_ends_all_nodes_and_is_named(job: MonitoredNodes) -> None:
    job.dumb = {2}
    for _ in range(5):
        job.look(0, 1, after=6.0)
    job.look(1)

    assert job.reasons()[:2] == [Outcome.PEER_LOST, Outcome.PEER_LOST]
    for rank in (0, 1):
        assert job.sentence(rank) == "Node 2 (i-2, 10.0.0.2) sent no heartbeat for 20 s."


def test_a_silent_coordinator_ends_each_worker(job: MonitoredNodes) -> None:
    job.dumb = {0}
    for _ in range(5):
        job.look(1, 2, after=6.0)

    assert job.reasons()[1:] == [Outcome.PEER_LOST, Outcome.PEER_LOST]
    assert "Node 0 (i-0, 10.0.0.0), the coordinator," in job.sentence(1)
    assert job.monitors[1].lost_coordinator


def test_a_worker_that_fails_ends_the_others_at_once(job: MonitoredNodes) -> None:
    job.attempt.end(ended(1, "failed", complete=False))
    job.look(0, 2)

    assert job.reasons() == [Outcome.PEER_FAILED, None, Outcome.PEER_FAILED]
    assert job.sentence(2) == "Node 1: It failed."


def test_the_earlier_of_two_failures_is_the_reason(job: MonitoredNodes) -> None:
    job.attempt.end(ended(1, "failed", at=20))
    job.attempt.end(ended(2, "oom", at=10))
    job.look(0)

    assert job.sentence(0) == "Node 2: It oom."


def test_a_worker_that_succeeded_may_stop_giving_signs_of_life(job: MonitoredNodes) -> None:
    job.attempt.end(ended(1))
    for _ in range(10):
        job.look(0, 2, after=5.0)

    assert (job.reasons()[0], job.reasons()[2]) == (None, None)
    assert job.monitors[0].outcomes[1].outcome == "succeeded"


def test_the_report_that_the_job_has_finished_does_not_stop_nodes(job: MonitoredNodes) -> None:
    job.monitors[0].stop_others(StopOrder(finished=True))
    for _ in range(10):
        job.look(1, 2, after=6.0)

    assert job.reasons()[1:] == [None, None]
    assert job.monitors[1].finished


def test_a_stop_order_that_could_not_be_stored_is_stored_later(job: MonitoredNodes) -> None:
    # Nodes that only serve would wait for it as long as the coordinator waits for them.
    job.stores[0].away = True
    with pytest.raises(StoreError):
        job.monitors[0].stop_others(StopOrder(finished=True))
    job.stores[0].away = False

    job.look(0, 1, after=6.0)

    assert job.monitors[1].finished


def test_a_node_that_alone_cannot_reach_the_store_ends_itself(job: MonitoredNodes) -> None:
    job.miss_store(1, seconds=SILENCE)
    assert job.reasons() == [None, None, None]
    job.miss_store(1, seconds=10)

    # The others have given it up, who know more than that it is silent
    assert job.reasons() == [Outcome.PEER_LOST] * 3
    assert (
        job.sentence(1)
        == "Node 1 could not reach the job store for 20 s, so the other nodes no longer wait for it."
    )
    assert job.sentence(0) == "Node 1 (i-1, 10.0.0.1) ran, but did not reach the job store for 20 s."
    assert job.monitors[0].lost == {1}


@pytest.mark.parametrize("cut_off", [0, 1])
def test_a_node_that_ended_itself_when_cut_off_is_reported_as_cut_off(
    job: MonitoredNodes, cut_off: int
) -> None:
    # Given a node that misses the store alone, was asked whether it lives, and ends itself before the others give it up
    job.miss_store(cut_off, seconds=SILENCE)
    job.dumb = {cut_off}

    job.miss_store(cut_off, seconds=10)

    mention = "Node 0 (i-0, 10.0.0.0), the coordinator," if cut_off == 0 else "Node 1 (i-1, 10.0.0.1)"
    for rank in {0, 1, 2} - {cut_off}:
        assert job.sentence(rank) == f"{mention} ran, but did not reach the job store for 20 s."


def test_nodes_that_all_cannot_reach_the_store_continue_for_its_limit(job: MonitoredNodes) -> None:
    job.miss_store(0, 1, 2, seconds=590)
    assert job.reasons() == [None, None, None]
    job.miss_store(0, 1, 2, seconds=15)

    assert job.reasons() == [Outcome.PEER_LOST] * 3
    assert "No node reached the job store for 10m (limits.store_away)" in job.sentence(2)


@pytest.mark.parametrize("has_the_store", [True, False])
def test_after_a_network_partition_neither_half_continues(job: MonitoredNodes, has_the_store: bool) -> None:
    # Given a coordinator and a worker that miss the store, and a worker that they do not reach
    job.dumb = {2}
    job.miss_store(*([0, 1] if has_the_store else [0, 1, 2]), seconds=SILENCE)
    assert job.reasons() == [None, None, None]

    job.miss_store(seconds=10)

    assert job.reasons()[:2] == [Outcome.PEER_LOST] * 2


def test_before_nodes_join_an_unreachable_store_is_tolerated_for_limits_store_away(tmp_path: Path) -> None:
    job = MonitoredNodes(tmp_path, 2)
    job.time.now += 595
    assert job.reasons() == [None, None]
    job.time.now += 10

    assert job.reasons() == [Outcome.PEER_LOST] * 2
    assert job.sentence(1) == "Node 1 could not reach the job store for limits.store_away (10m)."


def test_a_silent_node_that_answers_with_the_store_is_not_lost(job: MonitoredNodes) -> None:
    # Given a worker whose signs reach the store, and are not seen there by the others
    for _ in range(20):
        job.look(0, 1, after=6.0)
        job.monitors[2].absence.reached()
    assert job.reasons() == [None, None, None]

    # When it does not answer any more
    job.dumb = {2}
    for _ in range(5):
        job.look(0, 1, after=6.0)

    assert job.reasons()[0] is Outcome.PEER_LOST
    assert job.sentence(0) == "Node 2 (i-2, 10.0.0.2) sent no heartbeat for 20 s."


class FailingLooks(PeerMonitor):
    """Each of its looks ends as it is told; the last one ends the thread, too."""

    looks: list[BaseException | None]

    def observe(self) -> None:
        look = self.looks.pop(0)
        if not self.looks:
            self.end()
        if look is not None:
            raise look


def test_a_defect_is_logged_once_even_while_the_store_is_unreachable(
    job: MonitoredNodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_monitor, "SIGN_SECONDS", 0.001)
    monitor = FailingLooks(job.attempt, rank=1, nodes=3, clock=job.time)
    away, defect = StoreError("the store is away"), KeyError("a defect")
    monitor.looks = [away, defect, away, defect, None, defect]

    monitor.start()
    monitor.join(60.0)

    assert not monitor.is_alive()
    told = ["away" if each.exc_info is None else "defect" for each in caplog.records]
    assert told == ["away", "defect", "defect"]


def test_a_hanging_request_to_the_store_does_not_hide_that_a_node_is_cut_off(job: MonitoredNodes) -> None:
    job.time.now += SILENCE + 1

    assert job.reasons() == [Outcome.PEER_LOST] * 3


def test_no_node_is_lost_while_the_store_is_unreachable_for_all(job: MonitoredNodes) -> None:
    # Given a store that is out of reach for longer than a node may be silent
    job.miss_store(0, 1, 2, seconds=300)

    # When it is back, and the others have not been the first to give a sign
    for store in job.stores:
        store.away = False
    job.look(0, 1, 2, after=5.0)
    for _ in range(5):
        job.look(0, 1, 2, after=5.0)

    # Then the job goes on; and who is silent from now on is lost
    assert job.reasons() == [None, None, None]
    job.dumb = {2}
    for _ in range(5):
        job.look(0, 1, after=6.0)
    assert job.reasons()[0] is Outcome.PEER_LOST


def test_a_lost_node_was_lost_at_its_last_sign(job: MonitoredNodes) -> None:
    job.dumb = {2}
    before = now_ms()
    for _ in range(5):
        job.look(0, 1, after=6.0)

    lost = job.monitors[0].outcomes[2].failed
    assert lost is not None
    assert lost < before - SILENCE * 1000
    assert job.monitors[0].lost == {2}


def test_a_lost_node_that_reports_its_end_is_no_longer_lost(job: MonitoredNodes) -> None:
    job.dumb = {0, 1, 2}
    for _ in range(5):
        job.look(0, 1, after=6.0)
    job.attempt.end(ended(2, "peer_lost"))
    job.look(0)

    assert job.monitors[0].lost == set()


def test_the_age_of_a_first_sign_of_life_is_taken_from_the_store() -> None:
    time = Time()
    ages = SignAges(clock=time)

    ages.observe({1: (30_000, 1), 2: (55_000, 1), 3: (61_000, 1)}, own=(60_000, 1))

    assert [ages.age_s(rank) for rank in (1, 2, 3)] == [30.0, 5.0, 0.0]


def test_the_age_of_a_sign_of_life_is_relative_to_our_own_sign_in_the_store() -> None:
    time = Time()
    ages = SignAges(clock=time)
    ages.observe({1: (30_000, 1)}, own=(30_000, 1), signed_s=time.now)

    # Our own sign is 2 s old, and the other's was given 4 s before it or 1 s after it
    signed_s = time.now
    time.now += 2
    ages.observe({1: (56_000, 1), 2: (61_000, 1)}, own=(60_000, 1), signed_s=signed_s)

    assert [ages.age_s(rank) for rank in (1, 2)] == [6.0, 1.0]


def test_a_worker_that_failed_waits_for_the_coordinators_order(job: MonitoredNodes) -> None:
    waiting = threading.Thread(
        target=job.monitors[1].wait_for_coordinator, kwargs={"over": lambda: False}, daemon=True
    )
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()

    job.monitors[0].stop_others(StopOrder(rank=1, outcome="failed", sentence="Node 1: It failed."))
    job.look(1)
    waiting.join(60)

    assert not waiting.is_alive()
    assert not job.monitors[1].lost_coordinator


def test_waiting_for_the_others_returns_incomplete_reports_of_lost_nodes(job: MonitoredNodes) -> None:
    job.dumb = {0, 1, 2}
    job.attempt.end(ended(1, "failed", complete=False))
    job.attempt.end(ended(2))
    for _ in range(5):
        job.look(0, after=6.0)

    outcomes = job.monitors[0].wait_for_others(over=lambda: False)

    assert [(each.rank, each.outcome) for each in outcomes] == [(1, "failed"), (2, "succeeded")]


def test_a_node_that_cannot_reach_the_store_does_not_wait_for_the_others(job: MonitoredNodes) -> None:
    job.stores[0].away = True
    job.time.now += SILENCE + 1

    assert job.monitors[0].wait_for_others(over=lambda: False) == []


def test_a_worker_decides_if_the_coordinator_is_lost(job: MonitoredNodes) -> None:
    job.dumb = {0}
    job.attempt.end(ended(2, "peer_lost"))
    for _ in range(4):
        job.look(1, after=6.0)

    outcomes = job.monitors[1].wait_for_others(over=lambda: False)

    assert [(each.rank, each.outcome) for each in outcomes] == [(0, "peer_lost"), (2, "peer_lost")]
    assert job.monitors[1].lost == {0}


def test_a_later_report_of_a_node_replaces_its_first(job: MonitoredNodes) -> None:
    job.attempt.end(ended(1, "failed", complete=False))
    job.look(0)
    job.attempt.end(ended(1, "failed"))
    job.look(0)

    assert job.monitors[0].outcomes[1].complete


NO_AGENT = [
    b"[",
    b"[1]",
    b"{}",
    b'{"rank": 1, "outcome": "exploded", "sentence": ""}',
    b'{"rank": 1, "outcome": ["failed"], "sentence": ""}',
    b'{"rank": 1, "outcome": "failed", "sentence": 3}',
    b'{"rank": 1, "outcome": "failed", "sentence": "", "failed": "soon"}',
    b'{"rank": 1, "outcome": "failed", "sentence": "", "ended": -1}',
    b'{"rank": 1, "outcome": "failed", "sentence": "", "phases": {"run": NaN}}',
    b'{"rank": 1, "outcome": "failed", "sentence": "", "metrics": {"headlines": {"x": {"value": "1"}}}}',
    b'{"rank": 1, "outcome": "failed", "sentence": "", "repeats": [{"repeat": 0}]}',
    b'{"rank": 1, "outcome": "failed", "sentence": "", "own_usage": {"rank": 2}}',
    b'{"rank": true, "outcome": "failed", "sentence": ""}',
    b'{"rank": 2, "outcome": "failed", "sentence": "I am another node."}',
]


@pytest.mark.parametrize("record", NO_AGENT)
def test_a_malformed_end_record_counts_as_the_failure_of_its_node(job: MonitoredNodes, record: bytes) -> None:
    store = job.attempt.job.store
    store.put(job.attempt.key("ended/1.json"), record)
    # Names that are no node's, or no rank's, are nobody's end
    for name in ("0.json", "7.json", "²", "01.json", "x.json"):
        store.put(job.attempt.key(f"ended/{name}"), b'{"rank": 7, "outcome": "oom", "sentence": ""}')
    job.attempt.end(ended(2))

    job.look(0)
    others = job.monitors[0].wait_for_others(over=lambda: False)
    result = job_result("digits-1", [ended(0, "peer_failed"), *others])

    assert [each.rank for each in others] == [1, 2]
    assert (result.outcome, result.exit_code) == ("agent_error", 5)
    assert result.sentence.startswith("Node 1: This node reported its end, but the report cannot be used: ")
    assert "ended/1.json" in result.sentence or '"exploded"' in result.sentence
    assert job.reasons()[0] is Outcome.PEER_FAILED


def test_a_malformed_stop_order_ends_the_worker(job: MonitoredNodes) -> None:
    job.attempt.job.store.put(job.attempt.key("control/stop.json"), b'{"sentence": 5}')
    job.look(1)

    assert job.reasons()[1] is Outcome.PEER_FAILED
    assert "control/stop.json: sentence: expected a text, got 5" in job.sentence(1)


def test_silence_is_measured_only_while_the_benchmark_runs(job: MonitoredNodes) -> None:
    coordinator = job.monitors[0]
    control = GenerationControl(job.attempt, rank=0, policy=Restart(max_restarts=1))
    control.met(Members(peers=job.peers, key=new_key()), serving=frozenset())
    control.begin(0, Ledger())
    coordinator.generations = control
    assert not coordinator.all_silent(60)

    # When one node has ended well, and the two others are silent
    succeeded(job, 1)
    coordinator.silent_s = job.monitors[2].silent_s = 90
    job.look(2, 0, 0)
    assert coordinator.all_silent(60)

    # When the coordinator's own part has ended too
    succeeded(job, 0)
    coordinator.silent_s = 1
    job.look(0, 0)
    assert coordinator.all_silent(60)

    # When the last one prints again, or has ended
    job.monitors[2].silent_s = 1
    job.look(2, 0)
    assert not coordinator.all_silent(60)
    job.monitors[2].silent_s = 90
    succeeded(job, 2)
    job.look(2, 0, 0)
    assert not coordinator.all_silent(60)


def succeeded(job: MonitoredNodes, rank: int) -> None:
    """Tell that nothing of generation 0 is left on a node."""
    end = GenerationEnd(rank=rank, outcome=Outcome.SUCCEEDED.value, sentence="", ended=1, port=1)
    job.attempt.end_generation(0, end)
