"""A bucket that an earlier version's service left when it was killed, in `tests/recorded/jobs`."""

from __future__ import annotations

import json
from datetime import timedelta

from recorded_jobs import bring_bucket
from sandbox.fake_aws.iam.identities import SETUP
from service_runs import STARTING, ServiceRuns

PENDING = ("PENDING", "Processing benchmark submission request...")
CREATED = ("SUCCEEDED", "Benchmark successfully created...")
GONE = (
    "FAILED",
    "Benchmark failed: The job's machines are gone without a result, for so long that EC2 knows nothing of them any more.",
)


def test_a_newer_service_sends_messages_left_unsent_by_an_older_version(service: ServiceRuns) -> None:
    # Given its bucket two days later, when the machines of launched jobs are gone
    mark = service.topics["status"].rpartition("-")[2]
    bring_bucket(service.aws, mark=f"-{mark}", age=timedelta(days=2))
    s3 = service.aws.client("s3", SETUP)
    key = "service/answered/outbox/01-answer.json"
    written = json.loads(s3.get_object(Bucket=service.aws.bucket, Key=key)["Body"].read())

    service.start()
    service.wait(lambda: {*service.keys("open/")} <= {"open/accepted/event.json"}, "the end of lost jobs")
    service.wait(lambda: STARTING in service.statuses("accepted"), "the launch")

    # The request that was accepted is launched, and nothing is said again of those before it.
    assert service.statuses("accepted") == [PENDING, CREATED, STARTING]
    (instance,) = service.aws.instances()
    assert {"Key": "bai:job-id", "Value": "accepted"} in instance["Tags"]
    assert service.statuses("answered") == [CREATED, STARTING, GONE]
    assert service.statuses("serving") == [GONE]
    assert service.statuses("served") == []
    # The answer that was written before the kill is sent as it stands.
    sent = [each for each in service.messages("status") if each["action_id"] == "answered"]
    assert sent[0]["message_id"] in json.dumps(written)
    launched = {each["action_id"] for each in service.messages("executor")}
    assert launched == {"answered", "accepted"}
