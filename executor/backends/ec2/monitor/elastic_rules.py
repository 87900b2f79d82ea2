"""The rules for the diagnosis of an elastic job. An elastic job continues after the loss of a machine.

An elastic job's remaining nodes decide when the job ends. Only machines that hang or never booted are
terminated from outside. If no machine is left, the job's result is written after the time for which an
elastic job waits for new machines.
"""

from __future__ import annotations

from datetime import timedelta

from bai_agent.job.outcome import Outcome
from bai_agent.job.schema.durations import format_duration
from executor.backends.ec2.clock import span
from executor.backends.ec2.inferred_result import InferredOutcome
from executor.backends.ec2.instances import Instance
from executor.backends.ec2.monitor.boot_failure import never_booted
from executor.backends.ec2.monitor.job_observation import (
    POWER_OFF,
    STALE,
    Diagnosis,
    ElasticState,
    JobStage,
    Observation,
    ended,
    leaving,
    machines_are,
)


def all_left(observation: Observation) -> Diagnosis | None:
    """Diagnose an elastic job whose machines are all gone or shutting down."""
    elastic, left = observation.elastic, observation.left
    if elastic is None or observation.living:
        return None
    if len(observation.over) < len(left):
        return Diagnosis(JobStage.ENDING, f"{leaving(left)}.", terminate=observation.stopped)
    if elastic.decided is not None:
        return ended(elastic.decided, observation)
    why = observation.why_gone(left)
    # A job that never ran, or whose nodes have all finished, does not wait for new machines.
    waits = observation.cancelled is None and (
        elastic.awaits
        or any(each.index in observation.signs and each.index not in observation.done for each in left)
    )
    return _waits(observation, elastic, why) if waits else ended(why, observation)


def _waits(observation: Observation, elastic: ElasticState, why: InferredOutcome) -> Diagnosis:
    # The wait begins at the last heartbeat or at the end of the last machine, whichever is later, because a
    # hanging machine is terminated long after its last heartbeat.
    ended_ago = [max(timedelta(), observation.now - each.ended) for each in observation.left if each.ended]
    ages = [*observation.signs.values(), *ended_ago]
    since = min(ages, default=observation.launch_age or timedelta())
    waited = elastic.waiting if elastic.waiting is not None else since
    least, reason = elastic.min_nodes, why.sentence.removesuffix(".")
    if waited < elastic.wait:
        rest = span(elastic.wait - waited)
        sentence = (
            f"No machine is left. The job waits for nodes (at least {least}) for {rest} more: {reason}."
        )
        return Diagnosis(JobStage.PARKED, sentence, terminate=observation.stopped)
    sentence = f"The job had 0 of at least {least} nodes for {format_duration(elastic.wait)}: {reason}."
    return ended(InferredOutcome(Outcome.PEER_LOST, sentence, rank=why.rank), observation)


def nodes_hang(observation: Observation) -> Diagnosis | None:
    """Diagnose an elastic job if some of its machines have been silent for so long that they must be hanging, or
    have lost their network for good. The other nodes continue without the silent machines."""
    elastic = observation.elastic
    if elastic is None:
        return None
    silence = max(STALE, observation.peer_silence)
    hung = observation.silent_for(silence + observation.patience)
    if len(hung) < len(observation.working):
        return _goes_on_without(hung, observation) if hung else None
    # All agents are silent, so possibly none of them reaches the store, and a longer silence is allowed.
    longest = max(silence, observation.store_away, timedelta() if elastic.replaces else elastic.wait)
    hung = observation.silent_for(longest + observation.patience)
    if not hung or len(hung) < len(observation.working):
        return None
    if elastic.replaces:
        return _goes_on_without(hung, observation)
    first = hung[0]
    others = f", nor have {len(hung) - 1} other nodes" if len(hung) > 1 else ""
    sentence = f"{observation.silence_of(first)}{others}, and the job has no other node."
    return ended(InferredOutcome(Outcome.PEER_LOST, sentence, rank=first.index), observation)


def _goes_on_without(hung: tuple[Instance, ...], observation: Observation) -> Diagnosis:
    told = "; ".join(f"{observation.silence_of(each)}, and its machine is terminated" for each in hung)
    stage = JobStage.RUNNING if len(hung) < len(observation.working) else JobStage.SILENT
    return Diagnosis(stage, f"{told}; the job goes on.", terminate=hung + observation.stopped)


def stuck_power_offs(observation: Observation) -> tuple[Instance, ...]:
    """Return the machines that are still on although their nodes' parts of the job ended minutes ago. A
    machine that does not power off is replaced only after it is gone, because there must never be more
    machines than the job wants.
    """
    elastic = observation.elastic
    if elastic is None:
        return ()
    return tuple(
        each
        for each in observation.living
        if each.index in observation.done
        and each.index not in elastic.kept
        and observation.signs.get(each.index, timedelta()) > POWER_OFF
    )


def boots_without_us(observation: Observation) -> Diagnosis | None:
    """Diagnose an elastic job with machines that never ran their user data."""
    failed = [each for each in observation.starting if never_booted([each], observation) is not None]
    sentence = never_booted(failed, observation)
    if sentence is None:
        return None
    elastic = observation.elastic
    # If no machine of the job has ever written a heartbeat, the image is at fault, and a new machine would
    # not write one either.
    goes_on = elastic is not None and (elastic.awaits or (elastic.replaces and bool(observation.signs)))
    if len(failed) == len(observation.living) and not goes_on:
        return ended(InferredOutcome(Outcome.BOOT_FAILED, sentence), observation)
    stage = JobStage.RUNNING if _fresh(observation) else JobStage.BOOTING
    return Diagnosis(stage, sentence, terminate=(*failed, *observation.stopped))


def goes_on(observation: Observation) -> Diagnosis | None:
    """Diagnose an elastic job with at least one living node."""
    fresh = _fresh(observation)
    if not fresh:
        return None
    told = [f"{machines_are(observation.living)} running"]
    told += [f"node {each.index} ({each.id}) is gone" for each in observation.left]
    told += [observation.silence_of(each).replace("N", "n", 1) for each in observation.silent_for(STALE)]
    if observation.starting:
        told.append(f"{machines_are(observation.starting)} booting")
    return Diagnosis(JobStage.RUNNING, f"{'; '.join(told)}.", terminate=observation.stopped)


def _fresh(observation: Observation) -> list[Instance]:
    return [
        each
        for each in observation.working
        if each.index in observation.signs and observation.signs[each.index] <= STALE
    ]
