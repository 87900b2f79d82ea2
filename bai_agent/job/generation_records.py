"""The records that the nodes of one attempt exchange about generations. `AttemptRecord` reads and writes the records.

The fields `rank` and `node` contain the node's number in the job's record. No other node of the job ever has the same number.
A member's rank in a generation is the member's position in the list of members.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Any

from bai_agent.decode import Rule, checked, shown_value, wrong_value
from bai_agent.job.outcome import OUTCOMES, Outcome
from bai_agent.job.peers import Members, Peer, members_table, read_members
from bai_agent.job.record_types import (
    Count,
    Counts,
    Moment,
    NodeOutcome,
    PortNumber,
    Seconds,
    Text,
    Texts,
    Truth,
)
from bai_agent.light_dataclass import dataclass, field, replace

_CHECKPOINT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
"""Pattern of a checkpoint's name, which becomes part of the names of files and objects."""
Nodes = Annotated[list[Count], Rule("a list of nodes")]


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Numbers of restarts and losses in all past generations. Every decision contains the ledger, so that the numbers
    survive the loss of an agent."""

    restarts: Count = 0
    """Number of restarts after a failure."""
    waiting_since: Moment | None = None
    """Time since which too few nodes have been alive for the job (ms UTC, the store's clock). None while a generation
    runs."""
    losses: Counts = field(default_factory=dict)
    """Number of times that each node was lost or left, by the node's number as a string."""
    quick_saves: Count = 0
    """Number of consecutive generations that ended soon after their start, because a member saved its state and
    exited."""
    began: Moment | None = None
    """Time of the decision about generation 0 (ms UTC, the store's clock). None in a fixed job."""

    def losses_of(self, node: int) -> int:
        return self.losses.get(str(node), 0)


class DecisionKind(str, Enum):
    """What follows a generation."""

    RUN = "run"
    PARK = "park"
    """All members stop, and the job waits for nodes."""
    END = "end"


class Change(str, Enum):
    """Reason why a generation begins or the job is parked."""

    START = "start"
    FAILED = "failed"
    LOST = "lost"
    BROKE = "broke"
    """A live node lost its part of the job, because its shim was killed or it did not reach the job store."""
    NOT_STOPPED = "not_stopped"
    NOT_RESTORED = "not_restored"
    LEFT = "left"
    JOINED = "joined"
    SCALED = "scaled"
    SAVED = "saved"
    """A member's benchmark saved its state without a request, and exited in order to be restarted."""
    UNREADABLE = "unreadable"
    """All members begin a new generation, because an object below `control/` is incomplete or malformed."""

    def sentence(self, nodes: Sequence[int]) -> str:
        """Return the reason as a phrase, such as "node 1 sent no heartbeat". nodes: the nodes that caused the
        change."""
        if self is Change.UNREADABLE:
            return "the record of a generation could not be read"
        who = " and ".join(filter(None, [", ".join(map(str, nodes[:-1])), *map(str, nodes[-1:])]))
        return (
            f"node{'s' if len(nodes) > 1 else ''} {who} {_DID[self]}" if nodes else "enough nodes are there"
        )


_DID = {
    Change.START: "joined",
    Change.FAILED: "failed",
    Change.LOST: "sent no heartbeat",
    Change.BROKE: "lost the benchmark",
    Change.NOT_STOPPED: "did not stop in time",
    Change.NOT_RESTORED: "did not restore the checkpoint",
    Change.LEFT: "left",
    Change.JOINED: "joined",
    Change.SCALED: "left because the job was scaled down",
    Change.SAVED: "saved its state and asked to be restarted",
}


@dataclass(frozen=True, kw_only=True)
class NextGeneration:
    """`control/generation-<g>.json`: the decision about what follows generation g - 1. The decision is
    written once, and is binding for all nodes."""

    kind: DecisionKind
    members: Nodes = field(default_factory=list)
    """The numbers of the members, in the order of their ranks. In a decision to park, the numbers of the nodes that
    remain."""
    why: Text = ""
    """Reason for the decision, as the value of a `Change`; at the job's end, the value of a `Why`."""
    nodes: Nodes = field(default_factory=list)
    """The nodes that caused the decision."""
    planned: Truth = False
    """Whether the members stop together, after all of them have seen this decision. If false, each member stops
    immediately."""
    ledger: Ledger = Ledger()
    outcome: Text = ""
    """Outcome of the previous generation, as the value of an `Outcome`. At the job's end, the outcome of the job."""
    sentence: Text = ""
    backoff_seconds: Seconds = 0.0
    time: Moment | None = None
    """Time of the decision (ms UTC, by the clock of the node that decided)."""

    @property
    def runs(self) -> bool:
        """Whether another generation follows."""
        return self.kind is DecisionKind.RUN


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """`control/begin-<g>.json`: the members of a generation, with the ports that are free for the
    generation."""

    members: Members
    checkpoint: str | None = None
    """Name of the checkpoint with which the generation begins. None if the generation begins without a
    checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """`joined/<n>.json`: a node that is ready to work, and its address."""

    peer: Peer
    after: int | None = None
    """Number of the newest generation that the node knows without being a member. None before generation 0."""
    boot: str | None = None
    """Boot id of the node's machine."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A node's heartbeat: the object `signs/<n>`, and a leader's object `control/sign-<n>`."""

    time: Moment = 0
    phase: Text = ""
    silent_s: Seconds = 0.0
    """Seconds since the benchmark last printed anything."""
    node: Count | None = None
    generation: Count | None = None
    """The node's current generation. None before the node's first generation, and in a fixed job."""
    restored: Truth = False
    """Whether the node has restored the checkpoint of its current generation and is ready to launch the
    generation."""
    decided: Count | None = None
    """The newest decision that the node has read. None if the node has read no decision."""
    shim_port: PortNumber = 0
    """Port on which the shim of the current generation listens as long as it lives. 0 if no shim runs."""
    seen: Texts = field(default_factory=list)
    """Names of the required metrics that had a value on this node."""
    problem: Text = ""
    """Reason why the node cannot launch a benchmark. Empty if the node can launch a benchmark."""


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """`signs/leaving-<n>`: a node that is about to lose its machine."""

    node: Count
    seconds: Seconds
    """Seconds until the loss of the machine, counted from the writing of the announcement."""
    time: Moment = 0


@dataclass(frozen=True, kw_only=True)
class GenerationEnd:
    """`ended/<n>-<g>.json`: the end of a generation on a node, after all of its processes have ended."""

    rank: Count
    outcome: Text
    sentence: Text = ""
    code: Count | None = None
    """The exit code of the process that failed; None if a signal ended the process, or the code is not
    known."""
    signal: Count | None = None
    failed: Moment | None = None
    ended: Moment | None = None
    serves: Truth = False
    port: PortNumber = 0
    """A free port of the node, for the next generation."""
    keeps: Truth = False
    """Whether the node is still uploading the generation's last checkpoint. After the upload, the node writes this
    object again."""

    @property
    def of_node(self) -> NodeOutcome:
        """The end of the generation as a `NodeOutcome`, so that the end can be compared with the outcomes of
        other nodes."""
        return NodeOutcome(
            rank=self.rank,
            outcome=self.outcome,
            sentence=self.sentence,
            failed=self.failed,
            ended=self.ended,
            serves=self.serves,
        )


@dataclass(frozen=True, kw_only=True)
class Hints:
    """`signs/hints.json`: the benchmark's last hints about its speed on other numbers of nodes."""

    node: Count
    generation: Count
    time: Moment = 0
    text: Text = "{}"
    """A JSON object as the benchmark wrote it, with any content."""


@dataclass(frozen=True, kw_only=True)
class ScaleRequest:
    """`requests/<k>.json` and `signs/size-<k>.json`: a new number of nodes for the job."""

    desired: Annotated[int, Rule("a number of nodes", 1, 2**31)]
    by: Text = ""
    time: Moment = 0


@dataclass(frozen=True, kw_only=True)
class _JoinedPart:
    """The keys of `joined/<n>.json` that do not belong to the node's address."""

    after: Count | None = None
    boot: Text | None = None


def read_joined(table: Mapping[str, Any], peer: Peer, *, where: str) -> Joined:
    """Return a node's announcement from the table in `joined/<n>.json`. peer: the address in this table. Raises
    RecordError."""
    part = checked(_JoinedPart, table, where=where)
    return Joined(peer=peer, after=part.after, boot=part.boot)


def read_next_generation(table: Mapping[str, Any], *, where: str) -> NextGeneration:
    """Return a decision. Raises RecordError."""
    word = checked(NextGeneration, table, where=where)
    if len(set(word.members)) < len(word.members) or (word.runs and not word.members):
        raise wrong_value(where, "different nodes as members", word.members)
    if word.outcome not in OUTCOMES and (word.outcome or word.kind is DecisionKind.END):
        raise wrong_value(f"{where}: outcome", "the outcome of a job", word.outcome)
    return word


def stand_in(before: NextGeneration | None, problem: str, *, put: int) -> NextGeneration:
    """Return the decision that replaces an unreadable decision. The previous members begin a new generation. Without
    an earlier decision, the job waits for nodes. The result is the same on all nodes.

    put: time at which the unreadable decision was written (ms UTC, the store's clock).
    """
    if before is None:
        ledger = Ledger(waiting_since=put, began=put)
        before = NextGeneration(kind=DecisionKind.PARK, ledger=ledger)
    elif before.kind is DecisionKind.END:
        return before
    return replace(
        before,
        why=Change.UNREADABLE.value,
        nodes=[],
        planned=False,
        outcome=Outcome.PEER_FAILED.value,
        sentence=f"The decision about a generation cannot be read: {problem}.",
        backoff_seconds=0.0,
    )


def beginning_table(begun: Beginning) -> dict[str, Any]:
    """Return `begun` as JSON values."""
    return {**members_table(begun.members), "checkpoint": begun.checkpoint}


def read_beginning(table: Mapping[str, Any], *, where: str) -> Beginning:
    """Return the beginning of a generation from a table that `beginning_table` made. Raises BaiError."""
    checkpoint = table.get("checkpoint")
    if checkpoint is not None and not (isinstance(checkpoint, str) and _CHECKPOINT.fullmatch(checkpoint)):
        raise wrong_value(where, "the name of a checkpoint", shown_value(checkpoint))
    return Beginning(members=read_members(table, where=where), checkpoint=checkpoint)
