"""Interprets an observation by the job's policy: which nodes failed, saved their state, are lost, can continue or may
join."""

from __future__ import annotations

from collections.abc import Sequence

from bai_agent.generations.observation import GenerationObservation, Member, MemberEnd, Stage
from bai_agent.generations.policy import Policy, doubled
from bai_agent.job.generation_records import Change
from bai_agent.job.outcome import MAY_GET_BETTER, WITH_EXIT_STATUS, Outcome

MOST_GENERATIONS = 64
"""Number of generations after which a lost node cannot join again."""
SETTLE_S = 5.0
"""Losses of several nodes within this number of seconds count as one loss."""
QUICK_SAVE_S = 60.0
"""A generation that ends because a member saved its state is a quick save if it ends within this number of
seconds after its start."""
MOST_QUICK_SAVES = 3
"""Number of consecutive quick saves that are allowed. The next quick save in succession is treated as a
failure."""


def takeable(
    seen: GenerationObservation, policy: Policy, *, at_once: bool = False, ends_anyway: bool = False
) -> tuple[int, ...]:
    """Return the nodes that may join now. at_once: whether to ignore all pauses. ends_anyway: whether to
    ignore the pauses of nodes that were never lost."""
    members = {each.node for each in seen.members}
    found = []
    for node in sorted(each.node for each in seen.waiting if each.end is None and each.node not in members):
        losses = seen.ledger.losses_of(node)
        waits_no_more = seen.generation_s >= doubled(policy.pause_s, max(0, losses - 1))
        may_return = losses == 0 or seen.generation + 1 < MOST_GENERATIONS
        if may_return and (at_once or waits_no_more or (ends_anyway and losses == 0)):
            found.append(node)
    return tuple(found)


def left_members(seen: GenerationObservation, policy: Policy) -> list[Member]:
    """Return the members that can continue. A member that has succeeded is not lost, but cannot continue if
    its node has left the job after the success."""
    return [
        each
        for each in seen.members
        if each.gone_s(policy, now_s=seen.now_s) is None
        and not each.is_silent(policy)
        and each.leaving_s is None
    ]


def gone_members(seen: GenerationObservation, policy: Policy) -> list[Member]:
    """Return the members that cannot take part in the next generation."""
    if not policy.is_elastic or not seen.is_at(Stage.RUNNING, Stage.CHANGING):
        return []
    gone = [each for each in seen.members if each.gone_s(policy, now_s=seen.now_s) is not None]
    return [] if _are_absorbed(gone, seen, policy) else gone


def _are_absorbed(gone: Sequence[Member], seen: GenerationObservation, policy: Policy) -> bool:
    """Return whether the benchmark itself continues without the members `gone`, without a new generation."""
    if not (gone and policy.absorbs and seen.is_at(Stage.RUNNING)):
        return False
    first = seen.members[0]
    # The benchmark may also use nodes that joined later, which are not members of the generation.
    left = len(seen.members) - len(gone) + len(takeable(seen, policy, at_once=True))
    return first.end is None and first not in gone and policy.has_enough(left)


def loss_of(gone: Member, policy: Policy) -> Change:
    if gone.could_not_restore:
        return Change.NOT_RESTORED
    if gone.was_lost:
        return Change.BROKE
    if gone.is_missing(policy):
        return Change.LOST
    if gone.late_s is not None:
        return Change.NOT_RESTORED
    return Change.LEFT if gone.stopping_s is None or gone.stopping_s <= policy.stop_s else Change.NOT_STOPPED


def may_lose_more(gone: Sequence[Member], seen: GenerationObservation, policy: Policy) -> bool:
    """Return whether the decision must wait, because another member may be lost within the next seconds."""
    first_s = max(each.gone_s(policy, now_s=seen.now_s) or 0.0 for each in gone)
    if all(loss_of(each, policy) is Change.LEFT for each in gone):
        return first_s < policy.notice_s
    others = [each for each in seen.members if each not in gone]
    return first_s < SETTLE_S and any(each.may_be_gone_in(SETTLE_S, policy) for each in others)


def failed_members(seen: GenerationObservation, policy: Policy) -> list[Member]:
    """Return the members whose benchmark failed, except members that were ended because of another member."""
    if not seen.is_at(Stage.RUNNING):
        return []
    return [
        each
        for each in seen.members
        if each.has_failed
        and not (policy.is_elastic and each.was_lost)
        and not _has_saved(each, seen, policy)
    ]


def saved_members(seen: GenerationObservation, policy: Policy) -> tuple[int, ...]:
    """Return the members that saved their state without a request and must be restarted."""
    if not seen.is_at(Stage.RUNNING):
        return ()
    return tuple(each.node for each in seen.members if _has_saved(each, seen, policy))


def _has_saved(member: Member, seen: GenerationObservation, policy: Policy) -> bool:
    end = member.end
    if end is None or policy.saved_code is None or end.outcome is not Outcome.FAILED:
        return False
    is_quick = seen.generation_s < QUICK_SAVE_S
    return end.code == policy.saved_code and not (is_quick and seen.ledger.quick_saves >= MOST_QUICK_SAVES)


def own_failures(seen: GenerationObservation, policy: Policy) -> tuple[int, ...]:
    """Return the nodes whose failure cannot be a consequence of another node's loss."""
    failures = failed_members(seen, policy)
    return tuple(each.node for each in failures if _is_own(each, seen, policy))


def _is_own(failed: Member, seen: GenerationObservation, policy: Policy) -> bool:
    """Return whether every member that could have caused a failure has since written a heartbeat or
    ended."""
    if not policy.is_elastic or failed.end is None:
        return True
    # `look_s` is added, because a heartbeat is written earlier than it is observed.
    since_s = failed.end.ended_s + policy.look_s
    return not any(
        each.lived_s(now_s=seen.now_s) <= since_s and (each.end is None or each.is_missing(policy))
        for each in seen.members
        if each is not failed
    )


def may_get_better(failed: Member, seen: GenerationObservation, policy: Policy) -> bool:
    end = failed.end
    if end is None:
        return True
    if end.outcome not in MAY_GET_BETTER:
        return False
    return _is_retried(end, policy) or not _is_own(failed, seen, policy)


def _is_retried(end: MemberEnd, policy: Policy) -> bool:
    codes = policy.restart.exit_codes
    return not codes or end.outcome not in WITH_EXIT_STATUS or end.exit_status in codes


def runs_well(seen: GenerationObservation, policy: Policy) -> bool:
    """Return whether the newest generation has begun, and the benchmark has not ended on any node that the
    generation needs."""
    return seen.is_at(Stage.RUNNING) and all(
        each.end is None or (policy.absorbs and each.was_lost) for each in seen.members
    )
