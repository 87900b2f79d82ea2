"""Requests without capacity wait without delaying others, survive a kill, and end in each possible way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_brokers import Broker
from moto_aws import MotoAws
from service_events import cancel_event, fetcher_event
from service_runs import ServiceRuns, open_service_runs

REFUSED = "InsufficientInstanceCapacity"
PROCESSING = ("PENDING", "Processing benchmark submission request...")
CREATED = ("SUCCEEDED", "Benchmark successfully created...")
WAITING = ["waits-0", "waits-1"]


@pytest.fixture
def service(
    kafka: Broker, moto_aws: MotoAws, service_environment: dict[str, str], tmp_path: Path
) -> Iterator[ServiceRuns]:
    """A service that launches one job at a time."""
    one = 'look_interval = "1s"\nlaunches = 1'
    with open_service_runs(tmp_path, kafka, moto_aws, service_environment, service=one) as runs:
        yield runs


def test_requests_waiting_for_capacity_do_not_delay_others(service: ServiceRuns) -> None:
    # given no room for a type, and more requests for it than may be launched at once
    service.aws.fail(
        "RunInstances",
        service="ec2",
        match={"InstanceType": "t3.large"},
        code=REFUSED,
        message="We have no t3.large",
        times=None,
    )
    large = {"hardware.instance_type": "t3.large"}
    service.start()
    waiting = [
        fetcher_event({**large, "limits": {"wait_for_capacity": "2m"}}, action_id=each, client_id=each)
        for each in WAITING
    ]
    short = fetcher_event(
        {**large, "limits": {"wait_for_capacity": "2s"}}, action_id="short", client_id=WAITING[0]
    )
    service.publish("fetcher", *waiting, short)
    service.wait(
        lambda: all(len(service.statuses(each)) == 2 for each in WAITING), "that both are said to wait"
    )

    # when somebody asks for another type, one of them as the client of a request that waits
    for client in ("other", WAITING[1]):
        service.publish("fetcher", fetcher_event(action_id=f"small-{client}", client_id=client), key=client)
    service.wait_messages("executor", 2)

    # then these run meanwhile; a request whose time is up is an error, with what AWS has said
    assert {each["InstanceType"] for each in service.aws.instances()} == {"t3.small"}
    service.wait(lambda: "ERROR" in dict(service.statuses("short")), "the end of the short wait")
    assert service.statuses("short")[-1][1].startswith("No zone had room for t3.large within 2s")
    assert f"We have no t3.large ({REFUSED})" in service.statuses("short")[-1][1]
    for action_id in WAITING:
        (status, text) = service.statuses(action_id)[1]
        assert status == "PENDING"
        assert text.startswith("Waiting for capacity until ")
        assert f"We have no t3.large ({REFUSED})" in text
        assert all(zone in text for zone in service.aws.subnets)

    # when the service is killed and started again, one request is cancelled, and there is room at last
    service.kill()
    service.start()
    cancel = cancel_event([WAITING[0]], action_id="c-1", client_id=WAITING[0])
    service.publish("cmd_submit", cancel, key=WAITING[0])
    (answer,) = service.wait_messages("cmd_return", 1)
    assert (answer["payload"]["return_code"], answer["payload"]["message"]) == (
        0,
        "Cancel command processed successfully",
    )
    service.wait(lambda: "CANCELED" in dict(service.statuses(WAITING[0])), "the end of the cancelled one")
    service.aws.faults.clear()
    service.wait_messages("executor", 2 + len(WAITING) - 1)

    # then the others are launched, once each, and nothing was said twice
    tags = [{each["Key"]: each["Value"] for each in found["Tags"]} for found in service.aws.instances()]
    expected = [*WAITING[1:], "small-other", f"small-{WAITING[1]}"]
    assert sorted(each["bai:job-id"] for each in tags) == sorted(expected)
    for action_id in WAITING[1:]:
        said = service.answers(action_id)
        assert [said[0], said[2:3], len(said)] == [PROCESSING, [CREATED], 3]
    assert [status for status, _ in service.statuses(WAITING[0])] == [
        "PENDING",
        "PENDING",
        "SUCCEEDED",
        "CANCELED",
    ]
    assert service.statuses(WAITING[0])[-2:] == [
        ("SUCCEEDED", "Execution successfully cancelled..."),
        ("CANCELED", "Benchmark cancelled - watch ended"),
    ]
