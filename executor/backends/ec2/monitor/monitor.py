"""Monitors a job on EC2: finds its status, terminates machines that nobody needs, writes its result where they cannot.

Any `bai` may do so, several at once, and be killed at any moment: what is due is found out anew each time, terminating twice
is terminating once, and a result is written by whoever is first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Job
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from executor.backends.ec2.clock import store_now
from executor.backends.ec2.inferred_result import InferredOutcome, write_result
from executor.backends.ec2.instances import (
    Instance,
    console_of,
    instances_by_id,
    instances_of,
    read_consoles,
    terminate,
)
from executor.backends.ec2.launch.launch_record import (
    attempt_key,
    latest_round,
    read_decision,
    read_launch_table,
    read_waiting,
)
from executor.backends.ec2.monitor.diagnosis import STALE, Diagnosis, JobStage, Observation, diagnose
from executor.backends.ec2.session import AwsError
from executor.backends.ec2.tags import parse_timestamp
from executor.records.reading import result_of

if TYPE_CHECKING:
    from executor.backends.ec2.session import AwsSession

_MARGIN = timedelta(seconds=60)
"""What a cancelled job may take beyond its grace and drain: the agent's looks, uploads, the power-off."""
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
_CONSOLES = 4
"""Consoles that one look reads at most."""


@dataclass(frozen=True)
class JobMonitor:
    """One job on EC2. Only its descriptor is cached: each observation asks again."""

    record: JobRecord
    aws: Callable[[str | None], AwsSession]
    """AWS in a region; None: the configured one."""
    clock: Callable[[str], int] = store_now
    """The time (ms UTC) by the clock of the store at a url."""
    _kept: dict[str, Mapping[str, Any]] = field(default_factory=dict, repr=False, compare=False)
    """Objects that are written once, and were there."""

    def observe(self, *, known: Sequence[Instance] | None = None, ask: bool = True) -> Diagnosis:
        """Return how the job stands. known: its instances, where they were described already. ask: EC2, else the store only.

        Raises StoreError; where EC2 cannot be asked the sentence says so.
        """
        observation, why = self._facts(known, ask)
        found = diagnose(observation)
        silent = [
            each
            for each in observation.instances or ()
            if each.state != "pending" and (not each.living or each.index not in observation.signs)
        ]
        if silent and ask and found.stage in (JobStage.BOOTING, JobStage.ENDING, JobStage.GONE):
            consoles, unreadable = read_consoles(self.aws(self.region).ec2(), silent[:_CONSOLES])
            found = diagnose(replace(observation, consoles=consoles, unreadable=unreadable))
        return replace(found, sentence=f"{found.sentence} {why}") if why else found

    def reconcile(self, *, known: Sequence[Instance] | None = None, ask: bool = True) -> Diagnosis:
        """Look as `observe` does, and do what is due: terminate what nobody needs, write the result. Raises BaiError."""
        found = self.observe(known=known, ask=ask)
        # A job with a result has ended: its machines go by themselves, or are kept to be looked into.
        if found.terminate and result_of(self.record) is None:
            try:
                terminate(self.aws(self.region).ec2(), found.terminate, job_id=self.record.job_id)
            except AwsError as error:
                # How the job stands is known all the same; whoever looks next tries again.
                return replace(
                    found, sentence=f"{found.sentence} It could not be ended: {error}", inferred=None
                )
        if found.inferred is not None:
            write_result(
                self.record,
                found.inferred.outcome,
                found.inferred.sentence,
                attempt=self.attempt,
                rank=found.inferred.rank,
            )
        return found

    def all_well(self) -> bool:
        """Return whether every agent has a recent heartbeat and the job is not cancelled. Asks the store only."""
        observation, _ = self._facts(None, ask=False)
        return (
            observation.cancelled is None and not observation.unreported and observation.silence < STALE / 2
        )

    def end(self) -> list[str]:
        """Terminate the job's machines now; return their ids. Raises BaiError."""
        return terminate(self.aws(self.region).ec2(), self.instances(), job_id=self.record.job_id)

    def instances(self) -> list[Instance]:
        """Return the machines of the present attempt, in whatever state, by rank. Raises BaiError."""
        ec2 = self.aws(self.region).ec2()
        found = {each.id: each for each in instances_of(ec2, [self.record.job_id])}
        ids = [each for each in self.launched_ids if each not in found]
        if not found and not ids:
            # A machine that somebody launched by hand has no tags of ours; its agent says who it is.
            ready = [self._node_object("ready.json", rank) for rank in range(self.job.strategy.nodes)]
            named = [str(each.get("instance_id")) for each in ready if each]
            ids = [each for each in named if _INSTANCE.fullmatch(each)]
        found.update({each.id: each for each in instances_by_id(ec2, ids)})
        return self._of_attempt(found.values())

    def consoles(self) -> list[tuple[Instance, str]]:
        """Return what the consoles of the machines say, as far as EC2 keeps it. Raises BaiError."""
        ec2 = self.aws(self.region).ec2()
        return [(each, console_of(ec2, each.id)) for each in self.instances()]

    @cached_property
    def job(self) -> Job:
        return self.record.job()

    @cached_property
    def attempt(self) -> int:
        numbers = [
            int(each) for each in self.record.store.folders(self.record.key("attempts/")) if each.isdigit()
        ]
        return max(numbers, default=0)

    @property
    def launch(self) -> Mapping[str, Any] | None:
        """The launch record without its request; None for machines that were launched by hand, and before it is written.

        Where the job waits for capacity: that of the round which was begun last.
        """
        name, last = "launch.json", "rounds/launch.json"
        if last in self._kept:
            return self._kept[last]
        if name not in self._kept and (found := self._launch_table(0)) is not None:
            self._kept[name] = found
        first = self._kept.get(name)
        if first is None or first.get("wait") is None:
            return first
        decided = bool(self._decision())
        number = latest_round(self.record, attempt=self.attempt)
        latest = self._launch_table(number) or first
        if decided:
            self._kept[last] = latest
        return latest

    def _launch_table(self, number: int) -> Mapping[str, Any] | None:
        # With the request goes the user data, which is most of it: a service looks after many jobs.
        table = read_launch_table(self.record, attempt=self.attempt, number=number)
        return None if table is None else {key: each for key, each in table.items() if key != "request"}

    def _waiting(self) -> str | None:
        """Return what the job waits for, and until when; None where it does not wait, or the first round is under way. Raises StoreError."""
        if (self.launch or {}).get("wait") is None or self._decision():
            return None
        told = read_waiting(self.record, attempt=self.attempt)
        until = None if told is None else parse_timestamp(told["until"])
        return (
            None if told is None or until is None else f"{told['sentence']}; until {until:%Y-%m-%d %H:%M} UTC"
        )

    @property
    def launched_ids(self) -> list[str]:
        """The ids of the present attempt's machines, where its launch is written down. Raises StoreError, RecordError."""
        decided = self._decision().get("instances", ())
        return [each for each in decided if _INSTANCE.fullmatch(each)]

    def _decision(self) -> Mapping[str, Any]:
        """Return what `launched.json` says; nothing while it is not written."""
        name = "launched.json"
        if name not in self._kept and (found := read_decision(self.record, attempt=self.attempt)) is not None:
            self._kept[name] = found
        return self._kept.get(name, {})

    @property
    def region(self) -> str | None:
        named = (self.launch or {}).get("region") or (self.job.store.region if self.job.store else None)
        return str(named) if named else None

    @property
    def expires(self) -> datetime | None:
        """When the machines must be gone by themselves."""
        return parse_timestamp((self.launch or {}).get("expires"))

    @property
    def patience(self) -> timedelta:
        """How long the job's agents take at most to end it, once they are asked."""
        limits = self.job.limits
        return limits.grace + limits.drain + _MARGIN

    @property
    def boot_limit(self) -> timedelta | None:
        """After so long a machine has given a sign of life, or has ended; None where its launch does not say."""
        seconds = (self.launch or {}).get("boot_limit")
        return timedelta(seconds=seconds) if seconds else None

    def _facts(self, known: Sequence[Instance] | None, ask: bool) -> tuple[Observation, str]:
        """Return what is known, and why EC2 could not be asked."""
        now = self.clock(self.record.store.url)
        nodes = self.job.strategy.nodes
        launched = self._decision()
        signs = {rank: age for rank in range(nodes) if (age := self._sign(rank, now)) is not None}
        observation = Observation(
            now=datetime.fromtimestamp(now / 1000, tz=timezone.utc),
            job_id=self.record.job_id,
            nodes=nodes,
            written=self.age(self.record.key("job.toml"), now),
            launch_age=self._launch_age(now),
            accepted=bool(launched.get("instances")),
            refusal=_refusal(launched),
            waiting=self._waiting(),
            expires=self.expires,
            instances=None,
            signs=signs,
            done=frozenset(rank for rank in signs if nodes > 1 and self._has("result.json", rank)),
            cancelled=self.age(self.record.key("cancel.json"), now),
            patience=self.patience,
            peer_silence=self.job.limits.peer_silence,
            store_away=self.job.limits.store_away,
            boot_limit=self.boot_limit,
        )
        if known is None and not ask:
            return observation, ""
        try:
            found = self._of_attempt(known) if known is not None else self.instances()
        except BaiError as error:
            return observation, f"({error})"
        ours = launched.get("instances")
        mine = tuple(each for each in found if not ours or each.id in ours)
        return replace(
            observation, instances=mine, surplus=tuple(each for each in found if each not in mine)
        ), ""

    def _launch_age(self, now: int) -> timedelta | None:
        if self.launch is None:
            return None
        # Each refusal of a zone, each round of one that waits, and the decision, is a sign that somebody was still at it.
        names = ["launch.json", "refused/", "launched.json"]
        if self.launch.get("wait") is not None:
            names += ["rounds/", "waiting.json"]
        ages = [self.age(attempt_key(self.record, self.attempt, name), now) for name in names]
        return min((age for age in ages if age is not None), default=timedelta())

    def _sign(self, rank: int, now: int) -> timedelta | None:
        """Return the age of a node's last sign of life; None where it has not given any."""
        node = self.record.node(rank, attempt=self.attempt)
        ages = [self.age(node.key(name), now) for name in ("heartbeat.json", "ready.json")]
        age = min((age for age in ages if age is not None), default=None)
        # Whatever else a node has written is one too; mostly there is nothing, and that is soon listed.
        return age if age is not None else self.age(node.key(""), now)

    def age(self, key: str, now: int) -> timedelta | None:
        """Return the age of an object, or of the youngest one below a key that ends in a slash; None where there is none."""
        found = self.record.store.find(key)
        times = [each.modified or now for each in found if key.endswith("/") or each.key == key]
        return timedelta(milliseconds=max(0, now - max(times))) if times else None

    def _has(self, name: str, rank: int) -> bool:
        return bool(self.record.store.find(self.record.node(rank, attempt=self.attempt).key(name)))

    def _node_object(self, name: str, rank: int) -> dict[str, Any] | None:
        return self.record.node(rank, attempt=self.attempt).read_object(name)

    def _of_attempt(self, instances: Iterable[Instance]) -> list[Instance]:
        ours = self.launched_ids
        return sorted(
            (
                each
                for each in instances
                if each.id in ours
                or (each.job_id in (None, self.record.job_id) and each.attempt == str(self.attempt))
            ),
            key=lambda each: each.index,
        )


def _refusal(launched: Mapping[str, Any]) -> InferredOutcome | None:
    """Return why EC2 refused the launch for good, where it did and that was written down."""
    if launched.get("instances") or "sentence" not in launched:
        return None
    return InferredOutcome(Outcome(launched["outcome"]), launched["sentence"])
