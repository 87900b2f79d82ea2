"""The record of an elastic job, written by hand as its leaders write it."""

from __future__ import annotations

from pathlib import Path

from handmade_job import HandmadeJob

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import Change, DecisionKind, Ledger, NextGeneration, ScaleRequest
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Members, Peer
from executor.records.generation_status import GenerationStatus, generation_status


class ElasticRecord:
    """The record of an elastic job of 2 to 4 nodes, as its leaders write it; of AdaptDL one of 1 to 4, of which no agent has begun."""

    def __init__(self, store: Path, *, is_adaptdl: bool = False) -> None:
        self.job = HandmadeJob(
            store,
            nodes=4,
            min_nodes=1 if is_adaptdl else 2,
            strategy="adaptdl" if is_adaptdl else "torchrun",
            written=not is_adaptdl,
        )
        self.record = self.job.record
        self.attempt = AttemptRecord(self.record)

    def decides(
        self,
        generation: int,
        *members: int,
        why: Change = Change.START,
        nodes: tuple[int, ...] = (),
        kind: DecisionKind = DecisionKind.RUN,
        begins: bool = True,
        ledger: Ledger | None = None,
    ) -> None:
        sentence = why.sentence(nodes)
        decided = NextGeneration(
            kind=kind,
            members=list(members),
            why=why.value,
            nodes=list(nodes),
            ledger=ledger or Ledger(),
            outcome=Outcome.PEER_LOST.value,
            sentence=f"{sentence[0].upper()}{sentence[1:]}.",
        )
        self.attempt.settle_generation(generation, decided)
        if begins:
            peers = tuple(Peer(rank=rank, address=f"10.0.0.{node}") for rank, node in enumerate(members))
            self.attempt.begin_generation(generation, Members(peers=peers))

    def asks(self, nodes: int) -> None:
        self.attempt.request_scale(ScaleRequest(desired=nodes))

    def proposes(self, nodes: int) -> None:
        self.attempt.propose_size(ScaleRequest(desired=nodes))

    def starts(self, node: int, generation: int, text: str) -> None:
        """Start the benchmark of a generation on a node, where it prints."""
        path = self.job.on(node).node / "output.log"
        self.job.on(node).event(
            "benchmark_started",
            pid=1,
            argv=["train"],
            generation=generation,
            output_bytes=path.stat().st_size,
        )
        self.job.on(node).prints(text)

    @property
    def newest(self) -> GenerationStatus:
        found = generation_status(self.record, self.job.job)
        assert found is not None
        return found
