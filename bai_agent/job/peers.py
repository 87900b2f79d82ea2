"""The nodes of an attempt, as they know each other: `peers.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bai_agent.errors import BaiError


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A node of the attempt."""

    rank: int
    address: str
    """Where the others reach it: an IP address or a host name."""
    slots: int = 1
    """How many of the benchmark's processes it runs."""


def peers_table(peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """Return `peers` as JSON values, in the order of their ranks."""
    return [asdict(peer) for peer in sorted(peers, key=lambda peer: peer.rank)]


def read_peers(table: Any, *, where: str) -> tuple[Peer, ...]:
    """Return the peers that `table` holds, in the order of their ranks. where: starts an error. Raises BaiError."""
    try:
        peers = tuple(_peer(each) for each in table)
    except (TypeError, KeyError, ValueError) as error:
        raise BaiError(f"{where} is corrupt or was written by another tool") from error
    if not peers or [peer.rank for peer in peers] != list(range(len(peers))):
        raise BaiError(f"{where}: the ranks are not 0 to {max(len(peers) - 1, 0)}, in this order")
    return peers


def _peer(table: Mapping[str, Any]) -> Peer:
    rank, address, slots = table["rank"], table["address"], table["slots"]
    if type(rank) is not int or type(slots) is not int or not isinstance(address, str) or slots < 1:
        raise ValueError
    return Peer(rank=rank, address=address, slots=slots)
