"""Monitors a job on EC2: finds the job's status, terminates unneeded machines, and writes the job's result if
the job's machines cannot.

Several `bai` processes may monitor a job at the same time, and any process may be killed at any moment. Each
check decides anew what is due. Machines can be terminated twice without harm, and only the first written
result counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bai_agent.errors import BaiError, DescriptorError, MissingObjectError, RecordError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.limit_tables import Power
from bai_agent.job.generation_records import DecisionKind
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import dataclass, field, replace
from executor.backends.ec2.clock import age_of, elapsed, moment, store_now
from executor.backends.ec2.inferred_result import InferredOutcome, write_result
from executor.backends.ec2.instances import (
    Instance,
    failing_checks,
    fetch_console,
    find_machines,
    instances_by_id,
    read_consoles,
    terminate,
)
from executor.backends.ec2.monitor.diagnosis import diagnose
from executor.backends.ec2.monitor.job_launches import JobLaunches, LaunchReader
from executor.backends.ec2.monitor.job_observation import (
    POWER_OFF,
    STALE,
    UNREACHABLE,
    Diagnosis,
    ElasticState,
    JobStage,
    Observation,
)
from executor.backends.ec2.monitor.machine_needs import MachineNeeds, enlarged_by, machine_needs
from executor.backends.ec2.monitor.replacer import Replacer
from executor.backends.ec2.tags import parse_timestamp
from executor.errors import AwsError
from executor.records.generation_status import requested_nodes
from executor.records.reading import result_of

if TYPE_CHECKING:
    from executor.backends.ec2.session import AwsSession

_MARGIN = timedelta(seconds=60)
"""Time that a cancelled job may take in addition to its grace and drain times, for the agent's polling, the uploads
and the power-off."""
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
_CONSOLES = 4
"""Maximum number of consoles that one check reads."""


@dataclass(frozen=True)
class JobMonitor:
    """Monitor of one job on EC2. Only the job's descriptor is cached. Each observation queries all other facts
    again."""

    record: JobRecord
    aws: Callable[[str | None], AwsSession]
    """Returns the session of AWS in a region. If the region is None, the configured region is used."""
    clock: Callable[[str], int] = store_now
    """Returns the time (ms UTC) by the clock of the store at a URL."""
    replacer: Replacer | None = field(default=None, repr=False, compare=False)
    """Launches the machines that the job lacks; None to launch no machines."""

    def observe(self, *, known: Sequence[Instance] | None = None, ask: bool = True) -> Diagnosis:
        """Return the diagnosis of the job. known: the job's instances, if EC2 has already described the
        instances. ask: whether to query EC2 in addition to the store.

        Raises StoreError. If EC2 cannot be queried, the diagnosis's sentence says that EC2 cannot be queried.
        """
        return self._look(known, ask)[0]

    def _look(self, known: Sequence[Instance] | None, ask: bool) -> tuple[Diagnosis, MachineNeeds | None]:
        """Return the diagnosis and, if EC2 was queried, the machines that the job lacks."""
        observation, why, needs = self._observation(known, ask)
        found = diagnose(observation)
        if ask and (silent := _silent(observation, found.stage)):
            consoles, unreadable = read_consoles(self.aws(self.region).ec2(), silent)
            found = diagnose(replace(observation, consoles=consoles, unreadable=unreadable))
        if ask and (ids := _may_hang(observation, found.stage)):
            try:
                failing = failing_checks(self.aws(self.region).ec2(), ids)
            except BaiError as error:
                return _with_needs(found, needs, f"({error})"), needs
            found = diagnose(replace(observation, failing=failing))
        return _with_needs(found, needs, why), needs

    def reconcile(self, *, known: Sequence[Instance] | None = None, ask: bool = True) -> Diagnosis:
        """Observe the job, and do what is due: terminate unneeded machines, launch missing machines, write
        the result. Raises BaiError."""
        found, needs = self._look(known, ask)
        # A job with a result has ended. The machines of an ended job power themselves off, or stay on for
        # inspection.
        if found.terminate and result_of(self.record) is None:
            try:
                terminate(self.aws(self.region).ec2(), found.terminate, job_id=self.record.job_id)
            except AwsError as error:
                # Machines could not be terminated. The diagnosis is still right, and the next check tries
                # again.
                sentence = f"{found.sentence} The machines could not be terminated: {error}"
                return replace(found, sentence=sentence, inferred=None, trouble=str(error))
        if found.inferred is not None:
            write_result(
                self.record,
                found.inferred.outcome,
                found.inferred.sentence,
                attempt=self.attempt,
                rank=found.inferred.rank,
            )
        elif needs is not None and self.replacer is not None and result_of(self.record) is None:
            # The store's clock is read again, because the observation may have taken long, for example if
            # this machine slept.
            now = moment(self.clock(self.record.store.url))
            said = self.replacer.do_due(self.job, needs, lambda: self.aws(self.region), now=now)
            return replace(found, sentence=f"{found.sentence} {said}", unlaunched=said) if said else found
        return found

    def all_well(self) -> bool:
        """Return whether every agent has a recent heartbeat and the job is not cancelled. Only the store is
        read."""
        observation, _, _ = self._observation(None, ask=False)
        well = (
            observation.cancelled is None and not observation.unreported and observation.silence < STALE / 2
        )
        return well and not (self.is_elastic and self._may_lack_machines(observation))

    def _may_lack_machines(self, observation: Observation) -> bool:
        """Return whether the job may need new machines, or has no remaining node that can write a result.
        Raises StoreError, RecordError."""
        launches = self._launches.read()
        working = len(observation.signs.keys() - observation.done)
        if launches.open_numbers or not working:
            return True
        requested = requested_nodes(AttemptRecord(self.record, self.attempt), self.job)
        first = len(launches.first)
        allowed = first + enlarged_by(first, requested) + self.job.elastic.replacements
        return working < [self.job.desired_nodes, *requested][-1] and len(launches.nodes) < allowed

    def end(self) -> list[str]:
        """Terminate the job's machines now; return their ids. Raises BaiError."""
        return terminate(self.aws(self.region).ec2(), self.instances(), job_id=self.record.job_id)

    def instances(self) -> list[Instance]:
        """Return the machines of the current attempt in any state, by rank. Raises BaiError."""
        ec2, job_id, launched = self.aws(self.region).ec2(), self.record.job_id, self.launched_ids
        found = find_machines(ec2, {job_id: launched})[job_id]
        return self._of_attempt(found if found or launched else instances_by_id(ec2, self._named()))

    def _named(self) -> list[str]:
        """Return the instance ids that the job's agents report. The ids are needed for machines that were
        launched by hand, which do not have bai's tags."""
        ready = [self._node_object("ready.json", rank) or {} for rank in range(self.job.strategy.nodes)]
        return [name for each in ready if _INSTANCE.fullmatch(name := str(each.get("instance_id")))]

    def consoles(self) -> list[tuple[Instance, str]]:
        """Return the job's machines, each with the newest console output that EC2 has. Raises BaiError."""
        ec2 = self.aws(self.region).ec2()
        return [(each, fetch_console(ec2, each.id)) for each in self.instances()]

    @cached_property
    def job(self) -> Job:
        return self.record.job()

    @cached_property
    def is_elastic(self) -> bool:
        """Whether machines may be launched while the job runs; False if the job's descriptor is missing or
        cannot be read."""
        try:
            return self.job.is_elastic
        except (DescriptorError, MissingObjectError, RecordError):
            return False

    @cached_property
    def attempt(self) -> int:
        """Number of the attempt in the descriptor; 0 if the descriptor is missing or cannot be read. The
        number is not read from the names of the attempts' folders, because any instance can write into a
        folder with another number."""
        try:
            return self.job.job.attempt
        except (DescriptorError, MissingObjectError, RecordError):
            return 0

    @property
    def launch(self) -> Mapping[str, Any] | None:
        """The launch record without the request. None before the launch record is written, and if a user
        launched the machines by hand.

        If the job waits for capacity, the latest round's record is returned.
        """
        return self._launches.launch

    @property
    def launched_ids(self) -> list[str]:
        """Ids of those machines of the current attempt whose ids are recorded. Raises StoreError,
        RecordError."""
        decided = self._launches.decision.get("instances", ())
        later = self._launches.read().later if self.is_elastic else ()
        ids = [*decided, *(each.instance for each in later if each.instance is not None)]
        return [each for each in ids if _INSTANCE.fullmatch(each)]

    @cached_property
    def _launches(self) -> LaunchReader:
        return LaunchReader(self.record, self.attempt)

    @property
    def region(self) -> str | None:
        named = (self.launch or {}).get("region") or (self.job.store.region if self.job.store else None)
        return str(named) if named else None

    @property
    def expires(self) -> datetime | None:
        """Deadline by which the machines power themselves off; None if unknown."""
        return parse_timestamp((self.launch or {}).get("expires"))

    @property
    def patience(self) -> timedelta:
        """Longest time that the job's agents need to end the job."""
        limits = self.job.limits
        return limits.grace + limits.drain + _MARGIN

    @property
    def boot_limit(self) -> timedelta | None:
        """Longest time until a machine's first heartbeat or its power-off; None if the launch record does not
        contain the time."""
        seconds = (self.launch or {}).get("boot_limit")
        return timedelta(seconds=seconds) if seconds else None

    def _observation(
        self, known: Sequence[Instance] | None, ask: bool
    ) -> tuple[Observation, str, MachineNeeds | None]:
        """Return the observation, the reason why EC2 could not be queried, and the machines that an elastic job
        needs if EC2 was queried."""
        now = self.clock(self.record.store.url)
        launched, is_elastic = self._launches.decision, self.is_elastic
        launches = self._launches.read() if is_elastic else JobLaunches()
        # For an elastic job, EC2 may have launched fewer machines than requested at first, and more machines
        # may have been launched later.
        numbers = sorted(launches.nodes.values()) or range(self.job.strategy.nodes)
        nodes = len(numbers)
        signs = {rank: age for rank in numbers if (age := self._sign(rank, now)) is not None}
        observation = Observation(
            now=moment(now),
            job_id=self.record.job_id,
            nodes=nodes,
            elastic=self._elastic_state(),
            written=self.age(self.record.key("job.toml"), now),
            launch_age=self._launches.age(now),
            accepted=bool(launched.get("instances")),
            refusal=_refusal(launched),
            waiting=self._launches.waiting(),
            expires=self.expires,
            instances=None,
            signs=signs,
            numbers=tuple(numbers),
            done=frozenset(
                rank for rank in signs if (nodes > 1 or is_elastic) and self._has("result.json", rank)
            ),
            cancelled=self.age(self.record.key("cancel.json"), now),
            patience=self.patience,
            peer_silence=self.job.limits.peer_silence,
            store_away=self.job.limits.store_away,
            boot_limit=self.boot_limit,
        )
        if known is None and not ask:
            return observation, "", None
        try:
            found = self._of_attempt(known) if known is not None else self.instances()
        except BaiError as error:
            return observation, f"({error})", None
        ours = launches.nodes or launched.get("instances")
        observation = _with_machines(observation, found, ours, decided=launches.decided_numbers)
        if observation.elastic is None or not launches.first:
            return observation, "", None
        needs = machine_needs(
            self.record,
            self.job,
            launches,
            observation.instances or (),
            signs=signs,
            done=observation.done,
            now=observation.now,
            expires=self.expires,
            is_cancelled=observation.cancelled is not None,
        )
        elastic = replace(
            observation.elastic,
            awaits=needs.awaits,
            replaces=needs.replaces,
            kept=frozenset(each for each in observation.done if self._is_kept(each, now)),
        )
        if not observation.living:
            elastic = self._last_word(elastic, now)
        return replace(observation, elastic=elastic), "", needs

    def _elastic_state(self) -> ElasticState | None:
        least = self.job.strategy.min_nodes
        return None if least is None else ElasticState(min_nodes=least, wait=self.job.elastic.wait)

    def _last_word(self, elastic: ElasticState, now: int) -> ElasticState:
        """Return `elastic` with the last decision of the job's nodes. Raises StoreError."""
        attempt = AttemptRecord(self.record, self.attempt)
        control = attempt.control()
        word = None if control.newest is None else attempt.decision(control.newest, control)
        try:
            if word is not None and word.kind is DecisionKind.END:
                return replace(elastic, decided=InferredOutcome(Outcome(word.outcome), word.sentence))
        except ValueError:  # A later version of `bai` wrote an outcome that this version does not know.
            return elastic
        since = None if word is None else word.ledger.waiting_since
        waiting = None if since is None else elapsed(since, now)
        return replace(elastic, waiting=waiting)

    def _is_kept(self, node: int, now: int) -> bool:
        """Return whether the machine of a node that has ended stays on for inspection. Raises StoreError."""
        end = self.job.end
        if end.power is Power.STAY or not end.keep_time(None):
            return end.power is Power.STAY
        try:
            result = self._node_object("result.json", node) or {}
        except RecordError:  # Without a readable result, the node has not succeeded.
            result = {}
        if not (kept := end.keep_time(result.get("exit_code"))):
            return False
        if (released := self.age(self.record.key("release.json"), now)) is not None:
            return released <= POWER_OFF
        ended = self.age(self.record.node(node, attempt=self.attempt).key("result.json"), now) or timedelta()
        return ended <= kept + POWER_OFF

    def _sign(self, rank: int, now: int) -> timedelta | None:
        """Return the age of a node's last heartbeat; None if the node has written nothing."""
        node = self.record.node(rank, attempt=self.attempt)
        ages = [self.age(node.key(name), now) for name in ("heartbeat.json", "ready.json")]
        age = min((age for age in ages if age is not None), default=None)
        # If a node has written no heartbeat, the age of its newest other object is used. Usually the node has
        # no object at all, and an empty listing is quick.
        return age if age is not None else self.age(node.key(""), now)

    def age(self, key: str, now: int) -> timedelta | None:
        """Return the age of an object of the store, as `age_of` does."""
        return age_of(self.record.store, key, now)

    def _has(self, name: str, rank: int) -> bool:
        return bool(self.record.store.find(self.record.node(rank, attempt=self.attempt).key(name)))

    def _node_object(self, name: str, rank: int) -> dict[str, Any] | None:
        return self.record.node(rank, attempt=self.attempt).read_object(name)

    def _of_attempt(self, instances: Iterable[Instance]) -> list[Instance]:
        ours = self.launched_ids
        nodes = self._launches.read().nodes if self.is_elastic else {}
        return sorted(
            (
                # A terminated machine has lost its tags, which contained the number of the first node of the
                # machine's launch.
                replace(each, index=nodes.get(each.id, each.index))
                for each in instances
                if each.id in ours
                or (each.job_id in (None, self.record.job_id) and each.attempt == str(self.attempt))
            ),
            key=lambda each: each.index,
        )


def _silent(observation: Observation, stage: JobStage) -> list[Instance]:
    """Return the machines whose consoles may explain why the job is in this stage. Machines with the most
    informative consoles come first."""
    booting, gone = observation.starting, [each for each in observation.instances or () if not each.living]
    found = {
        JobStage.RUNNING: booting,  # An elastic job continues with its other machines.
        JobStage.BOOTING: [*booting, *gone],
        JobStage.ENDING: [*gone, *booting],
        JobStage.GONE: [*gone, *booting],
    }.get(stage, [])
    return [each for each in found if each.state != "pending"][:_CONSOLES]


def _may_hang(observation: Observation, stage: JobStage) -> list[str]:
    """Return the id of the only machine of a job with a fixed number of nodes if the machine has written no
    heartbeat for longer than `UNREACHABLE`. EC2's status check then decides whether the machine is lost.
    Return an empty list for any other job."""
    if stage is not JobStage.SILENT or observation.elastic is not None or observation.nodes > 1:
        return []
    return [each.id for each in observation.working if observation.silence > UNREACHABLE]


def _with_needs(found: Diagnosis, needs: MachineNeeds | None, why: str) -> Diagnosis:
    """Return the diagnosis with the machine needs added to the diagnosis's sentence. why: the reason why EC2
    could not be queried."""
    if needs is not None and found.inferred is None and (said := needs.sentence()):
        found = replace(found, sentence=f"{found.sentence.removesuffix('.')}; {said}.")
    return replace(found, sentence=f"{found.sentence} {why}") if why else found


def _with_machines(
    observation: Observation,
    found: Sequence[Instance],
    ours: Collection[str] | None,
    *,
    decided: Collection[int],
) -> Observation:
    """Return the observation, completed with the machines `found` that EC2 has described.

    ours: ids of the machines in the launch records. Without ids, all machines in `found` are the job's.
    decided: launches whose results were read from the store. A machine of a launch outside `decided` never counts
    as surplus, because another process may have launched the machine after the store was read.
    """
    mine = tuple(each for each in found if not ours or each.id in ours)
    known = {str(each) for each in decided}
    surplus = tuple(each for each in found if each not in mine and each.launch in known)
    return replace(observation, instances=mine, surplus=surplus)


def _refusal(launched: Mapping[str, Any]) -> InferredOutcome | None:
    """Return EC2's final refusal of the launch, if a refusal is recorded."""
    if launched.get("instances") or "sentence" not in launched:
        return None
    return InferredOutcome(Outcome(launched["outcome"]), launched["sentence"])
