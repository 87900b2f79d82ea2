"""A Lambda function checks launched jobs if no service runs, called with AWS's sample events."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from instance_events import interruption, scheduled, state_change
from moto_aws import REGION
from sandbox.fake_aws.iam.identities import SETUP
from service_events import fetcher_event
from service_runs import DASHBOARD, STARTING, ServiceRuns

from executor.service.lambda_handler import _function, handler

pytestmark = pytest.mark.usefixtures("log_as_before")

JOBS = ("changed", "interrupted", "ended", "waiting")


@dataclass(frozen=True)
class Remaining:
    """The context of an invocation."""

    seconds: float = 60.0

    def get_remaining_time_in_millis(self) -> int:
        return round(self.seconds * 1000)


def message(body: str) -> dict[str, Any]:
    """https://docs.aws.amazon.com/lambda/latest/dg/with-sqs.html"""
    return {
        "messageId": str(uuid.uuid4()),
        "receiptHandle": "AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a...",
        "body": body,
        "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1795182614516"},
        "messageAttributes": {},
        "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:123456789012:bai-events",
        "awsRegion": REGION,
    }


@pytest.fixture
def launched(service: ServiceRuns, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Jobs of a service that has ended, and their machines; whatever is called now has its environment."""
    service.start()
    service.publish("fetcher", *(fetcher_event(action_id=each, client_id=each) for each in JOBS))
    for each in JOBS:
        service.wait(lambda each=each: STARTING in service.statuses(each), f"the launch of {each}")  # type: ignore[misc]
    assert service.stop() == 0
    for name, value in service.cli.environment.items():
        monkeypatch.setenv(name, value)
    _function.cache_clear()
    tagged = {
        tag["Value"]: each["InstanceId"]
        for each in service.aws.instances()
        for tag in each["Tags"]
        if tag["Key"] == "bai:job-id"
    }
    return {each: tagged[each] for each in JOBS}


def test_events_and_a_schedule_end_jobs_without_a_service(
    service: ServiceRuns, launched: dict[str, str]
) -> None:
    ec2, s3 = service.aws.client("ec2", SETUP), service.aws.client("s3", SETUP)
    ec2.terminate_instances(InstanceIds=[launched["changed"], launched["interrupted"]])
    overdue = ec2.run_instances(
        ImageId="ami-0deb1200000000001",
        InstanceType="t3.small",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [
                    {"Key": "bai:job-id", "Value": "old"},
                    {"Key": "bai:expires", "Value": "2026-01-01T00:00:00Z"},
                ],
            }
        ],
    )["Instances"][0]["InstanceId"]

    assert handler(state_change(launched["changed"]), Remaining()) == {"looked_at": 1, "left": 0}
    junk = [message(each) for each in ("no event", json.dumps(scheduled()), "{}")]
    batch = {"Records": [*junk, message(json.dumps(interruption(launched["interrupted"])))]}
    late = handler(batch, Remaining(5))
    assert late == {"batchItemFailures": [{"itemIdentifier": batch["Records"][-1]["messageId"]}]}
    assert handler(batch, Remaining()) == {"batchItemFailures": []}
    assert handler({"what": "is this"}, Remaining()) == {"looked_at": 0, "left": 0}

    for each in ("changed", "interrupted"):
        *_, (status, text) = service.statuses(each)
        assert (status, text.partition(launched[each])[0]) == (
            "FAILED",
            "Benchmark failed: Somebody terminated ",
        )
    assert sorted(service.keys("open/")) == ["open/ended/event.json", "open/waiting/event.json"]

    result = {"outcome": "SUCCEEDED", "status": "SUCCEEDED", "exit_code": 0, "sentence": "x", "version": 1}
    event = {"type": "phase", "time": 1, "phase": "run", "state": "started"}
    for name, table in (("attempts/0/nodes/0/events.jsonl", event), ("result.json", result)):
        key = f"jobs/ended/{name}"
        s3.put_object(Bucket=service.aws.bucket, Key=key, Body=json.dumps(table).encode() + b"\n")
    assert handler(scheduled(), Remaining(1)) == {"looked_at": 0, "left": 2}
    assert service.statuses("ended")[-1] == STARTING
    with ThreadPoolExecutor(2) as pool:
        for answer in pool.map(lambda _: handler(scheduled(), Remaining()), range(2)):
            assert answer["left"] == 0

    metrics = (
        "METRICS AVAILABLE",
        f"Metrics available for job ended at {DASHBOARD.replace('{action_id}', 'ended')}",
    )
    finished = ("SUCCEEDED", "Benchmark finished successfully")
    assert service.statuses("ended")[-4:] == [
        ("RUNNING", "Benchmark running"),
        metrics,
        finished,
        metrics,
    ]
    assert service.keys("open/") == ["open/waiting/event.json"]
    assert service.statuses("waiting")[-1] == STARTING
    assert [each["InstanceId"] for each in service.aws.instances() if each["InstanceId"] == overdue] == []
    said = service.statuses()
    for again in (state_change(launched["changed"]), batch, scheduled()):
        handler(again, Remaining())
    assert service.statuses() == said
