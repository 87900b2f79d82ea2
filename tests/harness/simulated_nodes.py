"""Simulates the nodes of an elastic job in this process, with simulated time and a store that can fail.

What a node says, sees, decides and waits for is the agent's own code. Its benchmark is a stand-in that lives on if the agent is killed, as
under the shim. Each node is a thread, and one of them runs at a time: a history is the same each time.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bai_agent.errors import MissingObjectError, StoreError
from bai_agent.generations.checkpoint_marker import SLOTS, CheckpointMarker, CheckpointRecord
from bai_agent.generations.policy import Policy
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.restart_tables import Checkpoint, Restart
from bai_agent.job.generation_records import GenerationEnd
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import NodeOutcome, OwnUsage
from bai_agent.job.store import StoredObject
from bai_agent.nodes.membership import next_membership
from bai_agent.peers import elastic_monitor, leader, node_monitor, reachability
from bai_agent.peers.direct_question import PeerAnswer
from bai_agent.peers.elastic_monitor import ElasticMonitor
from bai_agent.phases import gang_failure, lost_records
from bai_agent.runtime.stop import RunEndedError

TICK_S = 0.5
_AGENT_PORT, _SHIM_PORT = 1, 2
LONGEST_S = 1500.0
"""Time limit of a history (simulated seconds). Each fault delays the end by far less than 300 s."""


class _Killed(BaseException):
    """Ends a node's agent at the current call, as a kill does."""


class _Over(BaseException):
    """Ends a node's thread once the history is over."""


@dataclass(frozen=True)
class Fault:
    """A fault at the `call`-th request of a node's agent to the store, counted from `World.faults_from_s`."""

    node: int
    call: int
    kind: str
    seconds: float = 2.0
    """Time for which a hung agent hangs, or a killed agent is away (seconds)."""


KINDS = ("hang", "hang_after", "kill", "kill_after", "refuse", "no_answer")
"""Faults of any request. The first of each pair happens before the request reaches the store."""
PUT_KINDS = ("own_412", "409")
"""Faults of a conditional put. The answer says that the object exists: by this very put, or falsely."""


class MemoryStore:
    """One node's access to the objects that all nodes share."""

    folder = None
    url = "memory:"

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        def put() -> bool:
            objects = self._node.world.objects
            if if_absent and key in objects:
                return False
            self._node.world.write(key, content)
            self._node.world.first_puts.setdefault(key, (self._node.number, self._node.calls))
            return True

        return bool(self._call(put, key, put=if_absent))

    def get(self, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        def get() -> bytes:
            found = self._node.world.objects.get(key)
            if found is None:
                raise MissingObjectError(f"there is no {key}")
            return found[1][start : None if limit is None else start + limit]

        return cast("bytes", self._call(get, key))

    def find(self, prefix: str) -> list[StoredObject]:
        def find() -> list[StoredObject]:
            return [
                StoredObject(key, len(content), 1000 * int(at), str(version))
                for key, (at, content, version) in sorted(self._node.world.objects.items())
                if key.startswith(prefix)
            ]

        return cast("list[StoredObject]", self._call(find, prefix))

    def _call(self, work: Callable[[], Any], key: str, *, put: bool = False) -> Any:
        node = self._node
        fault = node.next_fault(put=put)
        if node.world.is_away(node.number):
            node.sleep(5.0)
            raise StoreError(f"{key}: the store does not answer")
        kind = fault.kind if fault is not None else ""
        if fault is not None and kind in ("hang", "kill"):
            node.suffer(fault)
        if kind == "refuse":
            raise StoreError(f"{key}: refused")
        if kind == "409":
            return False
        found = work()
        if fault is not None and kind in ("hang_after", "kill_after"):
            node.suffer(fault)
        if kind == "no_answer":
            raise StoreError(f"{key}: no answer")
        return False if kind == "own_412" else found


def _locked() -> threading.Lock:
    """Return a lock that one thread awaits until another releases it, with a tenth of a semaphore's CPU."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def _raise_reason(monitor: ElasticMonitor) -> None:
    if (reason := monitor.reason(None)) is not None:
        raise RunEndedError(reason)


class _Monitor(ElasticMonitor):
    """Monitor that waits in simulated time."""

    sleep: Callable[[float], None]

    def wait_for_change(self) -> None:
        self.sleep(TICK_S)


@dataclass
class SimulatedNode:
    """A machine with an agent, which may be killed and restarted, and a benchmark that outlives the agent."""

    world: World
    number: int
    wakes_s: float = 0.0
    lost: bool = False
    calls: int = 0
    starts: list[int] = field(default_factory=list)
    """Generations in which the node's benchmark was started."""
    runs: int | None = None
    """Generation whose benchmark runs on the node. None if none runs."""
    exits: dict[int, Outcome] = field(default_factory=dict)
    """Outcome of each generation on the node."""
    hangs: bool = False
    """Whether the node's agent hangs."""
    monitor: ElasticMonitor | None = None
    """Monitor of the agent, if it lives and does not hang."""
    result: str | None = None
    """Outcome with which the agent ended."""
    idles: Callable[[], bool] | None = None
    """Whether the node would only sleep again if it woke now. None if it must wake."""

    def __post_init__(self) -> None:
        self.turn, self.done = _locked(), threading.Event()
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.error: BaseException | None = None
        self._looks_s = 0.0

    def next_fault(self, *, put: bool) -> Fault | None:
        if self.world.now < self.world.faults_from_s:
            return None
        self.calls += 1
        self.world.puts.setdefault(self.number, {})[self.calls] = put
        found = (each for each in self.world.faults if (each.node, each.call) == (self.number, self.calls))
        return next((each for each in found if put or each.kind not in PUT_KINDS), None)

    def suffer(self, fault: Fault) -> None:
        self.world.suffered.append(fault)
        if fault.kind.startswith("kill"):
            raise _Killed(fault.seconds)
        monitor, self.monitor, self.hangs = self.monitor, None, True
        self.sleep(fault.seconds)
        self.monitor, self.hangs = monitor, False

    def sleep(self, seconds: float, *, idles: Callable[[], bool] | None = None) -> None:
        """Let the other nodes continue; return `seconds` later, or by TICK_S later as long as `idles()`."""
        self.wakes_s, self.idles = self.world.now + seconds, idles
        self.world.baton.release()
        self.turn.acquire()
        if self.world.is_over or self.lost:
            raise _Over

    def _live(self) -> None:
        try:
            self.turn.acquire()
            while self.result is None and not self.world.is_over:
                try:
                    self._be_agent()
                except _Killed as killed:
                    self.monitor = None
                    self.sleep(killed.args[0])
        except _Over:
            pass
        except BaseException as error:
            self.error = error
        self.done.set()
        self.monitor = None
        self.wakes_s = float("inf")
        if not self.world.is_over:
            self.world.baton.release()

    def _be_agent(self) -> None:
        world = self.world
        record = JobRecord(cast("Any", MemoryStore(self)), "job")
        monitor = _Monitor(
            AttemptRecord(record),
            node=self.number,
            policy=world.policy,
            desired=world.desired,
            limits=world.limits,
            checkpoint=world.checkpoint,
            clock=lambda: world.now,
            ask=world.ask,
        )
        self._looks_s = 0.0
        monitor.sleep = self._pass
        monitor.at = max(self.starts, default=None)
        self.monitor = monitor
        me = Peer(rank=self.number, address=f"10.0.0.{self.number}", port=2000, agent_port=_AGENT_PORT)
        ctx = cast("Any", self._context(monitor))
        try:
            if self.runs is not None:
                monitor.begin(self.runs)
                monitor.launch(shim_port=_SHIM_PORT)
                monitor.met(world.met[self.runs].peers, key=world.met[self.runs].key)
                self._follow(monitor)
            while True:
                membership = next_membership(ctx, monitor, me, ended=self._end(monitor))
                if membership is None:
                    break
                number, members = membership.newest.number, membership.beginning.members
                world.met[number] = members
                monitor.met(members.peers, key=members.key)
                monitor.begin(number)
                if membership.beginning.checkpoint is not None and not self._may_launch(monitor, number):
                    continue
                self.starts.append(number)
                self.runs = number
                monitor.launch(shim_port=_SHIM_PORT)
                self._follow(monitor)
                self._keep_checkpoint(monitor, number)
        except RunEndedError as ended:
            ctx.reason = ended.reason
            outcome = ended.reason.outcome
            monitor.end_here()
        else:
            outcome = self.exits[max(self.exits)]
        own = NodeOutcome(
            rank=self.number,
            outcome=outcome.value,
            sentence="",
            ended=round(1000 * world.now),
            own_usage=OwnUsage(rank=self.number),
        )
        found = gang_failure.result_of_elastic_job(ctx, monitor, own, git=None)
        if found is not None:
            content = json.dumps(
                {
                    "outcome": found.outcome,
                    "sentence": found.sentence,
                    "by": self.number,
                    "reported": [each.rank for each in found.own_usage or ()],
                    "lost": found.lost or [],
                }
            )
            while True:
                try:
                    record.settle("job/result.json", content.encode())
                    break
                except StoreError:
                    self._pass(TICK_S)
        self.result = outcome.value

    def _context(self, monitor: ElasticMonitor) -> SimpleNamespace:
        return SimpleNamespace(
            watch=SimpleNamespace(
                reason=lambda: monitor.reason(None), raise_reason=lambda: _raise_reason(monitor)
            ),
            clock=SimpleNamespace(monotonic=lambda: self.world.now, sleep=lambda _: self._pass(TICK_S)),
            signals=SimpleNamespace(received=False),
            job=SimpleNamespace(limits=self.world.limits, job=SimpleNamespace(id="job"), metrics=[]),
            rundir=SimpleNamespace(path=Path("/nowhere")),
            tell_checkpoints=lambda: None,
            reason=None,
            agent_port=None,
        )

    def _looks_now(self, monitor: ElasticMonitor) -> bool:
        return self.world.now >= self._looks_s or monitor._due.is_set()

    def _pass(self, seconds: float, *, idles: Callable[[], bool] | None = None) -> None:
        """Let time pass. The agent's other thread checks meanwhile, if a check is due."""
        self.sleep(seconds, idles=idles)
        monitor = self.monitor
        if monitor is not None and self._looks_now(monitor):
            monitor._due.clear()
            try:
                monitor.observe()
            except StoreError:
                self.world.failed_looks += 1
            monitor.look_for_store()
            self._looks_s = self.world.now + monitor._until_next_s()

    def _follow(self, monitor: ElasticMonitor) -> None:
        """Watch the benchmark until it has ended."""
        number = self.runs
        assert number is not None

        def runs_on() -> bool:
            return number not in self.exits and monitor.reason(None) is None

        while runs_on():
            self._pass(TICK_S, idles=lambda: not self.lost and not self._looks_now(monitor) and runs_on())
        if number not in self.exits and (reason := monitor.reason(None)) is not None:
            self.exits[number] = reason.outcome
        self.runs = None

    def _may_launch(self, monitor: ElasticMonitor, number: int) -> bool:
        """Wait, with a checkpoint, until the other members have theirs. Raises RunEndedError.

        Returns False if another generation comes first.
        """
        monitor.restored, monitor.waits_to_launch = number, True
        monitor.look_now()
        while monitor.launched < number:
            if (reason := monitor.reason(None)) is not None:
                if not monitor.goes_on_after(reason):
                    raise RunEndedError(reason)
                self.exits[number] = reason.outcome
                break
            self._pass(TICK_S)
        monitor.waits_to_launch = False
        return number not in self.exits

    def _keep_checkpoint(self, monitor: ElasticMonitor, number: int) -> None:
        """Save a checkpoint of a generation that has ended, as the node with rank 0."""
        if self.world.checkpoint is None or self.world.met[number].peers[0].node != self.number:
            return
        marker = CheckpointMarker(
            generation=number, number=0, node=self.number, slot=number % SLOTS, files=[], time=0
        )
        with suppress(StoreError):
            CheckpointRecord(monitor.attempt).write(marker)

    def _end(self, monitor: ElasticMonitor) -> GenerationEnd | None:
        if monitor.at is None or monitor.at not in self.exits:
            return None
        outcome = self.exits[monitor.at]
        return GenerationEnd(rank=self.number, outcome=outcome.value, code=1, ended=0, port=3000 + monitor.at)


class World:
    """The nodes of a job, its store, and the time."""

    def __init__(
        self,
        *,
        nodes: int = 3,
        least: int = 1,
        restarts: int = 2,
        faults: Sequence[Fault] = (),
        faults_from_s: float = 0.0,
        events: Sequence[tuple[float, Callable[[World], None]]] = (),
        work_s: float = 40.0,
        late: Sequence[int] = (),
        checkpoint: Checkpoint | None = None,
        reachable: bool = True,
    ) -> None:
        """reachable: whether the nodes reach each other's agents. events: when something happens, and what. work_s: for how long a generation runs until it succeeds. late: nodes that join later."""
        self.limits = Limits(peer_silence=timedelta(seconds=20), grace=timedelta(seconds=10))
        restart = Restart(max_restarts=restarts, backoff=timedelta(0))
        self.policy = Policy(
            restart=restart, min_nodes=least, nodes=nodes, pause_s=5.0, stop_s=40.0, look_s=1.5
        )
        self.desired = nodes - len(late)
        self.checkpoint = checkpoint
        self.faults, self.faults_from_s = faults, faults_from_s
        self.events = sorted(events, key=lambda each: each[0])
        self.work_s = work_s
        self.reachable = reachable
        self.now = 0.0
        self.objects: dict[str, tuple[float, bytes, int]] = {}
        self.written: Counter[str] = Counter()
        self.puts: dict[int, dict[int, bool]] = {}
        self.first_puts: dict[str, tuple[int, int]] = {}
        """Node that first put each object, and the number of the node's request."""
        self.suffered: list[Fault] = []
        self.met: dict[int, Any] = {}
        self.away: set[int] = set()
        self.is_over = False
        self.failed_looks = 0
        self.baton = _locked()
        self._versions = itertools.count()
        self.nodes = [SimulatedNode(self, each) for each in range(nodes)]
        self._computed: Counter[int] = Counter()
        for each in late:
            self.nodes[each].wakes_s = float("inf")

    def write(self, key: str, content: bytes) -> None:
        self.written[key] += 1
        self.objects[key] = (self.now, content, next(self._versions))

    def is_away(self, node: int) -> bool:
        return node in self.away

    def ask(self, peer: Peer, key: bytes) -> PeerAnswer | None:
        monitor = self.nodes[peer.node].monitor
        return monitor.absence.answer() if monitor is not None and self.reachable else None

    def lose(self, node: int) -> None:
        """Cut the power of a node's machine."""
        it = self.nodes[node]
        it.lost, it.runs, it.monitor = True, None, None
        it.wakes_s = self.now

    def start(self, node: int) -> None:
        self.nodes[node].wakes_s = self.now

    def fail(self, node: int) -> None:
        """Make the benchmark fail on a node."""
        it = self.nodes[node]
        if it.runs is not None:
            it.exits[it.runs] = Outcome.FAILED

    def scale(self, nodes: int) -> None:
        number = sum("/requests/" in key for key in self.objects)
        self.write(f"job/attempts/0/requests/{number}.json", json.dumps({"desired": nodes}).encode())

    def run(self) -> World:
        """Run the simulation to its end. Raises the exception of a node's code, if there was one."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leader, "now_ms", lambda: round(1000 * self.now))
            patch.setattr(reachability, "find_refused", self._find_refused)
            patch.setattr(node_monitor, "wake_all", self._wake)
            for room in (node_monitor, elastic_monitor, reachability):
                patch.setattr(room, "ask_all", lambda peers, ask: {each.node: ask(each) for each in peers})
            patch.setattr(lost_records, "outcomes_of_lost", lambda *_, **__: ())
            for each in self.nodes:
                each.thread.start()
            try:
                while not self._has_ended():
                    self._step()
            finally:
                self.is_over = True
                for each in self.nodes:
                    each.turn.release()
                for each in self.nodes:
                    each.thread.join(60)
        return self

    def _has_ended(self) -> bool:
        for each in self.nodes:
            if each.error is not None:
                raise each.error
        assert self.now < LONGEST_S, f"it never ended: {sorted(self.objects)}"
        return all(each.done.is_set() or each.wakes_s == float("inf") for each in self.nodes)

    def _step(self) -> None:
        due = min((each for each in self.nodes if not each.done.is_set()), key=lambda each: each.wakes_s)
        at = due.wakes_s
        if self.events and self.events[0][0] <= at:
            self.now = max(self.now, self.events[0][0])
            self.events.pop(0)[1](self)
            return
        self._compute(max(0.0, at - self.now))
        self.now = max(self.now, at)
        if due.idles is not None and due.idles():
            due.wakes_s = self.now + TICK_S
            return
        due.turn.release()
        self.baton.acquire()

    def _compute(self, seconds: float) -> None:
        """Let a generation's benchmarks compute while all members run the generation."""
        for number, members in self.met.items():
            nodes = [self.nodes[each.node] for each in members.peers]
            if all(each.runs == number and number not in each.exits and not each.lost for each in nodes):
                self._computed[number] += seconds  # type: ignore[assignment]
                if self._computed[number] >= self.work_s:
                    for each in nodes:
                        each.exits[number] = Outcome.SUCCEEDED

    def _find_refused(self, ports: Iterable[tuple[Peer, int]]) -> set[int]:
        """Return the nodes whose port refuses connections: the node is lost, or no agent or shim is there."""
        refused = set()
        for peer, port in ports:
            it = self.nodes[peer.node]
            is_agent_there = it.monitor is not None or it.hangs
            if not self.reachable:
                continue
            if it.lost or not (is_agent_there if port == _AGENT_PORT else it.runs is not None):
                refused.add(peer.node)
        return refused

    def _wake(self, peers: Iterable[Peer], key: bytes) -> None:
        for each in peers:
            monitor = self.nodes[each.node].monitor
            if monitor is not None and self.reachable:
                monitor.look_now()

    @property
    def result(self) -> dict[str, Any]:
        """The job's result, with the nodes that reported it; empty if there is none."""
        found = self.objects.get("job/result.json")
        return json.loads(found[1]) if found is not None else {}

    @property
    def outcome(self) -> str | None:
        return self.result.get("outcome")

    def decided(self) -> list[dict[str, Any]]:
        keys = sorted(key for key in self.objects if "/control/generation-" in key)
        return [json.loads(self.objects[key][1]) for key in keys]
