"""Diagnoses launched jobs, publishes their statuses, and does everything that is due for their machines.

A check lists two folders of the store for each job, and queries EC2 once for all jobs of a region. A job
without news is checked less and less often, down to once a minute. A job is checked at once if one of its
machines has ended, or if EC2 sends an event about one of its machines. Several processes may check the same
job, because the store decides which messages are sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Any

from bai_agent.errors import BaiError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import NextGeneration
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult, PhaseEvent
from bai_agent.job.store import JobStore
from bai_agent.light_dataclass import dataclass, field
from executor.backends.ec2.bucket_store import named_regions
from executor.backends.ec2.clock import store_now
from executor.backends.ec2.inferred_result import write_result
from executor.backends.ec2.instances import Instance, find_job_instances, instances_by_id
from executor.backends.ec2.look_store import LookStore
from executor.backends.ec2.monitor.bucket_look import BucketLook, LookListener
from executor.backends.ec2.monitor.ended_job import end_leftovers_or_say
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.backends.ec2.monitor.reaper import Reaped
from executor.backends.ec2.monitor.replacer import Replacer
from executor.backends.ec2.session import aws_sessions
from executor.backends.ec2.watched_jobs import Looker
from executor.configuration.config import Settings
from executor.descriptor import Descriptor
from executor.records.reading import LineStream, events_in, result_of
from executor.service.commands import CANCELLED, is_by_command
from executor.service.counters import ServiceCounters
from executor.service.entries import Entries, Entry
from executor.service.events.ec2_events import InstanceEvent
from executor.service.events.messages import Message
from executor.service.outbox import Outbox
from executor.service.service_jobs import EXECUTOR
from executor.service.service_log import about_action
from executor.service.status_reporter import StatusReporter, statuses_due

log = logging.getLogger(__name__)

REAP_S = 60.0
"""Time between two searches for expired machines and for due work of jobs without an open entry (seconds)."""
_RECONCILE_S = 60.0
_LONGEST_PAUSE_S = 60.0
_PAUSES = 4
"""Maximum ratio of the longest to the shortest pause between two checks of a job without news."""
_UNLAUNCHED_S = 30.0
"""Time between two checks of a request that another process is launching (seconds)."""
_CANCEL_SAID_S = 120.0
"""Maximum delay of a cancelled job's final status, which is sent after the answer to the cancel command
(seconds)."""


@dataclass
class _Job:
    """A launched job that is monitored."""

    store: LookStore
    record: JobRecord
    monitor: JobMonitor
    outbox: Outbox
    events: LineStream
    pulls: bool
    action_id: str
    metrics: str | None
    phases: set[str] = field(default_factory=set)
    is_elastic: bool = False
    changes: dict[int, NextGeneration] = field(default_factory=dict)
    """Decisions about the job's generations that have been read, by the generations' numbers."""
    region: str | None = None
    launched: list[str] = field(default_factory=list)
    """Ids of the job's machines."""
    reconciled: float = float("-inf")
    pause_s: float = 0.0
    """Pause after the last check (seconds)."""
    next_look: float = float("-inf")
    left: bool = False
    """Whether, at the last check, a node of the job had a result but the job itself did not."""
    ended: float | None = None
    """Monotonic time at which a check first found the job's result (seconds); None until then."""


class Reconciler:
    """Checks jobs. Several jobs may be checked at the same time, but each job by only one thread."""

    def __init__(
        self,
        entries: Entries,
        jobs: JobStore,
        settings: Settings,
        *,
        reporter: StatusReporter,
        send: Callable[[Message], None],
        holds: Callable[[str], bool],
        counters: ServiceCounters,
        stays: bool = True,
        describe: Callable[[Entry], Descriptor] | None = None,
        every: timedelta = timedelta(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """jobs: the job store. holds: function that returns whether this replica monitors a client's jobs.
        stays: whether this process will check the jobs again later. describe: function that returns the
        benchmark descriptor of a request. The descriptor is needed to launch machines for running jobs; if
        `describe` is None, no machines are launched. every: time between two calls of `due`."""
        self._entries = entries
        self._store = jobs
        self._settings = settings
        self._reporter = reporter
        self._send = send
        self._holds = holds
        self._counters = counters
        self._stays = stays
        self._describe = describe
        self._every_s = every.total_seconds()
        self._clock = clock
        self._clients: dict[str, str] = {}
        """Name of each open entry that was read → its client."""
        self._jobs: dict[str, _Job] = {}
        self._unlaunched: dict[str, float] = {}
        """Time of the next check of each request whose job is not launched yet."""
        self._known: dict[str, list[Instance] | None] = {}
        """The machines of each job at the last check; None if EC2 could not be queried."""
        self._called: set[str] = set()
        """Jobs that an event of EC2 concerns. All jobs in this set are checked at once, even if another
        replica monitors the job."""
        self._aws = aws_sessions(settings)
        # Machines are launched only for jobs of the service's requests, because the configuration limits who
        # may send requests.
        self._looks = BucketLook(
            settings=settings,
            store=jobs,
            kind=Looker.SERVICE,
            every=timedelta(seconds=REAP_S),
            listener=LookListener(
                on_reaped=self._reaped,
                on_job=lambda job_id, sentence: log.info("%s: %s", job_id, sentence),
                on_trouble=lambda sentence: log.warning("%s", sentence),
            ),
        )

    def launched(self, name: str) -> None:
        """Record that this process answered a request, so that the request's job is checked at once."""
        self._unlaunched.pop(name, None)

    def due(self) -> list[str]:
        """Return the names of the jobs that are to be checked now. Raises StoreError."""
        names = {each for each in self._entries.open_names() if not each.startswith("_")}
        now = self._clock()
        mine = [name for name in sorted(names) if self._is_mine(name, now)]
        _keep_only(names, self._clients)
        _keep_only(names, self._unlaunched)
        # Jobs that have moved to another replica are forgotten here. If a job returns to this replica, it is
        # read again.
        _keep_only(mine, self._jobs)
        self._counters.jobs.set(len(self._jobs))
        self.describe_instances()
        return [name for name in mine if self._is_due(name, now)]

    def _is_mine(self, name: str, now: float) -> bool:
        client = self._clients.get(name)
        return self._unlaunched.get(name, now) <= now and (client is None or self._holds(client))

    def adopt(self, name: str) -> None:
        """Begin to monitor a job, so that the next `describe_instances` includes the job's machines. Raises
        BaiError."""
        job = self._begin(name, called=False)
        if job is not None:
            job.region, job.launched = job.monitor.region, job.monitor.launched_ids

    def describe_instances(self) -> None:
        """Describe the machines of all monitored jobs."""
        self._known = self._machines(self._jobs.copy())

    def changed(self, events: Iterable[InstanceEvent]) -> dict[str, str]:
        """Return the open jobs that these events concern, including jobs of other replicas, by instance.
        Raises StoreError."""
        regions: dict[str, set[str]] = {}
        for each in events:
            regions.setdefault(each.region, set()).add(each.instance_id)
        owners = {each: name for name, job in self._jobs.copy().items() for each in job.launched}
        found = {each: owners[each] for ids in regions.values() for each in ids & owners.keys()}
        # EC2 is queried only in regions with launches.
        for region in regions.keys() & {*named_regions(self._store), self._settings.region}:
            found |= self._tagged(region, regions[region] - owners.keys())
        if not found:
            return {}
        is_open = set(self._entries.open_names())
        found = {each: name for each, name in found.items() if name in is_open}
        self._call(set(found.values()))
        return found

    def _call(self, names: set[str]) -> None:
        """Mark jobs to be checked at once after an event of EC2."""
        self._known.update(self._machines(names))
        self._called.update(names)
        for name in names:
            log.info("%s is checked now after an event of EC2 about its machines", name)

    def reconcile_one(self, name: str) -> None:
        """Check a job, publish its due statuses, and do its due work. Raises BaiError."""
        called = name in self._called
        self._called.discard(name)
        job = self._jobs.get(name) or self._begin(name, called=called)
        if job is None:
            return
        with about_action(job.action_id):
            # The cached listing that `adopt` used may be older than this check, so it is dropped.
            job.store.forget()
            try:
                quiet = self._reconcile_one(name, job, called=called)
            finally:
                job.store.forget()
        # A check is recorded only if it succeeds, so that the next check sends a status that this check could
        # not send.
        self._plan_next_look(job, quiet=quiet)

    def reap(self) -> None:
        """Terminate expired machines, and do everything that is due for jobs without an open entry. Raises
        StoreError."""
        self._looks.look(attended=set(self._entries.open_names()))

    def _tagged(self, region: str, ids: Collection[str]) -> dict[str, str]:
        """Return the jobs in the tags of these instances, by instance; empty if EC2 cannot be queried."""
        if not ids:
            return {}
        try:
            found = instances_by_id(self._aws(region).quick_client(), sorted(ids))
        except BaiError as error:
            log.warning(
                "the jobs of changed instances in %s are unknown until the next check: %s", region, error
            )
            return {}
        return {each.id: each.job_id for each in found if each.job_id}

    def _machines(self, names: Iterable[str]) -> dict[str, list[Instance] | None]:
        """Return EC2's description of the machines of those jobs whose machine ids are known, by job."""
        regions: dict[str | None, dict[str, list[str]]] = {}
        for name in names:
            job = self._jobs.get(name)
            if job is not None and job.launched:
                regions.setdefault(job.region, {})[name] = job.launched
        found: dict[str, list[Instance] | None] = {}
        for region, jobs in regions.items():
            found.update(find_job_instances(self._aws, region, jobs))
        return found

    def _begin(self, name: str, *, called: bool) -> _Job | None:
        """Adopt a launched job if this replica monitors the job, or if an event concerns the job. Raises
        BaiError."""
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
        store = LookStore(self._store)
        record = JobRecord(store, name)
        is_there = record.exists()
        if not is_there:
            write_result(record, Outcome.LOST, "The job's record is gone from the bucket.")
        monitor = JobMonitor(record, self._aws, replacer=self._replacer(record, entry))
        job = _Job(
            store=store,
            record=record,
            monitor=monitor,
            outbox=outbox,
            events=LineStream(record.node(attempt=monitor.attempt if is_there else 0), "events"),
            pulls=is_there and bool(monitor.job.sources),
            action_id=entry.event.action_id,
            metrics=self._reporter.metrics_sentence(entry.event),
            is_elastic=is_there and monitor.job.is_elastic,
        )
        self._jobs[name] = job
        return job

    def _replacer(self, record: JobRecord, entry: Entry) -> Replacer | None:
        describe = self._describe
        if describe is None:
            return None
        return Replacer(record, self._settings, lambda: describe(entry))

    def _reconcile_one(self, name: str, job: _Job, *, called: bool) -> bool:
        """Check a job; return whether the check found nothing new."""
        if job.ended is None and self._is_reconcile_due(name, job, called=called):
            self._reconcile(name, job)
        # The result is read before the events, so that all events of a job that has ended are read.
        result = self._result(job)
        any_new = self._read_events(job) | self._read_changes(job)
        quiet = not any_new and not called and job.ended is None
        due = statuses_due(
            phases=job.phases, pulls=job.pulls, result=result, metrics=job.metrics, changes=job.changes
        )
        if result is None and all(job.outbox.is_sent(each.name) for each in due):
            return quiet
        entry = self._entries.read(name)
        if entry is None:
            self._jobs.pop(name, None)
            return quiet
        self._reporter.publish(entry, job.outbox, due)
        if result is not None:
            self._close(entry, job, result)
        return quiet

    def _close(self, entry: Entry, job: _Job, result: JobResult) -> None:
        """Terminate the remaining machines of a job, and close its entry after its last message."""
        if (left := end_leftovers_or_say(job.monitor, result)) is not None:
            log.info("%s", left)
        self._entries.close(entry)
        self._jobs.pop(entry.name, None)

    def _result(self, job: _Job) -> JobResult | None:
        """Return the job's result. None if there is no result, or if the answer to a cancel command has not
        been sent yet. Raises StoreError."""
        if job.record.result() is None or self._waits_for_cancel(job):
            return None
        # `result_of` also finds a node's result.
        return result_of(job.record)

    def _read_events(self, job: _Job) -> bool:
        """Read the job's new events; return whether there were new events."""
        any_new = False
        for content in job.events.pieces():
            any_new = any_new or bool(content)
            for event in events_in(content):
                if isinstance(event, PhaseEvent):
                    job.phases.add(event.phase)
        return any_new

    def _read_changes(self, job: _Job) -> bool:
        """Read the new decisions about an elastic job's generations; return whether there were new
        decisions."""
        if not job.is_elastic:
            return False
        attempt = AttemptRecord(job.record, job.monitor.attempt)
        control = attempt.control()
        if control.begun:
            # The events of the first node are read, but the first node may never have begun.
            job.phases.add("run")
        new = set(control.decided) - job.changes.keys()
        for number in sorted(new):
            job.changes[number] = attempt.decision(number, control)
        return bool(new)

    def _is_due(self, name: str, now: float) -> bool:
        job = self._jobs.get(name)
        return job is None or job.next_look <= now or self._has_gone(name)

    def _plan_next_look(self, job: _Job, *, quiet: bool) -> None:
        """Double the pause if the check found nothing new."""
        longest_s = min(_LONGEST_PAUSE_S, _PAUSES * self._every_s)
        job.pause_s = (
            min(2 * job.pause_s, longest_s) if quiet and job.pause_s and not job.left else self._every_s
        )
        # The time of the next check is rounded to the nearest call of `due`, because these calls are not
        # exactly periodic.
        job.next_look = self._clock() + job.pause_s - self._every_s / 2

    def _has_gone(self, name: str) -> bool:
        known, job = self._known.get(name) or (), self._jobs.get(name)
        gone = [each for each in known if not each.living]
        # An elastic job may continue for days without a machine.
        return len(gone) == len(known) > 0 if job is not None and job.is_elastic else bool(gone)

    def _is_reconcile_due(self, name: str, job: _Job, *, called: bool) -> bool:
        return (
            called
            or self._has_gone(name)
            or self._clock() - job.reconciled >= _RECONCILE_S - self._every_s / 2
        )

    def _reconcile(self, name: str, job: _Job) -> None:
        """Do everything that is due for a job without a result. Raises BaiError."""
        if (result := result_of(job.record)) is not None:
            # The job's agent was killed after it wrote the node's result and before it wrote the job's
            # result.
            if job.left:
                log.info("the result of the job's node becomes the result of the job: %s", result.sentence)
                content = self._store.get(job.record.node().key("result.json"))
                job.store.put(job.record.key("result.json"), content, if_absent=True)
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
        """Return whether the answer to a cancel command is still missing. The answer must be sent before the
        report of the job's end."""
        job.ended = self._clock() if job.ended is None else job.ended
        if not is_by_command(job.record):
            return False
        if Outbox(self._entries.store, job.record.job_id, self._send).is_sent(CANCELLED):
            return False
        if self._stays:
            return self._clock() - job.ended <= _CANCEL_SAID_S
        # The time of the result is read from the store, because another process may have made the earlier
        # checks.
        times = [each.modified for each in self._store.find(job.record.key("result.json")) if each.modified]
        return bool(times) and store_now(self._store.url) - min(times) <= _CANCEL_SAID_S * 1000

    def _reaped(self, reaped: Reaped) -> None:
        if reaped.trouble:
            log.warning("%s: %s: %s", reaped.instance.id, reaped.why, reaped.trouble)
            return
        self._counters.reaped.inc()
        log.info("%s was terminated: %s", reaped.instance.id, reaped.why)


def _keep_only(names: Collection[str], table: dict[str, Any]) -> None:
    """Remove all names except `names` from a table, which other threads may change at the same time."""
    for name in table.copy().keys() - set(names):
        table.pop(name, None)
