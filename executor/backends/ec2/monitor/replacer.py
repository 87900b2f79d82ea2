"""Launches machines for a running job, on behalf of the command that checks the job. Each folder
`launches/<k>/` of the job records the launch of one machine.

A process claims the next number k by a conditional put of `launch.json`. The request's token is computed from the
content of `launch.json`. So if two processes check a job at the same time, only one of them launches machines. If a
launch was interrupted between any two steps, the next check continues it and gets the same machine.

Other users may have write access to the bucket. So the job's first launch is rendered again, from the stored
descriptor and the configuration of the user who checks the job. If the rendered launch differs from the stored
launch, nothing is launched. If the rendered launch equals the stored launch, the first launch's request is sent
with new times. The tags and the user data of the new request name the new launch.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from bai_agent import __version__
from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Job
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import dataclass, field, replace
from cloud_init.user_data import Boot, user_data
from executor.backends.ec2.launch.error_classes import ErrorClass, RetryAction
from executor.backends.ec2.launch.launch import launch
from executor.backends.ec2.launch.launch_decision import adopt, refuse
from executor.backends.ec2.launch.launch_record import (
    EXPIRED,
    LaunchFile,
    read_decision,
    read_latest_round,
    read_launch,
    write_launch,
)
from executor.backends.ec2.launch.network import in_group
from executor.backends.ec2.launch.repeat import check_job_bytes, differ, differences, redraw
from executor.backends.ec2.launch.resolve import Candidate
from executor.backends.ec2.launch.waiting import as_round
from executor.backends.ec2.monitor.job_launches import KnownLaunch
from executor.backends.ec2.monitor.machine_needs import LEAST_TIME, MachineNeeds
from executor.backends.ec2.security_group import find_group
from executor.backends.ec2.session import AwsSession
from executor.backends.ec2.tags import FIRST_NODE_TAG, LAUNCH_TAG, need_time, tag_time, with_tags
from executor.configuration.config import Settings
from executor.descriptor import Descriptor
from executor.descriptor.ec2_table import ON_DEMAND
from executor.errors import LaunchError, UsageError
from executor.owned_folders import cache_folder
from executor.planning.rerun_record import kept_descriptor

log = logging.getLogger(__name__)

OBEYED = timedelta(seconds=60)
"""Time after the start of a launch during which only the process that began the launch may repeat it."""
LATE = timedelta(minutes=10)
"""Maximum age of a launch whose request may be sent again. The age is limited because a machine's deadline
counts from the time when `launch.json` was written."""
_PATIENCE_S = 20.0
_RETRY_S = 300.0
"""Time between a failure to render the first launch and the next attempt (seconds)."""


@dataclass(frozen=True, kw_only=True)
class FirstLaunch:
    """The first launch of a job, as rendered again by this process."""

    file: LaunchFile
    candidates: tuple[Candidate, ...]
    """The candidate that EC2 accepted in the first launch. If the descriptor allows on-demand machines, also the
    same candidate on demand."""
    boot: Boot


@dataclass
class Replacer:
    """Launches the machines that one job lacks."""

    record: JobRecord
    settings: Settings
    descriptor: Callable[[], Descriptor]
    """Returns the job's benchmark descriptor."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _base: FirstLaunch | None = field(default=None)
    _refused: tuple[float, str] | None = field(default=None)
    """Monotonic time (seconds) and reason of the last failure to render the first launch; None if there was
    no failure."""

    def do_due(
        self, job: Job, needs: MachineNeeds, aws: Callable[[], AwsSession], *, now: datetime
    ) -> str | None:
        """Continue launches that EC2 has not answered, and begin launches that are due. Return a sentence for
        the user if a machine cannot be launched. Raises StoreError."""
        late = [each for each in needs.launches.later if each.is_open and now - each.begun > OBEYED]
        if not late and not needs.due.count:
            return None
        if self._refused is not None and self.clock() < self._refused[0] + _RETRY_S:
            return self._refused[1]
        try:
            self._do(job, needs, late, aws(), now=now)
        except LaunchError as error:
            log.info("no machine is launched for %s: %s", job.job.id, error)
        except BaiError as error:
            why = f"No machine is launched for the job: {str(error).rstrip('.')}."
            if self._base is None:
                self._refused = (self.clock(), why)
                log.warning("%s", why)
            return why
        return None

    def _do(
        self, job: Job, needs: MachineNeeds, late: Sequence[KnownLaunch], aws: AwsSession, *, now: datetime
    ) -> None:
        """Continue the launches `late`, and begin launches that are due. Raises LaunchError, BaiError."""
        base = self._base = self._base or self._render(job, aws)
        for each in late:
            self._go_on(job, base, each, aws, now=now)
        self._begin(job, base, needs, aws, now=now)

    def _begin(
        self, job: Job, base: FirstLaunch, needs: MachineNeeds, aws: AwsSession, *, now: datetime
    ) -> None:
        """Launch the machines that are due, one after the other. Raises BaiError, and LaunchError at the first
        refusal."""
        number, node, lost = needs.launches.next_number, needs.launches.next_node, list(needs.lost)
        for _ in range(needs.due.count):
            replaces = (lost.pop(0),) if lost else ()
            ours = self._draw(base, aws, number=number, node=node, replaces=replaces, created=tag_time(now))
            self._allow(job, ours, aws, now=now)
            if write_launch(self.record, ours) != ours:
                return  # Another process has claimed this launch number.
            self._launch(job, ours, aws, now=now, begun_before=False)
            number, node = number + 1, node + 1

    def _go_on(
        self, job: Job, base: FirstLaunch, begun: KnownLaunch, aws: AwsSession, *, now: datetime
    ) -> None:
        """Continue a launch that another process has begun. Raises LaunchError if EC2 refuses the launch,
        UsageError if the recorded launch differs from the launch that this process would make."""
        file = read_launch(self.record, attempt=base.file.attempt, launch=begun.number)
        if file is None:
            return
        if now - begun.begun > LATE:
            # This launch's request is not sent any more, so it need not equal the request that this process
            # would make.
            if adopt(self.record, aws, file=file) is None:
                why = "the launch was interrupted, and its request is too old to be sent"
                expired = ErrorClass(RetryAction.STOP, Outcome.LAUNCH_FAILED, EXPIRED, why)
                refuse(self.record, file, aws, expired)
            return
        ours = self._draw(
            base, aws, number=begun.number, node=file.first_node, replaces=file.replaces, created=file.created
        )
        differing = differences(file, ours)
        if begun.begun - file.begun > LATE:
            # The machine's deadline is computed from the time in `launch.json`, so this time must not be much
            # earlier than the store's timestamp of the file.
            differing = [*differing, "created"]
        if differing:
            where = f"{self.record.store.url}/{self.record.job_id}/attempts/{file.attempt}/launches/{file.number}/launch.json"
            raise UsageError(f"{where} does not match the first launch: {', '.join(differing)}")
        self._allow(job, file, aws, now=now)
        self._launch(job, file, aws, now=now, begun_before=True)

    def _allow(self, job: Job, file: LaunchFile, aws: AwsSession, *, now: datetime) -> None:
        """Raise UsageError if the launch of a machine is not allowed. This class allows every launch that the
        user's AWS permissions allow; subclasses have more limits."""

    def _launch(
        self, job: Job, file: LaunchFile, aws: AwsSession, *, now: datetime, begun_before: bool
    ) -> None:
        launch(
            self.record,
            file,
            aws,
            deadman=job.limits.grace + job.limits.drain + LEAST_TIME,
            begun_before=begun_before,
            patience_s=_PATIENCE_S,
            sleep=self.sleep,
            now=lambda: now,
        )

    def _render(self, job: Job, aws: AwsSession) -> FirstLaunch:
        """Return the job's first launch, rendered again. Raises UsageError if the rendered launch is not
        exactly the stored launch, BaiError."""
        file = read_launch(self.record, attempt=job.job.attempt)
        decision = read_decision(self.record, attempt=job.job.attempt)
        if file is None or decision is None:
            raise UsageError("the job's first launch is not recorded")
        boot, differing = self._compare(job, file, aws)
        accepted = read_latest_round(self.record, file)
        if not differing and accepted is not file:
            ours = as_round(file, accepted.round, now=accepted.begun, deadman=boot.deadman)
            differing = differences(accepted, ours)
        if differing:
            raise UsageError(
                f"descriptor and configuration no longer produce the job's first launch: {differ(differing)}"
            )
        return FirstLaunch(file=accepted, candidates=_candidates(accepted, decision), boot=boot)

    def _compare(self, job: Job, file: LaunchFile, aws: AwsSession) -> tuple[Boot, list[str]]:
        """Render the first launch again. Return the inputs of the stored user data, and the names of the fields in
        which the rendered launch differs from the stored launch. Raises BaiError."""
        if file.bai != __version__:
            raise UsageError(
                f"version {json.dumps(file.bai)} of `bai` launched the job, but this is {__version__}: only the same version can "
                "launch more machines for the job"
            )
        check_job_bytes(self.record, job)
        plan = redraw(file, job, self.descriptor(), self.settings, aws, cache=cache_folder(os.environ))
        return plan.user_data.boot, differences(file, plan.file)

    def _draw(
        self,
        base: FirstLaunch,
        aws: AwsSession,
        *,
        number: int,
        node: int,
        replaces: tuple[int, ...],
        created: str,
    ) -> LaunchFile:
        """Return the plan of a later launch, which launches one machine. Raises BaiError."""
        boot = replace(base.boot, deadman=base.file.ends - need_time(created), launch=number, first_node=node)
        request = dict(base.file.request)
        if base.file.security_group is not None:
            request = in_group(request, find_group(aws.ec2(), base.file.security_group))
        request |= {
            "MinCount": 1,
            "MaxCount": 1,
            "UserData": base64.b64encode(user_data(boot)).decode(),
            "TagSpecifications": with_tags(request, {LAUNCH_TAG: str(number), FIRST_NODE_TAG: str(node)}),
        }
        return replace(
            base.file,
            candidates=base.candidates,
            request=request,
            created=created,
            security_group=None,
            wait=None,
            number=number,
            first_node=node,
            replaces=replaces,
        ).sealed()


def kept_replacer(record: JobRecord, settings: Settings) -> Replacer:
    """Return the replacer of a job, which uses the configuration `settings` and the descriptor in the job's
    record."""
    return Replacer(record, settings, lambda: kept_descriptor(record))


def _candidates(file: LaunchFile, decision: dict[str, object]) -> tuple[Candidate, ...]:
    """Return the candidate that EC2 accepted in the first launch. If the first launch had the same candidate on
    demand, return that candidate, too. Raises UsageError."""
    wanted = {"subnet": "subnet", "zone": "az", "type": "type", "market": "market"}
    accepted = next(
        (
            each
            for each in file.candidates
            # `launched.json` lacks the subnet if the machine was found by its tags.
            if all(decision.get(key) in (None, "", getattr(each, name)) for name, key in wanted.items())
        ),
        None,
    )
    if accepted is None:
        raise UsageError("the job's launched.json names a candidate that launch.json does not contain")
    on_demand = replace(accepted, market=ON_DEMAND)
    return (accepted, on_demand) if accepted != on_demand and on_demand in file.candidates else (accepted,)
