"""`peers.json`: the nodes of an attempt, with the addresses by which they reach each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bai_agent.errors import RecordError
from bai_agent.light_dataclass import asdict, dataclass, field

_ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_-]{0,252}")
_PUBLIC_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{68}")
INTERFACE = re.compile(r"[A-Za-z0-9_.@-]{1,15}")
_KEY = re.compile(r"[0-9a-f]{64}")
_ENGINE = re.compile(r"[A-Za-z0-9 ().,+~_-]{1,100}")


@dataclass(frozen=True, kw_only=True)
class Members:
    """The members of an attempt."""

    peers: tuple[Peer, ...]
    key: bytes | None = field(default=None, repr=False)
    """Key for direct questions between nodes; None: they ask no questions."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A node of the attempt."""

    rank: int
    """Its position among the nodes that it works with: its group rank in a generation."""
    address: str
    """Address for the other nodes: an IP address or a host name."""
    slots: int = 1
    """Number of the benchmark's processes on this node."""
    port: int = 0
    """A port that was free there when it joined; 0: it has none for the others."""
    instance_id: str | None = None
    """Id of its EC2 instance; None if it is none."""
    public_key: str | None = None
    """Public SSH key, if the strategy uses SSH: the coordinator's client key, or a worker's host key."""
    interface: str | None = None
    """The network interface there that has the address: "ens5"."""
    agent_port: int = 0
    """Port of its agent's answers to direct questions (`peers/direct_question.py`). 0 if there is none."""
    engine: str | None = None
    """Name and version of the strategy's launcher there: "mpirun (Open MPI) 4.1.4"."""
    node: int = -1
    """Its number in the job's record, which no other node ever has. Unset: `rank`."""

    def __post_init__(self) -> None:
        if self.node < 0:
            object.__setattr__(self, "node", self.rank)

    @property
    def title(self) -> str:
        """Its name for people: "Node 1 (i-0123, 10.0.0.2)"."""
        return f"Node {self.node} ({', '.join(filter(None, (self.instance_id, self.address)))})"

    @property
    def mention(self) -> str:
        """The name within a sentence: "node 1 (i-0123, 10.0.0.2)"."""
        return f"n{self.title[1:]}"


def members_table(members: Members) -> dict[str, Any]:
    """Return `members` as JSON values."""
    key = {} if members.key is None else {"key": members.key.hex()}
    return {"peers": peers_table(members.peers), **key}


def read_members(table: Mapping[str, Any], *, where: str) -> Members:
    """Return what `members_table` made. Raises RecordError."""
    key = table.get("key")
    if key is not None and not _is(_KEY, key):
        raise RecordError(f"{where}: the key is corrupt or was written by another tool")
    peers = read_peers(table.get("peers"), where=where)
    return Members(peers=peers, key=None if key is None else bytes.fromhex(key))


def generation_token(members: Members, generation: int) -> str:
    """Return a secret that the benchmark's nodes of a generation share, which does not tell the agents' own key; "" if a node is alone."""
    if members.key is None:
        return ""
    # Imported here: most jobs do not need it.
    import hmac

    return hmac.new(members.key, f"benchmark {generation}".encode(), "sha256").hexdigest()


def peers_table(peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """Return `peers` as JSON values, in the order of their ranks."""
    return [_peer_table(peer) for peer in sorted(peers, key=lambda peer: peer.rank)]


def peer_of(peers: Sequence[Peer], node: int) -> Peer:
    """Return the peer of the node with this number. Raises RecordError if it is not among them."""
    for peer in peers:
        if peer.node == node:
            return peer
    raise RecordError(f"node {node} is not among the members ({', '.join(str(each.node) for each in peers)})")


def read_peers(table: Any, *, where: str) -> tuple[Peer, ...]:
    """Return the peers in `table`, in the order of their ranks. where: beginning of error messages. Raises
    RecordError."""
    try:
        peers = tuple(_peer(each) for each in table)
    except (TypeError, KeyError, ValueError) as error:
        raise RecordError(f"{where} is corrupt or was written by another tool") from error
    if not peers or [peer.rank for peer in peers] != list(range(len(peers))):
        raise RecordError(f"{where}: the ranks are not 0 to {max(len(peers) - 1, 0)}, in this order")
    return peers


def _peer_table(peer: Peer) -> dict[str, Any]:
    table = asdict(peer)
    if peer.node == peer.rank:
        del table["node"]
    return table


def _peer(table: Mapping[str, Any]) -> Peer:
    rank, address, slots = table["rank"], table["address"], table["slots"]
    port, agent_port, instance_id = table.get("port", 0), table.get("agent_port", 0), table.get("instance_id")
    public_key, engine, interface = (table.get(key) for key in ("public_key", "engine", "interface"))
    node = table.get("node", rank)
    numbers = all(type(each) is int for each in (rank, slots, port, agent_port, node))
    # These texts become lines of configuration files: none may hold a line break or another special
    # character.
    texts = _is(_ADDRESS, address) and all(
        each is None or _is(pattern, each)
        for pattern, each in ((_PUBLIC_KEY, public_key), (_ENGINE, engine), (INTERFACE, interface))
    )
    if (
        not numbers
        or not texts
        or slots < 1
        or node < 0
        or not all(0 <= each < 2**16 for each in (port, agent_port))
    ):
        raise ValueError
    if not isinstance(instance_id, (str, type(None))):
        raise TypeError
    return Peer(
        rank=rank,
        address=address,
        slots=slots,
        port=port,
        agent_port=agent_port,
        instance_id=instance_id,
        public_key=public_key,
        interface=interface,
        engine=engine,
        node=node,
    )


def _is(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
