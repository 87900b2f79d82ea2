"""The messages between the nodes of one attempt, all through the job store.

    joined/<rank>.json     a node's address; written after its pull
    signs/<rank>           a worker's heartbeat
    ended/<rank>.json      a node's outcome
    control/peers.json     from the coordinator: all nodes that joined, by rank
    control/coordinator    the coordinator's heartbeat
    control/stop.json      the coordinator's order to end the job
    signs/ready-<rank>     the run for which the node is ready, if nodes start the runs of `[repeat]` together
    signs/turn-<run>       from the coordinator: whether a run begins

A job with restarts adds:
    ended/<rank>-<g>.json            the end of generation g on a node
    control/generation-<g>.json      the coordinator's decision after the generation before g
    control/begin-<g>.json           the beginning of generation g, with the members and their ports
An elastic job also adds the following objects. Its coordinator is the leader, the first member of the newest generation.
    signs/<node>                     heartbeats of all nodes
    signs/leaving-<node>             a node that is about to lose its machine
    signs/size-<k>.json              from the leader: the k-th number of nodes that the benchmark's hints ask for
    control/sign-<node>              a leader's heartbeat
    control/together-<g>.json        from the leader: all members of the generation before have seen a planned decision and must stop
    control/launch-<g>.json          from the leader: all members of generation g have their checkpoint and may launch
    requests/<k>.json                the k-th request for another number of nodes

A worker lists only `control/`, which has three keys, and two or three further keys per later generation. The coordinator lists
`joined/`, `signs/` and `ended/`. The cost of a check depends neither on the number of nodes nor on the length of their logs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, TypeAlias, TypeVar

from bai_agent.decode import checked, shown_value
from bai_agent.errors import RecordError
from bai_agent.job.generation_records import (
    Beginning,
    GenerationEnd,
    Hints,
    Joined,
    Leaving,
    NextGeneration,
    ScaleRequest,
    Sign,
    beginning_table,
    read_beginning,
    read_joined,
    read_next_generation,
    stand_in,
)
from bai_agent.job.launches import (
    JobMachines,
    LaunchedMachines,
    job_machines,
    launched_machines,
    launches_seen,
)
from bai_agent.job.outcome import OUTCOMES, Outcome
from bai_agent.job.peers import COORDINATOR, Members, Peer, members_table, peers_table, read_members
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import Count, NodeOutcome, Text, Truth, as_table
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store import StoredObject
from bai_agent.light_dataclass import asdict, dataclass, field, replace

T = TypeVar("T")
Version: TypeAlias = tuple[int, int]
"""Time of an object by the store's clock, and the object's size. The size may show a change within a second, because
S3's times are whole seconds."""
_ENDED = re.compile(r"(0|[1-9][0-9]{0,5})-(0|[1-9][0-9]{0,5})\.json", re.ASCII)
"""Name of a node's report that a generation has ended. The name consists of rank and generation."""
_DECIDED = re.compile(r"(generation|begin|launch|together)-([0-9]{6})\.json", re.ASCII)
_LEADER = re.compile(r"sign-(0|[1-9][0-9]{0,5})", re.ASCII)
"""Name of a leader's heartbeat, with the number of the leader's node."""
_LEAVING = re.compile(r"leaving-(0|[1-9][0-9]{0,5})", re.ASCII)
_HINTS = "signs/hints.json"
_PROPOSAL = re.compile(r"size-(0|[1-9][0-9]{0,5})\.json", re.ASCII)
"""Name of a proposal for the number of nodes, with the proposal's index."""
_UNUSABLE = "This node reported its end, but the report cannot be used"
_RANKED = re.compile(r"(0|[1-9][0-9]{0,5})(?:\.json)?", re.ASCII)
"""Name of an object that a node wrote, with the node's rank."""


@dataclass(frozen=True, kw_only=True)
class StopOrder:
    """The coordinator's order to end the job, because the job has finished or because of node `rank`."""

    finished: Truth = False
    rank: Count = COORDINATOR
    outcome: Text = Outcome.SUCCEEDED.value
    sentence: Text = ""


@dataclass(frozen=True, kw_only=True)
class Control:
    """The objects below `control/`."""

    peers: bool
    stop: bool
    sign: Version | None
    """Version of the coordinator's last heartbeat. None if the coordinator has not written a heartbeat
    yet."""
    generations: Mapping[int, Version] = field(default_factory=dict)
    """Decisions, by generation."""
    begun: Mapping[int, Version] = field(default_factory=dict)
    """Versions of the objects `control/begin-<g>.json`, by generation."""
    launches: Mapping[int, Version] = field(default_factory=dict)
    """Generations of an elastic job that all members may launch."""
    seen_by_all: Mapping[int, Version] = field(default_factory=dict)
    """Planned decisions that all members of the previous generation have seen."""
    leaders: Mapping[int, Version] = field(default_factory=dict)
    """Version of the last heartbeat of each present or past leader of an elastic job."""

    @property
    def decided(self) -> range:
        """Numbers of the decisions of an elastic job. Numbers after a gap are left out, because leaders write
        decisions without gaps."""
        return range(next(each for each in count() if each not in self.generations))

    @property
    def newest(self) -> int | None:
        """Number of the newest decision of an elastic job; None before the first decision."""
        return max(self.decided, default=None)


@dataclass(frozen=True, kw_only=True)
class SignsSeen:
    """The objects below `signs/`."""

    nodes: Mapping[int, Version]
    """Version of each node's last heartbeat. In a fixed job, the coordinator's heartbeat is not included."""
    leaving: Mapping[int, Version]
    """Nodes that are about to lose their machine."""
    proposals: Mapping[int, Version] = field(default_factory=dict)
    """Proposed numbers of nodes, by the proposal's index."""


@dataclass(frozen=True, kw_only=True)
class EndsSeen:
    """The objects below `ended/`."""

    nodes: Mapping[int, Version]
    """Nodes whose part of the job has ended."""
    generations: Mapping[tuple[int, int], Version]
    """Ends of generations, by node and generation."""


@dataclass(frozen=True)
class AttemptRecord:
    """One attempt of a job. Nothing is cached, so each call sends a request to the store and may raise
    StoreError."""

    job: JobRecord
    number: int = 0

    def key(self, name: str) -> str:
        return self.job.key(f"attempts/{self.number}/{name}")

    def join(self, peer: Peer, *, after: int | None = None, boot: str | None = None) -> None:
        """Announce this node's address to the other nodes. after, boot: as the fields of `Joined`."""
        more = {name: value for name, value in (("after", after), ("boot", boot)) if value is not None}
        (table,) = peers_table([peer])
        self._put(f"joined/{peer.rank}.json", {**table, **more})

    def joined(self) -> dict[int, tuple[Version, str]]:
        """Return version and ETag of each joined node's announcement. The ETag is included, because an agent
        may join twice within a second."""
        return {rank: (_version(each), each.etag) for rank, each in self._ranked("joined/").items()}

    def peer(self, rank: int) -> Peer:
        """Return the address that a node announced when the node joined. Raises BaiError."""
        return self.joined_node(rank).peer

    def joined_node(self, rank: int) -> Joined:
        """Return the announcement of a joined node. Raises BaiError."""
        key = self.key(f"joined/{rank}.json")
        found, where = self._read(key), self._url(key)
        peer = checked(Peer, {**found, "rank": rank}, where=where)
        _require_rank(found.get("rank"), rank, where=where)
        return read_joined(found, replace(peer, node=rank), where=where)

    def write_members(self, members: Members) -> bool:
        """Write the list of members. Return False if the list was already written."""
        return self._put_once("control/peers.json", members_table(members))

    def members(self) -> Members:
        """Return the members from the list that was written. Raises BaiError."""
        key = self.key("control/peers.json")
        return read_members(self._read(key), where=self._url(key))

    def control(self) -> Control:
        """List the objects below `control/`, with one request."""
        found = self._named("control/")
        sign = found.get("coordinator")
        return Control(
            peers="peers.json" in found,
            stop="stop.json" in found,
            sign=_version(sign) if sign is not None else None,
            generations=_decided("generation", found),
            begun=_decided("begin", found),
            launches=_decided("launch", found),
            seen_by_all=_decided("together", found),
            leaders=_versions_named(_LEADER, found),
        )

    def end_generation(self, generation: int, end: GenerationEnd) -> None:
        """Report the end of a generation on this node, after all of the generation's processes have ended."""
        self._put(f"ended/{end.rank}-{generation}.json", asdict(end))

    def generation_ended(self, generation: int) -> set[int]:
        """Return the nodes that have reported the end of `generation`."""
        names = (_ENDED.fullmatch(name) for name in self._named("ended/"))
        return {int(name[1]) for name in names if name is not None and int(name[2]) == generation}

    def generation_end(self, generation: int, rank: int) -> GenerationEnd:
        """Return the end of a generation that a node reported. An unreadable report, or an outcome of another version
        of bai, counts as an agent's error. Raises StoreError."""
        key = self.key(f"ended/{rank}-{generation}.json")
        where = self._url(key)
        try:
            end = checked(GenerationEnd, self._read(key), where=where)
            _require_rank(end.rank, rank, where=where)
        except RecordError as error:
            return GenerationEnd(
                rank=rank, outcome=Outcome.AGENT_ERROR.value, sentence=f"{_UNUSABLE}: {error}."
            )
        return end if end.outcome in OUTCOMES else replace(end, outcome=Outcome.AGENT_ERROR.value)

    def settle_generation(self, number: int, word: NextGeneration) -> NextGeneration:
        """Write the decision about generation `number`, unless a decision exists. Return the decision that is in the
        store. Raises StoreError, RecordError."""
        self._settle(f"control/generation-{number:06}.json", asdict(word))
        return self.generation(number)

    def generation(self, number: int) -> NextGeneration:
        """Return the decision that was written about generation `number`. Raises StoreError, RecordError."""
        key = self.key(f"control/generation-{number:06}.json")
        return read_next_generation(self._read(key), where=self._url(key))

    def decision(self, number: int, control: Control) -> NextGeneration:
        """Return the decision about a generation of an elastic job. If the decision is unreadable, return the
        decision that `stand_in` makes. Raises StoreError."""
        problem, found = None, None
        for each in range(number, -1, -1):
            try:
                found = self.generation(each)
                break
            except RecordError as error:
                problem = problem or str(error)
        if found is not None and problem is None:
            return found
        return stand_in(found, problem or "", put=control.generations[number][0])

    def begin_generation(self, number: int, members: Members, *, checkpoint: str | None = None) -> Beginning:
        """Write the beginning of a generation, unless a beginning exists. Return the beginning that is in the store.
        Raises BaiError."""
        begun = Beginning(members=members, checkpoint=checkpoint)
        self._settle(f"control/begin-{number:06}.json", beginning_table(begun))
        return self.beginning(number)

    def beginning(self, number: int, *, members: Sequence[int] | None = None) -> Beginning:
        """Return the beginning of a generation from the store. members: the nodes in the decision about the
        generation. Raises StoreError, RecordError."""
        key = self.key(f"control/begin-{number:06}.json")
        begun = read_beginning(self._read(key), where=self._url(key))
        found = [each.node for each in begun.members.peers]
        if members is not None and found != list(members):
            raise RecordError(f"{self._url(key)}: expected the members {list(members)}, got {found}")
        return begun

    def launch_generation(self, number: int) -> None:
        """Announce, as the leader, that all members of a generation have restored the checkpoint and may
        launch. Raises StoreError."""
        self._settle(f"control/launch-{number:06}.json", {"generation": number})

    def stop_together(self, number: int) -> None:
        """Announce, as the leader, that all members of the previous generation have seen a planned decision
        and must stop now. Raises StoreError."""
        self._settle(f"control/together-{number:06}.json", {"generation": number})

    def order_stop(self, order: StopOrder) -> bool:
        """Order all nodes to end the job. Return False if the end was already ordered."""
        return self._put_once("control/stop.json", asdict(order))

    def stop_order(self) -> StopOrder:
        """Return the coordinator's order to end the job. Raises StoreError, RecordError."""
        return self._read_as(StopOrder, "control/stop.json")

    def sign(self, rank: int, content: Mapping[str, Any]) -> None:
        """Write a node's heartbeat."""
        self._put("control/coordinator" if rank == COORDINATOR else f"signs/{rank}", content)

    def signs(self) -> dict[int, Version]:
        """Return the version of each worker's last heartbeat."""
        return self._versions("signs/")

    def signs_of_all(self) -> dict[int, Version]:
        """Return the version of each node's last heartbeat, including the coordinator's."""
        signs, coordinators = self.signs(), self.control().sign
        return signs if coordinators is None else {COORDINATOR: coordinators, **signs}

    def silent_s(self, rank: int) -> float:
        """Return for how long a worker's benchmark had printed nothing at the worker's last heartbeat
        (seconds)."""
        try:
            return self.last_sign(rank).silent_s
        except RecordError:
            return 0.0  # still a heartbeat

    def last_sign(self, node: int) -> Sign:
        """Return the content of a node's last heartbeat, or an empty heartbeat if the node has not written
        any. Raises StoreError, RecordError."""
        return self._sign(f"signs/{node}", node)

    def give_sign(self, node: int, sign: Sign) -> None:
        """Write a heartbeat as a node of an elastic job. Raises StoreError."""
        self._put(f"signs/{node}", asdict(replace(sign, node=node)))

    def give_leader_sign(self, node: int, sign: Sign) -> None:
        """Write a heartbeat as the leader of an elastic job. The heartbeat is below `control/`, which all members
        list. Raises StoreError."""
        self._put(f"control/sign-{node}", asdict(replace(sign, node=node)))

    def signs_seen(self) -> SignsSeen:
        """List heartbeats and leaving nodes, with one request."""
        found = self._named("signs/")
        return SignsSeen(
            nodes=_versions_named(_RANKED, found),
            leaving=_versions_named(_LEAVING, found),
            proposals=_versions_named(_PROPOSAL, found),
        )

    def sign_time(self, node: int) -> int | None:
        """Return when a node of an elastic job wrote its last heartbeat (ms UTC, the store's clock). None if
        the node wrote no heartbeat."""
        key = self.key(f"signs/{node}")
        return next((each.modified for each in self.job.store.find(key) if each.key == key), None)

    def leave(self, leaving: Leaving) -> None:
        """Announce that this node is about to lose its machine. Raises StoreError."""
        self._put(f"signs/leaving-{leaving.node}", asdict(leaving))

    def leaving_node(self, node: int) -> Leaving:
        """Return the announcement of a leaving node. Raises StoreError, RecordError."""
        name = f"signs/leaving-{node}"
        leaving = self._read_as(Leaving, name)
        _require_rank(leaving.node, node, where=self._url(self.key(name)))
        return leaving

    def give_hints(self, hints: Hints) -> None:
        """Save the benchmark's hints, and overwrite its previous hints. Raises StoreError."""
        self._put(_HINTS, asdict(hints))

    def hints(self) -> Hints | None:
        """Return the benchmark's last hints; None if the benchmark gave no hints. Raises StoreError,
        RecordError."""
        key = self.key(_HINTS)
        if not any(each.key == key for each in self.job.store.find(key)):
            return None
        return self._read_as(Hints, _HINTS)

    def launched_machines(self) -> int | None:
        """Return the number of machines of the job's first launch; None if the number is unknown. Raises StoreError,
        RecordError."""
        found = launched_machines(self.job, self.number, 0)
        return len(found.instances) if found is not None and found.instances else None

    def launches(self) -> list[LaunchedMachines]:
        """Return the recorded machines of all launches that EC2 accepted. Raises StoreError, RecordError."""
        numbers = [each.number for each in launches_seen(self.job, self.number) if each.is_decided]
        found = (launched_machines(self.job, self.number, each) for each in numbers)
        return [each for each in found if each is not None and each.instances]

    def machines(self) -> JobMachines | None:
        """Return the machines of all launches. Return None if no launch is recorded, for example because the
        job runs on the user's own machine. Raises StoreError, RecordError."""
        return job_machines(self.job, self.number)

    def request_scale(self, request: ScaleRequest) -> int:
        """Request another number of nodes for the job. Return the request's number. Raises StoreError."""
        number = max(self.scale_requests(), default=-1) + 1
        # Another user may make a request with the same number at the same moment.
        while not self._put_once(f"requests/{number}.json", asdict(request)):
            number += 1
        return number

    def scale_requests(self) -> dict[int, Version]:
        """Return the version of each request for another number of nodes."""
        return self._versions("requests/")

    def scale_request(self, number: int) -> ScaleRequest:
        """Return a request for another number of nodes. Raises StoreError, RecordError."""
        return self._read_as(ScaleRequest, f"requests/{number}.json")

    def propose_size(self, proposal: ScaleRequest) -> int:
        """Write, as the leader, a proposal for another number of nodes; return the proposal's index. Raises
        StoreError."""
        number = max(self.signs_seen().proposals, default=-1) + 1
        while not self._put_once(f"signs/size-{number}.json", asdict(proposal)):
            number += 1
        return number

    def size_proposal(self, number: int) -> ScaleRequest:
        """Return a proposed number of nodes. Raises StoreError, RecordError."""
        return self._read_as(ScaleRequest, f"signs/size-{number}.json")

    def _sign(self, name: str, node: int) -> Sign:
        key = self.key(name)
        sign = checked(Sign, self.job.read_object(key) or {}, where=self._url(key))
        # In a fixed job, heartbeats do not name a node.
        if sign.node is not None:
            _require_rank(sign.node, node, where=self._url(key))
        return sign

    def be_ready(self, run: int, rank: int) -> None:
        """Report that this node is ready for a run, because all processes of earlier runs have ended on this
        node."""
        self._put(f"signs/ready-{rank}", {"run": run})

    def is_ready(self, run: int, rank: int) -> bool:
        """Return whether a node has reported that it is ready for a run."""
        said = self.job.read_object(self.key(f"signs/ready-{rank}"))
        return said is not None and said.get("run") == run

    def give_turn(self, run: int, *, begins: bool) -> bool:
        """Write, as the coordinator, the decision whether a run begins. Return the decision that is in the store."""
        if self._put_once(f"signs/turn-{run}", {"begins": begins}):
            return begins
        return self._read(self.key(f"signs/turn-{run}")).get("begins") is True

    def turn(self, run: int) -> bool | None:
        """Return whether a run begins; None if the coordinator has not decided yet."""
        word = self.job.read_object(self.key(f"signs/turn-{run}"))
        return word.get("begins") is True if word is not None else None

    def end(self, outcome: NodeOutcome) -> None:
        """Report a node's outcome."""
        self._put(f"ended/{outcome.rank}.json", as_table(outcome))

    def ends_seen(self) -> EndsSeen:
        """List the reports about the ends of generations and of nodes, with one request."""
        found = self._named("ended/")
        names = ((_ENDED.fullmatch(name), each) for name, each in found.items())
        return EndsSeen(
            nodes=_versions_named(_RANKED, found),
            generations={
                (int(name[1]), int(name[2])): _version(each) for name, each in names if name is not None
            },
        )

    def ended(self) -> dict[int, Version]:
        """Return the version of each node's reported outcome, by rank."""
        return self._versions("ended/")

    def node_outcome(self, rank: int) -> NodeOutcome:
        """Return a node's reported outcome. Raises StoreError, RecordError."""
        key = self.key(f"ended/{rank}.json")
        where = self._url(key)
        outcome = checked(NodeOutcome, self._read(key), where=where)
        _require_rank(outcome.rank, rank, where=where)
        if outcome.own_usage is not None:
            _require_rank(outcome.own_usage.rank, rank, where=f"{where}: own_usage")
        return outcome

    def usable_outcome(self, rank: int) -> NodeOutcome:
        """Return a node's reported outcome. If the report is malformed, return an agent's error for this node. Raises
        StoreError."""
        try:
            outcome = self.node_outcome(rank)
            if outcome.outcome in OUTCOMES:
                return outcome
            why = f'the outcome "{outcome.outcome[:40]}" is unknown to this version'
        except RecordError as error:
            why = str(error)
        now = now_ms()
        sentence = f"{_UNUSABLE}: {why}."
        return NodeOutcome(
            rank=rank, outcome=Outcome.AGENT_ERROR.value, sentence=sentence, failed=now, ended=now
        )

    def _settle(self, name: str, value: Mapping[str, Any]) -> None:
        """Put an object, unless an object with the same name exists. Raises StoreError."""
        self.job.settle(self.key(name), _json(value))

    def _put(self, name: str, value: Mapping[str, Any]) -> None:
        self.job.store.put(self.key(name), _json(value))

    def _put_once(self, name: str, value: Mapping[str, Any]) -> bool:
        """Put an object, unless an object with the same name exists. Return whether this call put the object.
        Raises StoreError."""
        return self.job.store.put(self.key(name), _json(value), if_absent=True)

    def _read_as(self, kind: type[T], name: str) -> T:
        """Return the object `name` as an instance of `kind`. Raises StoreError, RecordError."""
        key = self.key(name)
        return checked(kind, self._read(key), where=self._url(key))

    def _read(self, key: str) -> dict[str, Any]:
        """Return the object at `key`, which must exist. Raises StoreError, RecordError."""
        found = self.job.read_listed(key)
        if found is None:
            raise RecordError(f"{self._url(key)} is gone")
        return found

    def _url(self, key: str) -> str:
        """Return the address of an object, for messages."""
        return f"{self.job.store.url}/{key}"

    def _named(self, folder: str) -> dict[str, StoredObject]:
        """Return the objects in `folder` itself by their names. Subfolders are left out, because a benchmark
        may write objects with the same names there."""
        place = self.key(folder)
        named = ((each.key.removeprefix(place), each) for each in self.job.store.find(place))
        return {name: each for name, each in named if "/" not in name}

    def _versions(self, folder: str) -> dict[int, Version]:
        """Return the versions of the objects in `folder` that belong to a rank, by rank."""
        return {rank: _version(each) for rank, each in self._ranked(folder).items()}

    def _ranked(self, folder: str) -> dict[int, StoredObject]:
        """Return the objects in `folder` that belong to a rank, by rank."""
        names = ((_RANKED.fullmatch(name), each) for name, each in self._named(folder).items())
        return {int(name[1]): each for name, each in names if name is not None}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode(errors="replace") + b"\n"


def _decided(word: str, objects: Mapping[str, StoredObject]) -> dict[int, Version]:
    found = ((_DECIDED.fullmatch(name), each) for name, each in objects.items())
    return {int(name[2]): _version(each) for name, each in found if name is not None and name[1] == word}


def _versions_named(pattern: re.Pattern[str], objects: Mapping[str, StoredObject]) -> dict[int, Version]:
    """Return the versions of the objects whose names match `pattern`, by node."""
    found = ((pattern.fullmatch(name), each) for name, each in objects.items())
    return {int(name[1]): _version(each) for name, each in found if name is not None}


def _require_rank(found: Any, rank: int, *, where: str) -> None:
    """Raise RecordError if the rank in a node's object differs from the rank in the object's key."""
    if type(found) is not int or found != rank:
        shown = shown_value(found, limit=20)
        raise RecordError(
            f"{where}: expected the rank {rank} as in the object's name, got {shown}; the object is ignored"
        )


def _version(found: StoredObject) -> Version:
    return (found.modified or 0, found.size)
