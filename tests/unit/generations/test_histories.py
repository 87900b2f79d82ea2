"""Random histories of an elastic job, with a driver that does what is decided: each decision is sound, and each history ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from bai_agent.generations.decision import (
    ROWS,
    Decision,
    EndJob,
    EndNode,
    GoOn,
    Park,
    StartGeneration,
    Why,
    decide,
    desired_nodes,
)
from bai_agent.generations.member_states import MOST_GENERATIONS
from bai_agent.generations.observation import GenerationObservation, Member, MemberEnd, Stage, Waiting
from bai_agent.generations.policy import Policy
from bai_agent.job.descriptor.restart_tables import Restart
from bai_agent.job.generation_records import Ledger
from bai_agent.job.outcome import Outcome

NODES = 5
STEP_S = 2.0
LONGEST_S = 40_000.0
"""Seconds within which every history has to end: it has at most 12 events, and each delays the end by far less than 1000 s."""
NOTICE_S = 30.0

EVENTS = ("kill", "hang", "wake", "leave", "fail", "break", "stick", "unfit", "join", "scale", "cancel")


@dataclass
class Event:
    at_s: float
    what: str
    number: int
    """Of a node or, of a scale request, how many nodes it asks for."""


@dataclass
class Node:
    number: int
    lives: bool = True
    is_back: bool = True
    """Whether it joins when it is no member: it has been started, and nothing of an old generation holds it."""
    unfit: bool = False
    sign_s: float = 0.0
    leaving_s: float | None = None
    sticks: bool = False
    stopping_s: float | None = None


@dataclass
class World:
    policy: Policy
    events: list[Event]
    first: int
    """How many nodes there are at the start."""
    work_s: float
    """For how long a generation has to run until the benchmark succeeds."""
    breaks_at_loss: bool
    """Whether a survivor's benchmark fails, instead of waiting, when another node is gone."""
    fails_always: bool
    now_s: float = 0.0
    stage: Stage = Stage.GATHERING
    generation: int = -1
    begins_s: float = 0.0
    """When the newest generation begins at the earliest, or began."""
    members: tuple[int, ...] = ()
    ends: dict[int, MemberEnd] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    requests: list[int] = field(default_factory=list)
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.nodes = {number: Node(number) for number in range(self.first)}

    def run(self) -> EndJob:
        while self.now_s < LONGEST_S:
            self.now_s += STEP_S
            self._happen()
            self._work()
            seen = self.observe()
            decision = decide(seen, self.policy)
            check(decision, seen, self.policy)
            if isinstance(decision, EndJob):
                return decision
            self._do(decision)
        raise AssertionError("it never ended")

    def observe(self) -> GenerationObservation:
        return GenerationObservation(
            now_s=self.now_s,
            running_s=self.now_s,
            members=[self._member(self.nodes[each]) for each in self.members],
            ledger=self.ledger,
            stage=self.stage,
            generation=self.generation,
            generation_s=self.now_s - self.begins_s if self.stage is Stage.RUNNING else 0.0,
            waiting=[
                Waiting(
                    node=each.number,
                    end=MemberEnd(outcome=Outcome.PULL_FAILED, ended_s=self.now_s) if each.unfit else None,
                )
                for each in self.nodes.values()
                if self._waits(each)
            ],
            desired=desired_nodes(self.requests, self.policy, first=self.policy.nodes),
            cancelled=self.cancelled,
            time=round(1000 * self.now_s),
        )

    def _waits(self, node: Node) -> bool:
        is_fresh = self.now_s - node.sign_s <= self.policy.silence_s
        return node.is_back and is_fresh and node.leaving_s is None and node.number not in self.members

    def _member(self, node: Node) -> Member:
        return Member(
            node=node.number,
            end=self.ends.get(node.number),
            silent_s=self.now_s - node.sign_s,
            leaving_s=None if node.leaving_s is None else self.now_s - node.leaving_s,
            stopping_s=None if node.stopping_s is None else self.now_s - node.stopping_s,
        )

    def _happen(self) -> None:
        while self.events and self.events[0].at_s <= self.now_s:
            self._apply(self.events.pop(0))
        for each in self.nodes.values():
            if each.leaving_s is not None and self.now_s - each.leaving_s > NOTICE_S:
                each.lives = False
            if each.lives:
                each.sign_s = self.now_s

    def _apply(self, event: Event) -> None:
        if event.what == "cancel":
            self.cancelled = True
        elif event.what == "scale":
            self.requests.append(event.number)
        elif event.what == "join":
            self.nodes.setdefault(event.number, Node(event.number))
        elif event.number in self.nodes:
            self._strike(self.nodes[event.number], event.what)

    def _strike(self, node: Node, what: str) -> None:
        runs = self.stage is Stage.RUNNING and node.number in self.members and node.number not in self.ends
        if what in ("kill", "hang"):
            node.lives = False
            node.is_back = node.is_back and what == "hang"
        elif what == "wake":
            node.lives = node.is_back = True
            node.leaving_s = None
        elif what == "leave" and node.lives:
            node.leaving_s = self.now_s
        elif what == "stick":
            node.sticks = True
        elif what == "unfit" and node.number not in self.members and self.stage is not Stage.GATHERING:
            node.unfit = True
        elif what in ("fail", "break") and runs and node.lives:
            outcome = Outcome.FAILED if what == "fail" else Outcome.LOST
            self.ends[node.number] = MemberEnd(outcome=outcome, code=1, ended_s=self.now_s)

    def _work(self) -> None:
        members = [self.nodes[each] for each in self.members]
        for each in members:
            if each.lives and not each.sticks:
                each.stopping_s = None
        if self.stage is Stage.CHANGING:
            if self.now_s >= self.begins_s and all(
                each.lives and each.stopping_s is None for each in members
            ):
                self.stage, self.begins_s, self.ends = Stage.RUNNING, self.now_s, {}
        elif self.stage is Stage.RUNNING:
            self._compute(members)

    def _compute(self, members: Sequence[Node]) -> None:
        needed = members[:1] if self.policy.absorbs else members
        is_whole = all(each.lives and each.number not in self.ends for each in needed)
        ran_s = self.now_s - self.begins_s
        outcome = None
        if is_whole and ran_s >= self.work_s:
            outcome = Outcome.FAILED if self.fails_always else Outcome.SUCCEEDED
        elif not is_whole and self.breaks_at_loss and ran_s > 0:
            outcome = Outcome.FAILED
        for each in members:
            if outcome is not None and each.lives and each.number not in self.ends:
                self.ends[each.number] = MemberEnd(outcome=outcome, code=1, ended_s=self.now_s)

    def _do(self, decision: Decision) -> None:
        if isinstance(decision, EndNode):
            del self.nodes[decision.node]
        elif isinstance(decision, (StartGeneration, Park)):
            ran = self.stage is Stage.RUNNING
            for number in set(self.members) | set(decision.members):
                node = self.nodes[number]
                still_stops = node.stopping_s is not None or (ran and number in self.members and node.sticks)
                since_s = self.now_s if node.stopping_s is None else node.stopping_s
                node.stopping_s = since_s if still_stops and number in decision.members else None
                # A node that does not stop holds its machine until somebody wakes it.
                node.is_back = node.is_back and not (still_stops and number not in decision.members)
            self.generation += 1
            self.members, self.ledger = decision.members, decision.ledger
            self.ends = {}
            self.stage = Stage.CHANGING if isinstance(decision, StartGeneration) else Stage.PARKED
            self.begins_s = self.now_s
            if isinstance(decision, StartGeneration):
                self.begins_s += decision.backoff_s


def check(decision: Decision, seen: GenerationObservation, policy: Policy) -> None:
    """Fail if a decision is not sound."""
    fitting = [found for row in ROWS if (found := row(seen, policy)) is not None]
    assert decision == (fitting[0] if fitting else GoOn())
    if isinstance(decision, EndJob):
        assert decision.why is not Why.TOO_FEW or seen.is_at(Stage.PARKED)
    if not isinstance(decision, (StartGeneration, Park)):
        return
    members, former = decision.members, [each.node for each in seen.members]
    assert len(set(members)) == len(members)
    silent = {each.node for each in seen.members if each.silent_s > policy.silence_s}
    fit = {each.node for each in seen.waiting if each.end is None}
    assert set(members) <= (set(former) - silent) | fit
    survivors = [each for each in members if each in former]
    assert survivors == sorted(survivors, key=former.index)
    joined = [each for each in members if each not in former]
    assert list(members) == survivors + sorted(joined)
    assert 0 <= decision.ledger.restarts - seen.ledger.restarts <= 1
    assert decision.ledger.restarts <= max(seen.ledger.restarts, policy.restart.max_restarts)
    if isinstance(decision, Park):
        assert len(members) < (policy.min_nodes or 0)
        return
    assert (policy.min_nodes or 0) <= len(members) <= seen.desired
    if seen.generation + 1 >= MOST_GENERATIONS:
        assert all(seen.ledger.losses_of(each) == 0 for each in joined)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    least = draw(st.integers(1, 3))
    most = draw(st.integers(least, NODES))
    restart = Restart(
        max_restarts=draw(st.integers(0, 3)),
        backoff=timedelta(seconds=draw(st.sampled_from([0, 1, 30]))),
        exit_codes=draw(st.sampled_from([(), (1,), (7,)])),
    )
    event = st.builds(
        Event, at_s=st.floats(0, 600), what=st.sampled_from(EVENTS), number=st.integers(0, NODES)
    )
    return World(
        policy=Policy(
            restart=restart,
            min_nodes=least,
            nodes=most,
            wait_s=100.0,
            pause_s=20.0,
            absorbs=draw(st.booleans()),
        ),
        events=sorted(draw(st.lists(event, max_size=12)), key=lambda each: each.at_s),
        first=draw(st.integers(0, most)),
        work_s=draw(st.sampled_from([0.0, 10.0, 150.0])),
        breaks_at_loss=draw(st.booleans()),
        fails_always=draw(st.booleans()),
    )


@settings(max_examples=300)
@given(worlds())
def test_every_history_of_finitely_many_events_ends_without_a_maximum_runtime(world: World) -> None:
    world.run()


def test_a_history_without_events_succeeds() -> None:
    policy = Policy(restart=Restart(), min_nodes=2, nodes=3)

    end = World(policy, [], first=3, work_s=10, breaks_at_loss=True, fails_always=False).run()

    assert end == EndJob(why=Why.SUCCEEDED)


def test_killed_nodes_start_new_generations_without_using_restarts() -> None:
    policy = Policy(restart=Restart(), min_nodes=2, nodes=4)
    events = [Event(50, "kill", 0), Event(200, "kill", 2)]

    world = World(policy, events, first=4, work_s=150, breaks_at_loss=True, fails_always=False)

    assert world.run() == EndJob(why=Why.SUCCEEDED)
    assert world.generation == 2
    assert world.members == (1, 3)
    assert world.ledger.losses == {"0": 1, "2": 1}


def test_a_benchmark_that_always_fails_is_started_as_often_as_the_policy_says() -> None:
    policy = Policy(restart=Restart(max_restarts=3), min_nodes=2, nodes=4)

    world = World(policy, [], first=4, work_s=10, breaks_at_loss=False, fails_always=True)

    assert world.run().why is Why.USED_UP
    assert world.generation == 3


NUMBERS = st.integers(0, NODES)
SECONDS = st.floats(0, 1e6)
ENDS = st.builds(
    MemberEnd,
    outcome=st.sampled_from(Outcome),
    code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    ended_s=SECONDS,
)
MEMBERS = st.lists(
    st.builds(
        Member,
        node=NUMBERS,
        end=st.none() | ENDS,
        silent_s=st.just(0.0) | st.floats(0, 60),
        leaving_s=st.none() | st.floats(0, 60),
        stopping_s=st.none() | st.floats(0, 120),
    ),
    max_size=4,
    unique_by=lambda each: each.node,
)
LEDGERS = st.builds(
    Ledger,
    restarts=st.integers(0, 3),
    waiting_since=st.none() | st.integers(0, 10**9),
    losses=st.dictionaries(NUMBERS.map(str), st.integers(0, 100)),
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[GenerationObservation, Policy]:
    least = draw(st.integers(1, 3))
    most = draw(st.integers(least, NODES))
    policy = Policy(
        restart=Restart(max_restarts=draw(st.integers(0, 4))),
        min_nodes=least,
        nodes=most,
        absorbs=draw(st.booleans()),
    )
    waiting = draw(
        st.lists(
            st.builds(Waiting, node=NUMBERS, end=st.none() | ENDS),
            max_size=4,
            unique_by=lambda each: each.node,
        )
    )
    stage = draw(st.sampled_from(Stage))
    seen = GenerationObservation(
        now_s=draw(SECONDS),
        running_s=draw(SECONDS),
        max_runtime_s=draw(st.none() | SECONDS),
        members=[] if stage is Stage.GATHERING else draw(MEMBERS),
        # Before generation 0 nothing was lost.
        ledger=Ledger() if stage is Stage.GATHERING else draw(LEDGERS),
        stage=stage,
        generation=draw(st.integers(0, 70)),
        generation_s=draw(SECONDS),
        waiting=waiting,
        coming=draw(st.sets(NUMBERS)),
        desired=draw(st.integers(least, most)),
        cancelled=draw(st.booleans()),
        time=draw(st.integers(0, 10**9)),
    )
    return seen, policy


@given(situations())
def test_any_observation_gives_one_valid_decision(situation: tuple[GenerationObservation, Policy]) -> None:
    seen, policy = situation

    check(decide(seen, policy), seen, policy)
