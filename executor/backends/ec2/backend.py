"""EC2 as a place to run: machines of the job's own, which are gone afterwards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from bai_agent.errors import BaiError
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.backend import BackendOptions, Console, Location, SubmitListener
from executor.errors import UsageError
from executor.records.job_status import JobStatus
from executor.records.reading import result_of

if TYPE_CHECKING:
    from executor.backends.ec2.launch.plan import Ec2Plan
    from executor.backends.ec2.monitor.monitor import JobMonitor
    from executor.backends.ec2.monitor.watcher import InstanceWatcher
    from executor.config import Settings
    from executor.descriptor import Descriptor, Finding
    from executor.planning.request import JobRequest, Submitted


class Ec2Backend:
    """Jobs whose record is in a bucket."""

    name = "ec2"
    remote = True

    def __init__(self, options: BackendOptions) -> None:
        self._options = options
        self._asked = False
        """Whether a command has had to do with EC2."""

    @property
    def _settings(self) -> Settings:
        self._asked = True
        return self._options.settings()

    def owns(self, record: JobRecord) -> bool:
        return not isinstance(record.store, DirectoryStore)

    def preflight(self, job_request: JobRequest, descriptor: Descriptor) -> list[Finding]:
        from executor.backends.ec2.bundle.bundle import cache_folder
        from executor.backends.ec2.launch.preflight import preflight

        cache, now = cache_folder(os.environ), datetime.now(timezone.utc)
        return preflight(job_request, descriptor, self._options.settings(), cache=cache, now=now)

    @contextmanager
    def plan(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        said: Callable[[str], None],
    ) -> Iterator[Ec2Plan]:
        from executor.backends.ec2.launch.plan import Ec2Plan, planned_launch
        from executor.planning.request import survey

        settings = self._options.settings()
        launch = planned_launch(job_request, descriptor, settings, job_id=job_id, said=said)
        with launch as (made, uploads, aws):
            if (scripts := survey(job_request, descriptor)) is not None:
                said(f"scripts: {scripts.sentence()}")
            yield Ec2Plan(made, uploads, settings, aws, scripts, said)

    def submit(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        listener: SubmitListener,
    ) -> Submitted:
        from executor.backends.ec2.launch.submission import submit

        return submit(job_request, descriptor, self._settings, job_id=job_id, listener=listener)

    def status(self, record: JobRecord) -> JobStatus:
        from executor.backends.ec2.monitor.job_status import status_on_ec2

        return status_on_ec2(record, self._settings)

    def statuses(self, records: Sequence[JobRecord]) -> list[JobStatus]:
        from executor.backends.ec2.monitor.job_status import statuses_on_ec2

        return statuses_on_ec2(records, self._settings)

    def follow(self, record: JobRecord, *, said: Callable[[str], None]) -> InstanceWatcher:
        from executor.backends.ec2.monitor.watcher import InstanceWatcher

        return InstanceWatcher(self._monitor(record))

    def cancel(self, record: JobRecord, *, now: bool) -> str:
        if (result := result_of(record)) is not None:
            told = f"it has ended before: {result.get('sentence')}"
        else:
            told = "cancelling" if record.cancel(by="bai cancel") else "cancelling, as was asked before"
        return f"{told.rstrip('.')}; {self._end_machines(record)}" if now else told

    def resume(self, record: JobRecord) -> str:
        raise UsageError(f"the job {record.job_id} in {record.store.url} does not run on this machine")

    def release(self, record: JobRecord) -> str:
        if (nothing := self._keeps_nothing(record)) is not None:
            return f"there is nothing to release: {nothing}"
        content = json.dumps({"time": now_ms(), "by": "bai release"}).encode() + b"\n"
        first = record.store.put(record.key("release.json"), content, if_absent=True)
        return "released" if first else "it was released before"

    def consoles(self, record: JobRecord) -> list[Console]:
        return [
            Console(instance_id=machine.id, state=machine.state, node=machine.index, text=text)
            for machine, text in self._monitor(record).consoles()
        ]

    def location(self, record: JobRecord) -> Location:
        return Location(files=f"{record.store.url}/{record.job_id}")

    def tidy(self) -> None:
        """Terminate this client's machines whose time is up, where EC2 was asked for something anyway."""
        if self._asked:
            from executor.backends.ec2.monitor.reaper import reap_own

            reap_own(self._options.settings(), store=self._options.store)

    def _monitor(self, record: JobRecord) -> JobMonitor:
        from executor.backends.ec2.monitor.job_status import monitor_of

        return monitor_of(record, self._settings)

    def _end_machines(self, record: JobRecord) -> str:
        """Terminate a job's machines, and write that it was cancelled where it has no result; return what was done."""
        from executor.backends.ec2.verdict import write_result

        ended = self._monitor(record).end()
        write_result(
            record, Outcome.CANCELLED, "The job was cancelled, and its machines were terminated at once."
        )
        if not ended:
            return "it has no machines"
        return f"{', '.join(ended)} {'is' if len(ended) == 1 else 'are'} being terminated"

    def _keeps_nothing(self, record: JobRecord) -> str | None:
        """Return why no machine of the job is kept, or will be; None where one is, or may be for all that can be seen."""
        monitor = self._monitor(record)
        if monitor.job.end.keep_on_failure is None:
            return "it keeps no machine to look into (keep_on_failure is not set)"
        if result_of(record) is None:
            return None
        try:
            there = [each for each in monitor.instances() if each.living]
        except BaiError:
            return None
        return None if there else "it has ended, and none of its machines is there any more"
