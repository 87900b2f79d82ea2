"""Launches machines for the watcher, within the watcher's limits, if the stored launch is exactly the launch
that the user submitted.

The watcher does not have any user's configuration, so it cannot render a launch again as other commands do.
The watcher trusts the stored launch if the job's mark contains the launch's token. The watcher renders only
the user data again, and compares it with the stored user data byte for byte.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
from datetime import datetime

from bai_agent import __version__
from bai_agent.job.descriptor import Job
from bai_agent.light_dataclass import dataclass
from cloud_init.user_data import Boot, Bundle
from executor.backends.ec2.launch.cost import price, read_tenancy, volume_cost
from executor.backends.ec2.launch.images import find_image
from executor.backends.ec2.launch.launch_record import LaunchFile
from executor.backends.ec2.launch.launch_request import make_user_data
from executor.backends.ec2.launch.repeat import check_job_bytes
from executor.backends.ec2.launch.resolve import ec2_table
from executor.backends.ec2.monitor.replacer import Replacer
from executor.backends.ec2.session import AwsSession
from executor.backends.ec2.watched_jobs import watched_token
from executor.backends.ec2.watcher.day_ledger import DayLedger
from executor.backends.ec2.watcher.launch_limits import LaunchLimits
from executor.errors import LaunchError, UsageError

_READABLE = 2**20
"""Maximum size of unpacked user data (bytes)."""


@dataclass(kw_only=True)
class BoundedReplacer(Replacer):
    """Launches the machines that one job lacks, within the watcher's limits."""

    limits: LaunchLimits
    ledger: DayLedger

    def _compare(self, job: Job, file: LaunchFile, aws: AwsSession) -> tuple[Boot, list[str]]:
        if (
            file.token != watched_token(self.record.store, self.record.job_id)
            or file.sealed().token != file.token
        ):
            raise UsageError("the job's launch.json differs from the submitted launch")
        if file.bai != __version__:
            raise UsageError(
                f"version {json.dumps(file.bai)} of `bai` launched the job, but the watcher has version {__version__}: `bai setup` updates the watcher"
            )
        check_job_bytes(self.record, job)
        self.limits.check(file, aws.ec2(), store=self.record.store.url)
        return self._boot(job, file), []

    def _boot(self, job: Job, file: LaunchFile) -> Boot:
        """Return the values from which the stored user data was made. Raises UsageError if user data that is
        rendered from the values differs from the stored user data."""
        stored = base64.b64decode(str(file.request.get("UserData")))
        found = {
            name: re.search(rf"^\s+{name}=(\S+)$", _readable(stored), re.MULTILINE)
            for name in ("bundle_url", "bundle_sha256", "region")
        }
        url, sha256, region = (each[1] if each else "" for each in found.values())
        bundle = Bundle(url=url, sha256=sha256, size=0)
        made = make_user_data(job, ec2_table(self.descriptor()), bundle=bundle, region=region)
        if made.content != stored:
            raise UsageError("the stored user data does not match the job's descriptor")
        return made.boot

    def _allow(self, job: Job, file: LaunchFile, aws: AwsSession, *, now: datetime) -> None:
        """Reserve the maximum cost of a launch: the cost of its machine until the machine must be gone.
        Raises UsageError if the cost is too high or unknown."""
        hours = max(0.0, (file.ends - now).total_seconds() / 3600)
        self.ledger.reserve(self._name(file), hours * self._hourly(file, aws), now=now)

    def _hourly(self, file: LaunchFile, aws: AwsSession) -> float:
        """Return the maximum cost of a machine (USD per hour). Raises UsageError if the cost is unknown."""
        image, volumes = find_image(str(file.request.get("ImageId")), aws), volume_cost(file.request)
        tenancy = read_tenancy(file.request)
        known, unknown = [], [f"not in the price list: {each}" for each in volumes.unknown]
        for name in {each.type or str(file.request["InstanceType"]) for each in file.candidates}:
            hourly, origin = price(
                name, self.settings.prices, aws, operation=image.operation, tenancy=tenancy
            )
            if hourly is None:
                unknown.append(origin)
            else:
                known.append(hourly)
        if image.marketplace:
            unknown.append(f"the software of {image.id} may have its own price")
        if unknown:
            raise UsageError(f"the watcher has a cost limit, but the machine's cost is unknown: {unknown[0]}")
        return max(known) + volumes.hourly

    def _launch(
        self, job: Job, file: LaunchFile, aws: AwsSession, *, now: datetime, begun_before: bool
    ) -> None:
        try:
            super()._launch(job, file, aws, now=now, begun_before=begun_before)
        except LaunchError:
            self.ledger.give_back(self._name(file), now=now)
            raise

    def _name(self, file: LaunchFile) -> str:
        """Return the name under which the ledger records a launch."""
        return f"{self.record.job_id}-{file.attempt}-{file.number}"


def _readable(user_data: bytes) -> str:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(user_data)) as file:
            return file.read(_READABLE).decode("ascii")
    except (OSError, EOFError, ValueError) as error:
        raise UsageError(f"its user data cannot be read: {error}") from error
