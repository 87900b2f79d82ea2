"""What the instance reaches over its network: AWS's APIs, the metadata service, and in them the agent's bundle."""

from __future__ import annotations

import hashlib
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from botocore.credentials import Credentials
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.control_plane import access
from sandbox.fake_aws.control_plane.endpoint import ControlPlane
from sandbox.fake_aws.control_plane.faults import Faults
from sandbox.fake_aws.control_plane.s3_rules import S3Rules
from sandbox.fake_aws.iam.identities import SETUP, Identities
from sandbox.fake_aws.machine.imds import Guest, MetadataService

from bai_agent.aws.credentials import from_botocore
from bai_agent.job.record import JobRecord
from bai_agent.job.store import open_store
from cloud_init.user_data import Bundle

REGION = "eu-central-1"
BUCKET = "bai-exchange"
STORE = f"s3://{BUCKET}/jobs"
_METADATA = ("169.254.169.254", 80)


class ContainerAccount:
    """One account with one bucket and, at a time, one instance. Made by `open_account`."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.identities = Identities()
        self._guest: Guest | None = None
        self._control_plane = ControlPlane(
            account="210987654321",
            identities=self.identities,
            faults=Faults(),
            zone_of=lambda _call: None,
            rules=[S3Rules()],
        )
        stack.callback(self._control_plane.close)
        self.endpoint = f"http://127.0.0.1:{self._control_plane.port}"
        subprocess.run(
            ["ip", "address", "replace", f"{_METADATA[0]}/32", "dev", "lo"], check=True, timeout=60
        )
        listener = socket.create_server(_METADATA)
        metadata = MetadataService(
            listener, find=lambda _address: self._guest, access_log=folder / "imds.log"
        )
        stack.callback(metadata.close)
        mine = self.identities.of(SETUP)
        self.s3 = access.client("s3", mine, endpoint=self.endpoint, region=REGION)
        self.s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})

    @property
    def calls(self) -> list[Call]:
        """Return the instance's API calls."""
        return self._control_plane.calls

    def launch(self, guest: Guest) -> None:
        """From now on the metadata service answers as to `guest`, and the calls are its."""
        self._guest = guest
        self._control_plane.forget_calls()

    def put_bundle(self, content: bytes) -> Bundle:
        """Put an agent into the bucket."""
        sha256 = hashlib.sha256(content).hexdigest()
        key = f"agent/{sha256}.tar.gz"
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=content)
        return Bundle(url=f"s3://{BUCKET}/{key}", sha256=sha256, size=len(content))

    def record(self, job_id: str) -> JobRecord:
        """Return the job's record, read as a person's `bai` reads it."""
        mine = self.identities.of(SETUP)
        credentials = from_botocore(Credentials(mine.access_key, mine.secret_key))
        store = open_store(STORE, region=REGION, endpoint=self.endpoint, credentials=credentials)
        return JobRecord(store, job_id)


@contextmanager
def open_account(folder: Path) -> Iterator[ContainerAccount]:
    with ExitStack() as stack:
        yield ContainerAccount(folder, stack)
