"""With which nodes, and when, the leader of an elastic job lets generations begin."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from bai_agent.generations.policy import Policy
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.restart_tables import Checkpoint, Restart
from bai_agent.job.generation_records import (
    Beginning,
    Change,
    DecisionKind,
    GenerationEnd,
    Leaving,
    NextGeneration,
    ScaleRequest,
    Sign,
)
from bai_agent.job.peers import Members, Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import replace
from bai_agent.peers.leader import Leader
from bai_agent.peers.node_reports import Decided, LeaderContext

POLICY = Policy(restart=Restart(), min_nodes=2, nodes=4)


class Gathering:
    """Node 0 of a job of two to four nodes that should have three, before its first generation."""

    def __init__(
        self, folder: Path, *, checkpoint: Checkpoint | None = None, policy: Policy = POLICY
    ) -> None:
        self.attempt = AttemptRecord(JobRecord(DirectoryStore(folder), "job"))
        self.now = 100.0
        self.silent_s: dict[int, float] = {}
        self.folder, self.checkpoint, self.policy = folder, checkpoint, policy
        self.leader = self.new_leader()

    def new_leader(self) -> Leader:
        return Leader(
            LeaderContext(
                attempt=self.attempt,
                node=0,
                policy=self.policy,
                desired=3,
                limits=Limits(join=timedelta(minutes=10)),
                find_serving=lambda peers: (),
                checkpoint=self.checkpoint,
                clock=lambda: self.now,
                silent_s=lambda node: self.silent_s.get(node, 0.0),
                unheard_s=lambda node: 0.0,
                answering=lambda peers: (),
            )
        )

    def join(self, node: int, instance: str | None = None) -> None:
        self.attempt.join(Peer(rank=node, address=f"10.0.0.{node}", instance_id=instance))
        self.attempt.give_sign(node, Sign())

    def look(
        self, newest: Decided | None = None, begun: Beginning | None = None, *, signed_s: float | None = None
    ) -> NextGeneration | None:
        control, signs = self.attempt.control(), self.attempt.signs_seen()
        return self.leader.look(
            control,
            signs,
            newest,
            begun,
            signed_s=self.now if signed_s is None else signed_s,
            cancelled=False,
        )

    def decide(self, number: int, word: NextGeneration) -> Decided:
        self.attempt.settle_generation(number, word)
        return Decided(number=number, word=word, put=self.attempt.control().generations[number])

    def begin(self, number: int, *nodes: int) -> Beginning:
        peers = tuple(Peer(rank=rank, node=node, address=f"10.0.0.{node}") for rank, node in enumerate(nodes))
        return self.attempt.begin_generation(number, Members(peers=peers, key=b"k" * 32))

    def launched(self, *instances: str) -> None:
        self.put("launched.json", instances=instances)

    def put(self, name: str, **content: object) -> None:
        self.attempt.job.store.put(self.attempt.key(name), json.dumps(content).encode())


@pytest.fixture
def gathering(tmp_path: Path) -> Gathering:
    return Gathering(tmp_path)


def test_the_first_generation_waits_for_all_desired_nodes(gathering: Gathering) -> None:
    gathering.join(0)
    gathering.join(1)
    assert gathering.look() is None

    gathering.join(2)
    word = gathering.look()

    assert word is not None
    assert (word.kind, word.members) == (DecisionKind.RUN, [0, 1, 2])


def test_the_leader_does_not_wait_for_machines_that_were_not_launched(gathering: Gathering) -> None:
    """EC2 had room for two of three machines."""
    gathering.launched("i-0", "i-1")
    gathering.join(0)
    assert gathering.look() is None

    gathering.join(1)
    word = gathering.look()

    assert word is not None
    assert (word.kind, word.members) == (DecisionKind.RUN, [0, 1])


def test_only_machines_in_the_launch_records_of_a_job_become_nodes(gathering: Gathering) -> None:
    """What has joined beside them was written by a benchmark, as was what looks like a launch."""
    gathering.put("launch.json")
    gathering.launched("i-0", "i-1")
    gathering.put("launches/9/nodes/launch.json")
    gathering.put("launches/9/nodes/launched.json", instances=["i-9"], first_node=9)
    for node, instance in ((0, "i-0"), (1, "i-0"), (7, None), (8, "i-8"), (9, "i-9")):
        gathering.join(node, instance)
    assert gathering.look() is None

    gathering.put("launches/1/launch.json")
    gathering.put("launches/1/launched.json", instances=["i-8"], first_node=8)
    gathering.join(1, "i-1")
    word = gathering.look()

    assert word is not None
    assert (word.kind, word.members) == (DecisionKind.RUN, [0, 1, 8])


def test_a_node_that_was_not_launched_is_read_once(
    gathering: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    get = DirectoryStore.get

    def noted(store: DirectoryStore, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        read.append(key)
        return get(store, key, start=start, limit=limit)

    monkeypatch.setattr(DirectoryStore, "get", noted)
    gathering.put("launch.json")
    gathering.launched("i-0", "i-1")
    gathering.join(0, "i-0")
    gathering.join(8, "i-8")

    for _ in range(3):
        assert gathering.look() is None
    assert read.count(gathering.attempt.key("joined/8.json")) == 1

    gathering.put("launches/1/launch.json")
    gathering.put("launches/1/launched.json", instances=["i-8"], first_node=8)
    gathering.join(1, "i-1")
    word = gathering.look()
    assert word is not None
    assert word.members == [0, 1, 8]


def test_nodes_may_join_before_their_launch_is_recorded(gathering: Gathering) -> None:
    gathering.put("launch.json")
    for node in (0, 1, 2, 3):
        gathering.join(node, f"i-{node}")

    word = gathering.look()

    assert word is not None
    assert word.members == [0, 1, 2]


def test_the_leader_waits_for_a_node_without_signs_of_life_until_the_limit(gathering: Gathering) -> None:
    gathering.launched("i-0", "i-1", "i-2")
    gathering.join(0)
    gathering.join(1)
    assert gathering.look() is None

    gathering.now += 601
    word = gathering.look()

    assert word is not None
    assert (word.kind, word.members) == (DecisionKind.RUN, [0, 1])


@pytest.mark.parametrize(("shared", "waits"), [(True, True), (False, False)])
def test_with_a_shared_folder_the_next_generation_waits_until_a_silent_node_has_ended(
    tmp_path: Path, shared: bool, waits: bool
) -> None:
    # Given three nodes, of which node 1 is left out for its silence
    it = Gathering(tmp_path, checkpoint=Checkpoint(path="/shared", shared=shared))
    for node in range(3):
        it.join(node)
    first = NextGeneration(kind=DecisionKind.RUN, members=[0, 1, 2])
    second = NextGeneration(kind=DecisionKind.RUN, members=[0, 2], why=Change.LOST.value, nodes=[1])
    it.attempt.settle_generation(0, first)
    it.begin(0, 0, 1, 2)
    it.attempt.settle_generation(1, second)
    for node in (0, 2):
        it.attempt.end_generation(0, GenerationEnd(rank=node, outcome="peer_failed"))
    signed_s = it.now
    it.now += 1

    def begins() -> bool:
        control, signs = it.attempt.control(), it.attempt.signs_seen()
        decided = Decided(number=1, word=second, put=control.generations[1])
        it.leader.look(control, signs, decided, None, signed_s=signed_s, cancelled=False)
        return it.leader.has_begun

    assert begins() is not waits
    if waits:
        it.now += 61 + Limits().grace.total_seconds()
        assert begins()


@pytest.mark.parametrize("planned", [True, False])
def test_members_stop_once_all_have_confirmed_a_planned_change(gathering: Gathering, planned: bool) -> None:
    # Given three members, of which node 2 is to leave
    it = gathering
    for node in range(3):
        it.join(node)
    it.decide(0, NextGeneration(kind=DecisionKind.RUN, members=[0, 1, 2]))
    it.begin(0, 0, 1, 2)
    word = NextGeneration(kind=DecisionKind.RUN, members=[0, 1], why="scaled", nodes=[2], planned=planned)
    change = it.decide(1, word)

    def may_stop() -> bool:
        it.look(change)
        return 1 in it.attempt.control().seen_by_all

    assert not may_stop()
    it.attempt.give_sign(1, Sign(decided=1))
    assert not may_stop()
    # Also the one that leaves runs still
    it.attempt.give_sign(2, Sign(decided=0))
    assert not may_stop()
    it.attempt.give_sign(2, Sign(decided=1))
    assert may_stop() is planned


def test_a_member_that_has_ended_already_is_not_waited_for(gathering: Gathering) -> None:
    it = gathering
    for node in range(3):
        it.join(node)
    it.decide(0, NextGeneration(kind=DecisionKind.RUN, members=[0, 1, 2]))
    it.begin(0, 0, 1, 2)
    change = it.decide(1, NextGeneration(kind=DecisionKind.RUN, members=[0, 1], planned=True))
    it.attempt.give_sign(1, Sign(decided=1))
    it.attempt.end_generation(0, GenerationEnd(rank=2, outcome="peer_failed"))

    it.look(change)

    assert 1 in it.attempt.control().seen_by_all


@pytest.mark.parametrize("checkpoint", [None, Checkpoint(path="checkpoints")])
def test_the_pause_before_a_joined_node_is_admitted_counts_from_the_launch(
    tmp_path: Path, checkpoint: Checkpoint | None
) -> None:
    # Given a generation that has begun, and restores its checkpoint if there are any
    it = Gathering(tmp_path, checkpoint=checkpoint)
    for node in range(3):
        it.join(node)
    first = it.decide(0, NextGeneration(kind=DecisionKind.RUN, members=[0, 1]))
    begun = it.begin(0, 0, 1)
    signed_s = it.now

    it.now += POLICY.pause_s + 5
    word = it.look(first, begun, signed_s=signed_s)
    assert (word is not None) is (checkpoint is None)

    if checkpoint is not None:
        it.attempt.launch_generation(0)
        word = it.look(first, begun, signed_s=signed_s)
    assert word is not None
    assert word.members == [0, 1, 2]


@pytest.mark.parametrize("torn", [False, True])
def test_a_member_that_never_restores_its_checkpoint_is_left_out(tmp_path: Path, torn: bool) -> None:
    # Given a generation of which one node lives, and hangs while it restores, or says what nobody can read
    it = Gathering(tmp_path, checkpoint=Checkpoint(path="checkpoints"))
    for node in range(3):
        it.join(node)
        it.attempt.give_sign(node, Sign(generation=0, restored=node != 1))
    if torn:
        it.put("signs/1", restored="yes")
    word = NextGeneration(kind=DecisionKind.RUN, members=[0, 1, 2])
    first, begun, signed_s = it.decide(0, word), it.begin(0, 0, 1, 2), it.now

    it.now += 3600
    assert it.look(first, begun, signed_s=signed_s) is None
    it.now += POLICY.stop_s + 5
    second = it.look(first, begun, signed_s=signed_s)

    assert second is not None
    assert (second.members, second.why, second.nodes) == ([0, 2], Change.NOT_RESTORED.value, [1])
    assert second.sentence == "Node 1 did not restore the checkpoint."
    assert not it.attempt.control().launches


def test_a_leader_of_many_nodes_signs_life_while_it_reads_their_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a store in which each heartbeat takes four seconds to read
    it = Gathering(tmp_path, checkpoint=Checkpoint(path="checkpoints"))
    for node in range(3):
        it.join(node)
        it.attempt.give_sign(node, Sign(generation=0, restored=True))
    first = it.decide(0, NextGeneration(kind=DecisionKind.RUN, members=[0, 1, 2]))
    begun, last_sign, read = it.begin(0, 0, 1, 2), AttemptRecord.last_sign, []

    def slow(attempt: AttemptRecord, node: int) -> Sign:
        it.now += 4
        read.append(node)
        return last_sign(attempt, node)

    monkeypatch.setattr(AttemptRecord, "last_sign", slow)
    it.look(first, begun)
    assert (read, dict(it.attempt.control().launches)) == ([0, 1], {})
    it.look(first, begun)

    assert read == [0, 1, 2]
    assert list(it.attempt.control().launches) == [0]


class Shrinking(Gathering):
    """A job of nodes 2, 0 and 1, in this order, that is scaled down to two. keeps: what node 2 says of its end, if it has ended."""

    def __init__(self, folder: Path, *, keeps: bool | None) -> None:
        super().__init__(folder, checkpoint=Checkpoint(path="checkpoints"))
        for node in range(3):
            self.join(node)
        first = NextGeneration(kind=DecisionKind.RUN, members=[2, 0, 1])
        self.second = NextGeneration(
            kind=DecisionKind.RUN, members=[0, 1], why=Change.SCALED.value, nodes=[2]
        )
        self.attempt.settle_generation(0, first)
        self.begin(0, 2, 0, 1)
        self.attempt.settle_generation(1, self.second)
        self.ends(0)
        self.ends(1)
        if keeps is not None:
            self.ends(2, keeps=keeps)
        self.signed_s = self.now
        self.now += 1

    def ends(self, node: int, *, keeps: bool = False) -> None:
        self.attempt.end_generation(0, GenerationEnd(rank=node, outcome="peer_failed", keeps=keeps))

    @property
    def begins(self) -> bool:
        control, signs = self.attempt.control(), self.attempt.signs_seen()
        decided = Decided(number=1, word=self.second, put=control.generations[1])
        self.leader.look(control, signs, decided, None, signed_s=self.signed_s, cancelled=False)
        return 1 in self.attempt.control().begun


def test_the_next_first_node_waits_for_the_last_checkpoint_of_the_one_that_leaves(
    tmp_path: Path,
) -> None:
    it = Shrinking(tmp_path, keeps=True)
    assert not it.begins

    it.ends(2)

    assert it.begins


def test_the_next_first_node_waits_until_the_one_that_leaves_has_ended(tmp_path: Path) -> None:
    it = Shrinking(tmp_path, keeps=None)
    assert not it.begins

    it.ends(2)

    assert it.begins


@pytest.mark.parametrize("keeps", [True, None])
def test_the_wait_for_the_leaving_first_node_ends_at_its_silence_or_a_limit(
    tmp_path: Path, keeps: bool | None
) -> None:
    lost = Shrinking(tmp_path / "lost", keeps=keeps)
    lost.silent_s[2] = POLICY.silence_s + 1
    slow = Shrinking(tmp_path / "slow", keeps=keeps)
    # A busy machine takes seconds between the last heartbeat and the decision, which counts from then.
    slow.now += 600 + (Limits().pull_timeout.total_seconds() if keeps else POLICY.stop_s)

    assert lost.begins
    assert slow.begins


class Changing(Gathering):
    """A job whose first generation ran on the nodes 0, 1 and 2, in this order; node 3 waits."""

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        super().__init__(folder, checkpoint=Checkpoint(path="/checkpoints", shared=shared))
        for node in range(4):
            self.join(node)
        self.decide(0, _next(0, 1, 2, why=Change.START))
        self.begin(0, 0, 1, 2)

    def ends(self, node: int, generation: int, *, keeps: bool = False) -> None:
        self.attempt.end_generation(generation, GenerationEnd(rank=node, outcome="peer_failed", keeps=keeps))

    def begins(
        self, number: int, word: NextGeneration, *, after_s: float = 1.0, decided_s: float = 0.0
    ) -> bool:
        """Return whether a generation begins `after_s` after the last heartbeat of node 0. decided_s: time from the decision to that sign."""
        key, (put, size) = (
            self.attempt.key(f"control/generation-{number:06}.json"),
            self.decide(number, word).put,
        )
        # Not the time of this put, which is some milliseconds later, or seconds on a busy machine.
        then = self.attempt.signs_seen().nodes[0][0] / 1000 - decided_s
        os.utime(self.folder / key, (then, then))
        signed_s, self.now = self.now, self.now + after_s
        self.look(Decided(number=number, word=word, put=(round(1000 * then), size)), signed_s=signed_s)
        self.now = signed_s
        os.utime(self.folder / key, (put / 1000, put / 1000))
        return number in self.attempt.control().begun


def _next(
    *members: int, why: Change, nodes: tuple[int, ...] = (), kind: DecisionKind = DecisionKind.RUN
) -> NextGeneration:
    planned = why in (Change.LEFT, Change.SCALED)
    return NextGeneration(kind=kind, members=[*members], why=why.value, nodes=[*nodes], planned=planned)


@pytest.mark.parametrize("is_new", [True, False])
def test_the_wait_for_a_last_checkpoint_continues_if_another_node_is_lost(
    tmp_path: Path, is_new: bool
) -> None:
    """Also if another node leads since."""
    # Given a node that still keeps the last checkpoint of the generation that ran
    it = Changing(tmp_path)
    it.ends(0, 0, keeps=True)
    it.ends(1, 0)
    assert not it.begins(1, _next(0, 1, why=Change.LOST, nodes=(2,)))
    if is_new:
        it.leader = it.new_leader()
    # When the next generation is changed before it has begun
    second = _next(0, 3, why=Change.LOST, nodes=(1,))
    it.ends(0, 1)
    # Then that checkpoint is kept first
    assert not it.begins(2, second)
    it.ends(0, 0)
    assert it.begins(2, second)


def test_the_wait_for_a_last_checkpoint_continues_after_the_job_was_parked(tmp_path: Path) -> None:
    it = Changing(tmp_path)
    it.ends(0, 0, keeps=True)
    it.decide(1, _next(0, why=Change.LOST, nodes=(1, 2), kind=DecisionKind.PARK))
    it.ends(0, 1)
    refilled = _next(0, 3, why=Change.JOINED, nodes=(3,))

    assert not it.begins(2, refilled)

    it.ends(0, 0)
    assert it.begins(2, refilled)


@pytest.mark.parametrize("why", [Change.LEFT, Change.SCALED])
def test_with_a_shared_folder_the_next_generation_waits_until_a_leaving_node_has_ended(
    tmp_path: Path, why: Change
) -> None:
    # Given a node that leaves, and saves what it has in the time that it is given for it
    it = Changing(tmp_path, shared=True)
    it.ends(1, 0)
    it.ends(2, 0)
    if why is Change.LEFT:
        it.attempt.leave(Leaving(node=0, seconds=120))
    without = _next(1, 2, why=why, nodes=(0,))
    assert not it.begins(1, without)
    # When it has ended
    it.ends(0, 0)
    # Then nobody writes to the folder any more
    assert it.begins(1, without)


@pytest.mark.parametrize("is_silent", [True, False])
def test_with_a_shared_folder_the_wait_for_a_node_that_does_not_end_is_limited(
    tmp_path: Path, is_silent: bool
) -> None:
    it = Changing(tmp_path, shared=True)
    it.ends(1, 0)
    it.ends(2, 0)
    unshared_s = 60 + Limits().grace.total_seconds()
    without = _next(1, 2, why=Change.NOT_STOPPED, nodes=(0,))
    if is_silent:
        it.silent_s[0] = unshared_s
        assert not it.begins(1, without, after_s=unshared_s - 1)
        assert it.begins(1, without, after_s=unshared_s + 1)
    else:
        limit_s = POLICY.stop_s + unshared_s
        assert not it.begins(1, without, decided_s=limit_s - 2)
        assert it.begins(1, without, decided_s=limit_s)


def test_with_a_shared_folder_the_next_generation_waits_for_a_silent_member_of_a_parked_job(
    tmp_path: Path,
) -> None:
    it = Changing(tmp_path, shared=True)
    it.decide(1, _next(0, 1, 2, why=Change.UNREADABLE, kind=DecisionKind.PARK))
    it.ends(0, 0)
    it.ends(2, 0)
    it.ends(0, 1)
    it.ends(2, 1)
    it.silent_s[1] = 21
    refilled = _next(0, 2, why=Change.JOINED, nodes=(3,))

    assert not it.begins(2, refilled)

    it.ends(1, 0)
    assert it.begins(2, refilled)


def running(tmp_path: Path, *, takes_proposals: bool = True) -> tuple[Gathering, Decided, Beginning]:
    """Return a job whose first generation has three nodes."""
    it = Gathering(tmp_path, policy=replace(POLICY, takes_proposals=takes_proposals))
    for node in range(3):
        it.join(node)
    newest = it.decide(0, NextGeneration(kind=DecisionKind.RUN, members=[0, 1, 2]))
    begun = it.begin(0, 0, 1, 2)
    assert it.look(newest, begun) is None
    return it, newest, begun


def test_a_leader_proposes_a_size_once_and_scales_to_it(tmp_path: Path) -> None:
    it, newest, begun = running(tmp_path)

    it.leader.propose(2)
    word = it.look(newest, begun)
    it.leader.propose(2)

    assert list(it.attempt.signs_seen().proposals) == [0]
    assert it.attempt.size_proposal(0).by == "goodput"
    assert word is not None
    assert (word.members, word.why) == ([0, 1], Change.SCALED.value)


def test_a_proposal_outside_the_range_is_not_made(tmp_path: Path) -> None:
    it, _, _ = running(tmp_path)

    for nodes in (1, 5, 3):
        it.leader.propose(nodes)

    assert not it.attempt.signs_seen().proposals


def test_a_scale_request_overrides_proposals(tmp_path: Path) -> None:
    it, newest, begun = running(tmp_path)
    it.attempt.request_scale(ScaleRequest(desired=3))
    assert it.look(newest, begun) is None

    it.leader.propose(2)
    it.attempt.propose_size(ScaleRequest(desired=2))

    assert it.look(newest, begun) is None
    assert list(it.attempt.signs_seen().proposals) == [0]


def test_proposals_that_cannot_be_read_are_ignored(tmp_path: Path) -> None:
    it, newest, begun = running(tmp_path)
    for number, content in enumerate((b"[", b"{}", b'{"desired": 0}', b'{"desired": 900}', b"\xff" * 70_000)):
        it.attempt.job.store.put(it.attempt.key(f"signs/size-{number}.json"), content)

    assert it.look(newest, begun) is None


def test_a_job_with_a_fixed_policy_reads_no_proposals(tmp_path: Path) -> None:
    it, newest, begun = running(tmp_path, takes_proposals=False)
    it.attempt.propose_size(ScaleRequest(desired=2))

    it.leader.propose(2)

    assert it.look(newest, begun) is None
    assert list(it.attempt.signs_seen().proposals) == [0]


def test_a_node_that_lost_its_part_of_a_loss_tolerant_benchmark_joins_the_next_generation(
    tmp_path: Path,
) -> None:
    it = Gathering(tmp_path, policy=replace(POLICY, absorbs=True))
    for node in range(3):
        it.join(node)
    first = it.decide(0, NextGeneration(kind=DecisionKind.RUN, members=[0, 1, 2]))
    begun = it.begin(0, 0, 1, 2)
    it.attempt.end_generation(0, GenerationEnd(rank=1, outcome="lost"))

    assert it.look(first, begun) is None
    # The first node is lost, and node 1 still lives.
    it.attempt.end_generation(0, GenerationEnd(rank=0, outcome="lost"))
    it.now += 10
    word = it.look(first, begun)

    assert word is not None
    assert (word.kind, word.members) == (DecisionKind.RUN, [1, 2])


def test_a_request_for_fewer_nodes_applies_until_the_next_generation(tmp_path: Path) -> None:
    it = Gathering(tmp_path, policy=replace(POLICY, absorbs=True))
    for node in range(4):
        it.join(node)
    first = it.decide(0, NextGeneration(kind=DecisionKind.RUN, members=[0, 1]))
    begun = it.begin(0, 0, 1)
    # Given two nodes more than the members, of which one is too many
    assert it.look(first, begun) is None

    request = it.attempt.key("requests/1.json")
    it.attempt.job.store.put(request, json.dumps({"desired": 3, "by": "somebody", "time": 1}).encode())
    path = tmp_path / request
    os.utime(path, (path.stat().st_mtime + 2,) * 2)
    word = it.look(first, begun)

    assert word is not None
    assert (word.why, word.members, word.nodes) == (Change.SCALED.value, [0, 1, 2], [3])
