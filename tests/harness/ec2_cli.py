"""Runs `bai` on an AWS account of moto, with handmade records in a bucket and instances with our tags."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from cli_harness import CliHarness
from handmade_job import HandmadeJob
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.s3.models import s3_backends
from moto.ssm.models import ssm_backends
from s3_gate import Gate
from sandbox.fake_aws.control_plane.images import DEBIAN, register

from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore, open_store

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

REGION = "us-east-1"


@dataclass(frozen=True)
class Ec2Cli(CliHarness):
    """A harness with credentials and a configuration. Made by `open_ec2_cli`."""

    _: KW_ONLY
    gate: Gate
    ec2: EC2Client
    image: str

    def in_region(self, region: str) -> Ec2Cli:
        """Return the same harness for the instances of another region."""
        ec2: EC2Client = boto3.client("ec2", region_name=region)
        return replace(self, ec2=ec2, image=_image(region))

    @property
    def store(self) -> JobStore:
        return open_store("s3://bucket/jobs", region=REGION)

    def handmade(self, job_id: str = "digits-1", **options: Any) -> HandmadeJob:
        """Return a job in a folder of this test. `bring` puts the job into the bucket."""
        return HandmadeJob(self.folder / "handmade", job_id, **options)

    def bring(
        self, job: HandmadeJob, *, launched: list[str] | None = None, expires: timedelta = timedelta(hours=1)
    ) -> JobRecord:
        """Put all of a job into the bucket, as its agent would. launched: instances that the record names."""
        store = self.store
        for each in job.store.find(f"{job.record.job_id}/"):
            if "/output.log" in each.key or each.key.endswith("/metrics.jsonl"):
                continue
            store.put(each.key, job.store.get(each.key))
        record = JobRecord(store, job.record.job_id)
        if launched is not None:
            launch = {
                "version": 1,
                "job_id": record.job_id,
                "attempt": 0,
                "region": REGION,
                "candidates": [{"subnet": "subnet-1", "az": f"{REGION}a"}],
                "request": {},
                "token": "token",
                "created": moment(timedelta()),
                "expires": moment(expires),
                "boot_limit": 3600,
            }
            store.put(record.key("attempts/0/launch.json"), json.dumps(launch).encode())
            store.put(record.key("attempts/0/launched.json"), json.dumps({"instances": launched}).encode())
        return record

    def launch(
        self,
        job_id: str | None = "digits-1",
        *,
        expires: str | None = None,
        client: str = "me",
        count: int = 1,
    ) -> list[str]:
        """Run instances with the tags of a job. job_id: None for instances that belong to no job."""
        tags = {"Name": "mine"}
        if job_id is not None:
            tags = {
                "bai:job-id": job_id,
                "bai:attempt": "0",
                "bai:client-id": client,
                "bai:expires": expires or moment(timedelta(hours=1)),
                "bai:store": "s3://bucket/jobs",
            }
        answer = self.ec2.run_instances(
            ImageId=self.image,
            MinCount=count,
            MaxCount=count,
            TagSpecifications=[
                {
                    "ResourceType": "instance",
                    "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
                }
            ],
        )
        return [each["InstanceId"] for each in answer["Instances"]]

    def age(self, record: JobRecord, by: timedelta, *, but: str = "") -> None:
        """Make a job's record (except keys that begin with `but`) and all launches older by `by`."""
        for account in s3_backends.values():
            for bucket in account["aws"].buckets.values():
                for key in bucket.keys.values():
                    if key.name.startswith(f"jobs/{record.job_id}/") and not (
                        but and key.name.startswith(f"jobs/{record.key(but)}")
                    ):
                        key.last_modified -= by
        for each in ec2_backends[DEFAULT_ACCOUNT_ID][REGION].all_instances():
            each.launch_time -= by

    def state(self, instance_id: str) -> str:
        found = self.ec2.describe_instances(InstanceIds=[instance_id])
        return str(found["Reservations"][0]["Instances"][0]["State"]["Name"])


def moment(ahead: timedelta) -> str:
    """Return the time `ahead` of now in the form of a tag."""
    return (datetime.now(timezone.utc) + ahead).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def open_ec2_cli(folder: Path, gate: Gate, moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Cli]:
    """Set the environment so that this process and every `bai` use moto."""
    config = folder / "config.toml"
    config.write_text(f'bucket = "bucket"\nregion = "{REGION}"\nclient_id = "me"\n')
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{moto}")
    monkeypatch.setenv("BAI_CONFIG", str(config))
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.delenv("BAI_STORE", raising=False)
    ec2: EC2Client = boto3.client("ec2", region_name=REGION)
    yield Ec2Cli(folder, os.environ, gate=gate, ec2=ec2, image=_image(REGION))


def _image(region: str) -> str:
    """Put an image into a region of moto that was not used before, and return the image's id."""
    register(
        DEBIAN, ec2=ec2_backends[DEFAULT_ACCOUNT_ID][region], ssm=ssm_backends[DEFAULT_ACCOUNT_ID][region]
    )
    return DEBIAN.image_id
