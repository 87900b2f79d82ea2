"""Checks all unattended jobs of a bucket, and does everything that is due for these jobs and their machines.

`bai reap`, the service and an account's watcher use this module. The check needs no Kafka, and covers each region
with launches. A check may be killed between any two steps, and several checks may run at once. Each check decides
anew what is due. Conditional writes to the store ensure that only one check writes a result or a launch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import cached_property

from bai_agent.errors import BaiError, StoreError
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult
from bai_agent.job.store import JobStore
from bai_agent.light_dataclass import dataclass, field
from executor.backends.ec2.bucket_store import named_regions
from executor.backends.ec2.clock import elapsed, store_now
from executor.backends.ec2.instances import Instance, find_job_instances
from executor.backends.ec2.look_store import LookStore
from executor.backends.ec2.monitor.ended_job import end_leftovers
from executor.backends.ec2.monitor.job_observation import CONSISTENT, Diagnosis, JobStage
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.backends.ec2.monitor.reaper import STILL_ON, Reaped, UnattendedJobs, reap
from executor.backends.ec2.monitor.replacer import Replacer
from executor.backends.ec2.session import AwsSession, aws_sessions
from executor.backends.ec2.watched_jobs import Looker, note_look, unwatch_job, watched_jobs
from executor.backends.terminal import unattended
from executor.configuration.config import Settings
from executor.records.reading import result_of

log = logging.getLogger(__name__)

_AT_ONCE = 8
"""Maximum number of regions that are queried in parallel, and of jobs that are checked in parallel."""
_FORGOTTEN = timedelta(days=1)
"""Age at which the mark `.watched/<job-id>` of a job that was never launched is removed. At this age, the
interrupted submission can no longer be repeated with the same job id."""


@dataclass(frozen=True, kw_only=True)
class LookListener:
    """Callbacks for the actions of a check, called one after the other."""

    on_reaped: Callable[[Reaped], None] = lambda reaped: None
    on_job: Callable[[str, str], None] = lambda job_id, sentence: None
    """Called with a job's id and a sentence that says what was done for the job, or why no machine is
    launched."""
    on_trouble: Callable[[str], None] = lambda sentence: None


@dataclass
class _WatchedJob:
    """A job that is checked repeatedly. Launches whose result is known are read only once."""

    store: LookStore
    monitor: JobMonitor
    watched_ms: int | None
    """Time at which the job's submission was last known to continue (ms UTC by the store's clock)."""


@dataclass(kw_only=True)
class BucketLook:
    """Checks the jobs of a bucket, any number of times."""

    settings: Settings
    store: JobStore | None
    """Store of the jobs; None to find only expired machines."""
    kind: Looker
    every: timedelta | None = None
    """Time between two checks; None if unknown."""
    replacer: Callable[[JobRecord], Replacer | None] = lambda record: None
    """Returns the object that launches the missing machines of a job; None if no machines are launched."""
    listener: LookListener = field(default_factory=LookListener)
    dry_run: bool = False
    blind: str | None = None
    """Reason why the last check could not read the list of jobs; None if the check could read the list."""
    _jobs: dict[str, _WatchedJob] = field(default_factory=dict)
    _unattended: UnattendedJobs | None = None
    """Jobs without a mark `.watched/<job-id>`, such as jobs of an earlier version; None if the store cannot be
    read."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def look(
        self,
        *,
        regions: Collection[str] = (),
        attended: Collection[str] = (),
        until: float = float("inf"),
    ) -> int:
        """Check all jobs, and do everything that is due. Return the number of jobs for which no time was
        left.

        regions: check only these regions; if empty, check the configured region and all regions with
        launches. attended: jobs that another part of this process monitors anyway. until: time.monotonic()
        after which no more work is started. Failures are reported to the listener; the next check tries
        again.
        """
        named = self._read_bucket(attended)
        places = dict.fromkeys(regions or [*filter(None, [self.settings.region]), *named])
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="look") as pool:
            list(pool.map(self._reap, places))
            machines = self._machines(pool, places if regions else None)
            looked = list(pool.map(lambda each: self._look_in_time(*each, until=until), machines.items()))
        if not regions:
            self._note()
        return looked.count(False)

    def _read_bucket(self, attended: Collection[str]) -> list[str]:
        """Read the list of watched jobs; return the regions in which jobs were launched."""
        self._unattended = self.blind = None
        if self.store is None:
            return []
        try:
            named = named_regions(self.store)
            self._keep_watched(self.store, attended)
        except StoreError as error:
            self.blind = f"the jobs, and the other regions with jobs, are unknown: {error}"
            self._trouble(self.blind)
            return []
        self._unattended = UnattendedJobs(store=self.store, aws=self._aws, attended={*attended, *self._jobs})
        return named

    def _keep_watched(self, store: JobStore, attended: Collection[str]) -> None:
        """Add the jobs that are marked to be checked now, and forget all other jobs. Raises StoreError."""
        watched = {
            job_id: since for job_id, since in watched_jobs(store).items() if job_id not in set(attended)
        }
        for job_id in self._jobs.keys() - watched.keys():
            del self._jobs[job_id]
        for job_id, since in watched.items():
            if job_id in self._jobs:
                self._jobs[job_id].watched_ms = since
                continue
            looked = LookStore(store)
            record = JobRecord(looked, job_id)
            monitor = JobMonitor(record, self._aws, replacer=self.replacer(record))
            self._jobs[job_id] = _WatchedJob(looked, monitor, since)

    def _note(self) -> None:
        """Record in the store that a check of all jobs is being made now."""
        if self.store is None or self.dry_run:
            return
        try:
            note_look(self.store, self.kind, every=self.every)
        except StoreError as error:
            log.info("this check is not recorded: %s", error)

    def _reap(self, region: str) -> None:
        try:
            ec2, now = self._aws(region).ec2(), datetime.now(timezone.utc)
            reap(ec2, now=now, dry_run=self.dry_run, jobs=self._unattended, on_reaped=self._reaped)
        except BaiError as error:
            # An unreachable region must not prevent the checks of other regions.
            self._trouble(f"{region}: {error}")

    def _machines(
        self, pool: ThreadPoolExecutor, regions: Collection[str] | None
    ) -> dict[str, list[Instance] | None]:
        """Return the machines of the watched jobs in these regions; None for each job for which EC2 cannot be
        queried."""
        placed: dict[str | None, dict[str, Sequence[str]]] = {}
        for job_id, place in zip(list(self._jobs), pool.map(self._place, list(self._jobs)), strict=True):
            if place is not None and (regions is None or place[0] in regions):
                placed.setdefault(place[0], {})[job_id] = place[1]
        found: dict[str, list[Instance] | None] = {}
        for region, jobs in placed.items():
            found.update(find_job_instances(self._aws, region, jobs))
        return found

    def _place(self, job_id: str) -> tuple[str | None, Sequence[str]] | None:
        """Return a job's region and the ids of the job's machines; None if the job's record is gone or
        unreadable."""
        job = self._jobs[job_id]
        job.store.forget()
        try:
            if job.monitor.record.exists():
                return job.monitor.region, job.monitor.launched_ids
            if not self.dry_run:
                # A job's record is written before its mark. The mark exists, so the record has been deleted
                # since then.
                unwatch_job(job.store, job_id)
        except BaiError as error:
            self._trouble(f"{job_id}: {error}")
        return None

    def _look_in_time(self, job_id: str, known: list[Instance] | None, *, until: float) -> bool:
        """Check a job; return False without a check if there is no time left."""
        if time.monotonic() >= until:
            return False
        self._look_at(job_id, known)
        return True

    def _look_at(self, job_id: str, known: list[Instance] | None) -> None:
        job = self._jobs[job_id]
        try:
            # `unattended` is used in each thread, because threads of a pool do not inherit context variables.
            with unattended():
                self._do_due(job, known)
        except BaiError as error:
            self._trouble(f"{job_id}: {error}")
        except Exception as error:
            # A bug that one job triggers must not stop the checks of the other jobs.
            log.exception("the check of %s failed because of a bug", job_id)
            self._trouble(f"{job_id}: the check failed because of a bug: {error!r}")
        finally:
            job.store.forget()

    def _do_due(self, job: _WatchedJob, known: list[Instance] | None) -> None:
        """Do everything that is due for a job. Raises BaiError."""
        monitor, job_id = job.monitor, job.monitor.record.job_id
        if (result := result_of(monitor.record)) is not None:
            self._do_due_after_end(job, result, known)
            return
        before, look = set(monitor.launched_ids), monitor.observe if self.dry_run else monitor.reconcile
        found = look(known=known, ask=known is not None)
        self._say_reaped(found.terminate, found.sentence.removesuffix("."), trouble=found.trouble)
        self._say_done(job_id, found, [each for each in monitor.launched_ids if each not in before])
        if found.stage is JobStage.ABANDONED and known == [] and self._age(job) > _FORGOTTEN:
            self._unwatch(job)

    def _say_done(self, job_id: str, found: Diagnosis, launched: Sequence[str]) -> None:
        if found.inferred is not None and not self.dry_run:
            self._said(job_id, found.inferred.sentence)
        if launched:
            were = "was" if len(launched) == 1 else "were"
            self._said(job_id, f"{', '.join(launched)} {were} launched for the job")
        if found.unlaunched:
            self._said(job_id, found.unlaunched)

    def _do_due_after_end(self, job: _WatchedJob, result: JobResult, known: list[Instance] | None) -> None:
        monitor, record = job.monitor, job.monitor.record
        self._say_reaped(end_leftovers(monitor, result, dry_run=self.dry_run).due, STILL_ON)
        now = monitor.clock(record.store.url)
        key = record.key("result.json")
        since = monitor.age(key, now)
        if since is None:
            # The job's agent was killed after it wrote the node's result and before it wrote the job's.
            node = record.node(attempt=monitor.attempt).key("result.json")
            if not self.dry_run and (monitor.age(node, now) or timedelta()) > CONSISTENT:
                job.store.put(key, job.store.get(node), if_absent=True)
        elif since > CONSISTENT and known is not None and all(each.state == "terminated" for each in known):
            self._unwatch(job)

    def _unwatch(self, job: _WatchedJob) -> None:
        if not self.dry_run:
            unwatch_job(job.store, job.monitor.record.job_id)

    def _age(self, job: _WatchedJob) -> timedelta:
        """Return the time since the job was last marked to be watched."""
        now = store_now(job.store.url)
        return elapsed(job.watched_ms or now, now)

    def _say_reaped(self, machines: Iterable[Instance], reason: str, *, trouble: str = "") -> None:
        for each in machines:
            self._reaped(Reaped(each, trouble, reason))

    def _reaped(self, reaped: Reaped) -> None:
        with self._lock:
            self.listener.on_reaped(reaped)

    def _said(self, job_id: str, sentence: str) -> None:
        with self._lock:
            self.listener.on_job(job_id, sentence)

    def _trouble(self, sentence: str) -> None:
        with self._lock:
            self.listener.on_trouble(sentence)

    @cached_property
    def _aws(self) -> Callable[[str | None], AwsSession]:
        return aws_sessions(self.settings)
