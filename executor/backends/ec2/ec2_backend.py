"""The EC2 backend. Each job runs on its own machines, which are terminated after the job has ended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from bai_agent.errors import BaiError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store import is_s3
from executor.backends.backend import (
    BackendOptions,
    ConsoleOutput,
    Location,
    SubmitListener,
    named_store,
)
from executor.errors import NextStep, UsageError
from executor.quantities import counted
from executor.records.generation_status import check_scale, request_scale
from executor.records.job_status import JobStatus
from executor.records.reading import result_of

# Each method imports the modules that only this method needs, because `owns` is also called for local jobs,
# and importing AWS's library takes half a second.
if TYPE_CHECKING:
    from bai_agent.job.store import JobStore
    from executor.backends.ec2.launch.ec2_plan import Ec2Plan
    from executor.backends.ec2.monitor.ec2_watcher import InstanceWatcher
    from executor.backends.ec2.monitor.monitor import JobMonitor
    from executor.configuration.config import Settings
    from executor.descriptor import Descriptor, Finding
    from executor.planning.request import JobRequest, Submitted


class Ec2Backend:
    """The backend of jobs whose record is in an S3 bucket."""

    name = "ec2"
    remote = True
    option_names = ("profile", "region", "bucket")

    def __init__(self, options: BackendOptions) -> None:
        self._options = options
        self._asked = False
        """Whether the current `bai` command has already used EC2."""

    @property
    def _settings(self) -> Settings:
        self._asked = True
        return self._options.settings()

    def owns(self, record: JobRecord) -> bool:
        return is_s3(record.store.url)

    def open_store(self, named: str | None) -> JobStore | None:
        chosen = named_store(named)
        if chosen is not None and not is_s3(chosen):
            return None
        settings = self._options.settings()
        url = chosen or settings.store_url
        if url is None:
            return None
        # If there is no bucket, no module that sends requests to AWS is imported.
        from executor.backends.ec2.bucket_store import open_bucket

        return open_bucket(url, settings)

    def store_option(self) -> str | None:
        # `bai submit` writes jobs on EC2 into the configured bucket, even if the user names another store.
        return self._options.settings().store_url if named_store(self._options.store) else None

    def submission_store(self) -> JobStore:
        from executor.backends.ec2.bucket_store import bucket_store

        return bucket_store(self._settings)

    def preflight(self, job_request: JobRequest, descriptor: Descriptor) -> list[Finding]:
        from executor.backends.ec2.launch.draft import preflight
        from executor.owned_folders import cache_folder
        from executor.planning.job_defaults import with_defaults

        cache, now, settings = cache_folder(os.environ), datetime.now(timezone.utc), self._options.settings()
        return preflight(job_request, with_defaults(descriptor, settings), settings, cache=cache, now=now)

    @contextmanager
    def plan(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        on_progress: Callable[[str], None],
    ) -> Iterator[Ec2Plan]:
        from executor.backends.ec2.launch.ec2_plan import Ec2Plan, planned_launch
        from executor.planning.job_defaults import used_defaults, with_defaults
        from executor.planning.requested_job import survey

        settings = self._options.settings()
        defaults = used_defaults(descriptor, settings, on_ec2=True)
        descriptor = with_defaults(descriptor, settings)
        launch = planned_launch(job_request, descriptor, settings, job_id=job_id, on_progress=on_progress)
        with launch as (made, uploads, aws):
            yield Ec2Plan(
                made, uploads, settings, aws, lambda: survey(job_request, descriptor), on_progress, defaults
            )

    def submit(
        self,
        job_request: JobRequest,
        descriptor: Descriptor,
        *,
        job_id: str | None,
        listener: SubmitListener,
    ) -> Submitted:
        from executor.backends.ec2.launch.ec2_submission import submit
        from executor.planning.job_defaults import with_defaults

        settings = self._settings
        descriptor = with_defaults(descriptor, settings)
        return submit(job_request, descriptor, settings, job_id=job_id, listener=listener)

    def status(self, record: JobRecord) -> JobStatus:
        from executor.backends.ec2.monitor.ec2_job_status import status_on_ec2

        return status_on_ec2(record, self._settings)

    def statuses(self, records: Sequence[JobRecord]) -> list[JobStatus]:
        from executor.backends.ec2.monitor.ec2_job_status import statuses_on_ec2

        return statuses_on_ec2(records, self._settings)

    def follow(self, record: JobRecord, *, on_status: Callable[[str], None]) -> InstanceWatcher:
        from executor.backends.ec2.monitor.ec2_watcher import InstanceWatcher

        return InstanceWatcher(self._monitor(record))

    def cancel(self, record: JobRecord, *, now: bool) -> str:
        if (result := result_of(record)) is not None:
            message = f"the job has already ended: {result.sentence}"
        else:
            message = "cancelling" if record.cancel(by="bai cancel") else "the job is already being cancelled"
        return f"{message.rstrip('.')}; {self._end_machines(record)}" if now else message

    def resume(self, record: JobRecord) -> str:
        raise UsageError(f"the job {record.job_id} in {record.store.url} does not run on this machine")

    def scale(self, record: JobRecord, nodes: int) -> str:
        check_scale(record, nodes)
        monitor = self._monitor(record)
        launched = monitor.launched_ids
        there = (len(launched) or len(record.nodes())) - len(AttemptRecord(record).ended())
        if nodes > there and not launched:
            raise UsageError(
                f"{record.job_id} has {counted(there, 'node')} whose machines were launched by hand, and no machine is launched for such a "
                "job; `bai scale` can only remove nodes"
            )
        request_scale(record, nodes)
        said = f"scaling to {counted(nodes, 'node')}"
        # Missing machines are launched at once, like replacements of lost machines.
        return said if nodes <= there else f"{said}; {monitor.reconcile().sentence}"

    def release(self, record: JobRecord) -> str:
        if (nothing := self._keeps_nothing(record)) is not None:
            return f"there is nothing to release: {nothing}"
        content = json.dumps({"time": now_ms(), "by": "bai release"}).encode() + b"\n"
        first = record.store.put(record.key("release.json"), content, if_absent=True)
        return "released" if first else "it was released before"

    def shell(self, record: JobRecord, *, node: int, on_status: Callable[[str], None]) -> int:
        from executor.backends.ec2.machine_session import open_session

        return open_session(self._monitor(record), node=node, on_status=on_status)

    def consoles(self, record: JobRecord, *, on_status: Callable[[str], None]) -> list[ConsoleOutput]:
        found = self._monitor(record).consoles()
        if not found:
            on_status(
                f"EC2 knows no machine of {record.job_id} any more; EC2 keeps a console for about an hour after the end of the machine"
            )
        return [
            ConsoleOutput(instance_id=machine.id, state=machine.state, node=machine.index, text=text)
            for machine, text in found
        ]

    def attention(self, record: JobRecord) -> tuple[str, NextStep | None] | None:
        from executor.backends.ec2.attention import who_looks

        return who_looks(record, self._settings)

    def location(self, record: JobRecord) -> Location:
        return Location(files=f"{record.store.url}/{record.job_id}")

    def tidy(self) -> None:
        """Terminate this client's expired machines, but only if the command has already used EC2."""
        if self._asked:
            from executor.backends.ec2.monitor.reaper import reap_own

            reap_own(self._options.settings(), store=self._options.store)

    def _monitor(self, record: JobRecord) -> JobMonitor:
        from executor.backends.ec2.monitor.ec2_job_status import make_monitor

        return make_monitor(record, self._settings)

    def _end_machines(self, record: JobRecord) -> str:
        """Terminate a job's machines, and record the cancellation if the job has no result; return a sentence
        about the machines."""
        from executor.backends.ec2.inferred_result import write_result

        ended = self._monitor(record).end()
        write_result(
            record, Outcome.CANCELLED, "The job was cancelled, and its machines were terminated at once."
        )
        if not ended:
            return "it has no machines"
        return f"{', '.join(ended)} {'is' if len(ended) == 1 else 'are'} being terminated"

    def _keeps_nothing(self, record: JobRecord) -> str | None:
        """Return the reason why no machine of the job stays on for inspection; None if a machine stays on, or may
        stay on after the job has ended."""
        monitor = self._monitor(record)
        if not monitor.job.end.keep_time(None):
            return "the job keeps no machine for inspection (neither keep_on_failure nor keep_after is set)"
        if result_of(record) is None:
            return None
        try:
            there = [each for each in monitor.instances() if each.living]
        except BaiError:
            return None
        return None if there else "the job has ended, and its machines are gone"
