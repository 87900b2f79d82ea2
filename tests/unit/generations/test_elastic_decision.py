"""What follows a generation of an elastic job: each row, and the order of rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from bai_agent.generations.decision import (
    Decision,
    EndJob,
    EndNode,
    GoOn,
    Park,
    StartGeneration,
    Why,
    decide,
    desired_nodes,
)
from bai_agent.generations.observation import (
    GenerationObservation,
    Member,
    MemberEnd,
    Stage,
    Waiting,
)
from bai_agent.generations.policy import Policy
from bai_agent.job.descriptor.restart_tables import Restart
from bai_agent.job.generation_records import Change, Ledger
from bai_agent.job.outcome import LOSSES, NOT_RESTORED, Outcome
from bai_agent.light_dataclass import replace

NOW = 1000.0
TIME = 1_700_000_000_000
POLICY = Policy(
    restart=Restart(max_restarts=2, backoff=timedelta(seconds=10)),
    min_nodes=2,
    nodes=4,
    pause_s=60,
    wait_s=600,
)
NO_RESTART = replace(POLICY, restart=Restart())
WELL = MemberEnd(outcome=Outcome.SUCCEEDED, code=0, ended_s=990.0)
FAILED = MemberEnd(outcome=Outcome.FAILED, code=1, ended_s=980.0)


def members(*nodes: int | Member) -> list[Member]:
    return [each if isinstance(each, Member) else Member(node=each) for each in nodes]


def lost(node: int, silent_s: float = 26.0) -> Member:
    return Member(node=node, silent_s=silent_s)


def waiting(*nodes: int) -> list[Waiting]:
    return [Waiting(node=each) for each in nodes]


def seen(
    *of: int | Member,
    stage: Stage = Stage.RUNNING,
    joined: Sequence[Waiting] = (),
    generation: int = 3,
    generation_s: float = 500.0,
    desired: int = 4,
    ledger: Ledger | None = None,
) -> GenerationObservation:
    return GenerationObservation(
        now_s=NOW,
        running_s=700.0,
        members=members(*of),
        ledger=ledger or Ledger(),
        stage=stage,
        generation=generation,
        generation_s=generation_s,
        waiting=joined,
        desired=desired,
        time=TIME,
    )


SAVED = MemberEnd(outcome=Outcome.FAILED, code=143, ended_s=980.0)
SAVES = replace(NO_RESTART, saved_code=143)


def started(decision: Decision) -> StartGeneration:
    assert isinstance(decision, StartGeneration), decision
    return decision


def end(decision: Decision) -> Why | None:
    return decision.why if isinstance(decision, EndJob) else None


def test_no_decision_is_made_while_all_members_run() -> None:
    assert decide(seen(0, 1, 2), POLICY) == GoOn()


@pytest.mark.parametrize("stage", Stage)
def test_a_cancelled_job_ends_in_every_state(stage: Stage) -> None:
    what = replace(seen(0, 1, stage=stage), cancelled=True)

    assert end(decide(what, POLICY)) is Why.CANCELLED


@pytest.mark.parametrize("stage", [Stage.RUNNING, Stage.CHANGING, Stage.PARKED])
def test_a_job_ends_at_max_runtime_even_while_it_waits(stage: Stage) -> None:
    what = replace(seen(0, 1, lost(2), stage=stage), max_runtime_s=700.0)

    assert end(decide(what, POLICY)) is Why.MAX_RUNTIME
    assert end(decide(replace(what, max_runtime_s=700.1), POLICY)) is None


def test_a_success_counts_even_if_the_job_was_cancelled_since() -> None:
    what = replace(seen(Member(node=0, end=WELL), Member(node=1, end=WELL)), cancelled=True)

    assert end(decide(what, POLICY)) is Why.SUCCEEDED


def test_a_node_that_ended_with_success_cannot_be_lost() -> None:
    quiet = Member(node=1, end=WELL, silent_s=500.0)

    assert end(decide(seen(Member(node=0, end=WELL), quiet), POLICY)) is Why.SUCCEEDED
    assert decide(seen(0, quiet, 2), POLICY) == GoOn()


def test_a_silent_node_that_succeeded_is_not_a_member_of_the_next_generation() -> None:
    quiet = Member(node=1, end=WELL, silent_s=500.0)

    assert started(decide(seen(0, quiet, lost(2), 3), POLICY)).members == (0, 3)


@pytest.mark.parametrize(("silent_s", "succeeds"), [(34.0, True), (36.0, False)])
def test_a_node_that_fell_silent_shortly_before_the_last_success_is_not_lost(
    silent_s: float, succeeds: bool
) -> None:
    """The success was 10 s ago, so that 25 s before it are 35 s ago."""
    decision = decide(seen(Member(node=0, end=WELL), Member(node=1, end=WELL), lost(2, silent_s)), POLICY)

    assert (decision == EndJob(why=Why.SUCCEEDED, nodes=(2,))) is succeeds


def test_without_a_success_a_lost_node_counts_as_lost() -> None:
    assert isinstance(decide(seen(0, lost(1)), POLICY), Park)


@pytest.mark.parametrize(
    "outcome", [Outcome.NOT_FOUND, Outcome.NOT_EXECUTABLE, Outcome.DISK_FULL, Outcome.BAD_DESCRIPTOR]
)
def test_a_permanent_failure_ends_the_job_even_if_a_node_is_lost(outcome: Outcome) -> None:
    bad = Member(node=0, end=MemberEnd(outcome=outcome, ended_s=999.0))

    assert decide(seen(bad, 1, lost(2)), POLICY) == EndJob(why=Why.HOPELESS, nodes=(0,))


def test_a_joining_node_that_fails_to_prepare_ends_without_ending_the_job() -> None:
    unfit = Waiting(node=3, end=MemberEnd(outcome=Outcome.PULL_FAILED, ended_s=1.0))

    assert decide(seen(0, 1, joined=[*waiting(2), unfit]), POLICY) == EndNode(node=3)
    first = seen(stage=Stage.GATHERING, joined=[*waiting(0, 1), unfit])
    assert decide(first, POLICY) == EndJob(why=Why.HOPELESS, nodes=(3,))


def test_the_first_generation_begins_once_all_have_joined() -> None:
    what = replace(seen(stage=Stage.GATHERING, joined=waiting(2, 0), desired=3), coming={1})

    assert decide(what, POLICY) == GoOn()
    decision = started(decide(replace(what, coming=(), waiting=waiting(2, 1, 0)), POLICY))
    assert decision.members == (0, 1, 2)
    assert decision.why is Change.START
    assert decision.ledger.began == TIME


def test_the_first_generation_begins_without_nodes_that_never_joined() -> None:
    what = seen(stage=Stage.GATHERING, joined=waiting(3, 0), desired=4)

    assert started(decide(what, POLICY)).members == (0, 3)
    assert end(decide(replace(what, waiting=waiting(0)), POLICY)) is Why.NOT_JOINED


def test_the_first_generation_has_no_more_members_than_desired() -> None:
    what = replace(seen(stage=Stage.GATHERING, joined=waiting(2, 0, 1), desired=2), coming={3})

    assert started(decide(what, POLICY)).members == (0, 1)


def test_remaining_members_keep_their_order_and_new_ones_follow_by_number() -> None:
    decision = started(decide(seen(2, lost(0), 1, joined=waiting(5, 4)), POLICY))

    assert decision.members == (2, 1, 4, 5)
    assert decision.why is Change.LOST
    assert decision.nodes == (0,)
    assert not decision.planned
    assert decision.ledger == Ledger(losses={"0": 1})


def test_a_lost_node_uses_no_restart() -> None:
    assert started(decide(seen(0, 1, lost(2)), NO_RESTART)).ledger.restarts == 0


def test_a_silent_node_is_lost_after_its_time_and_not_before() -> None:
    assert decide(seen(0, 1, lost(2, 20.0)), POLICY) == GoOn()
    assert started(decide(seen(0, 1, lost(2, 20.1)), POLICY)).members == (0, 1)


def test_nodes_lost_within_five_seconds_cause_one_new_generation() -> None:
    assert decide(seen(0, 1, lost(2, 21.0), lost(3, 18.0)), POLICY) == GoOn()
    assert started(decide(seen(0, 1, lost(2, 23.5), lost(3, 20.5)), POLICY)).members == (0, 1)


def test_a_lost_node_waits_at_most_five_seconds_for_other_losses() -> None:
    assert started(decide(seen(0, 1, lost(2, 25.0), lost(3, 19.0)), POLICY)).members == (0, 1, 3)


@pytest.mark.parametrize("outcome", sorted(LOSSES))
def test_a_node_whose_benchmark_or_restore_broke_is_treated_as_lost(outcome: Outcome) -> None:
    broken = Member(node=1, end=MemberEnd(outcome=outcome, ended_s=999.0))

    decision = started(decide(seen(0, broken, 2), NO_RESTART))

    assert decision.members == (0, 2)
    assert decision.why is (Change.NOT_RESTORED if outcome is NOT_RESTORED else Change.BROKE)
    assert decision.ledger.losses == {"1": 1}


def test_a_checkpoint_that_too_many_nodes_cannot_restore_ends_the_job() -> None:
    first = Member(node=1, end=MemberEnd(outcome=NOT_RESTORED, ended_s=999.0))
    second = replace(first, node=2)

    assert decide(seen(0, first), POLICY) == EndJob(why=Why.HOPELESS, nodes=(1,))
    assert decide(seen(0, first, second), POLICY) == EndJob(why=Why.HOPELESS, nodes=(1, 2))
    assert started(decide(seen(0, first, second, 3), POLICY)).members == (0, 3)
    # One that is lost is waited for as before: it may come back.
    assert isinstance(decide(seen(0, lost(1)), POLICY), Park)


def test_a_leaving_node_starts_a_planned_generation_after_five_seconds() -> None:
    assert decide(seen(0, 1, Member(node=2, leaving_s=4.9)), POLICY) == GoOn()
    decision = started(decide(seen(Member(node=2, leaving_s=5.0), 0, 1), POLICY))
    assert decision.members == (0, 1)
    assert decision.why is Change.LEFT
    assert decision.planned


def test_a_member_that_does_not_stop_is_left_out() -> None:
    stuck = Member(node=1, stopping_s=60.1)

    assert decide(seen(0, 1, Member(node=2, stopping_s=50.0), stage=Stage.CHANGING), POLICY) == GoOn()
    decision = started(decide(seen(0, stuck, 2, stage=Stage.CHANGING), POLICY))
    assert decision.members == (0, 2)
    assert decision.why is Change.NOT_STOPPED


def test_a_job_with_too_few_nodes_parks_with_the_rest_in_order() -> None:
    decision = decide(seen(2, lost(0), lost(1), desired=4), replace(POLICY, min_nodes=3))

    assert decision == Park(
        members=(2,),
        ledger=Ledger(waiting_since=TIME, losses={"0": 1, "1": 1}),
        why=Change.LOST,
        nodes=(0, 1),
    )


def test_waiting_nodes_join_at_once_if_the_job_would_park_otherwise() -> None:
    flapping = Ledger(losses={"3": 5})

    decision = started(decide(seen(0, lost(1), joined=waiting(3), generation_s=1.0, ledger=flapping), POLICY))

    assert decision.members == (0, 3)


def test_a_failure_is_retried_with_the_same_members_after_the_backoff() -> None:
    decision = started(decide(seen(1, Member(node=0, end=FAILED), joined=waiting(3)), POLICY))

    assert decision == StartGeneration(
        members=(1, 0), ledger=Ledger(restarts=1), why=Change.FAILED, nodes=(0,), backoff_s=10.0
    )
    again = seen(1, Member(node=0, end=FAILED), ledger=Ledger(restarts=1))
    assert started(decide(again, POLICY)).backoff_s == 20.0


def test_after_the_last_restart_the_failure_ends_the_job() -> None:
    what = seen(1, Member(node=0, end=FAILED), ledger=Ledger(restarts=2))

    assert decide(what, POLICY) == EndJob(why=Why.USED_UP, nodes=(0,))


def test_a_failure_is_judged_once_the_other_nodes_gave_later_signs_of_life() -> None:
    """It was 20 s ago, and a look sees a sign up to 6 s late."""
    what = seen(Member(node=0, end=FAILED), lost(1, 14.1), 2)

    assert decide(what, POLICY) == GoOn()
    assert started(decide(seen(Member(node=0, end=FAILED), lost(1, 13.9), 2), POLICY)).why is Change.FAILED


def test_a_failed_job_of_one_node_restarts_without_waiting_for_signs_of_life() -> None:
    what = seen(Member(node=0, end=replace(FAILED, ended_s=NOW)))

    assert started(decide(what, replace(POLICY, min_nodes=1))).why is Change.FAILED


def test_a_failure_after_the_last_sign_of_a_lost_node_is_attributed_to_the_loss() -> None:
    decision = started(decide(seen(Member(node=0, end=FAILED), lost(1, 26.0), 2), NO_RESTART))

    assert decision.members == (0, 2)
    assert decision.why is Change.LOST
    assert decision.ledger.restarts == 0


def test_an_exit_code_that_is_not_retried_does_not_end_the_job_after_a_loss() -> None:
    policy = replace(POLICY, restart=replace(POLICY.restart, exit_codes=(7,)))
    failed = Member(node=0, end=FAILED)

    assert end(decide(seen(failed, 1, 2), policy)) is Why.HOPELESS
    assert decide(seen(failed, lost(1, 19.0), 2), policy) == GoOn()
    assert started(decide(seen(failed, lost(1, 26.0), 2), policy)).why is Change.LOST


def test_a_failure_before_a_loss_uses_a_restart_and_the_lost_node_is_left_out() -> None:
    early = Member(node=0, end=replace(FAILED, ended_s=900.0))

    decision = started(decide(seen(early, lost(1, 26.0), 2), POLICY))

    assert decision.members == (0, 2)
    assert decision.ledger == Ledger(restarts=1, losses={"1": 1})
    assert decision.backoff_s == 10.0
    assert end(decide(seen(early, lost(1, 26.0), 2), NO_RESTART)) is Why.USED_UP


def test_failures_after_the_loss_of_a_benchmark_are_attributed_to_it() -> None:
    broken = Member(node=1, end=MemberEnd(outcome=Outcome.LOST, ended_s=979.0))

    decision = started(decide(seen(Member(node=0, end=FAILED), broken, 2), NO_RESTART))

    assert decision.members == (0, 2)
    assert decision.why is Change.BROKE


def test_a_joining_node_becomes_a_member_after_the_pause() -> None:
    assert decide(seen(0, 1, joined=waiting(2), generation_s=59.9), POLICY) == GoOn()
    decision = started(decide(seen(0, 1, joined=waiting(3, 2), generation_s=60.0), POLICY))
    assert decision.members == (0, 1, 2, 3)
    assert decision.why is Change.JOINED
    assert decision.nodes == (2, 3)
    assert decision.planned


@pytest.mark.parametrize(("losses", "pause_s"), [(1, 60.0), (2, 120.0), (4, 480.0)])
def test_the_pause_doubles_with_each_further_return_of_a_node(losses: int, pause_s: float) -> None:
    what = seen(0, 1, joined=waiting(2), ledger=Ledger(losses={"2": losses}))

    assert decide(replace(what, generation_s=pause_s - 0.1), POLICY) == GoOn()
    assert started(decide(replace(what, generation_s=pause_s), POLICY)).members == (0, 1, 2)


def test_no_more_nodes_join_than_are_desired() -> None:
    assert started(decide(seen(0, 1, joined=waiting(2, 3), desired=3), POLICY)).members == (0, 1, 2)
    assert decide(seen(0, 1, joined=waiting(2), desired=2), POLICY) == GoOn()


def test_nodes_that_start_together_join_in_one_generation() -> None:
    first, second = Waiting(node=2, joined_s=0.2), Waiting(node=3, joined_s=0.0)

    assert decide(seen(0, 1, joined=[first]), POLICY) == GoOn()
    assert started(decide(seen(0, 1, joined=[first, second]), POLICY)).members == (0, 1, 2, 3)
    # If only one comes, it is not kept waiting
    assert started(decide(seen(0, 1, joined=[replace(first, joined_s=3.0)]), POLICY)).members == (0, 1, 2)
    assert started(decide(seen(0, 1, joined=[first], desired=3), POLICY)).members == (0, 1, 2)


def test_no_node_joins_while_the_benchmark_ends() -> None:
    assert decide(seen(0, Member(node=1, end=WELL), joined=waiting(2)), POLICY) == GoOn()


def test_after_64_generations_no_lost_node_is_admitted() -> None:
    what = seen(0, 1, joined=waiting(2, 3), ledger=Ledger(losses={"2": 1}), generation=63)

    assert started(decide(what, POLICY)).members == (0, 1, 3)
    assert started(decide(replace(what, generation=62), POLICY)).members == (0, 1, 2, 3)


def test_a_parked_job_continues_at_once_with_enough_nodes() -> None:
    ledger = Ledger(waiting_since=TIME - 1000, losses={"0": 7})
    what = seen(2, lost(1), stage=Stage.PARKED, joined=waiting(0), generation_s=0.0, ledger=ledger)

    decision = started(decide(what, POLICY))

    assert decision.members == (2, 0)
    assert decision.ledger == ledger
    assert decide(replace(what, waiting=()), POLICY) == GoOn()


def test_a_parked_job_ends_after_its_wait() -> None:
    what = seen(2, stage=Stage.PARKED, ledger=Ledger(waiting_since=TIME - 599_999))

    assert decide(what, POLICY) == GoOn()
    over = replace(what, ledger=Ledger(waiting_since=TIME - 600_000))
    sentence = "1 of at least 2 nodes was left for 10m."
    assert decide(over, POLICY) == EndJob(why=Why.TOO_FEW, sentence=sentence)


def test_the_wait_lasts_until_a_generation_has_begun() -> None:
    ledger = Ledger(waiting_since=TIME - 1000)

    again = decide(seen(0, lost(1), stage=Stage.CHANGING, ledger=ledger), POLICY)
    anew = decide(seen(0, lost(1), ledger=ledger), POLICY)

    assert isinstance(again, Park)
    assert isinstance(anew, Park)
    assert again.ledger.waiting_since == TIME - 1000
    assert anew.ledger.waiting_since == TIME


def test_a_job_that_is_scaled_down_drops_the_highest_numbers() -> None:
    decision = started(decide(seen(3, 0, 1, 2, desired=2), POLICY))

    assert decision.members == (0, 1)
    assert decision.why is Change.SCALED
    assert decision.nodes == (3, 2)
    assert decision.planned


def test_requests_beyond_the_range_are_ignored() -> None:
    assert desired_nodes([], POLICY, first=4) == 4
    assert desired_nodes([3, 1, 5, 0], POLICY, first=4) == 3
    assert desired_nodes([3, 2], POLICY, first=4) == 2


def test_a_reason_is_a_sentence_with_its_nodes() -> None:
    assert Change.LOST.sentence([1]) == "node 1 sent no heartbeat"
    assert Change.JOINED.sentence([1, 2, 3]) == "nodes 1, 2 and 3 joined"
    assert Change.JOINED.sentence([]) == "enough nodes are there"


def test_time_in_which_a_leader_saw_nothing_does_not_count_as_a_sign_of_life() -> None:
    failed = Member(node=0, end=MemberEnd(outcome=Outcome.FAILED, code=1, ended_s=NOW - 10.0))
    unseen = Member(node=1, silent_s=0.5, unheard_s=12.0)

    assert decide(seen(failed, unseen), NO_RESTART) == GoOn()
    assert end(decide(seen(failed, Member(node=1, silent_s=0.5, unheard_s=0.5)), NO_RESTART)) is Why.USED_UP


def test_a_member_that_exits_after_saving_restarts_all_without_using_a_restart() -> None:
    for others in ([Member(node=1), 2], [Member(node=1, end=SAVED), Member(node=2, end=SAVED)]):
        decision = started(decide(seen(Member(node=0, end=SAVED), *others), SAVES))

        assert (decision.members, decision.why, decision.planned) == ((0, 1, 2), Change.SAVED, False)
        assert (decision.ledger.restarts, decision.backoff_s) == (0, 0)


def test_a_waiting_node_joins_when_the_members_have_saved() -> None:
    decision = started(decide(seen(Member(node=0, end=SAVED), 1, joined=waiting(3)), SAVES))

    assert decision.members == (0, 1, 3)


def test_the_exit_code_of_saving_is_a_failure_in_other_strategies_and_beside_a_failure() -> None:
    alone, beside = Member(node=0, end=SAVED), Member(node=1, end=FAILED)

    assert isinstance(decide(seen(alone, 2), NO_RESTART), EndJob)
    assert isinstance(decide(seen(alone, beside), SAVES), EndJob)
    assert started(decide(seen(alone, beside), replace(POLICY, saved_code=143))).why is Change.FAILED


def test_a_node_lost_while_the_others_save_is_left_out() -> None:
    decision = started(decide(seen(Member(node=0, end=SAVED), Member(node=1, end=SAVED), lost(2)), SAVES))

    assert (decision.members, decision.why) == ((0, 1), Change.LOST)


def test_a_benchmark_that_saves_again_and_again_ends_as_a_failure() -> None:
    saves = Member(node=0, end=SAVED), Member(node=1, end=SAVED)
    ledger = Ledger()
    for number in range(1, 4):
        ledger = started(decide(seen(*saves, ledger=ledger, generation_s=5), SAVES)).ledger
        assert ledger.quick_saves == number

    end = decide(seen(*saves, ledger=ledger, generation_s=5), SAVES)

    assert isinstance(end, EndJob)
    assert end.why is Why.USED_UP
    assert started(decide(seen(*saves, ledger=ledger, generation_s=61), SAVES)).ledger.quick_saves == 0


ABSORBS = replace(NO_RESTART, absorbs=True)


@pytest.mark.parametrize(
    "trouble",
    [
        lost(2),
        Member(node=2, leaving_s=10.0),
        Member(node=2, end=MemberEnd(outcome=Outcome.AGENT_ERROR, ended_s=980.0)),
    ],
)
def test_a_benchmark_that_tolerates_losses_continues_unless_the_first_node_is_lost(trouble: Member) -> None:
    assert decide(seen(3, 1, trouble), ABSORBS) == GoOn()
    assert started(decide(seen(3, 1, trouble), NO_RESTART)).members == (3, 1)


def test_the_loss_of_the_first_node_starts_a_generation_without_all_lost_nodes() -> None:
    assert started(decide(seen(lost(3), 1, lost(2, 500.0), 0), ABSORBS)).members == (1, 0)


def test_losses_are_tolerated_while_enough_nodes_are_left() -> None:
    decision = decide(seen(3, lost(1), lost(2)), ABSORBS)

    assert isinstance(decision, Park)
    assert decision.members == (3,)


def test_a_failure_after_a_tolerated_loss_may_be_attributed_to_it() -> None:
    """The benchmark failed at 980; a lost node's last sign is older."""
    decision = started(decide(seen(Member(node=3, end=FAILED), lost(1, 30.0), 2, 0), ABSORBS))

    assert (decision.members, decision.ledger.restarts) == ((3, 2, 0), 0)
    assert end(decide(seen(Member(node=3, end=FAILED), 1, 2), ABSORBS)) is Why.USED_UP


def test_a_benchmark_that_tolerates_losses_succeeds_if_its_first_node_does() -> None:
    gone = Member(node=1, end=MemberEnd(outcome=Outcome.INTERRUPTED, ended_s=100.0))

    assert end(decide(seen(Member(node=0, end=WELL), gone, lost(2, 900.0)), ABSORBS)) is Why.SUCCEEDED


def test_a_node_joins_a_benchmark_that_tolerates_losses_without_a_new_generation() -> None:
    assert decide(seen(0, 1, joined=waiting(2)), ABSORBS) == GoOn()
    assert started(decide(seen(lost(0), 1, 3, joined=waiting(2)), ABSORBS)).members == (1, 3, 2)


def test_a_benchmark_that_tolerates_losses_can_be_scaled_down_below_its_joined_nodes() -> None:
    what = replace(seen(0, 1, lost(3), joined=waiting(2, 4), desired=3), is_scaled=True)

    decision = started(decide(what, replace(ABSORBS, nodes=5)))

    assert (decision.members, decision.why, decision.nodes) == ((0, 1, 2), Change.SCALED, (4,))
    # A lost node that comes back is no reason.
    assert decide(replace(what, is_scaled=False), ABSORBS) == GoOn()


def test_a_benchmark_that_tolerates_losses_can_be_scaled_down_after_a_loss() -> None:
    gone = Member(node=3, end=MemberEnd(outcome=Outcome.INTERRUPTED, ended_s=900.0))

    decision = started(decide(seen(0, 1, 2, gone, desired=2), ABSORBS))

    assert (decision.members, decision.why, decision.nodes) == ((0, 1), Change.SCALED, (2,))


def test_joined_nodes_count_towards_the_minimum_after_a_tolerated_loss() -> None:
    """At least two nodes are needed, and node 2 took the place of node 1."""
    assert decide(seen(0, lost(1), joined=waiting(2)), ABSORBS) == GoOn()
    unfit = Waiting(node=2, end=MemberEnd(outcome=Outcome.PREPARE_FAILED, ended_s=900.0))
    assert decide(seen(0, lost(1), joined=[unfit]), ABSORBS) == EndNode(node=2)
    assert isinstance(decide(seen(0, lost(1)), ABSORBS), Park)
