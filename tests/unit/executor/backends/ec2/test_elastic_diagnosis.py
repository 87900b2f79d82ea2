"""How an elastic job on EC2 stands: a machine that goes does not end it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.outcome import Outcome
from bai_agent.light_dataclass import replace
from executor.backends.ec2.console import Console
from executor.backends.ec2.inferred_result import InferredOutcome
from executor.backends.ec2.instances import Instance
from executor.backends.ec2.monitor.diagnosis import diagnose
from executor.backends.ec2.monitor.job_observation import Diagnosis, ElasticState, JobStage, Observation

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=timezone.utc)
FRESH, OLD, MINUTE, HOUR = (
    timedelta(seconds=10),
    timedelta(minutes=5),
    timedelta(minutes=1),
    timedelta(hours=1),
)
ELASTIC = ElasticState(min_nodes=2, wait=timedelta(minutes=10))


def machine(index: int, state: str = "running", *, code: str = "", age: timedelta | None = None) -> Instance:
    return Instance(
        id=f"i-{index}",
        state=state,
        index=index,
        type="t3.micro",
        reason_code=code,
        reason=f"{code}: because" if code else "",
        age=age,
        tags={"bai:job-id": "job-1"},
    )


def judged(*machines: Instance, elastic: ElasticState = ELASTIC, **facts: object) -> Diagnosis:
    defaults = {
        "now": NOW,
        "launch_age": MINUTE,
        "accepted": True,
        "nodes": len(machines),
        "expires": NOW + HOUR,
        "peer_silence": timedelta(seconds=20),
    }
    return diagnose(Observation(**{**defaults, "elastic": elastic, "instances": machines, **facts}))  # type: ignore[arg-type]


TAKEN = "Server.SpotInstanceTermination"


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_lost_machine_does_not_end_an_elastic_job(rank: int) -> None:
    machines = [machine(each, "terminated" if each == rank else "running") for each in range(3)]
    signs = {each: OLD if each == rank else FRESH for each in range(3)}

    found = judged(*machines, signs=signs)

    assert (found.stage, found.inferred, found.terminate) == (JobStage.RUNNING, None, ())
    assert found.sentence == f"2 machines are running; node {rank} (i-{rank}) is gone."


def test_the_agents_of_a_job_with_too_few_machines_are_left_to_end_it() -> None:
    found = judged(
        machine(0), machine(1, "terminated"), machine(2, "terminated"), signs={0: FRESH, 1: OLD, 2: OLD}
    )

    assert (found.stage, found.inferred, found.terminate) == (JobStage.RUNNING, None, ())


def test_a_machine_that_failed_to_start_does_not_end_an_elastic_job() -> None:
    """EC2 ended it while it started, before the agents of all had reported."""
    failed = machine(2, "terminated", code="Server.InternalError")

    found = judged(machine(0), machine(1), failed, signs={0: FRESH})

    assert (found.stage, found.inferred, found.terminate) == (JobStage.RUNNING, None, ())
    assert found.sentence == "2 machines are running; node 2 (i-2) is gone; i-1 (t3.micro) is booting."
    assert judged(machine(0), machine(1), failed).stage is JobStage.BOOTING


def test_a_hanging_machine_is_terminated_and_the_job_continues() -> None:
    silent = judged(machine(0), machine(1), machine(2), signs={0: FRESH, 1: 3 * MINUTE, 2: FRESH})
    hung = judged(machine(0), machine(1), machine(2), signs={0: FRESH, 1: OLD, 2: FRESH})

    assert (silent.stage, silent.terminate) == (JobStage.RUNNING, ())
    assert "node 1 (i-1) has sent no heartbeat for 3m" in silent.sentence
    assert (hung.stage, hung.inferred) == (JobStage.RUNNING, None)
    assert [each.id for each in hung.terminate] == ["i-1"]
    assert hung.sentence == (
        "Node 1 (i-1) has sent no heartbeat for 5m, and its machine is terminated; the job goes on."
    )


def test_machines_that_all_hang_end_the_job_after_its_wait() -> None:
    machines = [machine(0), machine(1)]

    early = judged(*machines, signs={0: 12 * MINUTE, 1: 14 * MINUTE})
    late = judged(*machines, signs={0: 14 * MINUTE, 1: 15 * MINUTE})

    assert (early.stage, early.terminate) == (JobStage.SILENT, ())
    assert late.inferred is not None
    assert late.inferred.outcome is Outcome.PEER_LOST
    assert late.sentence == (
        "Node 0 (i-0) has sent no heartbeat for 14m, nor have 1 other nodes, and the job has no other node."
    )
    assert [each.id for each in late.terminate] == ["i-0", "i-1"]


def test_machines_that_all_hang_are_terminated_before_replacements_are_launched() -> None:
    machines, state = [machine(0), machine(1)], replace(ELASTIC, replaces=True, wait=HOUR)

    early = judged(*machines, elastic=state, signs={0: 12 * MINUTE, 1: 14 * MINUTE})
    late = judged(*machines, elastic=state, signs={0: 14 * MINUTE, 1: 15 * MINUTE})

    assert (early.stage, early.terminate) == (JobStage.SILENT, ())
    assert (late.stage, late.inferred) == (JobStage.SILENT, None)
    assert [each.id for each in late.terminate] == ["i-0", "i-1"]
    assert late.sentence.endswith("; the job goes on.")


def test_a_node_that_has_ended_and_does_not_power_off_is_terminated() -> None:
    machines, done = [machine(0), machine(1)], frozenset({1})

    early, late, kept = (
        judged(*machines, elastic=state, signs={0: FRESH, 1: age}, done=done)
        for state, age in (
            (ELASTIC, OLD),
            (ELASTIC, OLD + FRESH),
            (replace(ELASTIC, kept=done), OLD + FRESH),
        )
    )

    assert [each.id for each in late.terminate] == ["i-1"]
    assert late.sentence == (
        "2 machines are running. i-1 (t3.micro) is still on, and no longer part of the job: terminated."
    )
    assert (early.terminate, kept.terminate) == ((), ())


def test_a_node_that_was_scaled_away_does_not_count_as_silent() -> None:
    found = judged(machine(0), machine(1), signs={0: FRESH, 1: OLD}, done=frozenset({1}))

    assert (found.stage, found.terminate) == (JobStage.RUNNING, ())
    assert found.sentence == "2 machines are running."


def test_an_elastic_job_without_machines_waits_for_new_ones() -> None:
    gone = [machine(0, "terminated", code=TAKEN), machine(1, "terminated", code=TAKEN)]

    found = judged(*gone, signs={0: 4 * MINUTE, 1: OLD})

    assert (found.stage, found.inferred, found.terminate) == (JobStage.PARKED, None, ())
    assert found.sentence.startswith(
        "No machine is left. The job waits for nodes (at least 2) for 6m more: EC2 took"
    )


def test_the_wait_for_others_counts_from_the_end_of_a_machine_that_hung() -> None:
    ended = replace(machine(0, "terminated"), ended=NOW - OLD)

    found = judged(ended, signs={0: 20 * MINUTE})
    later = judged(ended, signs={0: 20 * MINUTE}, now=NOW + OLD)

    assert (found.stage, later.stage) == (JobStage.PARKED, JobStage.GONE)


def test_the_wait_counts_from_the_decision_of_the_nodes() -> None:
    gone = [machine(0, "terminated", code=TAKEN), machine(1, "terminated", code=TAKEN)]
    state = replace(ELASTIC, waiting=11 * MINUTE)

    found = judged(*gone, elastic=state, signs={0: 4 * MINUTE, 1: OLD})

    assert found.inferred is not None
    assert found.inferred.outcome is Outcome.PEER_LOST
    assert found.sentence.startswith(
        "The job had 0 of at least 2 nodes for 10m: EC2 took the spot machine back"
    )


def test_the_last_decision_becomes_the_result_if_no_node_could_write_it() -> None:
    decided = InferredOutcome(Outcome.MAX_RUNTIME, "It took too long.")

    found = judged(
        machine(0, "terminated"), elastic=replace(ELASTIC, decided=decided), signs={0: timedelta(minutes=2)}
    )

    assert found.inferred == decided


@pytest.mark.parametrize(
    "facts",
    [{"signs": {}}, {"cancelled": MINUTE, "signs": {0: OLD}}, {"signs": {0: OLD}, "done": frozenset({0})}],
    ids=["never reported", "cancelled", "all nodes have ended"],
)
def test_a_job_that_cannot_continue_waits_for_no_node(facts: dict[str, Any]) -> None:
    found = judged(machine(0, "terminated", code=TAKEN), **facts)

    assert found.stage is JobStage.GONE


def test_a_machine_that_still_writes_is_waited_for() -> None:
    found = judged(machine(0, "shutting-down"), signs={0: FRESH})

    assert (found.stage, found.terminate) == (JobStage.ENDING, ())


def test_one_machine_that_never_ran_its_user_data_is_terminated_alone() -> None:
    console = Console(others_only=True, last_line="login:")
    lost = machine(1, age=2 * HOUR)

    found = judged(machine(0), lost, signs={0: FRESH}, boot_limit=HOUR, consoles={"i-1": console})
    alone = judged(lost, boot_limit=HOUR, consoles={"i-1": console})

    assert (found.stage, found.inferred) == (JobStage.RUNNING, None)
    assert found.terminate == (lost,)
    assert "never ran its user data" in found.sentence
    assert alone.inferred is not None
    assert alone.inferred.outcome is Outcome.BOOT_FAILED


def test_a_machine_that_never_ran_its_user_data_is_replaced_if_another_one_did() -> None:
    console, state = Console(others_only=True, last_line="login:"), replace(ELASTIC, replaces=True)
    gone, failed = machine(0, "terminated", code=TAKEN), machine(1, age=2 * HOUR)
    facts: dict[str, Any] = {"boot_limit": HOUR, "consoles": {"i-1": console}, "elastic": state}

    found = judged(gone, failed, signs={0: HOUR}, **facts)
    first = judged(failed, **facts)

    assert (found.stage, found.inferred, found.terminate) == (JobStage.BOOTING, None, (failed,))
    assert first.inferred is not None
    assert first.inferred.outcome is Outcome.BOOT_FAILED


@pytest.mark.parametrize("late", [True, False], ids=["time is up", "cancelled"])
def test_machines_still_on_after_expiry_or_a_cancel_are_terminated(late: bool) -> None:
    facts: dict[str, Any] = {"expires": NOW - timedelta(minutes=20)} if late else {"cancelled": OLD}

    found = judged(machine(0), machine(1, "terminated"), signs={0: FRESH, 1: OLD}, **facts)

    assert found.stage is JobStage.ENDING
    assert [each.id for each in found.terminate] == ["i-0"]


AGES = st.integers(0, 2000).map(lambda seconds: timedelta(seconds=seconds))
STATES = st.sampled_from(["pending", "running", "shutting-down", "terminated", "stopping", "stopped"])


@given(
    st.lists(STATES, min_size=1, max_size=4),
    st.dictionaries(st.integers(0, 3), AGES),
    st.sets(st.integers(0, 3)),
    st.none() | AGES,
    st.none() | AGES,
)
def test_a_job_with_a_living_node_has_no_inferred_end(
    states: list[str],
    signs: dict[int, timedelta],
    done: set[int],
    waiting: timedelta | None,
    cancelled: timedelta | None,
) -> None:
    machines = [machine(index, state) for index, state in enumerate(states)]

    found = judged(
        *machines,
        elastic=replace(ELASTIC, waiting=waiting),
        signs=signs,
        done=frozenset(done),
        cancelled=cancelled,
    )

    living = {each.index for each in machines if each.living} - done
    if any(signs.get(each, HOUR) <= timedelta(minutes=1) for each in living):
        assert found.inferred is None
        assert found.stage in (JobStage.RUNNING, JobStage.ENDING)
        assert cancelled is not None or found.stage is JobStage.RUNNING
        fresh = {each.index for each in found.terminate if signs.get(each.index, HOUR) <= MINUTE} & living
        assert cancelled is not None or not fresh
