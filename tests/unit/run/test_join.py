"""What a node tells the others of itself, and how the coordinator hears of all."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from run_contexts import make_context

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import StrategyTable
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.metrics.gpu import Gpus
from bai_agent.run.context import RunContext
from bai_agent.run.join import Meeting, join, peers_of
from bai_agent.run.machine import count_gpus
from bai_agent.run.peer_monitor import PeerMonitor
from bai_agent.run.stop import RunEndedError


def context(rundir: RunDir, *, processes: str = "gpus", gpus: int | None = None) -> RunContext:
    table = StrategyTable(name="torchrun", processes_per_node=processes, gpus=gpus)
    return make_context(rundir, tables={"strategy": table})


def slots(ctx: RunContext) -> int:
    join(ctx)
    return peers_of(ctx.rundir)[0].slots


def test_a_number_of_processes_is_taken_as_it_is(rundir: RunDir) -> None:
    assert slots(context(rundir, processes="3", gpus=7)) == 3


def test_each_gpu_has_a_process_and_a_node_without_any_has_one(rundir: RunDir) -> None:
    found = Gpus().count or count_gpus()

    assert slots(context(rundir)) == max(1, found)
    assert slots(context(rundir, gpus=found)) == max(1, found)


def test_a_node_without_the_gpus_of_its_type_is_refused(rundir: RunDir) -> None:
    with pytest.raises(RunEndedError) as caught:
        join(context(rundir, gpus=99))

    assert caught.value.reason.outcome is Outcome.PREPARE_FAILED
    assert "Node 0 has " in caught.value.reason.message
    assert "its instance type has 99" in caught.value.reason.message


def test_a_node_tells_the_interface_of_its_address(rundir: RunDir) -> None:
    ctx = context(rundir, processes="1")
    join(ctx)

    (me,) = peers_of(ctx.rundir)
    assert (me.address, me.interface) == ("127.0.0.1", "lo")


def test_nobody_else_gets_the_port_that_a_node_has_told(rundir: RunDir) -> None:
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
            self.together.wait(timeout=30)
        return super().get(key, start=start, limit=limit)


def test_the_coordinator_reads_what_nodes_say_side_by_side(tmp_path: Path) -> None:
    attempt = AttemptRecord(JobRecord(MeetingStore(tmp_path), "job"))
    nodes = [Peer(rank=rank, address=f"10.0.0.{rank}", port=29500) for rank in range(8)]
    for each in nodes[1:]:
        attempt.join(each)
    monitor = PeerMonitor(attempt, rank=0, nodes=8)

    met = Meeting(monitor, nodes[0], nodes=8, limit=timedelta(minutes=1), stop=lambda: None).members()

    assert [each.address for each in met.peers] == [each.address for each in nodes]
