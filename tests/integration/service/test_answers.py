"""Requests of the benchmark service are launched once, and answered on its topics."""

from __future__ import annotations

import base64
import difflib
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from moto_aws import REGION
from sandbox.fake_aws.iam.identities import SETUP
from service_events import ACTION, CLIENT, DATASET, fetcher_event
from service_runs import ServiceRuns

PENDING = ("PENDING", "Processing benchmark submission request...")
CREATED = ("SUCCEEDED", "Benchmark successfully created...")


def read_tags(instance: dict[str, Any]) -> dict[str, str]:
    return {each["Key"]: each["Value"] for each in instance["Tags"]}


def user_data(service: ServiceRuns, instance_id: str) -> str:
    answer = service.aws.client("ec2", SETUP).describe_instance_attribute(
        InstanceId=instance_id, Attribute="userData"
    )
    return gzip.decompress(base64.b64decode(answer["UserData"]["Value"])).decode()


def test_the_sample_event_launches_an_instance_and_sends_three_messages(service: ServiceRuns) -> None:
    # given an event that was published before the service was there
    service.broker.create_topic(service.topics["fetcher"])
    event = fetcher_event(parent="cron-1", payload={"datasets": [DATASET]})
    service.publish("fetcher", event)

    # when it starts
    service.start("--json-log")
    (launched,) = service.wait_messages("executor", 1)

    # then the instance is there, with who asked for it in its tags
    (instance,) = service.aws.instances()
    tags = read_tags(instance)
    assert tags["bai:job-id"] == ACTION
    assert tags["bai:action-id"] == ACTION
    assert tags["bai:parent-action-id"] == "cron-1"
    assert tags["bai:client-id"] == CLIENT
    assert (tags["bai:username"], tags["bai:created-by"]) == ("bellgav", "ec2-executor")
    # and the statuses have come, in their order, with all of the envelope
    pending, created, _ = service.wait_messages("status", 3)
    ours = {
        "svc": "ec2-executor",
        "version": launched["visited"][-1]["version"],
        "node": launched["visited"][-1]["node"],
    }
    for message in (pending, created):
        assert {key: message[key] for key in ("action_id", "parent_action_id", "client_id")} == {
            "action_id": ACTION,
            "parent_action_id": "cron-1",
            "client_id": CLIENT,
        }
        assert message["type"] == service.topics["status"]
        assert [{**each, "tstamp": 0} for each in message["visited"]] == [{**ours, "tstamp": 0}]
    assert (pending["payload"]["status"], pending["payload"]["message"]) == PENDING
    assert pending["payload"]["src_event"] == event
    assert (created["payload"]["status"], created["payload"]["message"]) == CREATED
    assert created["payload"]["src_event"] == launched
    # and the executor's event is the fetcher's with the job
    assert launched["visited"][:-1] == event["visited"]
    assert launched["payload"] == {
        **event["payload"],
        "job": {
            "id": ACTION,
            "output": None,
            "extras": {
                "instance_ids": [instance["InstanceId"]],
                "region": REGION,
                "availability_zone": instance["Placement"]["AvailabilityZone"],
                "image": "ami-0deb1200000000001",
                "store": f"s3://{service.aws.bucket}/jobs/{ACTION}",
            },
        },
    }
    assert len({each["message_id"] for each in (pending, created, launched)}) == 3
    # and it ends when it is told to, within seconds
    assert service.stop() == 0
    lines = [json.loads(line) for line in service.log.read_text().splitlines() if line.startswith("{")]
    assert ACTION in {each["action_id"] for each in lines}


def test_quirks_in_events_of_the_benchmark_service_are_accepted(service: ServiceRuns) -> None:
    service.start()
    quirks: dict[str, Any] = {"visited": [], "tstamp": 42, "client_version": "DONTCARE"}
    service.publish(
        "fetcher",
        fetcher_event(action_id="ACTION-ID-12345678", **quirks),
        fetcher_event(action_id="an id! with spaces", **quirks),
    )

    launched = service.wait_messages("executor", 2)

    ids = {each["action_id"]: each["payload"]["job"]["id"] for each in launched}
    assert ids["ACTION-ID-12345678"] == "ACTION-ID-12345678"
    assert ids["an id! with spaces"].startswith("an-id-with-spaces-")


def test_foreign_events_are_ignored_and_unreadable_ones_go_to_dead_letters(service: ServiceRuns) -> None:
    broken = {"Bucket": service.aws.bucket, "Key": "open/broken/event.json", "Body": b"{}"}
    service.aws.client("s3", "setup").put_object(**broken)
    service.start()
    service.publish(
        "fetcher",
        fetcher_event({"info.execution_engine": "aws.sagemaker"}, action_id="other-1"),
        fetcher_event({"info.scheduling": "*/5 * * * *"}, action_id="cron-1"),
        b'{"action_id": "cut',
        None,
        fetcher_event(action_id="broken"),
        fetcher_event({"ml.benchmark_code": "echo 'x"}, action_id="mistake-1"),
        fetcher_event(action_id="good-1"),
    )

    service.wait_messages("executor", 1)

    assert service.statuses("other-1") == service.statuses("cron-1") == []
    assert service.answers("good-1") == [PENDING, CREATED]
    pending, error = service.statuses("mistake-1")
    assert pending == PENDING
    assert error[0] == "ERROR"
    assert "a quote is never closed" in error[1]
    # Their topic has several partitions, so that they come in any order.
    letters = {each["reason"].partition(":")[0] for each in service.messages("letters")}
    assert letters == {"the message is not JSON", "the message is empty", "s3"}
    metrics = service.get("/metrics")[1]
    assert 'bai_serve_events_total{kind="job",taken="unreadable"} 3.0' in metrics
    assert 'bai_serve_events_total{kind="job",taken="ignored"} 2.0' in metrics
    assert service.get("/healthz") == (200, "ok\n")


def test_a_repeated_event_is_answered_once(service: ServiceRuns) -> None:
    service.start()
    again = fetcher_event(message_id="another")
    service.publish("fetcher", fetcher_event(), again)
    service.wait_messages("executor", 1)
    service.publish("fetcher", again, fetcher_event(action_id="behind-it"))

    service.wait_messages("executor", 2)

    assert service.answers(ACTION) == [PENDING, CREATED]
    assert len(service.aws.instances()) == 2


def test_an_id_of_another_client_is_an_error(service: ServiceRuns) -> None:
    service.start()
    service.publish("fetcher", fetcher_event(), fetcher_event(client_id="mallory"))

    service.wait_messages("executor", 1)
    found = service.wait_messages("status", 5)

    of = {
        client: [each["payload"]["status"] for each in found if each["client_id"] == client]
        for client in (CLIENT, "mallory")
    }
    assert of == {CLIENT: ["PENDING", "SUCCEEDED", "PENDING"], "mallory": ["PENDING", "ERROR"]}
    assert len(service.aws.instances()) == 1


def test_a_zone_without_capacity_is_an_error_with_awss_reason(service: ServiceRuns) -> None:
    for zone in service.aws.subnets:
        service.aws.no_capacity(zone)
    service.start()
    service.publish("fetcher", fetcher_event())

    service.wait_messages("status", 2)

    error = service.statuses()[-1]
    assert error[0] == "ERROR"
    assert "InsufficientInstanceCapacity" in error[1]
    assert service.messages("executor") == []
    service.wait(lambda: service.keys("open/") == [], "that the request is closed")


def test_a_request_that_was_cancelled_before_its_launch_is_not_launched(service: ServiceRuns) -> None:
    content = b'{"time": 1, "by": "somebody"}'
    service.aws.client("s3", "setup").put_object(
        Bucket=service.aws.bucket, Key="jobs/early/cancel.json", Body=content
    )
    service.start()
    service.publish("fetcher", fetcher_event(action_id="early"))

    service.wait_messages("status", 2)

    assert service.statuses("early") == [PENDING, ("CANCELED", "Benchmark cancelled - watch ended")]
    assert service.aws.calls("RunInstances") == []
    assert service.messages("executor") == []


@pytest.mark.parametrize("strategy", ["torchrun", "horovod"])
def test_a_two_node_job_of_an_event_is_launched_as_by_bai_submit(
    service: ServiceRuns, strategy: str, tmp_path: Path
) -> None:
    changes = {"hardware.strategy": strategy, "hardware.distributed": {"num_instances": 2}}
    event = fetcher_event(changes, action_id="by-event")
    service.start()
    service.publish("fetcher", event, fetcher_event({"hardware.strategy": "inference"}, action_id="i"))

    (launched,) = service.wait_messages("executor", 1)

    instances = {each["InstanceId"] for each in service.aws.instances()}
    assert len(instances) == 2
    assert set(launched["payload"]["job"]["extras"]["instance_ids"]) == instances
    service.wait(lambda: len(service.statuses("i")) == 2, "the answer to the other")
    status, text = service.statuses("i")[-1]
    assert status == "ERROR"
    assert "inference" in text or "server" in text
    # and each boots what `bai submit` would have it boot, but for whose job it is
    file = tmp_path / "d.toml"
    file.write_text(tomli_w.dumps(event["payload"]["toml"]["contents"]))
    names = {"BAI_KAFKA_BROKERS": service.broker.address, "BAI_CLIENT_ID": CLIENT}
    done = service.cli.bai("submit", file, "--job-id", "by-hand", env=names)
    assert done.code == 0, done.stderr
    ours = {user_data(service, each) for each in instances}
    theirs = {user_data(service, each["InstanceId"]) for each in service.aws.instances()} - ours
    (one,), (other,) = ours, theirs
    compared = difflib.ndiff(one.splitlines(), other.splitlines())
    assert [f"{line[0]} {line[1:].strip()}" for line in compared if line[0] in "-+"] == [
        "- job_id=by-event",
        "+ job_id=by-hand",
        '- id = "by-event"',
        '+ id = "by-hand"',
        '- action_id = "by-event"',
        '- username = "bellgav"',
        '- created_by = "ec2-executor"',
    ]


def test_an_impossible_configuration_is_reported_at_once(service: ServiceRuns) -> None:
    missing = service.cli.bai("serve", env={"BAI_BUCKET": ""})
    kafka = service.cli.bai("serve", env={"KAFKA_BOOTSTRAP_SERVERS": ""})
    address = service.cli.bai("serve", "--http", "nowhere")

    assert (missing.code, kafka.code, address.code) == (2, 2, 2)
    assert "no bucket is configured" in missing.stderr
    assert "KAFKA_BOOTSTRAP_SERVERS" in kafka.stderr
    assert "--http" in address.stderr
