"""What a node tells the others of itself, and how the coordinator hears of all."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from run_contexts import make_context

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor.benchmark_tables import Benchmark
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Members, Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir
from bai_agent.job.store import StoredObject
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.machine.gpu import Gpus
from bai_agent.machine.readiness import count_gpus
from bai_agent.nodes.join import Meeting, join
from bai_agent.nodes.members_file import peers_of
from bai_agent.peers.peer_monitor import PeerMonitor
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.clock import Clock
from bai_agent.runtime.stop import RunEndedError


def context(
    rundir: RunDir,
    *,
    processes: str = "gpus",
    gpus: int | None = None,
    env: dict[str, str] | None = None,
    inherit_env: bool = False,
) -> RunContext:
    table = StrategyTable(name="torchrun", processes_per_node=processes, gpus=gpus)
    benchmark = Benchmark(argv=("true",), env=env or {}, inherit_env=inherit_env)
    return make_context(rundir, tables={"strategy": table, "benchmark": benchmark})


def slots(ctx: RunContext) -> int:
    join(ctx)
    return peers_of(ctx.rundir)[0].slots


def test_a_fixed_number_of_processes_is_used_unchanged(rundir: RunDir) -> None:
    assert slots(context(rundir, processes="3", gpus=7)) == 3


def test_a_node_has_one_process_per_gpu_or_one_process_without_gpus(rundir: RunDir) -> None:
    found = Gpus().count or count_gpus()

    assert slots(context(rundir)) == max(1, found)
    assert slots(context(rundir, gpus=found)) == max(1, found)


def test_a_node_with_fewer_gpus_than_its_instance_type_is_refused(rundir: RunDir) -> None:
    with pytest.raises(RunEndedError) as caught:
        join(context(rundir, gpus=99))

    assert caught.value.reason.outcome is Outcome.PREPARE_FAILED
    assert "Node 0 has " in caught.value.reason.message
    assert "its instance type has 99" in caught.value.reason.message


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, 8),
        ("0,1", 2),
        ("GPU-8932f937, 3,5", 3),
        ("0,1,2,3,4,5,6,7,8,9", 8),
        ("0,-1,2", 1),
        ("", 1),
        ("-1", 1),
    ],
)
@pytest.mark.parametrize("inherited", [False, True])
def test_a_gpu_that_the_benchmark_may_not_see_has_no_process(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch, *, visible: str | None, expected: int, inherited: bool
) -> None:
    monkeypatch.setattr(Gpus, "count", 8)
    own = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    # The job's own value wins, and without inherit_env the agent's value does not count.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7,5")
    if inherited:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        own = {}

    assert slots(context(rundir, gpus=8, env=own, inherit_env=inherited)) == expected


def test_a_node_publishes_the_network_interface_of_its_address(rundir: RunDir) -> None:
    ctx = context(rundir, processes="1")
    join(ctx)

    (me,) = peers_of(ctx.rundir)
    assert (me.address, me.interface) == ("127.0.0.1", "lo")


def test_the_published_port_of_a_node_stays_reserved_for_it(rundir: RunDir) -> None:
    ctx = context(rundir, processes="1")
    join(ctx)
    (me,) = peers_of(ctx.rundir)

    with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", me.port))
    # Its own server does: sshd's
    with closing(socket.create_server(("127.0.0.1", me.port))), closing(socket.socket()) as client:
        client.connect(("127.0.0.1", me.port))


class MeetingStore(DirectoryStore):
    """Answers what a node has said of itself only to four who ask at the same time."""

    together = threading.Barrier(4)

    def get(self, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        if "/joined/" in key:
            self.together.wait(timeout=60)
        return super().get(key, start=start, limit=limit)


def test_the_coordinator_reads_nodes_in_parallel(tmp_path: Path) -> None:
    attempt = AttemptRecord(JobRecord(MeetingStore(tmp_path), "job"))
    nodes = [Peer(rank=rank, address=f"10.0.0.{rank}", port=29500) for rank in range(8)]
    for each in nodes[1:]:
        attempt.join(each)
    monitor = PeerMonitor(attempt, rank=0, nodes=8)

    met = Meeting(monitor, nodes[0], nodes=8, limit=timedelta(minutes=1), stop=lambda: None).members()

    assert [each.address for each in met.peers] == [each.address for each in nodes]


class CountingStore(DirectoryStore):
    """Counts its requests by kind and by what they are about."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked: Counter[str] = Counter()

    def get(self, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        self.asked[f"GET {key.partition('/attempts/0/')[2]}"] += 1
        return super().get(key, start=start, limit=limit)

    def find(self, prefix: str) -> list[StoredObject]:
        self.asked[f"LIST {prefix.partition('/attempts/0/')[2]}"] += 1
        return super().find(prefix)


class StepClock(Clock):
    """Advances only as it is slept on; `between` is called with each pause."""

    def __init__(self, between: Callable[[float], None]) -> None:
        self.now = 0.0
        self._between = between

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._between(seconds)


def meeting(store: CountingStore, rank: int, nodes: int, clock: Clock) -> Meeting:
    monitor = PeerMonitor(
        AttemptRecord(JobRecord(store, "job")), rank=rank, nodes=nodes, clock=clock.monotonic
    )
    me = Peer(rank=rank, address=f"10.0.0.{rank % 250}", port=29500)
    limit = timedelta(hours=1)
    return Meeting(monitor, me, nodes=nodes, limit=limit, stop=lambda: None, clock=clock)


def test_the_coordinator_reads_each_node_once_while_others_join(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    attempt = AttemptRecord(JobRecord(store, "job"))
    coming = iter(range(1, 30))

    def next_comes(_: float) -> None:
        rank = next(coming)
        attempt.join(Peer(rank=rank, address=f"10.0.0.{rank}", port=29500))

    met = meeting(store, 0, 30, StepClock(next_comes)).members()

    assert [each.rank for each in met.peers] == list(range(30))
    reads = {key: count for key, count in store.asked.items() if key.startswith("GET joined/")}
    assert reads == {f"GET joined/{rank}.json": 1 for rank in range(30)}
    assert store.asked["LIST joined/"] == 30
    assert store.asked["GET control/peers.json"] == 0, "what it has written itself it need not read"
    assert sum(store.asked.values()) == 61


def test_a_node_that_rejoins_before_all_have_joined_is_read_again(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    attempt = AttemptRecord(JobRecord(store, "job"))
    ports = iter([29500, 29501])

    def come(_: float) -> None:
        if (port := next(ports, None)) is not None:
            attempt.join(Peer(rank=1, address="10.0.0.1", port=port))
            # A folder's clock may stand still for some milliseconds.
            os.utime(tmp_path / attempt.key("joined/1.json"), (port, port))
        else:
            attempt.join(Peer(rank=2, address="10.0.0.2", port=29500))

    met = meeting(store, 0, 3, StepClock(come)).members()

    assert [each.port for each in met.peers] == [29500, 29501, 29500]


def test_a_worker_reads_the_list_of_peers_once(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    attempt = AttemptRecord(JobRecord(store, "job"))
    peers = tuple(Peer(rank=rank, address="10.0.0.1", port=29500) for rank in range(2))
    pauses: list[float] = []

    def settle(pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 5:
            attempt.write_members(Members(peers=peers))

    met = meeting(store, 1, 2, StepClock(settle)).members()

    assert met.peers == peers
    assert store.asked == {"LIST control/": 6, "GET control/peers.json": 1}


@pytest.mark.parametrize(("nodes", "most"), [(2, 1.0), (200, 1.0), (1000, 5.0)])
def test_workers_poll_less_often_the_more_of_them_wait(tmp_path: Path, nodes: int, most: float) -> None:
    store = CountingStore(tmp_path)
    pauses: list[float] = []

    class EnoughError(Exception):
        pass

    def note(pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 50:
            raise EnoughError

    with pytest.raises(EnoughError):
        meeting(store, 1, nodes, StepClock(note)).members()

    assert most / 2 <= min(pauses) < max(pauses) <= most
