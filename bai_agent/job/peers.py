"""The nodes of an attempt, and the addresses by which the nodes reach each other: the content of `peers.json`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from bai_agent.decode import Rule, checked
from bai_agent.errors import RecordError
from bai_agent.job.record_types import Count, PortNumber, Text
from bai_agent.light_dataclass import asdict, dataclass, field

COORDINATOR = 0
"""Rank of the node that makes the decisions about the job."""
INTERFACE = re.compile(r"[A-Za-z0-9_.@-]{1,15}")
_KEY = re.compile(r"[0-9a-f]{64}")


def _matching(words: str, pattern: str | re.Pattern[str]) -> Rule:
    """Return a rule for texts that match `pattern`. Some of the texts are written into configuration files, so no
    pattern allows a line break or another special character."""
    return Rule(words, check=lambda text: re.fullmatch(pattern, text) is not None)


_Address = Annotated[str, _matching("an address", r"[A-Za-z0-9:][A-Za-z0-9.:_-]{0,252}")]
_PublicKey = Annotated[str, _matching("a public SSH key", r"ssh-ed25519 [A-Za-z0-9+/]{68}")]
_Interface = Annotated[str, _matching("a network interface", INTERFACE)]
_Engine = Annotated[str, _matching("a program and its version", r"[A-Za-z0-9 ().,+~_-]{1,100}")]


@dataclass(frozen=True, kw_only=True)
class Members:
    """The members of an attempt."""

    peers: tuple[Peer, ...]
    key: bytes | None = field(default=None, repr=False)
    """Secret with which nodes sign requests to each other. None if the nodes send no requests to each
    other."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A node of the attempt."""

    rank: Count
    """The node's rank among the job's nodes. In a generation, the node's group rank, which is the node's position
    among the members."""
    address: _Address
    """Address at which the other nodes reach this node: an IP address or a host name."""
    slots: Annotated[int, Rule("a number of processes", 1, 2**31)] = 1
    """Number of the benchmark's processes on this node."""
    port: PortNumber = 0
    """A port of the node that was free when the node joined. 0 if the node offers no port to other nodes."""
    instance_id: Text | None = None
    """Id of the node's EC2 instance; None if the node is not an EC2 instance."""
    public_key: _PublicKey | None = None
    """Public SSH key, if the strategy uses SSH: the coordinator's client key, or a worker's host key."""
    interface: _Interface | None = None
    """The node's network interface with the address `address`, such as "ens5"."""
    agent_port: PortNumber = 0
    """Port on which the node's agent answers requests of other nodes (`peers/direct_question.py`). 0 if the
    agent answers no requests."""
    engine: _Engine | None = None
    """Name and version of the strategy's launcher on the node, such as "mpirun (Open MPI) 4.1.4"."""
    node: Count = -1
    """The node's number in the job's record. No other node ever gets the same number. Unset: `rank`."""

    def __post_init__(self) -> None:
        if self.node < 0:
            object.__setattr__(self, "node", self.rank)

    @property
    def title(self) -> str:
        """The node's name at the start of a sentence, such as "Node 1 (i-0123, 10.0.0.2)"."""
        return f"Node {self.node} ({', '.join(filter(None, (self.instance_id, self.address)))})"

    @property
    def mention(self) -> str:
        """The node's name within a sentence, such as "node 1 (i-0123, 10.0.0.2)"."""
        return f"n{self.title[1:]}"


def members_table(members: Members) -> dict[str, Any]:
    """Return `members` as JSON values."""
    key = {} if members.key is None else {"key": members.key.hex()}
    return {"peers": peers_table(members.peers), **key}


def read_members(table: Mapping[str, Any], *, where: str) -> Members:
    """Return the members from a table that `members_table` made. Raises RecordError."""
    key = table.get("key")
    if key is not None and not (isinstance(key, str) and _KEY.fullmatch(key)):
        raise RecordError(f"{where}: the key is corrupt or was written by another tool")
    peers = read_peers(table.get("peers"), where=where)
    return Members(peers=peers, key=None if key is None else bytes.fromhex(key))


def generation_token(members: Members, generation: int) -> str:
    """Return a secret that the nodes of a generation share, or "" if the generation has one node. The agents' key for
    signed requests cannot be computed from the secret."""
    if members.key is None:
        return ""
    # Imported here, because most jobs do not need the module.
    import hmac

    return hmac.new(members.key, f"benchmark {generation}".encode(), "sha256").hexdigest()


def peers_table(peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """Return `peers` as JSON values, in the order of the peers' ranks."""
    return [_peer_table(peer) for peer in sorted(peers, key=lambda peer: peer.rank)]


def peer_of(peers: Sequence[Peer], node: int) -> Peer:
    """Return the peer with the number `node`. Raises RecordError if no peer has this number."""
    for peer in peers:
        if peer.node == node:
            return peer
    raise RecordError(f"node {node} is not among the members ({', '.join(str(each.node) for each in peers)})")


def read_peers(table: Any, *, where: str) -> tuple[Peer, ...]:
    """Return the peers in `table`, in the order of the peers' ranks. where: beginning of error messages.
    Raises RecordError."""
    peers = tuple(checked(list[Peer], table, where=where))
    if not peers or [peer.rank for peer in peers] != list(range(len(peers))):
        raise RecordError(f"{where}: the ranks are not 0 to {max(len(peers) - 1, 0)}, in this order")
    return peers


def _peer_table(peer: Peer) -> dict[str, Any]:
    table = asdict(peer)
    if peer.node == peer.rank:
        del table["node"]
    return table
