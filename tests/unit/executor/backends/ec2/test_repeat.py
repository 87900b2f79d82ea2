"""The only launch of a store that may be sent is one that equals ours."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.ec2.launch.launch_record import LaunchFile, expires_at
from executor.backends.ec2.launch.repeat import problem_with
from executor.backends.ec2.launch.resolve import Candidate
from executor.backends.ec2.tags import tag_time
from executor.errors import UsageError
from executor.planning.job_toml import job_toml

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=timezone.utc)
JOB = Job(job=Identity(id="job-1"), benchmark=Benchmark(argv=("true",)))
OURS = LaunchFile(
    job_id="job-1",
    attempt=0,
    region="eu-central-1",
    candidates=(Candidate(subnet="subnet-1", zone="eu-central-1a"),),
    request={
        "InstanceType": "t3.small",
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": "ZGF0YQ==",
        "IamInstanceProfile": {"Name": "bai-instance"},
        "MetadataOptions": {"HttpTokens": "required"},
        "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 18}}],
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "bai"}]}],
    },
    expires=expires_at(NOW, timedelta(hours=2)),
    created=tag_time(NOW),
).sealed()


@pytest.fixture
def record(tmp_path: Path) -> JobRecord:
    record = JobRecord(DirectoryStore(tmp_path), "job-1")
    record.store.put(record.key("job.toml"), job_toml(JOB).encode())
    return record


def problem(
    record: JobRecord, file: LaunchFile, *, job: Job | None = JOB, region: str = "eu-central-1"
) -> str | None:
    return problem_with(record, file, job, lambda: OURS, region=region, now=NOW)


def asks(**parameters: Any) -> dict[str, Any]:
    return {"request": {**OURS.request, **parameters}}


def test_a_stored_launch_that_equals_ours_is_accepted(record: JobRecord) -> None:
    # given what was read back from the store: lists in place of tuples, another order
    table = json.loads(json.dumps(OURS.as_table(), sort_keys=True))
    places = tuple(Candidate(subnet=each["subnet"], zone=each["az"]) for each in table.pop("candidates"))

    assert problem(record, LaunchFile(**table, candidates=places)) is None


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            asks(IamInstanceProfile={"Name": "administrator"}, UserData=""),
            "IamInstanceProfile, UserData differ",
        ),
        (asks(SecurityGroupIds=["sg-1"]), "SecurityGroupIds differs"),
        (asks(KeyName="theirs"), "KeyName differs"),
        (asks(InstanceType="p5.48xlarge"), "InstanceType differs"),
        (asks(MinCount=8, MaxCount=8), "MaxCount, MinCount differ"),
        (asks(MinCount=True), "MinCount differs"),
        (asks(MetadataOptions={}), "MetadataOptions differs"),
        (asks(BlockDeviceMappings=[]), "BlockDeviceMappings differs"),
        (asks(TagSpecifications=[]), "TagSpecifications differs"),
        (asks(**{"A\x1b[2J": 1}), r'"A\u001b[2J" differs'),
        ({"candidates": (Candidate(subnet="subnet-2", zone="eu-central-1a"),)}, "candidates differs"),
        ({"expires": expires_at(NOW, timedelta(days=90))}, "expires differs"),
        ({"attempt": 1}, "attempt differs"),
    ],
)
def test_any_difference_of_a_stored_launch_is_named(
    record: JobRecord, changes: dict[str, Any], named: str, sealed: bool
) -> None:
    file = dataclasses.replace(OURS, **changes)

    found = problem(record, file.sealed() if sealed else file)

    assert found is not None
    assert named in found
    assert "new job id" in found


def test_a_parameter_missing_in_a_stored_launch_is_named(record: JobRecord) -> None:
    request = {key: value for key, value in OURS.request.items() if key != "MetadataOptions"}

    assert "MetadataOptions differs" in str(
        problem(record, dataclasses.replace(OURS, request=request).sealed())
    )


def test_a_stored_launch_with_a_different_token_is_refused(record: JobRecord) -> None:
    assert "token differs" in str(problem(record, dataclasses.replace(OURS, token="1" * 64)))


def test_a_stored_launch_in_another_region_is_refused(record: JobRecord) -> None:
    assert "region differs" in str(problem(record, OURS, region="us-east-1"))


def test_a_stored_launch_dated_in_the_future_is_refused(record: JobRecord) -> None:
    # given a launch that would hold for long, and that is whole in itself
    later = NOW + timedelta(days=90)
    file = dataclasses.replace(
        OURS, created=tag_time(later), expires=expires_at(later, timedelta(hours=2))
    ).sealed()

    found = problem_with(record, file, JOB, lambda: file, region="eu-central-1", now=NOW)

    assert "created differs" in str(found)
    assert problem_with(record, file, JOB, lambda: file, region="eu-central-1", now=later) is None


def test_a_stored_version_is_shown_without_control_characters(record: JobRecord) -> None:
    found = str(problem(record, dataclasses.replace(OURS, bai="9\x1b[2J").sealed()))

    assert r'version "9\u001b[2J" of `bai`' in found


def test_a_stored_launch_without_its_job_descriptor_is_refused(record: JobRecord) -> None:
    assert "exists, but the job's job.toml" in str(problem(record, OURS, job=None))


def _touched(record: JobRecord) -> bytes:
    return record.store.get(record.key("job.toml")) + b"\n"


@pytest.mark.parametrize("content", [_touched, lambda _: b""])
def test_a_stored_job_descriptor_with_other_bytes_is_refused(
    record: JobRecord, content: Callable[[JobRecord], bytes]
) -> None:
    record.store.put(record.key("job.toml"), content(record))

    with pytest.raises(UsageError, match="is not the file that this `bai` writes"):
        problem(record, OURS)


def test_a_different_version_is_named_before_differing_bytes(record: JobRecord) -> None:
    record.store.put(record.key("job.toml"), _touched(record))

    assert "another version of `bai`" in str(problem(record, dataclasses.replace(OURS, bai="").sealed()))
