"""Finds out how launched jobs stand, says what they have reached, and does what is due for their machines.

A look costs two requests to the store for each job, and one to EC2 for all of a region. What costs more is done once a minute, or
where a machine is not there any more. Whoever looks, however many at once, the store decides what is said.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache

from bai_agent.errors import BaiError
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult, PhaseEvent
from bai_agent.job.store import JobStore
from executor.backends.ec2.clock import store_now
from executor.backends.ec2.inferred_result import write_result
from executor.backends.ec2.instances import Instance, instances_by_id
from executor.backends.ec2.job_store import named_regions
from executor.backends.ec2.monitor.ended_job import end_leftovers_or_say
from executor.backends.ec2.monitor.job_status import instances_of_jobs
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.backends.ec2.monitor.reaper import Reaped, reap, unattended_jobs
from executor.backends.ec2.session import AwsSession, aws_of
from executor.config import Settings
from executor.records.follower import LineStream
from executor.records.reading import events_in, result_of
from executor.service.commands import CANCELLED, is_by_command
from executor.service.counters import ServiceCounters
from executor.service.ec2_events import InstanceEvent
from executor.service.entries import Entries
from executor.service.jobs import EXECUTOR
from executor.service.life import END, Life, statuses_due
from executor.service.log import about_action
from executor.service.messages import Message
from executor.service.outbox import Outbox

log = logging.getLogger(__name__)

_RECONCILE_S = 60.0
_UNLAUNCHED_S = 30.0
"""Between two looks at a request that somebody else launches."""
_CANCEL_SAID_S = 120.0
"""The end of a job that was cancelled waits so long until its cancel is answered."""


@dataclass
class _Job:
    """A launched job that is looked after."""

    record: JobRecord
    monitor: JobMonitor
    outbox: Outbox
    events: LineStream
    pulls: bool
    action_id: str
    metrics: str | None
    phases: set[str] = field(default_factory=set)
    region: str | None = None
    launched: list[str] = field(default_factory=list)
    """Ids of its machines."""
    reconciled: float = float("-inf")
    left: bool = False
    """A node had written how the job ended, and the job's own result was missing, at the last look at both."""
    ended: float | None = None
    """When the result was first seen."""


class Reconciler:
    """Looks at jobs, several of them side by side, each by one thread at a time."""

    def __init__(
        self,
        entries: Entries,
        jobs: JobStore,
        settings: Settings,
        *,
        life: Life,
        send: Callable[[Message], None],
        holds: Callable[[str], bool],
        counters: ServiceCounters,
        stays: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """jobs: the job store. holds: whether the jobs of this client are ours to look after. stays: whether it looks again and again."""
        self._entries = entries
        self._store = jobs
        self._settings = settings
        self._life = life
        self._send = send
        self._holds = holds
        self._counters = counters
        self._stays = stays
        self._clock = clock
        self._clients: dict[str, str] = {}
        """Whose the open entries are, as far as they were read."""
        self._jobs: dict[str, _Job] = {}
        self._unlaunched: dict[str, float] = {}
        """When requests that are not launched yet are looked at again."""
        self._known: dict[str, list[Instance] | None] = {}
        """The jobs' machines at the last look; None where EC2 could not be asked."""
        self._called: set[str] = set()
        """Jobs that an event was about: looked at once, whoever's they are."""
        self._aws = cache(lambda region: aws_of(settings, region=region))

    def launched(self, name: str) -> None:
        """Hear that a request was answered here: what comes next need not wait."""
        self._unlaunched.pop(name, None)

    def due(self) -> list[str]:
        """Return the names of the jobs that are to be looked at now. Raises StoreError."""
        names = {each for each in self._entries.open_names() if not each.startswith("_")}
        for kept in (self._clients, self._jobs, self._unlaunched):
            # A copy: other threads change them meanwhile.
            for name in kept.copy().keys() - names:
                kept.pop(name, None)
        now = self._clock()
        mine = [
            name
            for name in sorted(names)
            if self._unlaunched.get(name, now) <= now
            and (name not in self._clients or self._holds(self._clients[name]))
        ]
        for name in self._jobs.copy().keys() - set(mine):
            # Another replica's now: when it comes back, what is said about it is read anew.
            self._jobs.pop(name, None)
        self._counters.jobs(len(self._jobs))
        self.survey()
        return mine

    def take_up(self, name: str) -> None:
        """Begin to look after a job, so that it is part of the next `survey`. Raises BaiError."""
        job = self._begin(name, called=False)
        if job is not None:
            job.region, job.launched = job.monitor.region, job.monitor.launched_ids

    def survey(self) -> None:
        """Have the machines described of all jobs that are looked after."""
        self._known = self._machines(self._jobs.copy())

    def changed(self, events: Iterable[InstanceEvent]) -> dict[str, str]:
        """Return the open jobs, another replica's too, whose instances these events are about, by instance. Raises StoreError."""
        regions: dict[str, set[str]] = {}
        for each in events:
            regions.setdefault(each.region, set()).add(each.instance_id)
        owners = {each: name for name, job in self._jobs.copy().items() for each in job.launched}
        found = {each: owners[each] for ids in regions.values() for each in ids if each in owners}
        # Where we launch nothing, nobody is asked.
        launched_in = {*named_regions(self._store), self._settings.region}
        for region, ids in regions.items():
            if region in launched_in:
                found |= self._tagged(region, ids - owners.keys())
        is_open = set(self._entries.open_names()) if found else set()
        found = {each: name for each, name in found.items() if name in is_open}
        names = set(found.values())
        self._known.update(self._machines(names))
        self._called.update(names)
        for name in names:
            log.info("%s is looked at now: EC2 says that something has happened to its machines", name)
        return found

    def attend(self, name: str) -> None:
        """Say what a job has reached, and do what is due for it. Raises BaiError."""
        called = name in self._called
        self._called.discard(name)
        job = self._jobs.get(name) or self._begin(name, called=called)
        if job is None:
            return
        with about_action(job.action_id):
            self._attend(name, job, called=called)

    def reap(self) -> None:
        """Terminate machines that should be gone, wherever jobs were launched. Raises StoreError."""
        # Jobs with an open entry are looked at by `attend`.
        jobs = unattended_jobs(self._store, self._settings, attended=set(self._entries.open_names()))
        regions = {*named_regions(self._store), *filter(None, [self._settings.region])}
        for region in sorted(regions):
            try:
                reap(
                    self._aws_in(region).quick_client(),
                    now=datetime.now(timezone.utc),
                    jobs=jobs,
                    on_reaped=self._reaped,
                )
            except BaiError as error:
                log.warning("nothing was reaped in %s: %s", region, error)

    def _tagged(self, region: str, ids: Collection[str]) -> dict[str, str]:
        """Return the jobs whose tags these instances carry, by instance; nothing where EC2 cannot be asked."""
        if not ids:
            return {}
        try:
            found = instances_by_id(self._aws_in(region).quick_client(), sorted(ids))
        except BaiError as error:
            log.warning(
                "whose instances in %s have changed is not known, the next look finds it: %s", region, error
            )
            return {}
        return {each.id: each.job_id for each in found if each.job_id}

    def _machines(self, names: Iterable[str]) -> dict[str, list[Instance] | None]:
        """Return the machines of those of these jobs that were looked at before, as EC2 describes them."""
        regions: dict[str | None, dict[str, list[str]]] = {}
        for name in names:
            job = self._jobs.get(name)
            if job is not None and job.launched:
                regions.setdefault(job.region, {})[name] = job.launched
        found: dict[str, list[Instance] | None] = {}
        for region, jobs in regions.items():
            found.update(instances_of_jobs(self._aws_in, region, jobs))
        return found

    def _aws_in(self, region: str | None) -> AwsSession:
        session: AwsSession = self._aws(region)
        return session

    def _begin(self, name: str, *, called: bool) -> _Job | None:
        """Take up a job, if it is ours or an event was about it, and if it is launched. Raises BaiError."""
        entry = self._entries.read(name)
        if entry is None:
            return None
        self._clients[name] = entry.owner.client_id
        if not self._holds(entry.owner.client_id) and not called:
            return None
        outbox = Outbox(self._entries.store, name, self._send)
        if not outbox.is_sent(EXECUTOR):
            self._unlaunched[name] = self._clock() + _UNLAUNCHED_S
            return None
        record = JobRecord(self._store, name)
        if not record.exists():
            write_result(record, Outcome.LOST, "The job's record is gone from the bucket.")
        monitor = JobMonitor(record, self._aws_in)
        job = _Job(
            record=record,
            monitor=monitor,
            outbox=outbox,
            events=LineStream(record.node(attempt=monitor.attempt), "events"),
            pulls=record.exists() and bool(monitor.job.sources),
            action_id=entry.event.action_id,
            metrics=self._life.metrics_of(entry.event),
        )
        self._jobs[name] = job
        return job

    def _attend(self, name: str, job: _Job, *, called: bool) -> None:
        if job.ended is None and (called or self._is_reconcile_due(name, job)):
            self._reconcile(name, job)
        # The result before the events: of a job that has ended, all of them are then seen.
        result = self._result(job)
        self._read_events(job)
        due = statuses_due(phases=job.phases, pulls=job.pulls, result=result, metrics=job.metrics)
        if result is not None and self._waits_for_cancel(job):
            due = [each for each in due if each.name < END]
            result = None
        if result is None and all(job.outbox.is_sent(each.name) for each in due):
            return
        entry = self._entries.read(name)
        if entry is None:
            self._jobs.pop(name, None)
            return
        self._life.say(entry, job.outbox, due)
        if result is not None:
            if (left := end_leftovers_or_say(job.monitor, result)) is not None:
                log.info("%s", left)
            self._entries.close(entry)
            self._jobs.pop(name, None)

    def _result(self, job: _Job) -> JobResult | None:
        """Return the job's result, which is written once. Raises StoreError."""
        # `result_of` looks in two places.
        return result_of(job.record) if job.record.result() is not None else None

    def _read_events(self, job: _Job) -> None:
        more = True
        while more:
            content, more = job.events.read()
            for event in events_in(content):
                if isinstance(event, PhaseEvent):
                    job.phases.add(event.phase)

    def _is_reconcile_due(self, name: str, job: _Job) -> bool:
        gone = any(not each.living for each in self._known.get(name) or ())
        return gone or self._clock() - job.reconciled >= _RECONCILE_S

    def _reconcile(self, name: str, job: _Job) -> None:
        """Do what is due for a job without a result. Raises BaiError."""
        if (result := result_of(job.record)) is not None:
            # Its agent was killed between the node's result and the job's.
            if job.left:
                log.info("the result of its node becomes the job's: %s", result.sentence)
                content = self._store.get(job.record.node().key("result.json"))
                self._store.put(job.record.key("result.json"), content, if_absent=True)
            job.left = True
            return
        job.left = False
        known = self._known.get(name)
        asked = name in self._known and known is None
        found = job.monitor.reconcile(known=known, ask=not asked)
        job.reconciled = self._clock()
        job.region, job.launched = job.monitor.region, job.monitor.launched_ids
        log.debug("%s", found.sentence)

    def _waits_for_cancel(self, job: _Job) -> bool:
        """Return whether the answer to a cancel is still to come, which goes before the job's end."""
        job.ended = self._clock() if job.ended is None else job.ended
        if not is_by_command(job.record):
            return False
        if Outbox(self._entries.store, job.record.job_id, self._send).is_sent(CANCELLED):
            return False
        if self._stays:
            return self._clock() - job.ended <= _CANCEL_SAID_S
        # What was seen before is not known here, and the store tells how long it is ago.
        times = [each.modified for each in self._store.find(job.record.key("result.json")) if each.modified]
        return bool(times) and store_now(self._store.url) - min(times) <= _CANCEL_SAID_S * 1000

    def _reaped(self, reaped: Reaped) -> None:
        if reaped.trouble:
            log.warning("%s: %s: %s", reaped.instance.id, reaped.why, reaped.trouble)
            return
        self._counters.reaped()
        log.info("%s was terminated: %s", reaped.instance.id, reaped.why)
