"""The leader's steps to start a generation, after the previous generation has stopped and its last checkpoint
is saved."""

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
"""Time after which, together with `limits.grace`, a node without heartbeats is assumed to write no more files
to a shared folder (seconds)."""


class GenerationStart:
    """Takes the next step towards the start of the newest generation. All state is in objects of the store
    that are written only once."""

    def __init__(self, reports: NodeReports, ctx: LeaderContext) -> None:
        self._reports, self._ctx = reports, ctx
        self.has_begun = False
        """Whether the last check allowed a generation to begin or to launch, or told the previous generation
        to stop."""
        self._launched = -1

    def go_on(self, newest: Decided, signs: SignsSeen, control: Control) -> None:
        """Allow the newest generation to begin or to launch, if all conditions are met. Raises BaiError."""
        if self._reports.begun is None:
            self._let_stop(newest, control)
            self._begin(newest, signs, control)
        elif self._ctx.checkpoint is not None:
            self._launch(newest.number, control)

    def _let_stop(self, newest: Decided, control: Control) -> None:
        """Tell all members of the previous generation to stop, after each member has reported that it has
        read the planned decision. Raises BaiError."""
        number, word = newest.number, newest.word
        before = self._reports.decisions.get(number - 1)
        if not word.planned or before is None or not before.runs or number in control.seen_by_all:
            return
        running = [each for each in before.members if not self._reports.has_ended(each, number - 1)]
        if running and all(self._reports.has_seen(each, number) for each in running):
            self._ctx.attempt.stop_together(number)
            self.has_begun = True

    def _begin(self, newest: Decided, signs: SignsSeen, control: Control) -> None:
        """Allow a generation to begin if all its members are ready, the pause is over and the last checkpoint
        is saved. Raises BaiError."""
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
        """Allow all members to launch a generation after each member has restored the checkpoint. Raises
        BaiError."""
        if number in control.launches or self._launched >= number or self._reports.begun is None:
            return
        until_s = self._ctx.clock() + SIGN_SECONDS
        for each in self._reports.begun.members.peers:
            # With many members, the reports are read in several checks, because this node must write its own
            # heartbeat in between.
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
        """Return the secret with which the nodes sign requests to each other. The first generation gets a new
        secret, and later generations keep it."""
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
        """Return whether a member of the last generation is possibly still writing or uploading that
        generation's last checkpoint."""
        number, begun = self._reports.ran
        if self._ctx.checkpoint is None or begun is None:
            return False
        members = self._reports.decisions[number].members
        if self._ctx.checkpoint.shared:
            return any(self._may_write(each, number, signs, control) for each in members)
        return self._may_keep(members[0], number, signs, control)

    def _may_write(self, node: int, number: int, signs: SignsSeen, control: Control) -> bool:
        """Return whether a node is possibly still writing files of a generation into the folder that all
        nodes share."""
        has_joined_again = node in self._reports.joined and self._reports.has_joined_after(node, number)
        if has_joined_again or self._reports.has_ended(node, number):
            return False
        limit_s = _UNSHARED_S + self._ctx.limits.grace.total_seconds()
        is_recent = node in signs.nodes and self._reports.age_s(signs.nodes[node]) < limit_s
        return is_recent and self._stops(number, control, late_s=limit_s)

    def _may_keep(self, node: int, number: int, signs: SignsSeen, control: Control) -> bool:
        """Return whether a node is possibly still storing the last checkpoint of a generation. A silent node
        is not waited for, and its later checkpoints are ignored."""
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
        """Return whether a node that has not reported the end of a generation is possibly still running it.
        This is possible if the next decision is so new that the node has had no time to stop."""
        limit_s = self._ctx.policy.stop_s + (
            TOGETHER_S if self._reports.decisions[number + 1].planned else 0.0
        )
        return self._reports.age_s(control.generations[number + 1]) < limit_s + late_s

    def _has_time_left(self, node: int, signs: SignsSeen) -> bool:
        """Return whether the machine of a leaving node has not been terminated yet."""
        leaving = self._reports.leaving(node, signs)
        try:
            left_s = self._ctx.attempt.leaving_node(node).seconds
        except RecordError:
            return False
        return leaving is not None and self._reports.age_s(leaving) < left_s
