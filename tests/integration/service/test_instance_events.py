"""What EC2 says about instances reaches the service through EventBridge and a queue, where there is one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from instance_events import interruption, scheduled, state_change
from kafka_brokers import Broker
from moto_aws import REGION, MotoAws
from sandbox.fake_aws.iam.identities import SETUP
from service_events import fetcher_event
from service_runs import QUEUE, STARTING, ServiceRuns, allow_serving, open_service_runs

DOCS = Path(__file__).parents[3] / "docs" / "eventbridge"
DOCKERFILE = (DOCS.parents[1] / "Dockerfile").read_text()
RULE = "bai-instances"


def documented(name: str, names: Mapping[str, str]) -> str:
    text = (DOCS / f"{name}.json").read_text()
    for word, value in names.items():
        text = re.sub(rf"\b{word}\b", value, text)
    return text


@dataclass(frozen=True)
class Queue:
    """A queue and the rule that fills it, as docs/service.md sets them up."""

    aws: MotoAws
    url: str

    def happens(self, event: dict[str, Any]) -> None:
        """Let EventBridge hear an event."""
        entry = {
            "Source": event["source"],
            "DetailType": event["detail-type"],
            "Detail": json.dumps(event["detail"]),
        }
        assert self.aws.client("events", SETUP).put_events(Entries=[entry])["FailedEntryCount"] == 0

    def write(self, *bodies: str) -> None:
        for each in bodies:
            self.aws.client("sqs", SETUP).send_message(QueueUrl=self.url, MessageBody=each)

    def left(self) -> int:
        """Return how many messages are in it, those too that are being read."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.aws.client("sqs", SETUP).get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(each) for each in found["Attributes"].values())


@pytest.fixture
def queue(moto_aws: MotoAws) -> Queue:
    sqs, events = moto_aws.client("sqs", SETUP), moto_aws.client("events", SETUP)
    names = {"REGION": REGION, "ACCOUNT": moto_aws.account, "QUEUE": QUEUE, "RULE": RULE}
    arn = events.put_rule(Name=RULE, EventPattern=documented("pattern", names))["RuleArn"]
    policy = documented("queue", names)
    assert arn in policy
    url = sqs.create_queue(QueueName=QUEUE, Attributes={"Policy": policy})["QueueUrl"]
    target = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    assert target in policy
    events.put_targets(Rule=RULE, Targets=[{"Id": "queue", "Arn": target}])
    allow_serving(moto_aws, "events")
    return Queue(moto_aws, url)


@pytest.fixture
def service(
    kafka: Broker, moto_aws: MotoAws, service_environment: dict[str, str], queue: Queue, tmp_path: Path
) -> Iterator[ServiceRuns]:
    # Nothing but an event makes it look soon.
    lines = f'look_interval = "30s"\nevents_queue = "{queue.url}"'
    with open_service_runs(tmp_path, kafka, moto_aws, service_environment, service=lines) as runs:
        yield runs


def test_a_termination_event_of_ec2_ends_a_job_and_malformed_events_are_ignored(
    service: ServiceRuns, queue: Queue
) -> None:
    # As in its image, but for the address.
    name, option, _, *more = json.loads(re.findall(r"^CMD (\[\"serve.*)$", DOCKERFILE, re.MULTILINE)[0])
    assert (name, option) == ("serve", "--http")
    service.start(*more)
    service.publish("fetcher", fetcher_event(action_id="job-1"))
    service.wait(lambda: STARTING in service.statuses("job-1"), "the launch")
    (machine,) = service.aws.instances()
    mine = machine["InstanceId"]

    queue.write("no event", json.dumps({**state_change(mine), "detail": {}}), "x" * 200_000)
    queue.write(json.dumps(scheduled()), json.dumps(interruption("i-0123456789abcdef0")))
    service.aws.client("ec2", SETUP).terminate_instances(InstanceIds=[mine])
    queue.happens(scheduled())
    queue.happens(state_change(mine))

    service.wait(lambda: not service.keys("open/"), "the job's end")
    (*before, (status, text)) = service.statuses("job-1")
    assert before[-1] == STARTING
    assert (status, text.split(" terminated ")[0]) == ("FAILED", "Benchmark failed: Somebody")
    service.wait(lambda: queue.left() == 0, "that all messages are deleted")
    said = service.log.read_text()
    assert said.index("job-1 is checked now after an event of EC2") < said.index("said: Benchmark failed")
    figures = service.get("/metrics")[1]
    for kind, count in {"unreadable": 3, "foreign": 1, "interruption": 1, "state-change": 1}.items():
        assert f'bai_serve_instance_events_total{{kind="{kind}"}} {count}.0' in figures

    # From now on the queue may not be read.
    allow_serving(service.aws)
    queue.write("the last one that is received")
    service.wait(lambda: "the queue of EC2's events: receiving from" in service.log.read_text(), "a warning")
    service.publish("fetcher", fetcher_event(action_id="job-2"))
    service.wait(lambda: STARTING in service.statuses("job-2"), "a launch without a queue")
    assert service.stop() == 0
    assert {each.action for each in service.aws.policies.take_refused()} <= {
        "sqs:ReceiveMessage",
        "sqs:DeleteMessage",
    }
