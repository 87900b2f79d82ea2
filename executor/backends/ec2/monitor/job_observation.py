"""Types for the observed facts about a job on EC2 without a result, and for the diagnosis made from these
facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from datetime import datetime, timedelta
from enum import Enum

from bai_agent.errors import BaiError
from bai_agent.light_dataclass import dataclass, field
from executor.backends.ec2.clock import span
from executor.backends.ec2.console import Console
from executor.backends.ec2.inferred_result import InferredOutcome, why_gone
from executor.backends.ec2.instances import Instance

STALE = timedelta(seconds=60)
"""Age of the last heartbeat after which an agent counts as silent. An agent writes `heartbeat.json` every 15
s."""
CONSISTENT = timedelta(minutes=10)
"""Longest time between EC2's acceptance of a launch and the first answer in which EC2 shows the instance."""
ABANDONED = timedelta(minutes=10)
"""Time without a write to the store after which a submission counts as abandoned. A submitter's longest step,
the request for one candidate, takes at most half of `ABANDONED`."""
OVERDUE = timedelta(minutes=15)
"""Maximum time between a machine's deadline and its own power-off, even if the machine stayed on for
inspection."""
UNREACHABLE = timedelta(minutes=15)
"""Time after which a machine counts as lost if the machine writes no heartbeat and fails EC2's status check. The
time applies only to the single machine of a job with a fixed number of nodes. Silence alone does not prove that the
machine is lost, because the agent of a single node continues while the job store is unreachable.
"""
POWER_OFF = timedelta(minutes=5)
"""Time without a heartbeat after which a machine's shutdown counts as hanging. The time begins when the job, or the
node's part of the job, has ended. Systemd usually gives each service 90 s to stop."""


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
    PARKED = "parked"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class ElasticState:
    """Facts that are observed only for an elastic job."""

    min_nodes: int
    wait: timedelta
    """Longest time for which the job waits with too few nodes."""
    waiting: timedelta | None = None
    """Time for which the job has waited for nodes, according to the newest decision that its nodes recorded; None
    if the job does not wait, or if a node is alive."""
    decided: InferredOutcome | None = None
    """Outcome that the job's nodes recorded for the job; None if the nodes recorded no outcome, or if a node is
    alive."""
    awaits: bool = False
    """Whether the job will get another machine."""
    replaces: bool = False
    """Whether the job would get another machine if no machine were left."""
    kept: frozenset[int] = frozenset()
    """Ended nodes whose machines stay on for inspection."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All observed facts about an attempt without a result."""

    now: datetime
    job_id: str = "JOB"
    nodes: int = 1
    elastic: ElasticState | None = None
    """Facts of an elastic job; None if the number of nodes is fixed."""
    written: timedelta | None = None
    """Time since the job was recorded; None if unknown."""
    launch_age: timedelta | None = None
    """Time since the launch's last recorded step; None if the launch has no record (a machine launched by
    hand)."""
    accepted: bool = False
    """Whether EC2 has accepted the launch."""
    refusal: InferredOutcome | None = None
    """EC2's final refusal of the launch; None if EC2 did not refuse the launch."""
    waiting: str | None = None
    """Reason and end of the wait for capacity; None if the job does not wait."""
    expires: datetime | None = None
    instances: tuple[Instance, ...] | None = ()
    """Machines of the job; None if EC2 could not be queried."""
    surplus: tuple[Instance, ...] = ()
    """Machines with the job's tags that a concurrent launch started, and that the job's launch record does
    not contain."""
    signs: Mapping[int, timedelta] = field(default_factory=dict)
    """Rank → age of the last heartbeat of the rank's agent, by the store's clock."""
    numbers: tuple[int, ...] = ()
    """Numbers of all nodes that have been launched; if empty, the numbers are 0 to `nodes` - 1."""
    done: frozenset[int] = frozenset()
    """Ranks that have written their own results."""
    consoles: Mapping[str, Console] = field(default_factory=dict)
    """Consoles of machines without a heartbeat, by instance id, if the consoles were read."""
    unreadable: Mapping[str, BaiError] = field(default_factory=dict)
    """Errors for consoles that could not be read, by instance id."""
    failing: Mapping[str, timedelta] = field(default_factory=dict)
    """Id of a machine without heartbeats that fails EC2's status check → time for which the check has been
    failing."""
    boot_limit: timedelta | None = None
    """Age by which a machine must have written a heartbeat or powered itself off; None if unknown."""
    cancelled: timedelta | None = None
    """Time since the cancellation; None if the job is not cancelled."""
    patience: timedelta = timedelta(minutes=3)
    """Longest time that a cancelled job's nodes need to end the job."""
    peer_silence: timedelta = timedelta(seconds=60)
    """Time without a heartbeat of a node after which the other nodes' agents give the node up."""
    store_away: timedelta = timedelta(minutes=10)
    """Longest time for which all agents may write no heartbeat because none of them reaches the job store."""

    @property
    def living(self) -> tuple[Instance, ...]:
        return tuple(each for each in self.instances or () if each.living)

    @property
    def stopped(self) -> tuple[Instance, ...]:
        return tuple(each for each in self.instances or () if each.state == "stopped")

    @property
    def left(self) -> list[Instance]:
        """Machines of the job that are gone or shutting down."""
        return [each for each in self.instances or () if not each.living]

    @property
    def over(self) -> list[Instance]:
        """Machines of `left` that will write nothing more."""
        return [each for each in self.left if is_over(each, self)]

    @property
    def lost(self) -> list[Instance]:
        """Machines of `left` that the job still needs. The job does not need nodes that have ended, except
        the first node, which writes the job's result."""
        return [
            each for each in self.left if self.nodes == 1 or each.index == 0 or each.index not in self.done
        ]

    @property
    def starting(self) -> list[Instance]:
        """Living machines whose agents have not reported."""
        return [each for each in self.living if each.index not in self.signs]

    @property
    def working(self) -> list[Instance]:
        return [each for each in self.living if each.index not in self.done]

    @property
    def unreported(self) -> list[int]:
        return [rank for rank in self.numbers or range(self.nodes) if rank not in self.signs]

    @property
    def silence(self) -> timedelta:
        """Longest time without a heartbeat among the nodes that have not ended."""
        return max((age for rank, age in self.signs.items() if rank not in self.done), default=timedelta())

    def silent_for(self, limit: timedelta) -> tuple[Instance, ...]:
        """Return the machines whose nodes have written heartbeats, but no heartbeat within the last
        `limit`."""
        return tuple(each for each in self.working if self.signs.get(each.index, timedelta()) > limit)

    def silence_of(self, machine: Instance) -> str:
        """Return the beginning of a sentence that says how long ago a machine wrote its last heartbeat."""
        age = span(self.signs[machine.index])
        return f"Node {machine.index} ({machine.id}) has sent no heartbeat for {age}"

    def why_gone(self, causes: Sequence[Instance]) -> InferredOutcome:
        """Infer the outcome of a job without a result. causes: those machines of the job that are gone or
        shutting down; not empty."""
        return why_gone(
            causes,
            self.signs,
            self.consoles,
            expires=self.expires,
            boot_limit=self.boot_limit,
            cancelled=self.cancelled is not None,
        )


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a job: its stage, and what must be done for the job now."""

    stage: JobStage
    sentence: str
    _: KW_ONLY
    inferred: InferredOutcome | None = None
    """Inferred outcome of the job; set if and only if the stage is `gone`."""
    terminate: tuple[Instance, ...] = ()
    """Machines that the job no longer needs."""
    trouble: str = ""
    """Reason why machines could not be terminated; empty if the machines were terminated, or if no attempt
    was made."""
    unlaunched: str = ""
    """Reason why missing machines cannot be launched; empty if nothing prevents a launch."""


def is_over(instance: Instance, observation: Observation) -> bool:
    """Return whether a machine that is gone or shutting down will write nothing more. A machine can still
    write while it shuts down."""
    if instance.gone:
        return True
    sign = observation.signs.get(instance.index)
    if sign is not None:
        return sign > STALE
    console = observation.consoles.get(instance.id)
    return console is not None and console.end is not None


def ended(inferred: InferredOutcome, observation: Observation) -> Diagnosis:
    """Return the diagnosis of a job with this inferred outcome. The diagnosis says that the job's machines
    are to be terminated."""
    rest = observation.living + observation.stopped
    return Diagnosis(JobStage.GONE, inferred.sentence, inferred=inferred, terminate=rest)


def leaving(left: Sequence[Instance]) -> str:
    """Return the beginning of a sentence about machines that are gone or shutting down."""
    reason = next((each.reason for each in left if each.reason), "")
    return f"{machines_are(left)} shutting down" + (f" ({reason})" if reason else "")


def machines_are(instances: Sequence[Instance]) -> str:
    """Return the beginning of a sentence about machines: their names and "is" or "are"."""
    return f"{machines(instances)} {is_are(instances)}"


def is_are(instances: Sequence[Instance]) -> str:
    """Return "is" or "are", by the number of machines."""
    return "is" if len(instances) == 1 else "are"


def machines(instances: Sequence[Instance]) -> str:
    """Return the names of these machines, for use in messages."""
    if len(instances) == 1:
        return f"{instances[0].id} ({instances[0].type})" if instances[0].type else instances[0].id
    return f"{len(instances)} machines"
