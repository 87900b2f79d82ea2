"""What follows a generation of a fixed job: one decision for any observation, within the policy, and an end after finitely many failures."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.generations.decision import (
    ROWS,
    Decision,
    EndJob,
    EndRest,
    GoOn,
    Pause,
    StartGeneration,
    Why,
    decide,
)
from bai_agent.generations.observation import GenerationObservation, Member, MemberEnd
from bai_agent.generations.policy import LONGEST_BACKOFF_S, Policy, backoff_s
from bai_agent.job.descriptor.restart_tables import Restart
from bai_agent.job.generation_records import Ledger
from bai_agent.job.outcome import Outcome

TWICE = Policy(restart=Restart(max_restarts=2, backoff=timedelta(seconds=10)))
MAY_GET_BETTER = [Outcome.FAILED, Outcome.KILLED, Outcome.OOM, Outcome.NO_OUTPUT, Outcome.LOST]


def failed(
    outcome: Outcome = Outcome.FAILED, *, code: int | None = 1, signal: int | None = None
) -> MemberEnd:
    return MemberEnd(outcome=outcome, code=code, signal=signal, ended_s=100.0)


def seen(
    *ends: MemberEnd | None, now_s: float = 1000.0, restarts: int = 0, **more: float
) -> GenerationObservation:
    return GenerationObservation(
        now_s=now_s,
        running_s=more.get("running_s", 50.0),
        max_runtime_s=more.get("max_runtime_s"),
        members=[Member(node=number, end=end) for number, end in enumerate(ends)],
        ledger=Ledger(restarts=restarts),
    )


def retrying(*codes: int) -> Policy:
    return Policy(restart=replace(TWICE.restart, exit_codes=codes))


def why(decision: Decision) -> Why | None:
    return decision.why if isinstance(decision, EndJob) else None


def test_no_decision_is_made_while_a_member_runs() -> None:
    assert decide(seen(None), TWICE) == GoOn()
    assert decide(seen(MemberEnd(outcome=Outcome.SUCCEEDED, ended_s=1.0), None), TWICE) == GoOn()


def test_running_members_are_ended_after_another_one_failed() -> None:
    assert decide(seen(failed(), None), TWICE) == EndRest()
    assert why(decide(seen(failed(), None, restarts=2), TWICE)) is Why.USED_UP


def test_a_member_ended_because_of_another_is_restarted_with_it() -> None:
    ended = failed(Outcome.PEER_FAILED, code=None, signal=15)

    assert isinstance(decide(seen(ended, failed()), retrying(1)), StartGeneration)


def test_a_success_of_all_members_ends_the_job() -> None:
    good = MemberEnd(outcome=Outcome.SUCCEEDED, code=0, ended_s=1.0)

    assert why(decide(seen(good, good), TWICE)) is Why.SUCCEEDED
    assert decide(seen(good, None), TWICE) == GoOn()


@pytest.mark.parametrize("outcome", MAY_GET_BETTER)
def test_a_retryable_failure_restarts_the_same_members(outcome: Outcome) -> None:
    good = MemberEnd(outcome=Outcome.SUCCEEDED, code=0, ended_s=1.0)

    decision = decide(seen(good, failed(outcome)), TWICE)

    assert decision == StartGeneration(members=(0, 1), ledger=Ledger(restarts=1))


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {*MAY_GET_BETTER, Outcome.SUCCEEDED}))
def test_a_permanent_failure_ends_the_job(outcome: Outcome) -> None:
    assert why(decide(seen(failed(outcome)), TWICE)) is Why.HOPELESS


def test_the_pause_before_a_restart_doubles_up_to_five_minutes() -> None:
    policy = Restart(max_restarts=1000, backoff=timedelta(seconds=10))

    assert [backoff_s(policy, restarts=number) for number in range(6)] == [10, 20, 40, 80, 160, 300]
    assert backoff_s(policy, restarts=1000) == LONGEST_BACKOFF_S
    assert decide(seen(failed(), now_s=109.9), TWICE) == Pause(until_s=110.0)
    assert isinstance(decide(seen(failed(), now_s=110.0), TWICE), StartGeneration)
    assert decide(seen(failed(), now_s=110.0, restarts=1), TWICE) == Pause(until_s=120.0)


def test_a_backoff_above_five_minutes_is_not_reduced() -> None:
    assert backoff_s(Restart(backoff=timedelta(minutes=10)), restarts=3) == 600


def test_after_the_last_restart_the_failure_ends_the_job() -> None:
    assert why(decide(seen(failed(), restarts=2), TWICE)) is Why.USED_UP
    assert why(decide(seen(failed()), Policy(restart=Restart()))) is Why.USED_UP


def test_a_job_whose_time_is_over_is_not_restarted() -> None:
    assert why(decide(seen(failed(), running_s=60, max_runtime_s=60), TWICE)) is Why.MAX_RUNTIME
    assert isinstance(decide(seen(failed(), running_s=59, max_runtime_s=60), TWICE), StartGeneration)


def test_only_exit_codes_listed_in_the_policy_are_restarted() -> None:
    policy = retrying(3, 137)

    assert isinstance(decide(seen(failed(code=3)), policy), StartGeneration)
    assert isinstance(decide(seen(failed(Outcome.KILLED, code=None, signal=9)), policy), StartGeneration)
    assert why(decide(seen(failed(code=1)), policy)) is Why.HOPELESS
    assert why(decide(seen(failed(Outcome.OOM, code=None, signal=15)), policy)) is Why.HOPELESS


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.NO_OUTPUT])
def test_restart_exit_codes_are_ignored_for_lost_and_silent_benchmarks(outcome: Outcome) -> None:
    policy = retrying(3)

    assert isinstance(decide(seen(failed(outcome, code=None)), policy), StartGeneration)


times = st.floats(0, 1e9)
ends = st.builds(
    MemberEnd,
    outcome=st.sampled_from(Outcome),
    code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    ended_s=times,
)
policies = st.builds(
    Restart,
    max_restarts=st.integers(0, 1000),
    backoff=st.timedeltas(timedelta(), timedelta(days=1)),
    exit_codes=st.lists(st.integers(1, 255), max_size=4).map(tuple),
)
fixed = st.builds(Policy, restart=policies)
observations = st.builds(
    GenerationObservation,
    now_s=times,
    running_s=times,
    max_runtime_s=st.none() | times,
    members=st.lists(st.none() | ends, min_size=1, max_size=4).map(
        lambda each: [Member(node=number, end=end) for number, end in enumerate(each)]
    ),
    ledger=st.builds(Ledger, restarts=st.integers(0, 1000)),
)


@given(observations, fixed)
def test_the_first_matching_rule_decides(what: GenerationObservation, policy: Policy) -> None:
    fitting = [found for row in ROWS if (found := row(what, policy)) is not None]

    assert decide(what, policy) == (fitting[0] if fitting else GoOn())


@given(observations, fixed)
def test_a_generation_begins_only_once_all_have_ended_and_within_the_policy(
    what: GenerationObservation, policy: Policy
) -> None:
    decision = decide(what, policy)

    all_ended = all(each.end is not None for each in what.members)
    if isinstance(decision, StartGeneration):
        assert all_ended
        assert decision.members == tuple(each.node for each in what.members)
        assert what.ledger.restarts < decision.ledger.restarts <= policy.restart.max_restarts
        assert what.max_runtime_s is None or what.running_s < what.max_runtime_s
    if isinstance(decision, Pause):
        assert all_ended
        assert decision.until_s > what.now_s
    if all_ended:
        assert decision != GoOn()


@given(st.data(), policies, st.lists(ends, min_size=1, max_size=3))
def test_every_history_of_failures_ends(
    data: st.DataObject, restart: Restart, first: list[MemberEnd]
) -> None:
    policy = Policy(restart=replace(restart, max_restarts=restart.max_restarts % 20))
    now_s, restarts, found = 0.0, 0, first
    for _ in range(2 * policy.restart.max_restarts + 3):
        what = replace(seen(*found, restarts=restarts), now_s=max(now_s, *(each.ended_s for each in found)))
        decision = decide(what, policy)
        if isinstance(decision, EndJob):
            return
        if isinstance(decision, Pause):
            now_s = decision.until_s
            continue
        assert isinstance(decision, StartGeneration)
        restarts = decision.ledger.restarts
        found = data.draw(st.lists(ends, min_size=len(found), max_size=len(found)))
    pytest.fail("it never ended")


@given(observations, fixed)
def test_decisions_of_a_fixed_job_equal_those_of_an_independent_rule(
    what: GenerationObservation, policy: Policy
) -> None:
    """The decision of a fixed job, written down a second time in one piece."""
    decision = decide(what, policy)

    ends = [each.end for each in what.members if each.end is not None]
    failures = [each for each in ends if each.outcome not in (Outcome.SUCCEEDED, Outcome.PEER_FAILED)]
    is_over = len(ends) == len(what.members)
    out_of_time = what.max_runtime_s is not None and what.running_s >= what.max_runtime_s
    if is_over and all(each.outcome is Outcome.SUCCEEDED for each in ends):
        assert why(decision) is Why.SUCCEEDED
    elif (is_over and not failures) or not all(is_retried(each, policy.restart) for each in failures):
        assert why(decision) is Why.HOPELESS
    elif failures and what.ledger.restarts >= policy.restart.max_restarts:
        assert why(decision) is Why.USED_UP
    elif is_over and out_of_time:
        assert why(decision) is Why.MAX_RUNTIME
    elif not failures:
        assert decision == GoOn()
    elif not is_over:
        assert decision == EndRest()
    else:
        pause_s = backoff_s(policy.restart, restarts=what.ledger.restarts)
        until_s = max(each.ended_s for each in failures) + pause_s
        ledger = Ledger(restarts=what.ledger.restarts + 1)
        start = StartGeneration(members=tuple(each.node for each in what.members), ledger=ledger)
        assert decision == (Pause(until_s=until_s) if what.now_s < until_s else start)


def is_retried(end: MemberEnd, restart: Restart) -> bool:
    status = end.code if end.signal is None else 128 + end.signal
    is_own = end.outcome in (Outcome.FAILED, Outcome.KILLED, Outcome.OOM)
    return end.outcome in MAY_GET_BETTER and (
        not is_own or not restart.exit_codes or status in restart.exit_codes
    )
