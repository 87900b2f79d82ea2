"""Replacements that the service launches for lost machines while no other command checks the job."""

from __future__ import annotations

import json
from typing import Any

from moto_aws import MotoAws
from sandbox.fake_aws.iam.identities import SETUP
from service_events import fetcher_event
from service_runs import STARTING, ServiceRuns


def machine(aws: MotoAws) -> dict[str, Any]:
    """Return the one machine that is on, with its tags."""
    [found] = aws.instances()
    return {"id": found["InstanceId"], **{each["Key"]: each["Value"] for each in found["Tags"]}}


def test_the_service_replaces_the_lost_machine_of_a_job_once(service: ServiceRuns, moto_aws: MotoAws) -> None:
    service.start()
    service.publish("fetcher", fetcher_event({"elastic": {"replacements": 1}}, action_id="job-1"))
    service.wait(lambda: STARTING in service.statuses("job-1"), "the launch")
    first = machine(moto_aws)

    moto_aws.client("ec2", SETUP).terminate_instances(InstanceIds=[first["id"]])
    service.wait(lambda: service.keys("jobs/job-1/attempts/0/launches/1/launched.json"), "another machine")
    second = machine(moto_aws)
    moto_aws.client("ec2", SETUP).terminate_instances(InstanceIds=[second["id"]])
    service.wait(lambda: service.keys("jobs/job-1/result.json"), "the end, because all replacements are used")

    assert (second["bai:launch"], second["bai:first-node"]) == ("1", "1")
    assert {key: first[key] for key in ("bai:job-id", "bai:expires", "bai:client-id")} == {
        key: second[key] for key in ("bai:job-id", "bai:expires", "bai:client-id")
    }
    assert len(moto_aws.calls("RunInstances")) == 2
    body = moto_aws.client("s3", SETUP).get_object(Bucket=moto_aws.bucket, Key="jobs/job-1/result.json")[
        "Body"
    ]
    assert json.loads(body.read())["on_behalf"] is True
