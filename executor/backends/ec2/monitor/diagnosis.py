"""Diagnoses a job on EC2 from its store, EC2 and the consoles. The diagnosis is a pure function with an
answer for every observation.

A job with a result has ended and needs no diagnosis, so the store is read first. Without a result:

| stage | observation |
|---|---|
| unlaunched | no instance yet, because the submission is still in progress |
| waiting | no instance yet, because no zone has capacity; all candidates are requested again |
| abandoned | no instance, because the submission was interrupted; only a repeated submission launches the job |
| pending | EC2 has accepted the launch; a machine is being started |
| booting | a machine runs, but its agent has not reported yet |
| running | the agents' heartbeats are recent, and their machines exist |
| silent | a machine runs, but its agent has been silent for a minute |
| ending | the machines shut down, or are being terminated |
| parked | no machine of an elastic job is left, and the job waits for new machines |
| unknown | EC2 cannot be queried, the agents are silent, and the machines' deadline has passed |
| gone | no machine is left that could write a result, so the inferred outcome is written on the job's behalf |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from bai_agent.job.outcome import Outcome
from bai_agent.light_dataclass import replace
from executor.backends.ec2.clock import span
from executor.backends.ec2.inferred_result import InferredOutcome
from executor.backends.ec2.instances import Instance
from executor.backends.ec2.launch.launch_record import LAUNCH_WINDOW
from executor.backends.ec2.monitor.boot_failure import never_booted, unproven
from executor.backends.ec2.monitor.elastic_rules import (
    all_left,
    boots_without_us,
    goes_on,
    nodes_hang,
    stuck_power_offs,
)
from executor.backends.ec2.monitor.job_observation import (
    ABANDONED,
    CONSISTENT,
    OVERDUE,
    STALE,
    UNREACHABLE,
    Diagnosis,
    JobStage,
    Observation,
    ended,
    leaving,
    machines,
    machines_are,
)


def diagnose(observation: Observation) -> Diagnosis:
    """Return the diagnosis of a job. If EC2 can be queried, the stage is `running` only if EC2 shows a
    running machine."""
    found = next(each for rule in _rules(observation) if (each := rule(observation)) is not None)
    surplus = [each for each in observation.surplus if each.living or each.state == "stopped"]
    stuck = [each for each in stuck_power_offs(observation) if each not in found.terminate]
    sentence = found.sentence
    if stuck and found.inferred is None:
        sentence = f"{sentence} {machines_are(stuck)} still on, and no longer part of the job: terminated."
    return replace(found, sentence=sentence, terminate=(*found.terminate, *surplus, *stuck))


_Rule = Callable[[Observation], "Diagnosis | None"]
"""Type of a rule: a function that returns the diagnosis, or None if the next rule has to decide."""


def _rules(observation: Observation) -> Sequence[_Rule]:
    """Return the rules for this kind of observation. The first rule that returns a diagnosis decides. The
    last rule always returns a diagnosis."""
    if observation.instances is None:
        return (_out_of_time, _without_ec2)
    if not observation.instances:
        return (_refused, _not_shown_yet, _never_launched, _launching, _vanished)
    if observation.elastic is not None:
        return (
            all_left,
            _machines_overdue,
            nodes_hang,
            boots_without_us,
            goes_on,
            _starts,
            _powers_off,
            _boots,
            _agent_silent,
            _runs,
        )
    return (
        _machines_gone,
        _machines_leave,
        _machines_overdue,
        _machines_hang,
        _machine_unreachable,
        _peers_end,
        _boots_without_us,
        _starts,
        _powers_off,
        _boots,
        _agent_silent,
        _runs,
    )


def _out_of_time(observation: Observation) -> Diagnosis | None:
    """Diagnose a job whose agents are silent after the job's deadline. The job's machines are possibly still
    running, but its agents will write no more heartbeats."""
    if not _is_late(observation) or any(age <= STALE for age in observation.signs.values()):
        return None
    return Diagnosis(
        JobStage.UNKNOWN,
        "The job's deadline has passed, its agents are silent, and EC2 could not be queried: "
        "check again with credentials that may query EC2.",
    )


def _without_ec2(observation: Observation) -> Diagnosis:
    return _by_signs(observation, why="EC2 could not be queried")


def _machines_gone(observation: Observation) -> Diagnosis | None:
    """Diagnose a job without a result that has lost machines and whose remaining machines will not write a
    result either."""
    over = observation.over
    lost = [each for each in observation.lost if each in over]
    if observation.nodes > 1 and observation.unreported and observation.left:
        causes = observation.left
    elif len(over) == len(observation.instances or ()) or _given_up(observation, lost):
        causes = lost or over
    else:
        return None
    return ended(observation.why_gone(causes), observation)


def _machines_leave(observation: Observation) -> Diagnosis | None:
    left = observation.left
    if observation.living and not (observation.nodes == 1 and any(each.index == 0 for each in left)):
        return None
    return Diagnosis(JobStage.ENDING, f"{leaving(left)}.", terminate=observation.stopped)


def _machines_overdue(observation: Observation) -> Diagnosis | None:
    """Diagnose a job whose machines still run after a cancellation or their deadline, and must be terminated
    from outside."""
    if observation.cancelled is not None and observation.cancelled > observation.patience:
        why = f"The job was cancelled {span(observation.cancelled)} ago and has not ended; its machines are terminated."
    elif _is_late(observation):
        why = "The job's time is up and its machines have not powered themselves off; they are terminated."
    else:
        return None
    return Diagnosis(JobStage.ENDING, why, terminate=observation.living + observation.stopped)


def _machines_hang(observation: Observation) -> Diagnosis | None:
    """Diagnose a job of several nodes whose machines have been silent for so long that they must be hanging,
    or have lost their network for good.

    An agent that cannot reach the store ends its node. The agent ends its node after `peer_silence` if the other
    agents can reach the store.
    """
    if observation.nodes == 1:
        return None
    working = observation.working
    silence = max(STALE, observation.peer_silence)
    hung = observation.silent_for(silence + observation.patience)
    if len(hung) == len(working):
        # All agents are silent, so possibly none of them reaches the store. In that case all agents wait for
        # the store, so a longer silence is allowed.
        hung = observation.silent_for(max(silence, observation.store_away) + observation.patience)
    if not hung:
        return None
    first = hung[0]
    others = f", nor have {len(hung) - 1} other nodes" if len(hung) > 1 else ""
    sentence = f"{observation.silence_of(first)}{others}; {'their machines are' if others else 'its machine is'} terminated."
    if len(hung) < len(working):
        # The agents of the other nodes write the result.
        return Diagnosis(JobStage.SILENT, sentence, terminate=hung + observation.stopped)
    return ended(InferredOutcome(Outcome.PEER_LOST, sentence, rank=first.index), observation)


def _machine_unreachable(observation: Observation) -> Diagnosis | None:
    """Diagnose a job whose only machine writes no heartbeat and fails EC2's own status check."""
    for each in observation.working if observation.nodes == 1 else ():
        silence = observation.signs.get(each.index, timedelta())
        failing = observation.failing.get(each.id, timedelta())
        if min(silence, failing) > UNREACHABLE:
            sentence = (
                f"{each.id} has sent no heartbeat for {span(silence)}, and EC2 has not reached it for {span(failing)}: "
                "the machine hangs or has lost its network, and is terminated."
            )
            return ended(InferredOutcome(Outcome.LOST, sentence, rank=each.index), observation)
    return None


def _peers_end(observation: Observation) -> Diagnosis | None:
    if observation.nodes == 1 or not observation.lost:
        return None
    sentence = f"{leaving(observation.lost)}, and the other nodes end."
    return Diagnosis(JobStage.ENDING, sentence, terminate=observation.stopped)


def _boots_without_us(observation: Observation) -> Diagnosis | None:
    failed = never_booted(observation.starting, observation)
    return ended(InferredOutcome(Outcome.BOOT_FAILED, failed), observation) if failed is not None else None


def _starts(observation: Observation) -> Diagnosis | None:
    pending = [each for each in observation.starting if each.state == "pending"]
    if not pending:
        return None
    return Diagnosis(JobStage.PENDING, f"EC2 starts {machines(pending)}.")


def _powers_off(observation: Observation) -> Diagnosis | None:
    for each in observation.starting:
        console = observation.consoles.get(each.id)
        if console is not None and console.end:
            sentence = f"{each.id} powers itself off: {console.end} {console.detail}".rstrip() + "."
            return Diagnosis(JobStage.ENDING, sentence)
    return None


def _boots(observation: Observation) -> Diagnosis | None:
    waiting, consoles = observation.starting, observation.consoles
    if not waiting:
        return None
    steps = [consoles[each.id].last_step for each in waiting if each.id in consoles]
    step = next(filter(None, steps), None)
    doubt = unproven(observation)
    if step is not None:
        sentence = f"{machines_are(waiting)} booting; last step: {step}."
    elif doubt is not None:
        expires = observation.expires
        bound = f"; it is terminated at {expires + OVERDUE:%Y-%m-%d %H:%M} UTC" if expires else ""
        sentence = f"{doubt}{bound}, or now by `bai cancel {observation.job_id} --now`."
    else:
        sentence = f"{machines_are(waiting)} booting."
    return Diagnosis(JobStage.BOOTING, sentence)


def _agent_silent(observation: Observation) -> Diagnosis | None:
    ages = {each.index: observation.signs[each.index] for each in observation.working}
    rank = max(ages, key=lambda each: ages[each], default=0)
    if not ages or ages[rank] <= STALE:
        return None
    agent = "The agent" if observation.nodes == 1 else f"The agent of node {rank}"
    until = f", until {observation.expires:%H:%M} UTC at the latest" if observation.expires else ""
    return Diagnosis(
        JobStage.SILENT,
        f"{agent} has sent no heartbeat for {span(ages[rank])}; its machine still runs{until}.",
    )


def _runs(observation: Observation) -> Diagnosis:
    left = observation.left
    gone = f"; {len(left)} of {observation.nodes} machines have ended" if left else ""
    return Diagnosis(JobStage.RUNNING, f"{machines_are(observation.living)} running{gone}.")


def _refused(observation: Observation) -> Diagnosis | None:
    refusal = observation.refusal
    return _gone(refusal.outcome, refusal.sentence) if refusal is not None else None


def _not_shown_yet(observation: Observation) -> Diagnosis | None:
    """Diagnose a job whose agents have reported, but whose machines EC2 does not show because the launch is
    new or has no record."""
    signs = observation.signs.values()
    if not signs or (observation.launch_age is not None and any(age > STALE for age in signs)):
        return None
    return _by_signs(observation, why="EC2 does not show the machine")


def _never_launched(observation: Observation) -> Diagnosis | None:
    return _unlaunched(observation) if observation.launch_age is None else None


def _launching(observation: Observation) -> Diagnosis | None:
    if observation.launch_age is not None and observation.launch_age > CONSISTENT:
        return None
    if observation.accepted:
        return Diagnosis(JobStage.PENDING, "EC2 has accepted the launch, and shows no machine yet.")
    if observation.waiting is not None:
        return Diagnosis(JobStage.WAITING, f"The job waits for capacity: {observation.waiting}.")
    return Diagnosis(JobStage.UNLAUNCHED, "The job is being launched.")


def _vanished(observation: Observation) -> Diagnosis:
    if observation.cancelled is not None:
        return _gone(Outcome.CANCELLED, "The job was cancelled, and its machines are gone.")
    if observation.accepted or observation.signs:
        return _gone(
            Outcome.LOST,
            "The job's machines are gone without a result, for so long that EC2 knows nothing of them any more.",
        )
    if _is_late(observation) and observation.waiting is None:
        return _gone(
            Outcome.LAUNCH_FAILED, "The launch was begun and never completed; no machine was started."
        )
    return _abandoned(
        observation, f"The launch was interrupted {span(observation.launch_age or CONSISTENT)} ago"
    )


def _is_late(observation: Observation) -> bool:
    return observation.expires is not None and observation.now > observation.expires + OVERDUE


def _given_up(observation: Observation, lost: list[Instance]) -> bool:
    """Return whether no remaining node will write a result after the machines `lost` were lost.

    The agents of the remaining nodes detect the loss, end the benchmark and write the result, unless these
    agents are silent or take too long.
    """
    if observation.nodes == 1 or not lost:
        return any(each.index == 0 for each in lost)
    given_up = max(STALE, observation.peer_silence)
    if all(observation.signs.get(each.index, timedelta.max) > given_up for each in observation.working):
        return True
    return (
        min(observation.signs.get(each.index, timedelta.max) for each in lost)
        > given_up + observation.patience
    )


def _unlaunched(observation: Observation) -> Diagnosis:
    """Diagnose a job without a recorded launch, for which EC2 never received a request."""
    if observation.cancelled is not None:
        return _gone(Outcome.CANCELLED, "The job was cancelled before it was launched.")
    if _forgotten(observation):
        return _abandoned(
            observation,
            f"The submission was interrupted {span(observation.written or ABANDONED)} ago, before the launch",
        )
    return Diagnosis(JobStage.UNLAUNCHED, "The job is recorded, but not launched yet.")


def _forgotten(observation: Observation) -> bool:
    return observation.written is not None and observation.written > ABANDONED


def _abandoned(observation: Observation, what: str) -> Diagnosis:
    # No outcome is inferred, because a result would prevent a repeated submission, and would break a
    # submission that is only slow.
    advice = f"submit the job again with --job-id {observation.job_id}, and the job continues"
    if observation.waiting is not None:
        what = f"{what} while the job waited for capacity ({observation.waiting})"
    elif observation.launch_age is not None and observation.launch_age > LAUNCH_WINDOW:
        advice = "submit the job again with a new job id"
    return Diagnosis(JobStage.ABANDONED, f"{what}, and nothing runs; {advice}.")


def _by_signs(observation: Observation, *, why: str) -> Diagnosis:
    """Diagnose a job only by the content of its store. why: the reason why EC2 could not be queried."""
    if not observation.signs:
        if observation.launch_age is None and _forgotten(observation):
            return _unlaunched(observation)
        return Diagnosis(JobStage.PENDING, f"The agent has not reported yet, and {why}.")
    oldest = observation.silence
    if oldest > STALE:
        return Diagnosis(
            JobStage.SILENT,
            f"The agent has sent no heartbeat for {span(oldest)}, and {why}.",
        )
    if observation.unreported:
        return Diagnosis(
            JobStage.BOOTING,
            f"{len(observation.signs)} of {observation.nodes} agents have reported; {why}.",
        )
    return Diagnosis(JobStage.RUNNING, f"The agent sent a heartbeat {span(oldest)} ago; {why}.")


def _gone(outcome: Outcome, sentence: str) -> Diagnosis:
    return Diagnosis(JobStage.GONE, sentence, inferred=InferredOutcome(outcome, sentence))
