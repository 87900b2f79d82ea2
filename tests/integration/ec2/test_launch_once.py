"""A launch happens once: zones without capacity, lost answers, refusals, repeats and concurrent launches."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from moto_aws import REGION, MotoAws

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.sink_tables import Store
from bai_agent.job.descriptor.strategy_tables import Server, StrategyTable
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from executor.backends.ec2.bucket_store import bucket_store
from executor.backends.ec2.launch.images import find_image, find_type
from executor.backends.ec2.launch.launch import launch
from executor.backends.ec2.launch.launch_decision import adopt
from executor.backends.ec2.launch.launch_record import (
    LAUNCH_WINDOW,
    LaunchFile,
    expires_at,
    read_decision,
    read_launch,
    write_launch,
)
from executor.backends.ec2.launch.launch_request import launch_request, server_request
from executor.backends.ec2.launch.resolve import Candidate, Resolved
from executor.backends.ec2.session import AwsSession
from executor.backends.ec2.tags import tag_time
from executor.configuration.config import read_settings
from executor.descriptor.ec2_table import Ec2
from executor.errors import LaunchError, UndecidedError
from executor.planning.job_toml import job_toml

pytestmark = pytest.mark.usefixtures("moto_environment")

NOW = datetime.now(timezone.utc)
DEADMAN = timedelta(hours=2)
NO_ROOM: dict[str, Any] = {
    "code": "InsufficientInstanceCapacity",
    "message": "We currently do not have sufficient capacity.",
}


class Sleeper:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def prepared(
    moto_aws: MotoAws, job_id: str = "job-1", *, nodes: int = 1, serves: bool = False
) -> tuple[JobRecord, LaunchFile]:
    """Write down a job and its launch, as a submission does. serves: whether its second node is a t3.medium with a server."""
    record = JobRecord(bucket_store(read_settings()), job_id)
    strategy = StrategyTable(name="single_node" if nodes == 1 else "torchrun", nodes=nodes)
    if serves:
        strategy = StrategyTable(name="inference", nodes=2)
    job = Job(
        job=Identity(id=job_id),
        benchmark=Benchmark(argv=("true",)),
        limits=Limits(max_runtime=timedelta(hours=1)),
        strategy=strategy,
        server=Server(ports=(80,), argv=("serve",)) if serves else None,
        store=Store(url=record.store.url),
    )
    record.store.put(record.key("job.toml"), job_toml(job).encode())
    resolved = Resolved(
        region=REGION,
        image=find_image("ssm:/aws/service/debian/release/12/latest/amd64", AwsSession(REGION)),
        kind=find_type("t3.small", AwsSession(REGION)),
        candidates=tuple(
            Candidate(subnet=subnet, zone=zone) for zone, subnet in sorted(moto_aws.subnets.items())
        ),
        security_groups=(),
        instance_profile=None,
        public_ip=None,
    )
    expires = expires_at(NOW, DEADMAN)
    request = launch_request(job, resolved, Ec2(), user_data=b"data", expires=expires)
    medium = find_type("t3.medium", AwsSession(REGION))
    file = LaunchFile(
        job_id=job_id,
        attempt=0,
        region=REGION,
        candidates=resolved.candidates,
        request=request,
        server=server_request(request, medium, user_data=b"server") if serves else None,
        expires=expires,
        created=tag_time(NOW),
    ).sealed()
    return record, write_launch(record, file)


def launched(record: JobRecord, file: LaunchFile, *, begun_before: bool = False) -> tuple[str, ...]:
    time = Sleeper()
    return launch(
        record,
        file,
        AwsSession(REGION),
        deadman=DEADMAN,
        begun_before=begun_before,
        sleep=time.sleep,
        clock=time,
        now=lambda: NOW,
    ).instances


def stored(record: JobRecord, name: str) -> Any:
    return json.loads(record.store.get(record.key(name)))


def test_all_nodes_are_launched_by_one_call_in_rank_order(
    moto_aws: MotoAws,
) -> None:
    record, file = prepared(moto_aws, nodes=3)

    instances = launched(record, file)

    assert len(moto_aws.calls("RunInstances")) == 1
    found = {each["InstanceId"]: each["AmiLaunchIndex"] for each in moto_aws.instances()}
    assert [found[each] for each in instances] == [0, 1, 2]
    decided = stored(record, "attempts/0/launched.json")
    assert decided["instances"] == list(instances)
    assert decided["subnet"] == moto_aws.subnets[decided["az"]]


def test_a_zone_with_capacity_is_used_after_two_without(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws)
    moto_aws.no_capacity(f"{REGION}a")
    moto_aws.no_capacity(f"{REGION}b")

    launched(record, file)

    assert [each["Placement"]["AvailabilityZone"] for each in moto_aws.instances()] == [f"{REGION}c"]
    assert len(moto_aws.calls("RunInstances")) == 3


def test_a_repeated_launch_does_not_return_to_an_earlier_zone(moto_aws: MotoAws) -> None:
    # given a launch that was accepted by the second zone, and a submitter that died before it could write that down
    record, file = prepared(moto_aws)
    moto_aws.no_capacity(f"{REGION}a", times=1)
    first = launched(record, file)
    moto_aws.client("s3", "setup").delete_object(
        Bucket=moto_aws.bucket, Key=f"jobs/{record.key('attempts/0/launched.json')}"
    )

    # when it is repeated, from what is in the store, and the first zone has room again
    again = read_launch(record)
    assert again is not None
    second = launched(record, again)

    # then it is the same instance
    assert second == first
    assert len(moto_aws.instances()) == 1


@pytest.mark.parametrize("then", ["drop", "refuse"])
def test_after_a_lost_answer_the_same_zone_is_asked_again(moto_aws: MotoAws, then: str) -> None:
    # given that EC2 accepts and the answer is lost, or that it says "internal error" twice
    record, file = prepared(moto_aws)
    moto_aws.fail("RunInstances", then=then, times=2)

    instances = launched(record, file)

    assert [each["InstanceId"] for each in moto_aws.instances()] == list(instances)
    assert {each.parameters["SubnetId"] for each in moto_aws.calls("RunInstances")} == {
        moto_aws.subnets[f"{REGION}a"]
    }


def test_a_repeat_after_a_launch_without_an_answer_launches_one_machine(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws)
    lost = moto_aws.fail("RunInstances", then="drop", times=None)

    with pytest.raises(UndecidedError, match="Submit the job again with --job-id job-1"):
        launched(record, file)

    assert lost.hits > 5
    assert record.result() is None
    moto_aws.faults.clear()
    assert launched(record, file) == tuple(each["InstanceId"] for each in moto_aws.instances())


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "InsufficientInstanceCapacity"])
def test_a_machine_launched_before_a_lost_answer_is_found_although_the_retry_is_refused(
    moto_aws: MotoAws, code: str
) -> None:
    # given that EC2 accepts, the answer is lost, and who asks again is refused
    record, file = prepared(moto_aws)
    moto_aws.fail("RunInstances", then="drop", times=1)
    moto_aws.fail("RunInstances", code=code, status=403, times=None)

    assert launched(record, file) == tuple(each["InstanceId"] for each in moto_aws.instances())

    assert len(moto_aws.instances()) == 1
    assert record.result() is None


def test_a_refused_repeat_fails_only_if_the_first_request_launched_nothing(moto_aws: MotoAws) -> None:
    # given a launch whose submitter died before it heard of it, and credentials that may not launch any more
    record, file = prepared(moto_aws)
    first = launched(record, file)
    moto_aws.client("s3", "setup").delete_object(
        Bucket=moto_aws.bucket, Key=f"jobs/{record.key('attempts/0/launched.json')}"
    )
    moto_aws.fail("RunInstances", code="UnauthorizedOperation", status=403, times=None)
    blind = moto_aws.fail("DescribeInstances", code="UnauthorizedOperation", status=403, times=None)

    # when it is repeated and cannot be looked for, then nothing is decided
    with pytest.raises(UndecidedError, match="may have accepted an earlier request"):
        launched(record, file, begun_before=True)
    assert blind.hits
    assert record.result() is None

    # and once it can be, it is found, even if it was cancelled meanwhile
    moto_aws.faults.clear()
    record.cancel(by="somebody")
    assert launched(record, file, begun_before=True) == first
    assert len(moto_aws.instances()) == 1


def test_a_launch_without_capacity_in_any_zone_writes_a_result_that_repeats_return(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws)
    for zone in moto_aws.subnets:
        moto_aws.no_capacity(zone)

    with pytest.raises(LaunchError, match="No zone had room") as caught:
        launched(record, file)

    assert caught.value.outcome is Outcome.CAPACITY
    result = record.result()
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("capacity", 5)
    moto_aws.faults.clear()
    with pytest.raises(LaunchError):
        launched(record, file)
    assert moto_aws.instances() == []


@pytest.mark.parametrize(
    ("code", "outcome"),
    [("VcpuLimitExceeded", Outcome.QUOTA), ("UnauthorizedOperation", Outcome.LAUNCH_FAILED)],
)
def test_an_error_that_applies_to_all_zones_ends_the_launch_at_once(
    moto_aws: MotoAws, code: str, outcome: Outcome
) -> None:
    record, file = prepared(moto_aws)
    moto_aws.fail("RunInstances", code=code, status=400)

    with pytest.raises(LaunchError) as caught:
        launched(record, file)

    assert caught.value.outcome is outcome
    assert len(moto_aws.calls("RunInstances")) == 1
    assert stored(record, "result.json")["outcome"] == outcome.value


def test_a_repeated_launch_writes_the_missing_result_of_a_refused_launch(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws)
    moto_aws.fail("RunInstances", code="VcpuLimitExceeded", status=400)
    with pytest.raises(LaunchError):
        launched(record, file)
    bucket = moto_aws.client("s3", "setup")
    bucket.delete_object(Bucket=moto_aws.bucket, Key=f"jobs/{record.key('result.json')}")
    bucket.put_object(
        Bucket=moto_aws.bucket,
        Key=f"jobs/{record.key('attempts/0/launched.json')}",
        Body=json.dumps({"instances": [], "outcome": "quota", "sentence": "No vCPUs."}),
    )

    with pytest.raises(LaunchError, match="No vCPUs"):
        launched(record, file)

    assert stored(record, "result.json")["outcome"] == "quota"


def test_after_throttling_the_request_is_repeated_later(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws)
    moto_aws.fail("RunInstances", code="RequestLimitExceeded", status=503, times=3)

    assert len(launched(record, file)) == 1
    assert len(moto_aws.instances()) == 1


@pytest.mark.parametrize("may_terminate", [True, False])
def test_concurrent_launches_in_two_zones_leave_the_machine_of_only_one(
    moto_aws: MotoAws, may_terminate: bool
) -> None:
    # given somebody who went on to the second zone and has it written down while we still ask the first
    record, file = prepared(moto_aws)
    first_zone, second_zone = file.candidates[0], file.candidates[1]
    theirs = dataclasses.replace(file, candidates=(second_zone,))
    ours = dataclasses.replace(file, candidates=(first_zone,))
    kept = launched(record, theirs)
    record_before = stored(record, "attempts/0/launched.json")
    bucket = moto_aws.client("s3", "setup")
    key = f"jobs/{record.key('attempts/0/launched.json')}"
    bucket.delete_object(Bucket=moto_aws.bucket, Key=key)

    # when ours is accepted as well, after theirs was written down
    def write_theirs(*_: object) -> None:
        bucket.put_object(Bucket=moto_aws.bucket, Key=key, Body=json.dumps(record_before))

    moto_aws.fail("RunInstances", code="RequestLimitExceeded", status=503, times=1)
    if not may_terminate:
        moto_aws.fail("TerminateInstances", code="UnauthorizedOperation", status=403)
    result = launch(
        record,
        ours,
        AwsSession(REGION),
        deadman=DEADMAN,
        sleep=write_theirs,
        clock=Sleeper(),
        now=lambda: NOW,
    )

    # then theirs holds, and ours are ended where that may be
    assert result.instances == kept
    there = {each["InstanceId"] for each in moto_aws.instances()}
    assert there == set(kept) if may_terminate else there > set(kept)


def test_a_job_that_was_cancelled_before_is_not_launched(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws)
    record.cancel(by="test")

    with pytest.raises(LaunchError) as caught:
        launched(record, file)

    assert caught.value.outcome is Outcome.CANCELLED
    assert moto_aws.calls("RunInstances") == []
    assert stored(record, "result.json")["exit_code"] == 4


@pytest.mark.parametrize("late", [timedelta(seconds=2), DEADMAN, timedelta(days=3)])
def test_a_machine_that_would_be_reaped_too_early_is_not_launched(moto_aws: MotoAws, late: timedelta) -> None:
    record, file = prepared(moto_aws)

    with pytest.raises(LaunchError, match="with a new job id") as caught:
        launch(record, file, AwsSession(REGION), deadman=DEADMAN, now=lambda: NOW + LAUNCH_WINDOW + late)

    assert caught.value.outcome is Outcome.LAUNCH_FAILED
    assert moto_aws.calls("RunInstances") == []


def test_a_machine_launched_at_the_end_of_the_window_has_its_full_time_before_expiry(
    moto_aws: MotoAws,
) -> None:
    record, file = prepared(moto_aws)
    last = NOW + LAUNCH_WINDOW - timedelta(seconds=2)

    launch(record, file, AwsSession(REGION), deadman=DEADMAN, now=lambda: last)

    [instance] = moto_aws.instances()
    tags = {each["Key"]: each["Value"] for each in instance["Tags"]}
    assert tags["bai:expires"] >= tag_time(last + DEADMAN)


def test_no_further_zone_is_tried_after_the_launch_window(moto_aws: MotoAws) -> None:
    # given a first zone that takes so long to refuse that the window closes
    record, file = prepared(moto_aws)
    moto_aws.no_capacity(f"{REGION}a")
    times = iter([NOW, NOW + LAUNCH_WINDOW + timedelta(seconds=2)])

    with pytest.raises(LaunchError, match="with a new job id"):
        launch(record, file, AwsSession(REGION), deadman=DEADMAN, now=lambda: next(times))

    assert len(moto_aws.calls("RunInstances")) == 1


def test_a_repeat_after_the_launch_window_adopts_machines_of_the_unrecorded_launch(moto_aws: MotoAws) -> None:
    # given machines that EC2 has launched, and a submitter that died before it could write that down
    record, file = prepared(moto_aws, nodes=2)
    first = launched(record, file)
    key = f"jobs/{record.key('attempts/0/launched.json')}"
    moto_aws.client("s3", "setup").delete_object(Bucket=moto_aws.bucket, Key=key)

    # when it is repeated after the time in which it may be launched
    late = NOW + LAUNCH_WINDOW + timedelta(hours=1)
    second = launch(record, file, AwsSession(REGION), deadman=DEADMAN, now=lambda: late)

    # then they are the job's, and no result says otherwise
    assert second.instances == first
    assert stored(record, "attempts/0/launched.json")["instances"] == list(first)
    assert record.result() is None
    assert len(moto_aws.calls("RunInstances")) == 1


def test_an_unknown_new_instance_profile_is_retried(moto_aws: MotoAws) -> None:
    words = "Value (bai-instance) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
    fault = moto_aws.fail("RunInstances", code="InvalidParameterValue", status=400, message=words, times=3)
    record, file = prepared(moto_aws)

    [instance] = launched(record, file)

    assert fault.hits == 3
    assert [each["InstanceId"] for each in moto_aws.instances()] == [instance]


def test_an_instance_profile_that_never_appears_is_refused_after_two_minutes(moto_aws: MotoAws) -> None:
    words = "Value (bai-instance) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
    fault = moto_aws.fail("RunInstances", code="InvalidParameterValue", status=400, message=words, times=None)
    record, file = prepared(moto_aws)

    with pytest.raises(LaunchError, match="Invalid IAM Instance Profile name"):
        launched(record, file)

    assert 4 < fault.hits < 20
    assert stored(record, "result.json")["outcome"] == "launch_failed"


def test_a_launch_that_cannot_be_recorded_warns_of_a_running_machine(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws)
    moto_aws.fail("PutObject", code="AccessDenied", status=403, message="no", times=None)

    with pytest.raises(UndecidedError) as caught:
        launched(record, file)

    [instance] = moto_aws.instances()
    said = str(caught.value)
    assert said.startswith(f"{instance['InstanceId']} was launched")
    assert "A machine may be running, and cost money: " in said
    assert "cancel job-1 --now` ends the job" in said


def on_which(moto_aws: MotoAws) -> list[tuple[str, str]]:
    """Return type and zone of each machine that has not ended."""
    return [(each["InstanceType"], each["Placement"]["AvailabilityZone"]) for each in moto_aws.instances()]


def test_a_server_is_launched_in_the_subnet_of_its_client(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws, serves=True)

    instances = launched(record, file)

    found = {each["InstanceId"]: each for each in moto_aws.instances()}
    client, server = (found[each] for each in instances)
    assert (client["InstanceType"], server["InstanceType"]) == ("t3.small", "t3.medium")
    assert client["SubnetId"] == server["SubnetId"] == moto_aws.subnets[f"{REGION}a"]
    tags = [{tag["Key"]: tag["Value"] for tag in each["Tags"]} for each in (client, server)]
    assert [each.get("bai:first-node") for each in tags] == [None, "1"]
    assert stored(record, "attempts/0/launched.json")["instances"] == list(instances)
    # and once, also if a repeat finds neither answer
    moto_aws.client("s3", "setup").delete_object(
        Bucket=moto_aws.bucket, Key=f"jobs/{record.key('attempts/0/launched.json')}"
    )
    again = read_launch(record)
    assert again is not None
    assert launched(record, again, begun_before=True) == instances
    assert len(moto_aws.instances()) == 2


def test_server_and_client_move_to_the_next_zone_if_either_has_no_capacity(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws, serves=True)
    moto_aws.fail(
        "RunInstances", **NO_ROOM, zone=f"{REGION}a", match={"InstanceType": "t3.medium"}, times=None
    )
    moto_aws.fail(
        "RunInstances", **NO_ROOM, zone=f"{REGION}b", match={"InstanceType": "t3.small"}, times=None
    )

    launched(record, file)

    assert on_which(moto_aws) == [("t3.small", f"{REGION}c"), ("t3.medium", f"{REGION}c")]


def test_a_client_is_terminated_if_there_is_no_capacity_for_its_server(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws, serves=True)
    moto_aws.fail("RunInstances", **NO_ROOM, match={"InstanceType": "t3.medium"}, times=None)

    with pytest.raises(LaunchError, match=r"No zone had room .* \(for the server, t3.medium\)") as refused:
        launched(record, file)

    assert refused.value.outcome is Outcome.CAPACITY
    assert on_which(moto_aws) == []


def test_a_repeat_launches_the_server_whose_request_got_no_answer(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws, serves=True)
    moto_aws.fail("RunInstances", match={"InstanceType": "t3.medium"}, times=None)
    with pytest.raises(UndecidedError, match="A machine may be running"):
        launched(record, file)
    moto_aws.faults.clear()

    launched(record, file, begun_before=True)

    assert on_which(moto_aws) == [("t3.small", f"{REGION}a"), ("t3.medium", f"{REGION}a")]


def test_a_server_launched_before_a_lost_answer_is_terminated_if_the_retry_is_refused(
    moto_aws: MotoAws,
) -> None:
    record, file = prepared(moto_aws, serves=True)
    moto_aws.fail("RunInstances", then="drop", match={"InstanceType": "t3.medium"}, times=1)
    moto_aws.fail(
        "RunInstances",
        code="UnauthorizedOperation",
        status=403,
        match={"InstanceType": "t3.medium"},
        times=None,
    )

    # The refusal ends the client, and the server that EC2 had accepted before: one without the other is no job.
    with pytest.raises(LaunchError):
        launched(record, file)

    assert on_which(moto_aws) == []


def test_a_server_of_an_earlier_attempt_is_ended_if_a_repeat_is_refused(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws, serves=True)
    launched(record, file)
    moto_aws.client("s3", "setup").delete_object(
        Bucket=moto_aws.bucket, Key=f"jobs/{record.key('attempts/0/launched.json')}"
    )
    # The earlier attempt was killed before it knew EC2's answer; the rights were taken away since.
    refusal = {"code": "UnauthorizedOperation", "status": 403}
    moto_aws.fail("RunInstances", **refusal, match={"InstanceType": "t3.medium"}, times=None)

    with pytest.raises(LaunchError):
        launched(record, file, begun_before=True)

    assert on_which(moto_aws) == []


def test_a_repeat_goes_on_in_the_next_zone_if_the_client_was_ended_for_its_server(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws, serves=True)
    # The earlier attempt was killed after it had ended the client, and before it recorded the server's refusal.
    moto_aws.fail(
        "RunInstances",
        code="IdempotentInstanceTerminated",
        zone=f"{REGION}a",
        match={"InstanceType": "t3.small"},
        times=None,
    )

    launched(record, file, begun_before=True)

    assert on_which(moto_aws) == [("t3.small", f"{REGION}b"), ("t3.medium", f"{REGION}b")]


def test_a_client_without_its_server_is_not_adopted_as_a_complete_launch(moto_aws: MotoAws) -> None:
    record, file = prepared(moto_aws, serves=True)
    moto_aws.fail("RunInstances", match={"InstanceType": "t3.medium"}, times=None)
    with pytest.raises(UndecidedError):
        launched(record, file)

    # As a submission does that finds a launch which it did not begin itself.
    assert adopt(record, AwsSession(REGION)) is None

    assert read_decision(record, attempt=0) is None
    assert on_which(moto_aws) == []
