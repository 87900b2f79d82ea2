"""Decides what follows a generation. The decision is a pure function of the job's observations and its
policy.

A *generation* is a part of a job's time in which the job has fixed member nodes in a fixed order. All members
of a generation start together and end together. The first row of this table (`ROWS`) whose observation is
true gives the decision:

| observation | decision |
|---|---|
| every member has succeeded; in an elastic job, also if a node was lost in the last 25 s | end the job as succeeded |
| the job was cancelled | end the job |
| a failure would recur, or has an exit code that is not retried; before generation 0, a node cannot prepare | end the job with the failure |
| members could not restore the checkpoint, and too few other members are left | end the job with the failure |
| a failure, and the limit of restarts is reached | end the job with the failure |
| the job has run for `max_runtime`; in a fixed job only between two generations, because the agents themselves stop a running generation | end the job |
| a node that joined late cannot prepare | end only that node |
| before generation 0, the desired nodes have joined, or no further node is expected | run with the joined nodes, in the order of their numbers; if too few joined, end the job |
| a member is lost, is about to lose its machine, or has not stopped or restored in time | run without the member; if too few members are left, park the job |
| a member has saved its state without a request, and ended to be restarted | restart the same members at once |
| any other failure | restart the same members after the backoff |
| the job is parked, and has enough nodes again | run with these nodes |
| the job has been parked for `elastic.wait` | end the job |
| a node has joined, there are fewer members than desired, and the generation has run for `pause` | run with the additional node |
| there are more members than desired | run without the highest numbers |
| anything else | go on |

- For fixed jobs, only the rows about success, failures and `max_runtime` apply.
- A failure in an elastic job may be the consequence of a lost node. The failure counts as a consequence if a
  lost node's last heartbeat is older than the failure. The failure counts as the benchmark's own as soon as
  all other members have written a heartbeat after the failure. Until the cause is known, the job continues.
- A generation that ends because a member saved its state has not failed. It counts as a failure only if this
  happens within a minute of the generation's start, and happened so in the three generations before.
- Losses of nodes within 5 s lead to one decision. The decision waits if another member will probably be lost.
- A node that has just joined waits 3 s for other desired nodes, so that nodes that start together join in one
  generation.
- A benchmark that absorbs losses continues when nodes are lost or join, as long as the generation's first
  member runs and enough other members are left. The benchmark ends when the first member ends.
- The remaining members keep their order, and new members follow in the order of their numbers.
- `pause` doubles each time the same node is lost and joins again. After 64 generations, no lost node can join
  again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from enum import Enum
from typing import TypeAlias

from bai_agent.generations.member_states import (
    QUICK_SAVE_S,
    failed_members,
    gone_members,
    left_members,
    loss_of,
    may_get_better,
    may_lose_more,
    own_failures,
    runs_well,
    saved_members,
    takeable,
)
from bai_agent.generations.observation import GenerationObservation, Member, Stage
from bai_agent.generations.policy import Policy, backoff_s
from bai_agent.job.generation_records import Change, Ledger
from bai_agent.job.schema.durations import format_duration
from bai_agent.light_dataclass import dataclass, replace

JOIN_SETTLE_S = 3.0
"""Seconds for which a decision waits for more nodes after a node has joined, if the job wants more nodes.
Agents that start together join one after the other."""
LATE_LOSS_S = 25.0
"""If a member is lost at most this number of seconds before the last member succeeds, the loss is ignored."""


@dataclass(frozen=True, kw_only=True)
class GoOn:
    """Nothing has to be done, because the generation is running or ending."""


@dataclass(frozen=True, kw_only=True)
class EndRest:
    """The next generation of a fixed job begins, so members that still run are ended."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """The next generation of a fixed job begins later, at a given time."""

    until_s: float
    """Time at which the generation begins (seconds of the decider's clock)."""


@dataclass(frozen=True, kw_only=True)
class StartGeneration:
    """The next generation begins."""

    members: tuple[int, ...]
    """Numbers of the generation's nodes, in the order of their ranks."""
    ledger: Ledger
    why: Change = Change.FAILED
    nodes: tuple[int, ...] = ()
    """Numbers of the nodes that caused the new generation."""
    planned: bool = False
    """Whether all members of the previous generation still run, so that they can all stop at the same,
    planned time."""
    backoff_s: float = 0.0
    """Seconds that the next generation of an elastic job must wait."""


@dataclass(frozen=True, kw_only=True)
class Park:
    """Too few nodes are left for another generation. All remaining nodes stop, save the checkpoint, and wait
    for other nodes."""

    members: tuple[int, ...]
    """Numbers of the remaining nodes, in the order of their ranks."""
    ledger: Ledger
    why: Change
    nodes: tuple[int, ...]
    """Numbers of the nodes that caused the stop."""


@dataclass(frozen=True, kw_only=True)
class EndNode:
    """A node that joined after the first generation's start cannot prepare for the run, so the node's agent
    ends. The job continues without the node, and later observations leave the node out."""

    node: int


class Why(Enum):
    """Reason why no further generation begins."""

    MAX_RUNTIME = "max_runtime"
    SUCCEEDED = "succeeded"
    HOPELESS = "hopeless"
    """The failure would recur after a restart, or all members ended for a reason other than a failure."""
    USED_UP = "used_up"
    """No restart is left."""
    CANCELLED = "cancelled"
    TOO_FEW = "too_few"
    """Too few nodes were left for too long."""
    NOT_JOINED = "not_joined"
    """Too few nodes joined."""


@dataclass(frozen=True, kw_only=True)
class EndJob:
    """No further generation begins."""

    why: Why
    nodes: tuple[int, ...] = ()
    """Numbers of the nodes that caused the job's end. If the job succeeded, numbers of the nodes that were
    lost shortly before the end."""
    sentence: str = ""
    """Sentence for users about the job's end. Empty if the outcomes of the nodes explain the job's end."""


Decision: TypeAlias = GoOn | EndRest | Pause | StartGeneration | Park | EndNode | EndJob


def decide(seen: GenerationObservation, policy: Policy) -> Decision:
    """Return the next decision: the first decision that a function of `ROWS` returns."""
    for row in ROWS:
        if (decision := row(seen, policy)) is not None:
            return decision
    return GoOn()


def desired_nodes(requests: Iterable[int], policy: Policy, *, first: int) -> int:
    """Return the desired number of nodes. requests: the numbers of nodes that users or hints requested, in
    order. first: the number of nodes at the job's start."""
    return [first, *(each for each in requests if policy.allows(each))][-1]


def _succeeded(seen: GenerationObservation, policy: Policy) -> Decision | None:
    good = [each.end for each in seen.members if each.end is not None and each.has_succeeded]
    if not good or not seen.is_at(Stage.RUNNING):
        return None
    if policy.absorbs and seen.members[0].has_succeeded:
        return EndJob(why=Why.SUCCEEDED)
    since_s = max(each.ended_s for each in good) - LATE_LOSS_S
    others = [each for each in seen.members if not each.has_succeeded]
    if all(
        policy.is_elastic and each.is_missing(policy) and each.lived_s(now_s=seen.now_s) >= since_s
        for each in others
    ):
        return EndJob(why=Why.SUCCEEDED, nodes=tuple(each.node for each in others))
    return None


def _cancelled(seen: GenerationObservation, policy: Policy) -> Decision | None:
    return EndJob(why=Why.CANCELLED) if seen.cancelled else None


def _hopeless(seen: GenerationObservation, policy: Policy) -> Decision | None:
    if seen.is_at(Stage.GATHERING):
        unfit = tuple(each.node for each in seen.waiting if each.end is not None)
        return EndJob(why=Why.HOPELESS, nodes=unfit) if unfit else None
    failures = failed_members(seen, policy)
    bad = [each for each in failures if not may_get_better(each, seen, policy)] or _unrestored(seen, policy)
    # If all members ended, but no member failed, saved its state or is gone, the members ended for another
    # reason, and the job ends.
    is_explained = failures or gone_members(seen, policy) or saved_members(seen, policy)
    is_over = bool(seen.members) and seen.all_ended and not is_explained
    if bad or is_over:
        return EndJob(why=Why.HOPELESS, nodes=tuple(each.node for each in bad))
    return None


def _unrestored(seen: GenerationObservation, policy: Policy) -> list[Member]:
    """Return the members that could not restore the checkpoint; an empty list if the job can continue without
    these members. If the list is not empty, the job ends, because other nodes would also fail to restore the
    checkpoint."""
    gone = gone_members(seen, policy)
    found = [each for each in gone if each.could_not_restore]
    return [] if policy.has_enough(len(seen.members) - len(gone)) else found


def _used_up(seen: GenerationObservation, policy: Policy) -> Decision | None:
    own = own_failures(seen, policy)
    if own and seen.ledger.restarts >= policy.restart.max_restarts:
        return EndJob(why=Why.USED_UP, nodes=own)
    return None


def _out_of_time(seen: GenerationObservation, policy: Policy) -> Decision | None:
    limit = seen.max_runtime_s
    if limit is None or seen.running_s < limit or seen.is_at(Stage.GATHERING):
        return None
    # While a generation of a fixed job runs, the agents themselves stop its processes at `max_runtime`.
    # `_out_of_time` ends a fixed job only in the pause after a generation.
    return EndJob(why=Why.MAX_RUNTIME) if policy.is_elastic or seen.all_ended else None


def _unfit(seen: GenerationObservation, policy: Policy) -> Decision | None:
    return next((EndNode(node=each.node) for each in seen.waiting if each.end is not None), None)


def _gathered(seen: GenerationObservation, policy: Policy) -> Decision | None:
    if not seen.is_at(Stage.GATHERING):
        return None
    joined = _fill((), seen, (each.node for each in seen.waiting))
    if len(joined) < seen.desired and seen.coming:
        return GoOn()
    if not policy.has_enough(len(joined)):
        return EndJob(why=Why.NOT_JOINED)
    ledger = replace(seen.ledger, began=seen.time)
    return StartGeneration(members=joined, ledger=ledger, why=Change.START, planned=True)


def _lost(seen: GenerationObservation, policy: Policy) -> Decision | None:
    gone = gone_members(seen, policy)
    if not gone:
        return None
    if may_lose_more(gone, seen, policy):
        return GoOn()
    why = next(change for change in _LOSSES_IN_ORDER if any(loss_of(each, policy) is change for each in gone))
    return _change(
        seen,
        policy,
        without=gone,
        joining=takeable(seen, policy, ends_anyway=True),
        why=why,
        nodes=tuple(each.node for each in gone),
        planned=why is Change.LEFT,
        is_restart=bool(own_failures(seen, policy)),
    )


def _saved(seen: GenerationObservation, policy: Policy) -> Decision | None:
    saved = saved_members(seen, policy)
    if not saved or failed_members(seen, policy):
        return None
    joining = takeable(seen, policy, ends_anyway=True)
    return _change(seen, policy, joining=joining, why=Change.SAVED, nodes=saved)


def _restarts(seen: GenerationObservation, policy: Policy) -> Decision | None:
    if not failed_members(seen, policy):
        return None
    if policy.is_elastic:
        own = own_failures(seen, policy)
        return _change(seen, policy, why=Change.FAILED, nodes=own, is_restart=True) if own else GoOn()
    if not seen.all_ended:
        return EndRest()
    failed_s = max(end.ended_s for each in failed_members(seen, policy) if (end := each.end) is not None)
    until_s = failed_s + backoff_s(policy.restart, restarts=seen.ledger.restarts)
    if seen.now_s < until_s:
        return Pause(until_s=until_s)
    return StartGeneration(
        members=tuple(each.node for each in seen.members),
        ledger=replace(seen.ledger, restarts=seen.ledger.restarts + 1),
    )


def _refilled(seen: GenerationObservation, policy: Policy) -> Decision | None:
    if not seen.is_at(Stage.PARKED):
        return None
    joining = takeable(seen, policy, at_once=True)
    if not policy.has_enough(len(left_members(seen, policy)) + len(joining)):
        return None
    return _change(seen, policy, joining=joining, why=Change.JOINED, nodes=joining)


def _waited(seen: GenerationObservation, policy: Policy) -> Decision | None:
    since = seen.ledger.waiting_since
    if not seen.is_at(Stage.PARKED) or since is None or seen.time - since < 1000 * policy.wait_s:
        return None
    left = len(left_members(seen, policy)) + len(takeable(seen, policy, at_once=True))
    waited = format_duration(timedelta(seconds=policy.wait_s))
    sentence = (
        f"{left} of at least {policy.min_nodes} nodes {'was' if left == 1 else 'were'} left for {waited}."
    )
    return EndJob(why=Why.TOO_FEW, sentence=sentence)


def _joined(seen: GenerationObservation, policy: Policy) -> Decision | None:
    joining = takeable(seen, policy)[: max(0, seen.desired - len(seen.members))]
    if not joining or not runs_well(seen, policy) or policy.absorbs:
        return None
    if len(seen.members) + len(joining) < seen.desired and _joined_now(seen, joining):
        return GoOn()
    return _change(seen, policy, joining=joining, why=Change.JOINED, nodes=joining, planned=True)


def _scaled(seen: GenerationObservation, policy: Policy) -> Decision | None:
    # A benchmark that absorbs changes may already use waiting nodes that are not members of the generation.
    joining = takeable(seen, policy, at_once=True) if policy.absorbs and seen.is_scaled else ()
    nodes = [*(each.node for each in left_members(seen, policy)), *joining]
    kept = set(sorted(nodes)[: seen.desired])
    dropped = tuple(each for each in nodes if each not in kept)
    if not policy.is_elastic or not dropped or not runs_well(seen, policy):
        return None
    joining = tuple(kept.intersection(joining))
    return _change(seen, policy, joining=joining, why=Change.SCALED, nodes=dropped, planned=True)


ROWS: Sequence[Callable[[GenerationObservation, Policy], Decision | None]] = (
    _succeeded,
    _cancelled,
    _hopeless,
    _used_up,
    _out_of_time,
    _unfit,
    _gathered,
    _lost,
    _saved,
    _restarts,
    _refilled,
    _waited,
    _joined,
    _scaled,
)
"""The rows of the table above, in order. Each function returns the decision of its row, or None if the
observation of its row is not true."""
_LOSSES_IN_ORDER = (Change.LOST, Change.BROKE, Change.NOT_STOPPED, Change.NOT_RESTORED, Change.LEFT)


def _change(
    seen: GenerationObservation,
    policy: Policy,
    *,
    why: Change,
    nodes: tuple[int, ...],
    without: Collection[Member] = (),
    joining: Sequence[int] = (),
    planned: bool = False,
    is_restart: bool = False,
) -> StartGeneration | Park:
    """Return the next generation of an elastic job. If the generation would have too few members, all waiting
    nodes join at once."""
    left = [each.node for each in left_members(seen, policy) if each not in without]
    members = _fill(left, seen, joining)
    if not policy.has_enough(len(members)):
        members = _fill(left, seen, takeable(seen, policy, at_once=True))
    begins = policy.has_enough(len(members))
    # The wait for nodes continues if no generation has begun since the job was parked.
    waiting_since = None if seen.is_at(Stage.RUNNING) else seen.ledger.waiting_since
    if not begins and waiting_since is None:
        waiting_since = seen.time
    losses = {str(each.node): seen.ledger.losses_of(each.node) + 1 for each in without}
    was_quick = seen.generation_s < QUICK_SAVE_S
    ledger = replace(
        seen.ledger,
        restarts=seen.ledger.restarts + is_restart,
        quick_saves=was_quick * (seen.ledger.quick_saves + (why is Change.SAVED)),
        waiting_since=waiting_since,
        losses={**seen.ledger.losses, **losses},
    )
    if not begins:
        return Park(members=tuple(left), ledger=ledger, why=why, nodes=nodes)
    pause_s = backoff_s(policy.restart, restarts=seen.ledger.restarts) if is_restart else 0.0
    return StartGeneration(
        members=members, ledger=ledger, why=why, nodes=nodes, planned=planned, backoff_s=pause_s
    )


def _fill(left: Iterable[int], seen: GenerationObservation, joining: Iterable[int]) -> tuple[int, ...]:
    """Return the members of the next generation: first the remaining members, then the nodes that join. If
    more members remain than are desired, the remaining members with the highest numbers are left out."""
    left = list(left)
    kept = set(sorted(left)[: seen.desired])
    free = max(0, seen.desired - len(kept))
    return (*(each for each in left if each in kept), *sorted(set(joining) - set(left))[:free])


def _joined_now(seen: GenerationObservation, nodes: Collection[int]) -> bool:
    return any(each.node in nodes and each.joined_s < JOIN_SETTLE_S for each in seen.waiting)
