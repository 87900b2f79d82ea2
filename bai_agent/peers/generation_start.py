"""Starts a generation for the leader, after the previous generation has stopped and its last checkpoint is
saved."""

from __future__ import annotations

from bai_agent.errors import RecordError
from bai_agent.generations.checkpoint_marker import CheckpointRecord, checkpoint_number
from bai_agent.job.attempt import Control, SignsSeen
from bai_agent.job.peers import Members, Peer
from bai_agent.light_dataclass import replace
from bai_agent.peers.direct_question import new_key
from bai_agent.peers.node_monitor import SIGN_SECONDS
from bai_agent.peers.node_reports import TOGETHER_S, Decided, LeaderContext, NodeReports

_UNSHARED_S = 60.0
"""Seconds after a node's last heartbeat in which the node may still write to a folder that all nodes
share."""


class GenerationStart:
    """Does the next step for the newest generation. The only state is objects that are written once."""

    def __init__(self, reports: NodeReports, ctx: LeaderContext) -> None:
        self._reports, self._ctx = reports, ctx
        self.has_begun = False
        """Whether the last check let a generation begin or launch, or let the previous generation stop."""
        self._launched = -1

    def go_on(self, newest: Decided, signs: SignsSeen, control: Control) -> None:
        """Let the newest generation begin or launch, if that generation is ready. Raises BaiError."""
        if self._reports.begun is None:
            self._let_stop(newest, control)
            self._begin(newest, signs, control)
        elif self._ctx.checkpoint is not None:
            self._launch(newest.number, control)

    def _let_stop(self, newest: Decided, control: Control) -> None:
        """Let all members of the previous generation stop, after each member has seen a planned decision.
        Raises BaiError."""
        number, word = newest.number, newest.word
        before = self._reports.decisions.get(number - 1)
        if not word.planned or before is None or not before.runs or number in control.seen_by_all:
            return
        running = [each for each in before.members if not self._reports.has_ended(each, number - 1)]
        if running and all(self._reports.has_seen(each, number) for each in running):
            self._ctx.attempt.stop_together(number)
            self.has_begun = True

    def _begin(self, newest: Decided, signs: SignsSeen, control: Control) -> None:
        """Let a generation begin if all its members are ready and nothing else must be awaited. Raises
        BaiError."""
        number, word = newest.number, newest.word
        is_ready = all(self._reports.is_ready(each, number) for each in word.members)
        is_due = is_ready and self._reports.age_s(newest.put) >= word.backoff_seconds
        if not is_due or self._waits_for_checkpoint(signs, control):
            return
        peers = [self._peer(node, rank, number) for rank, node in enumerate(word.members)]
        members = Members(peers=tuple(peers), key=self._key())
        checkpoint = self._newest_checkpoint(number) if self._ctx.checkpoint is not None else None
        self._reports.begun = self._ctx.attempt.begin_generation(number, members, checkpoint=checkpoint)
        self.has_begun = True

    def _launch(self, number: int, control: Control) -> None:
        """Let all members launch a generation after each member has its checkpoint. Raises BaiError."""
        if number in control.launches or self._launched >= number or self._reports.begun is None:
            return
        until_s = self._ctx.clock() + SIGN_SECONDS
        for each in self._reports.begun.members.peers:
            # Reading the reports of many members takes several checks, between which this node writes its own
            # heartbeat.
            if not self._reports.has_restored(each.node, number) or self._ctx.clock() > until_s:
                return
        self._ctx.attempt.launch_generation(number)
        self._launched, self.has_begun = number, True

    def _peer(self, node: int, rank: int, number: int) -> Peer:
        peer = self._reports.joined[node][1].peer
        end = self._reports.ends.get((node, number - 1))
        port = end[1].port if end is not None and end[1].port else peer.port
        return replace(peer, rank=rank, node=node, port=port)

    def _key(self) -> bytes:
        """Return the nodes' key for direct questions, which is the key of earlier generations, or a new key
        in the first generation."""
        begun = self._reports.ran[1]
        return (begun.members.key if begun is not None else None) or new_key()

    def _newest_checkpoint(self, number: int) -> str | None:
        """Return the name of the checkpoint with which a generation begins; None if it begins without a
        checkpoint. Raises BaiError."""
        before, begun = self._reports.ran
        if begun is None:
            return None
        base = begun.checkpoint
        found = CheckpointRecord(self._ctx.attempt).newest(
            before=number, since=before, base=checkpoint_number(base) if base is not None else None
        )
        return found.name if found is not None else None

    def _waits_for_checkpoint(self, signs: SignsSeen, control: Control) -> bool:
        """Return whether a member of the last generation that ran may still write or upload its last
        checkpoint."""
        number, begun = self._reports.ran
        if self._ctx.checkpoint is None or begun is None:
            return False
        members = self._reports.decisions[number].members
        if self._ctx.checkpoint.shared:
            return any(self._may_write(each, number, signs, control) for each in members)
        return self._may_keep(members[0], number, signs, control)

    def _may_write(self, node: int, number: int, signs: SignsSeen, control: Control) -> bool:
        """Return whether a node may still write files of a generation into the folder that all nodes
        share."""
        has_joined_again = node in self._reports.joined and self._reports.has_joined_after(node, number)
        if has_joined_again or self._reports.has_ended(node, number):
            return False
        limit_s = _UNSHARED_S + self._ctx.limits.grace.total_seconds()
        is_recent = node in signs.nodes and self._reports.age_s(signs.nodes[node]) < limit_s
        return is_recent and self._stops(number, control, late_s=limit_s)

    def _may_keep(self, node: int, number: int, signs: SignsSeen, control: Control) -> bool:
        """Return whether a node may still store the last checkpoint of a generation. A checkpoint that a
        silent node stores later is ignored."""
        has_said_all = node in self._reports.outcomes and self._reports.outcomes[node][1].complete
        if self._ctx.silent_s(node) > self._ctx.policy.silence_s or has_said_all:
            return False
        if (node, number) in self._reports.ends:
            put, end = self._reports.ends[node, number]
            return end.keeps and self._reports.age_s(put) < self._ctx.limits.pull_timeout.total_seconds()
        if self._reports.leaving(node, signs) is not None:
            return self._has_time_left(node, signs)
        return self._stops(number, control)

    def _stops(self, number: int, control: Control, *, late_s: float = 0.0) -> bool:
        """Return whether a generation may still run on a node that does not report on that generation,
        because the next decision is too recent for the node to have stopped."""
        limit_s = self._ctx.policy.stop_s + (
            TOGETHER_S if self._reports.decisions[number + 1].planned else 0.0
        )
        return self._reports.age_s(control.generations[number + 1]) < limit_s + late_s

    def _has_time_left(self, node: int, signs: SignsSeen) -> bool:
        """Return whether a node that is leaving still has its machine."""
        leaving = self._reports.leaving(node, signs)
        try:
            left_s = self._ctx.attempt.leaving_node(node).seconds
        except RecordError:
            return False
        return leaving is not None and self._reports.age_s(leaving) < left_s
