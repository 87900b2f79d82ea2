"""A repeated submission sends only the launch request that it would make itself, whatever the bucket contains."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from moto.ssm.models import ssm_backends
from moto_aws import HELLO, REGION, MotoAws
from sandbox.fake_aws.control_plane.images import BASE, DEBIAN, TRIXIE, MachineImage, register

from bai_agent import __version__
from executor.backends.ec2.launch.ec2_submission import submit
from executor.backends.ec2.launch.launch_record import LaunchFile, read_launch
from executor.backends.ec2.launch.resolve import Candidate
from executor.configuration.config import read_settings
from executor.errors import UndecidedError, UsageError
from executor.planning.request import JobRequest, Submitted, read_request

pytestmark = pytest.mark.usefixtures("moto_environment")

BY_PARAMETER = HELLO.replace(DEBIAN.image_id, f"ssm:{DEBIAN.parameters[0]}")
Table = dict[str, Any]


class Submitter:
    """A person with a descriptor, and the bucket as whoever may write all of it."""

    def __init__(self, moto_aws: MotoAws, folder: Path) -> None:
        self.moto_aws, self.file = moto_aws, folder / "b.toml"
        self.file.write_text(HELLO)
        self.bucket = moto_aws.client("s3", "setup")

    def submit(self, job_id: str = "job-1") -> Submitted:
        job_request = JobRequest(file=self.file, on="ec2")
        descriptor, _ = read_request(job_request)
        return submit(job_request, descriptor, read_settings(), job_id=job_id, sleep=lambda _: None)

    def cut_short(self, job_id: str = "job-1") -> None:
        """Submit, and fail where EC2 is to be asked: the launch is written down and never sent."""
        self.moto_aws.fail("RunInstances", code="ExpiredToken", status=400, times=1)
        with pytest.raises(UndecidedError):
            self.submit(job_id)

    def read(self, name: str) -> bytes:
        key = f"jobs/job-1/{name}"
        content: bytes = self.bucket.get_object(Bucket=self.moto_aws.bucket, Key=key)["Body"].read()
        return content

    def put(self, name: str, content: bytes) -> None:
        self.bucket.put_object(Bucket=self.moto_aws.bucket, Key=f"jobs/job-1/{name}", Body=content)

    def delete(self, name: str) -> None:
        self.bucket.delete_object(Bucket=self.moto_aws.bucket, Key=f"jobs/job-1/{name}")

    def change_launch(self, change: Callable[[Table], None], *, seal: bool = True) -> None:
        """Put another launch in place of the written one, with the token that belongs to it."""
        table = json.loads(self.read("attempts/0/launch.json"))
        change(table)
        if seal:
            places = [Candidate(subnet=each["subnet"], zone=each["az"]) for each in table["candidates"]]
            table["token"] = LaunchFile(**{**table, "candidates": tuple(places)}).sealed().token
        self.put("attempts/0/launch.json", json.dumps(table).encode())


@pytest.fixture
def submitter(moto_aws: MotoAws, tmp_path: Path) -> Submitter:
    return Submitter(moto_aws, tmp_path)


def asks(**parameters: Any) -> Callable[[Table], None]:
    return lambda table: table["request"].update(parameters)


def says(**values: Any) -> Callable[[Table], None]:
    return lambda table: table.update(values)


ADMIN = {"Name": "administrator"}
PLANTED = base64.b64encode(b"#!/bin/sh\n").decode()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (asks(IamInstanceProfile=ADMIN, UserData=PLANTED), "IamInstanceProfile, UserData differ"),
        (asks(ImageId=TRIXIE.image_id), "ImageId differs"),
        (says(candidates=[{"subnet": "subnet-theirs", "az": f"{REGION}a"}]), "candidates differs"),
    ],
)
def test_a_stored_launch_request_that_was_changed_anywhere_is_not_sent(
    submitter: Submitter, change: Callable[[Table], None], named: str
) -> None:
    # given a launch of a known job id that somebody else put there, complete with its token
    submitter.cut_short()
    before = len(submitter.moto_aws.calls("RunInstances"))
    submitter.change_launch(change)

    # when the job is submitted under that id
    with pytest.raises(UsageError) as caught:
        submitter.submit()

    # then nothing is launched, and the sentence names what differs
    assert named in str(caught.value)
    assert "new job id" in str(caught.value)
    assert len(submitter.moto_aws.calls("RunInstances")) == before


def test_an_interrupted_launch_is_requested_again_unchanged(submitter: Submitter) -> None:
    submitter.cut_short()
    [asked] = submitter.moto_aws.calls("RunInstances")

    assert not submitter.submit().new

    [_, again] = submitter.moto_aws.calls("RunInstances")
    assert again.parameters == asked.parameters
    assert len(submitter.moto_aws.instances()) == 1


def test_a_changed_configuration_is_named(submitter: Submitter, monkeypatch: pytest.MonkeyPatch) -> None:
    submitter.cut_short()
    monkeypatch.setenv("BAI_INSTANCE_PROFILE", "another")

    with pytest.raises(UsageError, match="IamInstanceProfile differs"):
        submitter.submit()


@pytest.mark.parametrize("left", [None, b"", b"# somebody else\n"])
def test_a_stored_launch_of_another_job_is_not_sent(submitter: Submitter, left: bytes | None) -> None:
    submitter.cut_short()
    written = submitter.read("job.toml")
    submitter.delete("job.toml")
    if left:
        submitter.put("job.toml", left + written)
    before = len(submitter.moto_aws.calls("RunInstances"))

    with pytest.raises(UsageError, match=r"job\.toml"):
        submitter.submit()

    assert len(submitter.moto_aws.calls("RunInstances")) == before


def test_a_stored_job_descriptor_with_other_bytes_is_not_launched(submitter: Submitter) -> None:
    # given a submission that was cut short before it wrote the launch, and a job that somebody touched
    submitter.cut_short()
    submitter.delete("attempts/0/launch.json")
    submitter.put("job.toml", b"# somebody else\n" + submitter.read("job.toml"))
    before = len(submitter.moto_aws.calls("RunInstances"))

    with pytest.raises(UsageError, match="is not the file that this `bai` writes"):
        submitter.submit()

    assert len(submitter.moto_aws.calls("RunInstances")) == before


@pytest.mark.parametrize("change", [says(bai="9.9.9"), lambda table: table.pop("bai"), says(version=2)])
def test_machines_launched_by_another_version_are_adopted_without_a_new_request(
    submitter: Submitter, change: Callable[[Table], None]
) -> None:
    # given a launch by another version of `bai`, which died before EC2 answered
    submitter.submit()
    [instance] = submitter.moto_aws.instances()
    submitter.delete("attempts/0/launched.json")
    submitter.change_launch(change, seal=False)

    # when it is submitted again
    submitter.submit()

    # then its machine is found by its tags, and no other is launched
    decided = json.loads(submitter.read("attempts/0/launched.json"))
    assert decided["instances"] == [instance["InstanceId"]]
    assert len(submitter.moto_aws.calls("RunInstances")) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (says(bai="9.9.9"), f'version "9.9.9" of `bai`.*this version is {__version__}'),
        (says(version=2), "version 2 of a launch"),
    ],
)
def test_a_stored_launch_of_another_version_without_machines_is_refused(
    submitter: Submitter, change: Callable[[Table], None], named: str
) -> None:
    submitter.cut_short()
    submitter.change_launch(change, seal=False)
    before = len(submitter.moto_aws.calls("RunInstances"))

    with pytest.raises(Exception, match=named):
        submitter.submit()

    assert len(submitter.moto_aws.calls("RunInstances")) == before


def test_machines_with_the_same_id_in_another_bucket_are_not_adopted(submitter: Submitter) -> None:
    submitter.submit()
    submitter.delete("attempts/0/launched.json")
    submitter.change_launch(says(bai="9.9.9"), seal=False)
    [instance] = submitter.moto_aws.instances()
    store = [{"Key": "bai:store", "Value": "s3://another/jobs"}]
    submitter.moto_aws.client("ec2", "setup").create_tags(Resources=[instance["InstanceId"]], Tags=store)

    with pytest.raises(UsageError, match="same version"):
        submitter.submit()


def test_a_repeated_launch_keeps_its_image_if_the_parameter_changed(submitter: Submitter) -> None:
    submitter.file.write_text(BY_PARAMETER)
    submitter.cut_short()
    newer = MachineImage(
        **{**vars(BASE), "image_id": "ami-0deb1200000000002", "parameters": DEBIAN.parameters}
    )
    _register(submitter.moto_aws, newer)

    submitter.submit()

    assert [each["ImageId"] for each in submitter.moto_aws.instances()] == [DEBIAN.image_id]


def test_a_stored_launch_with_a_foreign_image_is_refused(submitter: Submitter) -> None:
    submitter.file.write_text(BY_PARAMETER)
    submitter.cut_short()
    theirs = MachineImage(**{**vars(DEBIAN), "image_id": "ami-0bad0000000000001", "parameters": ()})
    _register(submitter.moto_aws, theirs)
    submitter.moto_aws._ec2.amis[theirs.image_id].owner_id = "666666666666"
    submitter.change_launch(asks(ImageId=theirs.image_id))

    with pytest.raises(UsageError, match="ImageId differs"):
        submitter.submit()


def test_a_stored_launch_can_be_read_back_and_has_a_valid_checksum(submitter: Submitter) -> None:
    record = submitter.submit().record

    file = read_launch(record)

    assert file is not None
    assert (file.bai, file.token) == (__version__, file.sealed().token)


def _register(moto_aws: MotoAws, image: MachineImage) -> None:
    register(image, ec2=moto_aws._ec2, ssm=ssm_backends[moto_aws.account][REGION])
