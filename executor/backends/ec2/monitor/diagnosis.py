"""How a job on EC2 stands, from what its store, EC2 and the consoles say: a pure function, total over all they may say.

The store is asked first: a job with a result has ended, and none of this is needed. Where there is no result:

| stage | what is seen |
|---|---|
| unlaunched | no instance yet: the submission is under way |
| waiting | no instance yet: no zone has room, and all are asked again |
| abandoned | no instance, and none will come: the submission was cut short, and only repeating it goes on |
| pending | EC2 has accepted the launch; a machine is being started |
| booting | a machine runs, and its agent has not reported yet |
| running | the agents' signs of life are fresh, and their machines are there |
| silent | a machine runs, and its agent has said nothing for a minute |
| ending | the machines shut down, or are being terminated |
| unknown | EC2 cannot be asked, the agents are silent, and the time at which the machines had to be gone has passed |
| gone | nothing runs that could write a result any more: the inferred outcome is written on the job's behalf |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum

from bai_agent.errors import BaiError
from bai_agent.job.outcome import Outcome
from executor.backends.ec2.console import Console
from executor.backends.ec2.inferred_result import InferredOutcome, why_gone
from executor.backends.ec2.instances import Instance
from executor.backends.ec2.launch.launch_record import LAUNCH_WINDOW
from executor.backends.ec2.monitor.boot_failure import never_booted, span, unproven

STALE = timedelta(seconds=60)
"""Heartbeats come each 15 s; after so long without one the agent is silent."""
CONSISTENT = timedelta(minutes=10)
"""EC2 may not show an instance that it has just accepted; after so long it does."""
ABANDONED = timedelta(minutes=10)
"""A submitter leaves a sign in the store more often: asking for one candidate, the longest of its steps, is bounded by half."""
OVERDUE = timedelta(minutes=15)
"""After its expiry a machine has so long to be gone by itself: it may be keeping a failed benchmark to look into."""


class JobStage(str, Enum):
    UNLAUNCHED = "unlaunched"
    WAITING = "waiting"
    ABANDONED = "abandoned"
    PENDING = "pending"
    BOOTING = "booting"
    RUNNING = "running"
    SILENT = "silent"
    ENDING = "ending"
    UNKNOWN = "unknown"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All that is known of an attempt without a result."""

    now: datetime
    job_id: str = "JOB"
    nodes: int = 1
    written: timedelta | None = None
    """Since the job was written down; None where nothing tells."""
    launch_age: timedelta | None = None
    """Since the launch was written down or last went on; None where it was not written (a machine launched by hand)."""
    accepted: bool = False
    """EC2 has accepted the launch."""
    refusal: InferredOutcome | None = None
    """EC2 has refused the launch for good."""
    waiting: str | None = None
    """What the job waits for, and until when, where zones without room are asked again."""
    expires: datetime | None = None
    instances: tuple[Instance, ...] | None = ()
    """None where EC2 could not be asked."""
    surplus: tuple[Instance, ...] = ()
    """Machines with the job's tags that are none of its launch: of two that launched it at once, the other's."""
    signs: Mapping[int, timedelta] = field(default_factory=dict)
    """Rank → age of its agent's last sign of life, by the store's clock."""
    done: frozenset[int] = frozenset()
    """Ranks that have written their own results."""
    consoles: Mapping[str, Console] = field(default_factory=dict)
    """Of machines without a sign of life, where they were read."""
    unreadable: Mapping[str, BaiError] = field(default_factory=dict)
    """Why others were not."""
    boot_limit: timedelta | None = None
    """A machine that was launched so long ago has given a sign of life, or has ended by itself. None: not known."""
    cancelled: timedelta | None = None
    """Since somebody asked for the job's end."""
    patience: timedelta = timedelta(minutes=3)
    """How long a cancelled job may take to end by itself."""
    peer_silence: timedelta = timedelta(seconds=60)
    """After so long the agents of several nodes give one of them up that is silent."""
    store_away: timedelta = timedelta(minutes=10)
    """For so long they may all be silent, as none of them reaches the job store."""

    @property
    def unreported(self) -> list[int]:
        return [rank for rank in range(self.nodes) if rank not in self.signs]

    @property
    def silence(self) -> timedelta:
        """How long the most silent node has said nothing, of those that have not ended."""
        return max((age for rank, age in self.signs.items() if rank not in self.done), default=timedelta())


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """How the job stands, and what is due."""

    stage: JobStage
    sentence: str
    inferred: InferredOutcome | None = None
    """How the job ended: set where the stage is `gone`, and only there."""
    terminate: tuple[Instance, ...] = ()
    """Machines that the job no longer needs."""


def diagnose(observation: Observation) -> Diagnosis:
    """Return how the job stands. `running` only where a machine runs, as far as EC2 can be asked."""
    found = _seen(observation)
    useless = tuple(each for each in observation.surplus if each.living or each.state == "stopped")
    return replace(found, terminate=(*found.terminate, *useless)) if useless else found


def _seen(observation: Observation) -> Diagnosis:
    if observation.instances is None:
        return _unasked(observation)
    if not observation.instances:
        return _nothing_seen(observation)
    left = [each for each in observation.instances if not each.living]
    living = tuple(each for each in observation.instances if each.living)
    stopped = tuple(each for each in observation.instances if each.state == "stopped")
    over = [each for each in left if _is_over(each, observation)]
    alone = observation.nodes == 1
    broken = not alone and bool(observation.unreported) and bool(left)
    # The machine of a node that has ended goes; the first one's takes the job's result along.
    lost = left if alone else [each for each in left if each.index == 0 or each.index not in observation.done]
    if (
        broken
        or (over and not living and len(over) == len(left))
        or (alone and any(each.index == 0 for each in over))
        or (not alone and _given_up(observation, [each for each in lost if each in over], living))
    ):
        inferred = why_gone(
            left if broken else [each for each in over if each in lost] or over,
            observation.signs,
            observation.consoles,
            expires=observation.expires,
            boot_limit=observation.boot_limit,
            cancelled=observation.cancelled is not None,
        )
        return Diagnosis(
            stage=JobStage.GONE, sentence=inferred.sentence, inferred=inferred, terminate=(*living, *stopped)
        )
    if not living or (alone and any(each.index == 0 for each in left)):
        return Diagnosis(stage=JobStage.ENDING, sentence=_leaving(left), terminate=stopped)
    if (overdue := _overdue(observation)) is not None:
        return Diagnosis(stage=JobStage.ENDING, sentence=overdue, terminate=(*living, *stopped))
    if (hung := _hung(observation, living)) is not None:
        return replace(hung, terminate=(*hung.terminate, *stopped))
    if lost and not alone:
        return Diagnosis(
            stage=JobStage.ENDING,
            sentence=f"{_leaving(lost).removesuffix('.')}, and the other nodes end.",
            terminate=stopped,
        )
    waiting = [each for each in living if each.index not in observation.signs]
    if (failed := never_booted(waiting, observation.consoles, observation.boot_limit)) is not None:
        failed = failed.replace("bai logs JOB", f"bai logs {observation.job_id}")
        inferred = InferredOutcome(Outcome.BOOT_FAILED, failed)
        return Diagnosis(
            stage=JobStage.GONE, sentence=failed, inferred=inferred, terminate=(*living, *stopped)
        )
    return _living(observation, living, left)


def _unasked(observation: Observation) -> Diagnosis:
    """Judge without EC2: an agent that is silent past its time may be gone or not, and nothing more will be heard of it."""
    if _is_late(observation) and all(age > STALE for age in observation.signs.values()):
        return Diagnosis(
            stage=JobStage.UNKNOWN,
            sentence="The job's time is up, nothing is heard of it, and EC2 could not be asked for its machines: "
            "look again with credentials that may do so.",
        )
    return _by_signs(observation, why="EC2 could not be asked")


def _is_late(observation: Observation) -> bool:
    return observation.expires is not None and observation.now > observation.expires + OVERDUE


def _is_over(instance: Instance, observation: Observation) -> bool:
    """Return whether nothing more will come from a machine that has left: one that shuts down may still be writing."""
    if instance.gone:
        return True
    sign = observation.signs.get(instance.index)
    if sign is not None:
        return sign > STALE
    console = observation.consoles.get(instance.id)
    return console is not None and console.end is not None


def _given_up(observation: Observation, lost: list[Instance], living: tuple[Instance, ...]) -> bool:
    """Return whether the nodes that are left make no result any more, though a machine was `lost`.

    Their agents see that by themselves, end what runs and write the result; who is silent, or takes too long, does not.
    """
    if not lost:
        return False
    working = [each for each in living if each.index not in observation.done]
    given_up = max(STALE, observation.peer_silence)
    if all(observation.signs.get(each.index, timedelta.max) > given_up for each in working):
        return True
    return (
        min(observation.signs.get(each.index, timedelta.max) for each in lost)
        > given_up + observation.patience
    )


def _hung(observation: Observation, living: tuple[Instance, ...]) -> Diagnosis | None:
    """Return what is due where machines of several nodes are silent for so long that they hang, or are cut off for good; else None.

    An agent that cannot reach the store ends its node, after `peer_silence` if others can: nobody waits for it any more.
    """
    if observation.nodes == 1:
        return None
    working = [each for each in living if each.index not in observation.done]
    silence = max(STALE, observation.peer_silence)
    hung = _silent_for(observation, working, silence + observation.patience)
    if len(hung) == len(working):
        # Also because the store may be out of reach of them all, which they wait for.
        hung = _silent_for(observation, working, max(silence, observation.store_away) + observation.patience)
    if not hung:
        return None
    first = hung[0]
    others = f", nor have {len(hung) - 1} other nodes" if len(hung) > 1 else ""
    sentence = (
        f"Node {first.index} ({first.id}) has given no sign of life for {span(observation.signs[first.index])}{others}; "
        f"{'their machines are' if others else 'its machine is'} terminated."
    )
    if len(hung) < len(working):
        # Their agents make the result.
        return Diagnosis(stage=JobStage.SILENT, sentence=sentence, terminate=hung)
    inferred = InferredOutcome(Outcome.PEER_LOST, sentence, rank=first.index)
    return Diagnosis(stage=JobStage.GONE, sentence=sentence, inferred=inferred, terminate=living)


def _silent_for(observation: Observation, working: list[Instance], limit: timedelta) -> tuple[Instance, ...]:
    return tuple(each for each in working if observation.signs.get(each.index, timedelta()) > limit)


def _overdue(observation: Observation) -> str | None:
    """Return why machines that still run must be ended from outside."""
    if observation.cancelled is not None and observation.cancelled > observation.patience:
        return f"The job was cancelled {span(observation.cancelled)} ago and has not ended; its machines are terminated."
    if _is_late(observation):
        return "The job's time is up and its machines have not powered themselves off; they are terminated."
    return None


def _living(observation: Observation, living: tuple[Instance, ...], left: list[Instance]) -> Diagnosis:
    waiting = [each for each in living if each.index not in observation.signs]
    if waiting:
        return _starting(observation, waiting)
    working = [each.index for each in living if each.index not in observation.done]
    oldest = max((observation.signs[rank] for rank in working), default=timedelta())
    who = (
        "The agent"
        if observation.nodes == 1
        else f"The agent of node {max(working, key=lambda rank: observation.signs[rank], default=0)}"
    )
    if oldest > STALE:
        return Diagnosis(
            stage=JobStage.SILENT,
            sentence=f"{who} has given no sign of life for {span(oldest)}; its machine still runs{_until(observation)}.",
        )
    gone = f"; {len(left)} of {observation.nodes} machines have ended" if left else ""
    return Diagnosis(stage=JobStage.RUNNING, sentence=f"{_machines(living)} {_be(living)} running{gone}.")


def _starting(observation: Observation, waiting: list[Instance]) -> Diagnosis:
    pending = [each for each in waiting if each.state == "pending"]
    if pending:
        return Diagnosis(stage=JobStage.PENDING, sentence=f"EC2 starts {_machines(pending)}.")
    ends = [
        (each, observation.consoles[each.id])
        for each in waiting
        if each.id in observation.consoles and observation.consoles[each.id].end
    ]
    if ends:
        machine, console = ends[0]
        return Diagnosis(
            stage=JobStage.ENDING,
            sentence=f"{machine.id} powers itself off: {console.end} {console.detail}".rstrip() + ".",
        )
    steps = [observation.consoles[each.id].last_step for each in waiting if each.id in observation.consoles]
    step = next((each for each in steps if each), None)
    doubt = unproven(waiting, observation.consoles, observation.unreadable, observation.boot_limit)
    if doubt is not None and step is None:
        bound = (
            f"; it is terminated at {_clock(observation.expires + OVERDUE)}"
            if observation.expires is not None
            else ""
        )
        return Diagnosis(
            stage=JobStage.BOOTING,
            sentence=f"{doubt}{bound}, or now by `bai cancel {observation.job_id} --now`.",
        )
    return Diagnosis(
        stage=JobStage.BOOTING,
        sentence=f"{_machines(waiting)} {_be(waiting)} booting"
        + (f"; last step: {step}" if step else "")
        + ".",
    )


def _nothing_seen(observation: Observation) -> Diagnosis:
    """Judge a job of which EC2 shows no instance."""
    if observation.refusal is not None:
        return _gone(observation.refusal.outcome, observation.refusal.sentence)
    fresh = [age for age in observation.signs.values() if age <= STALE]
    if fresh and len(fresh) == len(observation.signs):
        return _by_signs(observation, why="EC2 does not show its machine")
    if observation.launch_age is None:
        return (
            _by_signs(observation, why="EC2 does not show its machine")
            if observation.signs
            else _unlaunched(observation)
        )
    if observation.launch_age <= CONSISTENT:
        if observation.accepted:
            return Diagnosis(
                stage=JobStage.PENDING, sentence="EC2 has accepted the launch, and shows no machine yet."
            )
        if observation.waiting is not None:
            return Diagnosis(
                stage=JobStage.WAITING, sentence=f"The job waits for capacity: {observation.waiting}."
            )
        return Diagnosis(stage=JobStage.UNLAUNCHED, sentence="The job is being launched.")
    if observation.cancelled is not None:
        return _gone(Outcome.CANCELLED, "The job was cancelled, and none of its machines is left.")
    if observation.accepted or observation.signs:
        return _gone(
            Outcome.LOST,
            "The job's machines are gone without a result, for so long that EC2 knows nothing of them any more.",
        )
    if _is_late(observation) and observation.waiting is None:
        return _gone(
            Outcome.LAUNCH_FAILED, "The launch was begun and never completed; no machine was started."
        )
    return _abandoned(observation, f"The launch was cut short {span(observation.launch_age)} ago")


def _unlaunched(observation: Observation) -> Diagnosis:
    """Judge a job whose launch was never written down, so that nobody has asked EC2 for anything."""
    if observation.cancelled is not None:
        return _gone(Outcome.CANCELLED, "The job was cancelled before it was launched.")
    if _forgotten(observation):
        return _abandoned(
            observation,
            f"The submission was cut short {span(observation.written or ABANDONED)} ago, before the launch",
        )
    return Diagnosis(stage=JobStage.UNLAUNCHED, sentence="The job is written down and not launched yet.")


def _forgotten(observation: Observation) -> bool:
    return observation.written is not None and observation.written > ABANDONED


def _abandoned(observation: Observation, what: str) -> Diagnosis:
    # No outcome: a result would keep the submission from being repeated, and hurt one that is only slow.
    advice = f"submit it again with --job-id {observation.job_id}, and it goes on"
    if observation.waiting is not None:
        what = f"{what} while the job waited for capacity ({observation.waiting})"
    elif observation.launch_age is not None and observation.launch_age > LAUNCH_WINDOW:
        advice = "submit it again with a new job id"
    return Diagnosis(stage=JobStage.ABANDONED, sentence=f"{what}, and nothing runs; {advice}.")


def _by_signs(observation: Observation, *, why: str) -> Diagnosis:
    """Judge by the store alone."""
    if not observation.signs:
        if observation.launch_age is None and _forgotten(observation):
            return _unlaunched(observation)
        return Diagnosis(stage=JobStage.PENDING, sentence=f"Its agent has not reported yet, and {why}.")
    oldest = observation.silence
    if oldest > STALE:
        return Diagnosis(
            stage=JobStage.SILENT,
            sentence=f"Its agent has given no sign of life for {span(oldest)}, and {why}.",
        )
    if observation.unreported:
        return Diagnosis(
            stage=JobStage.BOOTING,
            sentence=f"{len(observation.signs)} of {observation.nodes} agents have reported; {why}.",
        )
    return Diagnosis(
        stage=JobStage.RUNNING, sentence=f"Its agent gave a sign of life {span(oldest)} ago; {why}."
    )


def _gone(outcome: Outcome, sentence: str) -> Diagnosis:
    return Diagnosis(stage=JobStage.GONE, sentence=sentence, inferred=InferredOutcome(outcome, sentence))


def _leaving(left: list[Instance]) -> str:
    reason = next((each.reason for each in left if each.reason), "")
    return f"{_machines(left)} {_be(left)} shutting down" + (f" ({reason})" if reason else "") + "."


def _machines(instances: list[Instance] | tuple[Instance, ...]) -> str:
    if len(instances) == 1:
        return f"{instances[0].id} ({instances[0].type})" if instances[0].type else instances[0].id
    return f"{len(instances)} machines"


def _be(instances: list[Instance] | tuple[Instance, ...]) -> str:
    return "is" if len(instances) == 1 else "are"


def _until(observation: Observation) -> str:
    return f", until {observation.expires:%H:%M} UTC at the latest" if observation.expires is not None else ""


def _clock(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"
