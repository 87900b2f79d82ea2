"""What the nodes of one attempt tell each other, all through the job store.

    joined/<rank>.json     where a node is reached; written after its pull
    signs/<rank>           signs of life of the workers
    ended/<rank>.json      how a node's part ended
    control/peers.json     the coordinator's word: all who joined, in the order of their ranks
    control/coordinator    its sign of life
    control/stop.json      its word that the job is over, or is to end
    signs/ready-<rank>     in a job with `[repeat]` whose nodes do its runs together: the run that the node is ready for
    signs/turn-<run>       the coordinator's word whether a run begins; once for each run

A worker lists `control/` alone, which has three keys at most; the coordinator lists the other three folders. So a look costs
the same, whatever the number of nodes and the length of their logs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Members, Peer, members_table, read_members, read_peers
from bai_agent.job.record import JobRecord
from bai_agent.job.record_checks import checked
from bai_agent.job.record_types import Count, NodeOutcome, Seconds, Text, Truth, as_table
from bai_agent.job.store import RecordError, StoredObject
from bai_agent.job.tables import shown_value

Version: TypeAlias = tuple[int, int]
"""When an object was written, by the store's clock, and its size: S3's clock knows whole seconds only."""
COORDINATOR = 0
"""The rank of the node that decides for the job."""
_RANKED = re.compile(r"(0|[1-9][0-9]{0,5})(?:\.json)?", re.ASCII)
"""The name of an object that is one node's: its rank."""


@dataclass(frozen=True, kw_only=True)
class StopOrder:
    """The coordinator's word that the job is over: it has finished, or node `rank` is why it is ended."""

    finished: Truth = False
    rank: Count = COORDINATOR
    outcome: Text = Outcome.SUCCEEDED.value
    sentence: Text = ""


@dataclass(frozen=True, kw_only=True)
class Control:
    """What lies below `control/`."""

    peers: bool
    stop: bool
    sign: Version | None
    """Of the coordinator's last sign of life; None: there is none yet."""


@dataclass(frozen=True)
class AttemptRecord:
    """One attempt of a job. Nothing is cached: each call asks the store, and may raise StoreError."""

    job: JobRecord
    number: int = 0

    def key(self, name: str) -> str:
        return self.job.key(f"attempts/{self.number}/{name}")

    def join(self, peer: Peer) -> None:
        """Say where this node is reached."""
        self._put(f"joined/{peer.rank}.json", asdict(peer))

    def joined(self) -> set[int]:
        """Return the ranks that have joined."""
        return set(self._versions("joined/"))

    def peer(self, rank: int) -> Peer:
        """Return where a node that has joined is reached. Raises BaiError."""
        key = self.key(f"joined/{rank}.json")
        found, where = self._read(key), f"{self.job.store.url}/{key}"
        (peer,) = read_peers([{**found, "rank": 0}], where=where)
        _require_rank(found.get("rank"), rank, where=where)
        return replace(peer, rank=rank)

    def write_members(self, members: Members) -> bool:
        """Settle who takes part; return False where that was done before."""
        content = json.dumps(members_table(members)).encode() + b"\n"
        return self.job.store.put(self.key("control/peers.json"), content, if_absent=True)

    def members(self) -> Members:
        """Return who takes part, once that is settled. Raises BaiError."""
        key = self.key("control/peers.json")
        return read_members(self._read(key), where=f"{self.job.store.url}/{key}")

    def control(self) -> Control:
        """Return what the coordinator has said, with one request."""
        found = {each.key.rpartition("/")[2]: each for each in self.job.store.find(self.key("control/"))}
        sign = found.get("coordinator")
        return Control(
            peers="peers.json" in found,
            stop="stop.json" in found,
            sign=_version(sign) if sign is not None else None,
        )

    def order_stop(self, order: StopOrder) -> bool:
        """Say that the job is over, or is to end; return False where that was said before."""
        content = json.dumps(asdict(order)).encode() + b"\n"
        return self.job.store.put(self.key("control/stop.json"), content, if_absent=True)

    def stop_order(self) -> StopOrder:
        """Return the coordinator's word, once it is there. Raises StoreError, RecordError."""
        key = self.key("control/stop.json")
        return checked(StopOrder, self._read(key), where=f"{self.job.store.url}/{key}")

    def sign(self, rank: int, content: Mapping[str, Any]) -> None:
        """Give a sign of life."""
        self._put("control/coordinator" if rank == COORDINATOR else f"signs/{rank}", content)

    def signs(self) -> dict[int, Version]:
        """Return the version of each worker's last sign of life."""
        return self._versions("signs/")

    def signs_of_all(self) -> dict[int, Version]:
        """Return the version of each node's last sign of life, the coordinator's among them."""
        signs, coordinators = self.signs(), self.control().sign
        return signs if coordinators is None else {COORDINATOR: coordinators, **signs}

    def silent_s(self, rank: int) -> float:
        """Return for how long a worker's benchmark had printed nothing at its last sign of life."""
        key = self.key(f"signs/{rank}")
        try:
            found = checked(_Sign, self.job.read_object(key) or {}, where=key)
        except RecordError:
            return 0.0  # it is a sign of life all the same
        return found.silent_s

    def be_ready(self, run: int, rank: int) -> None:
        """Say that nothing of the runs before this one is left on this node."""
        self._put(f"signs/ready-{rank}", {"run": run})

    def is_ready(self, run: int, rank: int) -> bool:
        """Return whether a node has said so."""
        said = self.job.read_object(self.key(f"signs/ready-{rank}"))
        return said is not None and said.get("run") == run

    def give_turn(self, run: int, *, begins: bool) -> bool:
        """Settle whether a run begins, as the coordinator; return what was settled, now or before."""
        content = json.dumps({"begins": begins}).encode() + b"\n"
        if self.job.store.put(self._turn_key(run), content, if_absent=True):
            return begins
        return self._read(self._turn_key(run)).get("begins") is True

    def turn(self, run: int) -> bool | None:
        """Return whether a run begins; None while that is not settled."""
        word = self.job.read_object(self._turn_key(run))
        return word.get("begins") is True if word is not None else None

    def _turn_key(self, run: int) -> str:
        return self.key(f"signs/turn-{run}")

    def end(self, outcome: NodeOutcome) -> None:
        """Say how a node's part ended."""
        self._put(f"ended/{outcome.rank}.json", as_table(outcome))

    def ended(self) -> dict[int, Version]:
        """Return the version of what each node whose part has ended has said of that."""
        return self._versions("ended/")

    def node_outcome(self, rank: int) -> NodeOutcome:
        """Return how a node's part ended, once it has. Raises StoreError, RecordError."""
        key = self.key(f"ended/{rank}.json")
        where = f"{self.job.store.url}/{key}"
        outcome = checked(NodeOutcome, self._read(key), where=where)
        _require_rank(outcome.rank, rank, where=where)
        if outcome.own_usage is not None:
            _require_rank(outcome.own_usage.rank, rank, where=f"{where}: own_usage")
        return outcome

    def _put(self, name: str, value: Mapping[str, Any]) -> None:
        self.job.store.put(self.key(name), json.dumps(value).encode(errors="replace") + b"\n")

    def _read(self, key: str) -> dict[str, Any]:
        found = self.job.read_object(key)
        if found is None:
            raise RecordError(f"{self.job.store.url}/{key} is gone")
        return found

    def _versions(self, folder: str) -> dict[int, Version]:
        """Return the version of each rank's object below `folder`."""
        found = self.job.store.find(self.key(folder))
        names = ((_RANKED.fullmatch(each.key.rpartition("/")[2]), _version(each)) for each in found)
        return {int(name[1]): version for name, version in names if name is not None}


@dataclass(frozen=True, kw_only=True)
class _Sign:
    """What the coordinator reads of a worker's sign of life."""

    silent_s: Seconds = 0.0


def _require_rank(found: Any, rank: int, *, where: str) -> None:
    """Raise RecordError if a node's object, named by its rank, speaks of another node."""
    if type(found) is not int or found != rank:
        shown = shown_value(found, limit=20)
        raise RecordError(
            f"{where}: expected the rank {rank} of its name, got {shown}; nothing is taken from it"
        )


def _version(found: StoredObject) -> Version:
    return (found.modified or 0, found.size)
