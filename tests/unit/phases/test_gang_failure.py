"""What is made of how all nodes ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_contexts import make_context

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.job_result import job_result
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer, peers_table
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import NodeOutcome, StopEvent
from bai_agent.job.run_directory import RunDir, write_json
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.machine.readiness import Node
from bai_agent.peers.peer_monitor import PeerMonitor
from bai_agent.phases.gang_failure import result_of_all, tell_others
from bai_agent.run.run_context import RunContext
from bai_agent.run.stop_sources import Signals
from bai_agent.runtime.stop import StopReason

PEERS = tuple(Peer(rank=rank, address=f"10.0.0.{rank}") for rank in range(3))
OWN = NodeOutcome(rank=0, outcome="succeeded", sentence="It went well.", ended=5)


@pytest.fixture
def ctx(rundir: RunDir, tmp_path: Path) -> Iterator[RunContext]:
    """The coordinator of three nodes, which is told to stop at once."""
    attempt = AttemptRecord(JobRecord(DirectoryStore(tmp_path / "store"), "job-1"))
    monitor = PeerMonitor(attempt, rank=0, nodes=3)
    monitor.met(PEERS)
    signals = Signals()
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    signals.listen()
    made = make_context(rundir, monitor=monitor, signals=signals)
    write_json(rundir.peers, {"peers": peers_table(PEERS)})
    attempt.end(NodeOutcome(rank=1, outcome="succeeded", sentence="It went well.", ended=4))
    monitor.observe()
    signal.raise_signal(signal.SIGTERM)
    yield made
    for each, handler in zip((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), before, strict=True):
        signal.signal(each, handler)


def test_a_job_does_not_succeed_if_the_end_of_a_node_is_unknown(ctx: RunContext) -> None:
    result = result_of_all(ctx, OWN, git=None)

    assert result is not None
    assert (result.outcome, result.exit_code) == ("peer_lost", 5)
    assert result.sentence == "How node 2 (10.0.0.2) ended is not known: node 0 could not wait for it."


def test_a_job_of_serving_nodes_succeeds_if_its_launcher_did(ctx: RunContext) -> None:
    ctx.is_served = True

    result = result_of_all(ctx, OWN, git=None)

    assert result is not None
    assert result.outcome == "succeeded"


def test_a_failure_is_the_cause_even_if_another_nodes_end_is_unknown(ctx: RunContext) -> None:
    failed = NodeOutcome(rank=0, outcome="failed", sentence="It failed.", ended=5)

    result = result_of_all(ctx, failed, git=None)

    assert result is not None
    assert result.outcome == "failed"


def test_an_interrupted_node_counts_as_failed_from_its_notice_and_not_from_its_end(ctx: RunContext) -> None:
    # given a worker that is interrupted, and takes 20 s to end; the launcher breaks of that in between
    monitor = ctx.monitor
    assert monitor is not None
    interrupted = StopReason(Outcome.INTERRUPTED, "The instance is taken away.")
    ctx.node, ctx.monitor = Node(rank=1), PeerMonitor(monitor.attempt, rank=1, nodes=3)
    ctx.reason = interrupted
    ctx.events.add(StopEvent(reason=interrupted.outcome.value, message=interrupted.message))
    told = ctx.events.seen[-1].time
    write_json(ctx.rundir.exit, {"stop": "interrupted", "time": told + 20_000})

    tell_others(ctx)

    early = monitor.attempt.node_outcome(1)
    assert early.failed == told
    broken = NodeOutcome(
        rank=0, outcome="failed", sentence="It broke.", failed=told + 6000, ended=told + 7000
    )
    assert job_result("job-1", [broken, early]).outcome == "interrupted"
