"""A user's account with the watcher, which has the limits and the rights of its stack."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import watcher_calls
from account_jobs import ELASTIC, Account
from botocore.exceptions import ClientError
from moto_aws import REGION, MotoAws
from sandbox.fake_aws.iam.identities import SETUP
from watcher_calls import WatcherCall, scheduled

from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import replace
from executor.backends.ec2.launch.launch_record import read_launch
from executor.backends.ec2.watched_jobs import watch_job

PROFILE = "bai-instance"


class WatchedAccount(Account):
    """An account with a watcher."""

    def __init__(self, aws: MotoAws, folder: Path) -> None:
        super().__init__(aws, folder, config=f'instance_profile = "{PROFILE}"\n')
        self.code = watcher_calls.unpacked()
        self.limits = {
            "BAI_WATCHER_PROFILE": PROFILE,
            "BAI_WATCHER_GROUPS": "sg-1",
            "BAI_WATCHER_SUBNETS": ",".join(aws.subnets.values()),
            "BAI_WATCHER_OWNERS": "amazon",
            "BAI_WATCHER_TYPES": "t3.*,c7i.large",
            "BAI_WATCHER_USD_A_DAY": "50",
        }
        iam = aws.client("iam", SETUP)
        iam.create_instance_profile(InstanceProfileName=PROFILE)
        watcher_calls.grant(
            aws.policies, PROFILE, subnets=list(aws.subnets.values()), types=["t3.*", "c7i.large"]
        )

    def watch(self, event: Any = None, **more: str) -> WatcherCall:
        """Call the watcher, as the schedule does if there is no event."""
        return watcher_calls.call(self.code, event or scheduled(), {**self._environment(), **more})

    def start(self, who: str) -> subprocess.Popen[str]:
        """Start `bai status` or a call of the watcher."""
        if who == "user":
            return self.cli.start("status", "job", stdout=subprocess.DEVNULL, stderr=None)
        return watcher_calls.start(self.code, scheduled(), self._environment())

    def _environment(self) -> dict[str, str]:
        environment = self.aws.environment("watcher")
        mine = {"AWS_REGION": REGION, "BAI_BUCKET": self.aws.bucket, "BAI_CONFIG": "/dev/null"}
        kept = {key: value for key, value in environment.items() if key.startswith("AWS_")}
        return {**kept, **mine, **self.limits}

    def lost(self, job_id: str = "job", more: str = ELASTIC) -> str:
        """Submit a job whose machine is then lost; return the machine."""
        machine, _ = self.submit(job_id, more)
        self.begin(machine, job_id)
        self.lose(machine)
        return machine

    def plant(self, identity: str, keys: Sequence[str], content: bytes = b"") -> list[str]:
        """Write objects with the rights of an identity's policy; return the keys that it may write."""
        self.aws.policies.attach(identity)
        s3, written = self.aws.client("s3", identity), []
        for key in keys:
            once = {"IfNoneMatch": "*"} if key.endswith(("/job.toml", "/result.json")) else {}
            try:
                s3.put_object(Bucket=self.aws.bucket, Key=key, Body=content, **once)
            except ClientError as error:
                if error.response["Error"]["Code"] not in ("AccessDenied", "PreconditionFailed"):
                    raise
            else:
                written.append(key)
        self.aws.policies.take_refused()
        return written

    def submit_otherwise(self, job_id: str = "job", **request: Any) -> None:
        """Give a job's stored launch these parameters, and make its mark fit, as a user's policy allows."""
        record = JobRecord(self.store, job_id)
        file = read_launch(record)
        assert file is not None
        changed = replace(file, request={**file.request, **request}).sealed()
        content = json.dumps(changed.as_table()).encode()
        [written] = self.plant("user", [f"jobs/{job_id}/attempts/0/launch.json"], content)
        assert written
        watch_job(self.store, job_id, token=changed.token)
