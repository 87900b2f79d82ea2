"""How a job on EC2 stands, over all that its store, EC2 and the consoles may say."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bai_agent.errors import BaiError
from bai_agent.job.outcome import ExitCode, Outcome
from executor.backends.ec2.console import Console, Step
from executor.backends.ec2.inferred_result import InferredOutcome
from executor.backends.ec2.instances import Instance
from executor.backends.ec2.monitor.diagnosis import diagnose
from executor.backends.ec2.monitor.job_observation import Diagnosis, JobStage, Observation
from executor.errors import AwsError

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=timezone.utc)
FRESH, OLD = timedelta(seconds=10), timedelta(minutes=5)
STATES = ("pending", "running", "shutting-down", "terminated", "stopping", "stopped")
REASONS = (
    "",
    "Client.InstanceInitiatedShutdown",
    "Client.UserInitiatedShutdown",
    "Client.VolumeLimitExceeded",
    "Client.InternalError",
    "Server.InternalError",
    "Server.InsufficientInstanceCapacity",
    "Server.SpotInstanceTermination",
    "Server.SomethingNew",
)


def machine(
    state: str = "running",
    *,
    index: int = 0,
    code: str = "",
    ended: datetime | None = None,
    age: timedelta | None = None,
) -> Instance:
    return Instance(
        id=f"i-{index}",
        state=state,
        index=index,
        type="t3.micro",
        reason_code=code,
        reason=f"{code}: because" if code else "",
        launched=NOW - age if age is not None else None,
        age=age,
        ended=ended,
        tags={"bai:job-id": "job-1"},
    )


def judged(*machines: Instance, console: Console | None = None, **facts: object) -> Diagnosis:
    consoles = {each.id: console for each in machines} if console is not None else {}
    defaults = {
        "now": NOW,
        "job_id": "job-9",
        "launch_age": timedelta(minutes=1),
        "accepted": True,
        "expires": NOW + timedelta(hours=1),
    }
    return diagnose(Observation(**{**defaults, "instances": machines, "consoles": consoles, **facts}))  # type: ignore[arg-type]


LATE = NOW - timedelta(minutes=20)
BOOTED = Console((Step(1.0, "guardian started"), Step(2.5, "python found")))


@pytest.mark.parametrize(
    ("found", "stage", "word"),
    [
        (judged(launch_age=None, accepted=False), JobStage.UNLAUNCHED, "not launched"),
        (judged(accepted=False), JobStage.UNLAUNCHED, "being launched"),
        (judged(accepted=False, launch_age=timedelta(hours=1)), JobStage.ABANDONED, "launch was interrupted 1h ago"),
        (judged(accepted=False, launch_age=timedelta(hours=1)), JobStage.ABANDONED, "again with a new job id"),
        (judged(accepted=False, launch_age=timedelta(minutes=20)), JobStage.ABANDONED, "--job-id job-9"),
        (judged(launch_age=None, accepted=False, written=timedelta(minutes=9)), JobStage.UNLAUNCHED, "not launched"),
        (judged(launch_age=None, accepted=False, written=timedelta(minutes=11)), JobStage.ABANDONED, "--job-id job-9"),
        (judged(machine(), launch_age=None, written=timedelta(hours=1)), JobStage.BOOTING, "booting"),
        (judged(launch_age=None, written=timedelta(hours=1), signs={0: FRESH}), JobStage.RUNNING, "does not show"),
        (diagnose(Observation(now=NOW, instances=None, written=timedelta(hours=1))), JobStage.ABANDONED, "nothing runs"),
        (judged(), JobStage.PENDING, "accepted"),
        (judged(machine("pending")), JobStage.PENDING, "i-0"),
        (judged(machine()), JobStage.BOOTING, "booting"),
        (judged(machine(), console=BOOTED), JobStage.BOOTING, "last step: python found"),
        (judged(machine(), console=Console(end="no-python")), JobStage.ENDING, "no-python"),
        (judged(machine(), signs={0: FRESH}), JobStage.RUNNING, "running"),
        (judged(machine(), signs={0: OLD}), JobStage.SILENT, "no heartbeat for 5m"),
        (judged(machine("shutting-down"), signs={0: FRESH}), JobStage.ENDING, "shutting down"),
        (judged(machine(), signs={0: FRESH}, cancelled=FRESH), JobStage.RUNNING, "running"),
        (judged(machine(), signs={0: FRESH}, cancelled=OLD), JobStage.ENDING, "cancelled"),
        (judged(machine(), signs={0: OLD}, expires=NOW - timedelta(minutes=20)), JobStage.ENDING, "time is up"),
        (judged(machine(), signs={0: OLD}, expires=NOW - timedelta(minutes=10)), JobStage.SILENT, "no heartbeat"),
        (diagnose(Observation(now=NOW, instances=None, signs={0: FRESH})), JobStage.RUNNING, "could not be queried"),
        (diagnose(Observation(now=NOW, instances=None, signs={0: OLD})), JobStage.SILENT, "could not be queried"),
        (diagnose(Observation(now=NOW, instances=None)), JobStage.PENDING, "could not be queried"),
        (diagnose(Observation(now=NOW, instances=None, expires=LATE)), JobStage.UNKNOWN, "credentials"),
        (diagnose(Observation(now=NOW, instances=None, expires=LATE, signs={0: OLD})), JobStage.UNKNOWN, "deadline has passed"),
        (diagnose(Observation(now=NOW, instances=None, expires=LATE, signs={0: FRESH})), JobStage.RUNNING, "queried"),
    ],
)  # fmt: skip
def test_each_observation_has_a_stage_and_a_sentence(found: Diagnosis, stage: JobStage, word: str) -> None:
    assert found.stage is stage
    assert word in found.sentence
    assert found.inferred is None


HOUR, QUARTER = timedelta(hours=1), timedelta(minutes=15)


@pytest.mark.parametrize(
    ("silence", "failing", "ends"),
    [
        (HOUR, HOUR, True),
        (HOUR, QUARTER, False),
        (QUARTER, HOUR, False),
        (HOUR, None, False),
        (None, HOUR, False),
    ],
)
def test_a_single_machine_is_lost_if_its_agent_is_silent_and_ec2s_check_fails(
    silence: timedelta | None, failing: timedelta | None, ends: bool
) -> None:
    signs = {} if silence is None else {0: silence}
    checks = {} if failing is None else {"i-0": failing}

    found = judged(machine(), signs=signs, failing=checks)

    if ends:
        assert found.inferred is not None
        assert found.inferred.outcome is Outcome.LOST
        assert [each.id for each in found.terminate] == ["i-0"]
        assert "EC2 has not reached it for 1h" in found.sentence
    else:
        assert found.inferred is None
        assert found.terminate == ()


REFUSED = InferredOutcome(Outcome.CAPACITY, "There is no room.")
PAST = NOW - timedelta(hours=1)


@pytest.mark.parametrize(
    ("found", "outcome", "word"),
    [
        (judged(machine("terminated", code="Client.VolumeLimitExceeded")), Outcome.QUOTA, "Service Quotas"),
        (judged(machine("terminated", code="Client.InternalError")), Outcome.LAUNCH_FAILED, "KMS"),
        (judged(machine("terminated", code="Server.InternalError")), Outcome.LAUNCH_FAILED, "because"),
        (judged(machine("terminated", code="Server.InsufficientInstanceCapacity")), Outcome.CAPACITY, "later"),
        (judged(machine("terminated", code="Server.SomethingNew")), Outcome.LAUNCH_FAILED, "Server.SomethingNew"),
        (judged(machine("terminated")), Outcome.BOOT_FAILED, "before its agent reported"),
        (
            judged(machine("terminated", code="Client.InstanceInitiatedShutdown"), console=BOOTED),
            Outcome.BOOT_FAILED,
            "The machine's last step: python found",
        ),
        (
            judged(machine("terminated", code="Client.InstanceInitiatedShutdown"), console=Console(end="no-python")),
            Outcome.BOOT_FAILED,
            "Python 3.10",
        ),
        (
            judged(
                machine("terminated", code="Client.InstanceInitiatedShutdown"),
                signs={0: OLD},
                console=Console(end="no-python"),
            ),
            Outcome.LOST,
            "the benchmark must not kill processes",
        ),
        (
            judged(
                machine("terminated", code="Client.InstanceInitiatedShutdown"),
                console=Console((Step(1, "python /usr/bin/python3"),), end="no-python"),
            ),
            Outcome.LOST,
            "was killed",
        ),
        (
            judged(machine("terminated", code="Client.InstanceInitiatedShutdown"), console=Console(end="deadline")),
            Outcome.BOOT_FAILED,
            "deadline",
        ),
        (judged(machine("terminated"), signs={0: OLD}, console=Console(end="deadline")), Outcome.LOST, "deadline"),
        (
            judged(machine("terminated"), signs={0: OLD}, console=Console(end="agent-crashed")),
            Outcome.AGENT_ERROR,
            "crashed",
        ),
        (
            judged(machine("terminated"), signs={0: OLD}, console=Console(end="done", detail="0")),
            Outcome.STORE_FAILED,
            "exit code 0",
        ),
        (judged(machine("terminated"), console=Console(end="new-word")), Outcome.BOOT_FAILED, "new-word"),
        (judged(machine("terminated"), signs={0: OLD}), Outcome.LOST, "left no result"),
        (
            judged(machine("terminated", code="Client.UserInitiatedShutdown"), signs={0: OLD}),
            Outcome.INTERRUPTED,
            "Somebody terminated i-0",
        ),
        (
            judged(
                machine("terminated", code="Client.UserInitiatedShutdown", ended=NOW), signs={0: OLD}, expires=PAST
            ),
            Outcome.LOST,
            "hung",
        ),
        (
            judged(machine("terminated", code="Server.SpotInstanceTermination"), signs={0: OLD}),
            Outcome.INTERRUPTED,
            "spot",
        ),
        (judged(machine("stopped", code="Client.UserInitiatedShutdown"), signs={0: OLD}), Outcome.INTERRUPTED, "Somebody"),
        (judged(machine("shutting-down"), signs={0: OLD}), Outcome.LOST, "left no result"),
        (judged(machine("terminated"), cancelled=FRESH), Outcome.CANCELLED, "cancelled"),
        (judged(launch_age=timedelta(hours=2)), Outcome.LOST, "gone without a result"),
        (judged(launch_age=timedelta(hours=2), cancelled=OLD), Outcome.CANCELLED, "its machines are gone"),
        (judged(launch_age=None, accepted=False, cancelled=OLD), Outcome.CANCELLED, "before it was launched"),
        (judged(accepted=False, launch_age=timedelta(hours=2), expires=PAST), Outcome.LAUNCH_FAILED, "never completed"),
        (judged(accepted=False, refusal=REFUSED), Outcome.CAPACITY, "no room"),
    ],
)  # fmt: skip
def test_an_outcome_is_inferred_for_a_job_whose_machines_are_gone(
    found: Diagnosis, outcome: Outcome, word: str
) -> None:
    assert found.stage is JobStage.GONE
    assert found.inferred is not None
    assert found.inferred.outcome is outcome
    assert word in found.inferred.sentence


HOUR = timedelta(hours=1)
DENIED = AwsError("not allowed", code="UnauthorizedOperation")
OTHERS = Console(others_only=True, last_line="grub rescue>")
LOGIN = Console(others_only=True, last_line="ip login:", ended_without_us="ip login:")


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (judged(machine(age=HOUR + FRESH), boot_limit=HOUR, console=OTHERS), 'last line is "grub rescue>"'),
        (judged(machine(age=timedelta(minutes=16)), boot_limit=HOUR, console=LOGIN), 'without the user data ("ip login:")'),
        (judged(machine(age=HOUR + FRESH), boot_limit=HOUR, console=Console()), "its console is empty"),
        (judged(machine(age=HOUR + FRESH), boot_limit=HOUR, unreadable={"i-0": DENIED}), "cannot be read (not allowed)"),
        (
            judged(
                machine("terminated", age=2 * HOUR, code="Client.UserInitiatedShutdown", ended=NOW), boot_limit=HOUR
            ),
            "terminated 2h after its launch",
        ),
    ],
)  # fmt: skip
def test_a_machine_that_never_ran_user_data_is_a_failed_boot(found: Diagnosis, word: str) -> None:
    assert found.inferred is not None
    assert found.inferred.outcome is Outcome.BOOT_FAILED
    assert word in found.sentence
    assert [each.id for each in found.terminate] in ([], ["i-0"])


@pytest.mark.parametrize(
    "found",
    [
        judged(machine(age=HOUR), boot_limit=HOUR, console=OTHERS),
        judged(machine(age=None), boot_limit=HOUR, console=LOGIN),
        judged(machine(age=3 * HOUR), boot_limit=None, console=OTHERS),
        judged(machine(age=3 * HOUR), boot_limit=HOUR),
        judged(machine(age=HOUR), boot_limit=HOUR, console=Console()),
        judged(machine(age=HOUR), boot_limit=HOUR, unreadable={"i-0": DENIED}),
        judged(
            machine(age=3 * HOUR),
            boot_limit=HOUR,
            unreadable={"i-0": AwsError("throttled", code="Throttling")},
        ),
        judged(machine(age=3 * HOUR), boot_limit=HOUR, console=BOOTED),
        judged(machine(age=3 * HOUR), boot_limit=HOUR, console=OTHERS, signs={0: OLD}),
        judged(machine("pending", age=3 * HOUR), boot_limit=HOUR, console=OTHERS),
        judged(machine(age=timedelta(minutes=14)), boot_limit=HOUR, console=LOGIN),
    ],
)
def test_a_machine_that_may_still_boot_is_left_alone(found: Diagnosis) -> None:
    assert (found.inferred, found.terminate) == (None, ())


def test_a_machine_with_an_unreadable_console_is_shown_with_its_termination_time() -> None:
    found = judged(
        machine(age=2 * HOUR),
        boot_limit=HOUR,
        unreadable={"i-0": BaiError("no answer")},
        expires=NOW + HOUR,
    )

    assert found.stage is JobStage.BOOTING
    assert "cannot be read now (no answer)" in found.sentence
    assert "terminated at 2026-11-20 23:15 UTC" in found.sentence
    assert "bai cancel job-9 --now" in found.sentence


def test_a_job_that_lost_a_machine_before_its_start_ends_with_that_machines_reason() -> None:
    # Given three machines of which one never came up, and another that somebody ended for it
    first = machine("running", index=0)
    second = machine("terminated", index=1, code="Server.InternalError")
    third = machine("shutting-down", index=2, code="Client.UserInitiatedShutdown")

    found = judged(first, second, third, nodes=3, signs={0: FRESH})

    assert found.inferred is not None
    assert found.inferred.outcome is Outcome.LAUNCH_FAILED
    assert "i-1" in found.inferred.sentence
    assert found.terminate == (first,)


def test_an_ended_node_is_reported_while_the_first_one_works() -> None:
    found = judged(
        machine(index=0),
        machine("terminated", index=1),
        nodes=2,
        signs={0: FRESH, 1: OLD},
        done=frozenset({1}),
    )

    assert (found.stage, found.terminate) == (JobStage.RUNNING, ())
    assert "1 of 2 machines have ended" in found.sentence


@pytest.mark.parametrize("rank", [0, 1])
def test_nodes_of_a_job_that_lost_a_machine_get_time_to_end_themselves(rank: int) -> None:
    # Given a machine that went while the other's agent still works
    lost, other = machine("terminated", index=rank, code="Server.SpotInstanceTermination"), 1 - rank

    found = judged(lost, machine(index=other), nodes=2, signs={rank: timedelta(minutes=2), other: FRESH})

    assert (found.stage, found.inferred, found.terminate) == (JobStage.ENDING, None, ())
    assert "Server.SpotInstanceTermination" in found.sentence


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("silent", "sign"),
    [(timedelta(minutes=2), OLD), (timedelta(minutes=5), FRESH)],
    ids=["silent", "too slow"],
)
def test_nodes_of_a_job_that_lost_a_machine_are_terminated_if_they_do_not_end(
    rank: int, silent: timedelta, sign: timedelta
) -> None:
    lost, left = (
        machine("terminated", index=rank, code="Server.SpotInstanceTermination"),
        machine(index=1 - rank),
    )

    found = judged(lost, left, nodes=2, signs={rank: silent, 1 - rank: sign})

    assert found.terminate == (left,)
    assert found.inferred is not None
    assert (found.inferred.outcome, found.inferred.rank) == (Outcome.INTERRUPTED, rank)
    assert f"i-{rank}" in found.inferred.sentence


@pytest.mark.parametrize("rank", [0, 1])
def test_a_machine_of_several_that_hangs_is_terminated(rank: int) -> None:
    # Given a node that is silent for longer than one can be that is cut off, and another whose agent works
    hung, other = machine(index=rank), machine(index=1 - rank)

    found = judged(
        *sorted([hung, other], key=lambda each: each.index), nodes=2, signs={rank: OLD, 1 - rank: FRESH}
    )

    assert (found.stage, found.inferred, found.terminate) == (JobStage.SILENT, None, (hung,))
    assert f"Node {rank} (i-{rank}) has sent no heartbeat for 5m" in found.sentence


@pytest.mark.parametrize("done", [frozenset[int](), frozenset({1})])
def test_a_job_whose_machines_all_hang_ends_as_peer_lost(done: frozenset[int]) -> None:
    def silent_for(age: timedelta) -> Diagnosis:
        other = machine(index=1) if not done else machine("terminated", index=1)
        return judged(machine(index=0), other, nodes=2, signs={0: age, 1: age}, done=done)

    # The job store may be out of reach of all of them: they wait for it
    assert silent_for(OLD).terminate == ()
    found = silent_for(OLD + timedelta(minutes=10))

    assert found.inferred is not None
    assert (found.inferred.outcome, found.inferred.rank) == (Outcome.PEER_LOST, 0)
    assert "Node 0 (i-0)" in found.inferred.sentence
    assert [each.id for each in found.terminate] == (["i-0"] if done else ["i-0", "i-1"])


def test_a_silent_machine_that_may_still_end_by_itself_is_left_alone() -> None:
    signs = {0: FRESH, 1: timedelta(minutes=2)}

    assert judged(machine(index=0), machine(index=1), nodes=2, signs=signs).terminate == ()
    assert judged(machine(), signs={0: OLD}).terminate == ()


def test_a_kept_machine_of_an_ended_node_does_not_count_as_silent() -> None:
    signs = {0: FRESH, 1: OLD}

    for instances in ((machine(index=0), machine(index=1)), None):
        found = diagnose(Observation(now=NOW, nodes=2, instances=instances, signs=signs, done=frozenset({1})))
        assert found.stage is JobStage.RUNNING, found


def test_a_machine_that_was_stopped_is_terminated() -> None:
    stopped = machine("stopped")

    assert judged(stopped, signs={0: OLD}).terminate == (stopped,)


ages = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3))
consoles = st.builds(
    Console,
    steps=st.lists(st.builds(Step, st.floats(0, 1e6), st.text(max_size=5)), max_size=2).map(tuple),
    end=st.none()
    | st.sampled_from(["done", "terminated", "no-python", "deadline", "boot-hung"])
    | st.text(max_size=5),
    detail=st.text(max_size=5),
    others_only=st.booleans(),
    ended_without_us=st.text(max_size=5),
    last_line=st.text(max_size=5),
)


@st.composite
def facts(draw: st.DrawFn) -> Observation:
    nodes = draw(st.integers(1, 3))
    instances = draw(
        st.none()
        | st.lists(
            st.builds(
                machine,
                st.sampled_from(STATES),
                index=st.integers(0, 3),
                code=st.sampled_from(REASONS),
                ended=st.none() | st.datetimes(timezones=st.just(timezone.utc)),
                age=st.none() | ages,
            ),
            max_size=4,
        ).map(tuple)
    )
    return Observation(
        now=NOW,
        nodes=nodes,
        written=draw(st.none() | ages),
        launch_age=draw(st.none() | ages),
        accepted=draw(st.booleans()),
        refusal=draw(st.none() | st.just(REFUSED)),
        expires=draw(st.none() | st.datetimes(timezones=st.just(timezone.utc))),
        instances=instances,
        signs=draw(st.dictionaries(st.integers(0, 2), ages, max_size=3)),
        done=frozenset(draw(st.sets(st.integers(0, 2)))),
        consoles=draw(st.dictionaries(st.sampled_from(["i-0", "i-1", "i-2"]), consoles, max_size=3)),
        failing=draw(st.dictionaries(st.sampled_from(["i-0", "i-1", "i-2"]), ages, max_size=3)),
        cancelled=draw(st.none() | ages),
        boot_limit=draw(st.none() | ages),
    )


@settings(max_examples=600, deadline=None)
@given(facts())
def test_every_observation_has_a_diagnosis_and_a_gone_machine_never_runs(known: Observation) -> None:
    found = diagnose(known)

    assert found.sentence.endswith(".")
    assert (found.inferred is not None) == (found.stage is JobStage.GONE)
    if known.instances and not any(each.living for each in known.instances):
        assert found.stage in (JobStage.ENDING, JobStage.GONE)
    assert all(each in (known.instances or ()) for each in found.terminate)
    if found.stage is JobStage.RUNNING:
        assert found.terminate == ()
    if found.inferred is not None:
        assert found.inferred.outcome.exit_code in (ExitCode.OURS, ExitCode.CANCELLED, ExitCode.USAGE)
